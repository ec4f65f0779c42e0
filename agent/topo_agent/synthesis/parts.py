"""Well-known parts by short names. Ids: pci.ids, drivers of Linux, and lspci of machines that have them.

Links are what the part itself can do; a slot may offer less.
"""

from __future__ import annotations

from typing import NamedTuple

Ids = tuple[int, int]
Link = tuple[float, int]  # GT/s, lanes

GEN3, GEN4, GEN5, GEN6 = (8.0, 16), (16.0, 16), (32.0, 16), (64.0, 16)
DISPLAY, DISPLAY_3D, DISPLAY_OTHER, ACCELERATOR = 0x030000, 0x030200, 0x038000, 0x120000
ETHERNET, INFINIBAND, NVME, BRIDGE, OTHER_BRIDGE = 0x020000, 0x020700, 0x010802, 0x060400, 0x068000


class Part(NamedTuple):
    ids: Ids
    klass: int
    driver: str | None
    link: Link | None
    title: str | None = None  # what its driver calls it
    subsystem: Ids | None = None
    memory: int = 0  # bytes of a GPU
    nvlinks: int = 0
    vf: Ids | None = None
    inside: tuple[Ids, Ids] | None = None  # the upstream and downstream port that are part of a GPU
    downstream: Ids | None = None  # where the downstream ports of a switch have ids of their own
    slots: int | None = None  # compute units


_G = 1 << 30


def _nvidia(device: int, title: str, link: Link, gib: int, nvlinks: int = 0, klass: int = DISPLAY_3D) -> Part:
    return Part((0x10DE, device), klass, "nvidia", link, title, memory=gib * _G, nvlinks=nvlinks)


def _amd(device: int, title: str, gib: int, units: int, *, vf: int | None = None, bridges: bool = True) -> Part:
    return Part(
        (0x1002, device), ACCELERATOR, "amdgpu", GEN5, title, memory=gib * _G, vf=(0x1002, vf) if vf else None,
        inside=((0x1022, 0x1500), (0x1002, 0x1501)) if bridges else None, slots=units,
    )  # fmt: skip


GPUS: dict[str, Part] = {
    "v100": _nvidia(0x1DB5, "Tesla V100-SXM2-32GB", GEN3, 32, 6),
    "a40": _nvidia(0x2235, "NVIDIA A40", GEN4, 48, 4),
    "a100": _nvidia(0x20B0, "NVIDIA A100-SXM4-40GB", GEN4, 40, 12),
    "a100-80": _nvidia(0x20B2, "NVIDIA A100-SXM4-80GB", GEN4, 80, 12),
    "l40s": _nvidia(0x26B9, "NVIDIA L40S", GEN4, 48),
    "h20": _nvidia(0x2329, "NVIDIA H20", GEN5, 96, 18),
    "h100": _nvidia(0x2330, "NVIDIA H100 80GB HBM3", GEN5, 80, 18),
    "h100-pcie": _nvidia(0x2331, "NVIDIA H100 PCIe", GEN5, 80, 12),
    "h200": _nvidia(0x2335, "NVIDIA H200", GEN5, 141, 18),
    "gh200": _nvidia(0x2342, "NVIDIA GH200 480GB", GEN5, 96, 18),
    "b200": _nvidia(0x2901, "NVIDIA B200", GEN5, 180, 18),
    "gb200": _nvidia(0x2941, "NVIDIA GB200", GEN5, 186, 18),
    "b300": _nvidia(0x3182, "NVIDIA B300 SXM6 AC", GEN6, 270, 18),
    "gb300": _nvidia(0x31C2, "NVIDIA GB300", GEN6, 278, 18),
    "gb10": _nvidia(0x2E12, "NVIDIA GB10", (32.0, 1), 0),
    "rtx3090": _nvidia(0x2204, "NVIDIA GeForce RTX 3090", GEN4, 24, 4, DISPLAY),
    "rtx5090": _nvidia(0x2B85, "NVIDIA GeForce RTX 5090", GEN5, 32, 0, DISPLAY),
    "rtxpro6000": _nvidia(0x2BB5, "NVIDIA RTX PRO 6000 Blackwell Server Edition", GEN5, 96),
    "mi210": Part((0x1002, 0x740F), DISPLAY_OTHER, "amdgpu", GEN4, "Instinct MI210", memory=64 * _G, slots=104),
    "mi250x": Part((0x1002, 0x7408), DISPLAY_OTHER, "amdgpu", GEN4, "Instinct MI250X", memory=64 * _G, slots=110),
    "mi300a": _amd(0x74A0, "Instinct MI300A", 128, 228, bridges=False),
    "mi300x": _amd(0x74A1, "Instinct MI300X", 192, 304, vf=0x74B5),
    "mi325x": _amd(0x74A5, "Instinct MI325X", 256, 304, vf=0x74B9),
    "mi355x": _amd(0x75A3, "Instinct MI355X", 288, 256),
    "max1550": Part((0x8086, 0x0BD5), DISPLAY_OTHER, "xe", GEN5, "Data Center GPU Max 1550", memory=128 * _G),
    "gaudi2": Part((0x1DA3, 0x1020), ACCELERATOR, "habanalabs", GEN4, "Gaudi2", memory=96 * _G),
    "gaudi3": Part((0x1DA3, 0x1060), ACCELERATOR, "habanalabs", GEN5, "Gaudi3", memory=128 * _G),
}

