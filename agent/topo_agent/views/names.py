"""PCI ids -> the names that people use, for the parts that matter to a topology.

A name is never a reason: nothing is decided by it. An id that is not listed here has no name, and the
numbers are shown. tests/test_names.py compares the tables with the pci.ids database where that knows the id.
"""

from __future__ import annotations

_VENDORS = {
    0x1000: "Broadcom", 0x1002: "AMD", 0x1022: "AMD", 0x102B: "Matrox", 0x104C: "Texas Instruments",
    0x1077: "QLogic", 0x10B5: "PLX", 0x10DE: "NVIDIA", 0x10DF: "Emulex", 0x1137: "Cisco", 0x1179: "Toshiba",
    0x11F8: "Microchip", 0x1344: "Micron", 0x1414: "Microsoft", 0x1425: "Chelsio", 0x144D: "Samsung",
    0x14E4: "Broadcom", 0x15AD: "VMware", 0x15B3: "Mellanox", 0x177D: "Cavium", 0x17DB: "Cray",
    0x1924: "Solarflare", 0x19E5: "Huawei", 0x1A03: "ASPEED", 0x1AE0: "Google", 0x1AF4: "Red Hat",
    0x1B36: "Red Hat", 0x1BCF: "NEC", 0x1C5C: "SK hynix", 0x1D0F: "Amazon", 0x1D94: "Hygon", 0x1DA3: "Habana",
    0x1DD8: "Pensando", 0x1E0F: "KIOXIA", 0x1E36: "Enflame", 0x1ED5: "Moore Threads", 0x8086: "Intel",
}  # fmt: skip

_MODELS = {
    0x10DE: {
        0x15F7: "P100", 0x15F8: "P100", 0x15F9: "P100 SXM2", 0x1B38: "P40", 0x1DB1: "V100 SXM2", 0x1DB4: "V100",
        0x1DB5: "V100 SXM2", 0x1DB6: "V100", 0x1EB8: "T4", 0x20B0: "A100 SXM4 40GB", 0x20B2: "A100 SXM4 80GB",
        0x20B5: "A100 PCIe 80GB", 0x20B7: "A30", 0x20F1: "A100 PCIe 40GB", 0x20F3: "A800 SXM4", 0x20F5: "A800",
        0x2204: "RTX 3090", 0x2230: "RTX A6000", 0x2231: "RTX A5000", 0x2235: "A40", 0x2236: "A10",
        0x2237: "A10G", 0x2684: "RTX 4090", 0x26B1: "RTX 6000 Ada", 0x26B5: "L40", 0x26B9: "L40S", 0x27B8: "L4",
        0x2322: "H800 PCIe", 0x2324: "H800", 0x2329: "H20", 0x2330: "H100 SXM5 80GB", 0x2331: "H100 PCIe",
        0x2335: "H200 SXM", 0x2342: "GH200", 0x2901: "B200", 0x2941: "GB200", 0x2B85: "RTX 5090",
        0x1AF1: "A100 NVSwitch", 0x22A3: "H100 NVSwitch",
    },
    0x1002: {
        0x6860: "MI25", 0x66A0: "Vega 20", 0x66A1: "MI50", 0x738C: "MI100", 0x738E: "MI100", 0x7408: "MI250X",
        0x740C: "MI250X/MI250", 0x740F: "MI210", 0x744C: "RX 7900", 0x74A0: "MI300A", 0x74A1: "MI300X",
        0x74A2: "MI308X", 0x74A5: "MI325X", 0x74B5: "MI300X VF",
    },
    0x15B3: {
        0x1003: "ConnectX-3", 0x1007: "ConnectX-3 Pro", 0x1013: "ConnectX-4", 0x1014: "ConnectX-4 VF",
        0x1015: "ConnectX-4 Lx", 0x1016: "ConnectX-4 Lx VF", 0x1017: "ConnectX-5", 0x1018: "ConnectX-5 VF",
        0x1019: "ConnectX-5 Ex", 0x101A: "ConnectX-5 Ex VF", 0x101B: "ConnectX-6", 0x101C: "ConnectX-6 VF",
        0x101D: "ConnectX-6 Dx", 0x101E: "ConnectX VF", 0x101F: "ConnectX-6 Lx", 0x1021: "ConnectX-7",
        0x1023: "ConnectX-8", 0x1979: "ConnectX-7 PCIe bridge", 0xA2D2: "BlueField", 0xA2D6: "BlueField-2",
        0xA2DC: "BlueField-3",
    },
    0x8086: {
        0x0BD5: "Max 1550", 0x0BD6: "Max 1550", 0x0BD9: "Max 1100", 0x0BDA: "Max 1100", 0x0BDB: "Max 1100",
        0x56C0: "Flex 170", 0x56C1: "Flex 140", 0x10FB: "82599", 0x1521: "I350", 0x1528: "X540", 0x1533: "I210",
        0x1563: "X550", 0x1572: "X710", 0x1583: "XL710", 0x158B: "XXV710", 0x1592: "E810-C", 0x1593: "E810-C",
        0x159B: "E810-XXV", 0x37D0: "X722", 0x37D2: "X722",
        0x201D: "VMD", 0x28C0: "VMD", 0x467F: "VMD", 0x9A0B: "VMD", 0xA77F: "VMD", 0x7D0B: "VMD", 0xAD0B: "VMD",
    },
    0x1D0F: {
        0xEFA0: "EFA", 0xEFA1: "EFA", 0xEFA2: "EFA", 0xEFA3: "EFA", 0xEC20: "ENA", 0x8061: "NVMe EBS",
        0xCD01: "NVMe SSD",
    },
    0x14E4: {
        0x1614: "BCM57454", 0x1639: "BCM5709", 0x1657: "BCM5719", 0x165F: "BCM5720", 0x16D7: "BCM57414",
        0x16D8: "BCM57416", 0x16E2: "BCM57417", 0x1750: "BCM57508", 0x1751: "BCM57504", 0x1752: "BCM57502",
    },
    0x1000: {0xC010: "PEX880xx", 0xC030: "PEX890xx", 0xC034: "PEX890xx", 0x00B2: "switch management"},
    0x10B5: {0x8725: "PEX 8725"},
    0x1AE0: {0x0042: "gVNIC"},
    0x1AF4: {0x1000: "virtio net", 0x1041: "virtio net", 0x1001: "virtio block", 0x1042: "virtio block"},
    0x1DA3: {0x1000: "Gaudi", 0x1020: "Gaudi2", 0x1060: "Gaudi3"},
    0x1DD8: {0x1002: "DSC Ethernet", 0x1003: "DSC Ethernet VF"},
    0x144D: {0xA808: "PM981/PM983", 0xA80A: "PM9A1/PM9A3", 0xA824: "PM173X", 0xA825: "PM173Xa", 0xA826: "PM174X"},
}  # fmt: skip

# PCI Code and ID Assignment Specification: base class and subclass, for functions of no kind of ours.
_CLASSES = {
    0x0100: "SCSI", 0x0101: "IDE", 0x0104: "RAID", 0x0106: "SATA", 0x0107: "SAS", 0x0180: "storage",
    0x0200: "Ethernet", 0x0207: "InfiniBand", 0x0300: "VGA", 0x0302: "3D", 0x0380: "display", 0x0403: "audio",
    0x0500: "RAM", 0x0502: "CXL memory", 0x0600: "host bridge", 0x0601: "ISA bridge", 0x0604: "PCI bridge",
    0x0680: "bridge", 0x0700: "serial", 0x0780: "communication", 0x0800: "PIC", 0x0801: "DMA",
    0x0806: "IOMMU", 0x0807: "event collector", 0x0880: "system peripheral", 0x0B40: "co-processor",
    0x0C03: "USB", 0x0C05: "SMBus", 0x1101: "performance counters", 0x1180: "signal processing",
    0x1200: "accelerator", 0x1300: "instrumentation",
}  # fmt: skip


def vendor(vendor_id: int | None) -> str | None:
    """`0x10de` -> `"NVIDIA"`; None for a vendor that is not listed."""
    return None if vendor_id is None else _VENDORS.get(vendor_id)


def model(vendor_id: int | None, device_id: int | None) -> str | None:
    """`(0x1002, 0x74a1)` -> `"MI300X"`; None for a device that is not listed."""
    if vendor_id is None or device_id is None:
        return None
    return _MODELS.get(vendor_id, {}).get(device_id)


def class_name(class_code: int | None) -> str:
    """`0x0c0330` -> `"USB"`; the number itself for a class that is not listed."""
    if class_code is None:
        return "unknown class"
    return _CLASSES.get(class_code >> 8, f"class {class_code >> 8:04x}")


def title(vendor_id: int | None, device_id: int | None) -> str:
    """`"AMD MI300X"`, `"Intel 8086:0b25"`, `"1bb1:5018"`: as much as is known, the ids where no model is."""
    maker, part = vendor(vendor_id), model(vendor_id, device_id)
    ids = f"{_id(vendor_id)}:{_id(device_id)}"
    if part is None:
        return ids if maker is None else f"{maker} {ids}"
    return f"{maker} {part}"


def _id(number: int | None) -> str:
    return "????" if number is None else f"{number:04x}"