_MLX5_VF = (0x15B3, 0x101E)

NICS: dict[str, Part] = {
    "cx5": Part((0x15B3, 0x1017), ETHERNET, "mlx5_core", GEN3, vf=(0x15B3, 0x1018)),
    "cx6": Part((0x15B3, 0x101B), ETHERNET, "mlx5_core", GEN4, vf=(0x15B3, 0x101C)),
    "cx6dx": Part((0x15B3, 0x101D), ETHERNET, "mlx5_core", GEN4, vf=_MLX5_VF),
    "cx7": Part((0x15B3, 0x1021), ETHERNET, "mlx5_core", GEN5, vf=_MLX5_VF),
    "cx8": Part((0x15B3, 0x1023), ETHERNET, "mlx5_core", GEN6, vf=_MLX5_VF),
    "bluefield2": Part((0x15B3, 0xA2D6), ETHERNET, "mlx5_core", GEN4, vf=_MLX5_VF),
    "bluefield3": Part((0x15B3, 0xA2DC), ETHERNET, "mlx5_core", GEN5, vf=_MLX5_VF),
    "efa": Part((0x1D0F, 0xEFA2), ETHERNET, "efa", GEN4),
    "efa3": Part((0x1D0F, 0xEFA3), ETHERNET, "efa", GEN5),
    "ena": Part((0x1D0F, 0xEC20), ETHERNET, "ena", GEN4),
    "gvnic": Part((0x1AE0, 0x0042), ETHERNET, "gve", None),
    "bcm57508": Part((0x14E4, 0x1750), ETHERNET, "bnxt_en", GEN4, vf=(0x14E4, 0x1806)),
    "bcm57608": Part((0x14E4, 0x1760), ETHERNET, "bnxt_en", GEN5, vf=(0x14E4, 0x1819)),
    "bcm5720": Part((0x14E4, 0x165F), ETHERNET, "tg3", (5.0, 2)),
    "cassini": Part((0x17DB, 0x0501), ETHERNET, "cxi_ss1", GEN4),
    "e810": Part((0x8086, 0x1592), ETHERNET, "ice", GEN4, vf=(0x8086, 0x1889)),
    "e810-sfp": Part((0x8086, 0x159B), ETHERNET, "ice", (16.0, 8), vf=(0x8086, 0x1889)),
    "x550": Part((0x8086, 0x1563), ETHERNET, "ixgbe", (8.0, 4)),
    "i210": Part((0x8086, 0x1533), ETHERNET, "igb", (2.5, 1)),
    "i350": Part((0x8086, 0x1521), ETHERNET, "igb", (5.0, 4)),
}

NVMES: dict[str, Part] = {
    "pm983": Part((0x144D, 0xA808), NVME, "nvme", (8.0, 4), "SAMSUNG MZ1LB1T9HALS-00007"),
    "pm1733": Part((0x144D, 0xA824), NVME, "nvme", (16.0, 4), "SAMSUNG MZWLJ3T8HBLS-00007"),
    "pm1735": Part((0x144D, 0xA825), NVME, "nvme", (16.0, 4), "SAMSUNG MZWLO3T8HCLS-00A07"),
    "pm1743": Part((0x144D, 0xA826), NVME, "nvme", (32.0, 4), "SAMSUNG MZWLO3T8HCLS-00A07"),
    "pm9a3": Part((0x144D, 0xA80A), NVME, "nvme", (16.0, 4), "SAMSUNG MZQL23T8HCLS-00A07"),
    "p5510": Part((0x8086, 0x0B60), NVME, "nvme", (16.0, 4), "INTEL SSDPF2KX038TZ"),
    "cd6": Part((0x1E0F, 0x0007), NVME, "nvme", (16.0, 4), "KIOXIA KCD61LUL3T84"),
    "micron7450": Part((0x1344, 0x51C3), NVME, "nvme", (16.0, 4), "Micron_7450_MTFDKBA960TFR"),
    "ebs": Part((0x1D0F, 0x8061), NVME, "nvme", None, "Amazon Elastic Block Store"),
    "instance-store": Part((0x1D0F, 0xCD01), NVME, "nvme", (16.0, 4), "Amazon EC2 NVMe Instance Storage"),
}

NVSWITCHES: dict[str, Part] = {
    "a100": Part((0x10DE, 0x1AF1), OTHER_BRIDGE, "nvidia-nvswitch", (16.0, 4)),
    "ls10": Part((0x10DE, 0x22A3), OTHER_BRIDGE, "nvidia-nvswitch", (32.0, 2)),
}

SWITCHES: dict[str, Part] = {
    "plx8725": Part((0x10B5, 0x8725), BRIDGE, "pcieport", GEN3),
    "pex88096": Part((0x1000, 0xC010), BRIDGE, "pcieport", GEN4),
    "pex89104": Part((0x1000, 0xC030), BRIDGE, "pcieport", GEN5),
    "connectx7": Part((0x15B3, 0x1979), BRIDGE, "pcieport", GEN5),
    "bluefield3": Part((0x15B3, 0x197B), BRIDGE, "pcieport", GEN5),
    "aws": Part((0x1D0F, 0x0200), BRIDGE, "pcieport", GEN5),
    "xio3130": Part((0x104C, 0x8232), BRIDGE, "pcieport", (2.5, 1), downstream=(0x104C, 0x8233)),
}

PORTS: dict[str, Part] = {
    "intel": Part((0x8086, 0x352A), BRIDGE, "pcieport", GEN5),  # Sapphire Rapids, port A
    "intel-gen3": Part((0x8086, 0x2030), BRIDGE, "pcieport", GEN3),  # Skylake-SP, port A
    "amd": Part((0x1022, 0x1483), BRIDGE, "pcieport", GEN4),  # Rome, Milan
    "qemu": Part((0x1B36, 0x000C), BRIDGE, "pcieport", (2.5, 1)),
    "aws": Part((0x1D0F, 0x0200), BRIDGE, "pcieport", GEN5),
    "ast1150": Part((0x1A03, 0x1150), BRIDGE, None, None),  # PCIe to PCI
}

DEVICES: dict[str, Part] = {
    "host-bridge": Part((0x8086, 0x29C0), 0x060000, None, None),
    "aspeed": Part((0x1A03, 0x2000), DISPLAY, "ast", None),
    "matrox": Part((0x102B, 0x0536), DISPLAY, "mgag200", None),
    "virtio-net": Part((0x1AF4, 0x1041), ETHERNET, "virtio-pci", None),
    "virtio-blk": Part((0x1AF4, 0x1042), 0x010000, "virtio-pci", None),
    "vmd": Part((0x8086, 0x28C0), 0x010400, "vmd", None),
    "pex-management": Part((0x1000, 0x00B2), 0x010700, None, None),
    "placeholder": Part((0x1000, 0x02B2), 0x088000, None, None),
    "data-direct": Part((0x15B3, 0x2100), 0x080100, "mlx5_core", GEN5),
}

KINDS: dict[str, dict[str, Part]] = {
    "gpu": GPUS,
    "nic": NICS,
    "nvme": NVMES,
    "nvswitch": NVSWITCHES,
    "switch": SWITCHES,
    "port": PORTS,
    "device": DEVICES,
}

USUAL: dict[str, tuple[int, str | None]] = {
    "gpu": (DISPLAY_3D, None),
    "nic": (ETHERNET, None),
    "nvme": (NVME, "nvme"),
    "nvswitch": (OTHER_BRIDGE, None),
    "switch": (BRIDGE, "pcieport"),
    "port": (BRIDGE, "pcieport"),
    "device": (0x088000, None),
}
"""Class and driver of a part that is called by its ids."""
