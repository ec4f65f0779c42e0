"""What a PCI function is, by class and vendor: a GPU, a NIC, an NVMe drive, a switch port."""

from __future__ import annotations

from topo_agent.facts import PciDevice
from topo_agent.graph.nodes import BridgeRole, Device, DeviceKind
from topo_agent.ids import PciAddress

NVIDIA, ATI, INTEL, NEC, HABANA, HUAWEI = 0x10DE, 0x1002, 0x8086, 0x1BCF, 0x1DA3, 0x19E5

# Vendors whose display or accelerator functions compute. A display of anybody else (ASPEED 1a03, Matrox 102b,
# and the emulated ones of hypervisors) belongs to the management processor or to a console: no GPU.
# Moore Threads, Huawei Ascend, MetaX, Iluvatar, Enflame, Biren, Hygon, Cambricon.
_GPU_VENDORS = frozenset({NVIDIA, ATI, INTEL, HABANA, 0x1ED5, HUAWEI, 0x9999, 0x1E3E, 0x1E36, 0x1EE0, 0x1D94, 0xCABC})

_SUBCLASS_KINDS: dict[int, DeviceKind] = {
    0x0600: "host_bridge",
    0x0604: "bridge",  # PCI-to-PCI, every PCIe port among them
    0x0609: "bridge",  # semi-transparent
    0x0108: "nvme",
}


def kind(device: PciDevice) -> DeviceKind:
    """The kind of a function. Class 0x0680 is an NVSwitch only from NVIDIA: it is also the PIIX4's ACPI function."""
    if device.class_code is None:
        return "other"
    subclass, base = device.class_code >> 8, device.class_code >> 16
    if subclass in _SUBCLASS_KINDS:
        return _SUBCLASS_KINDS[subclass]
    if base == 0x02:
        return "nic"
    if base == 0x03 and device.vendor in _GPU_VENDORS - {HUAWEI}:  # Huawei's displays belong to its iBMC
        return "gpu"
    if subclass == 0x1200 and device.vendor in _GPU_VENDORS:
        return "gpu"
    if subclass == 0x0B40 and device.vendor == NEC:  # Vector Engine; other co-processors do not compute
        return "gpu"
    if subclass == 0x0680 and device.vendor == NVIDIA:
        return "nvswitch"
    return "other"


def is_data_direct(device: Device) -> bool:
    """A DMA engine of a ConnectX-8 on the bus of a GPU, while the NIC itself is on a processor's.

    The VPD alone tells to which NIC it belongs (rdma-core rdma_topo), and that is not read.
    """
    return (device.vendor, device.device) == (0x15B3, 0x2100)


def roles(
    devices: dict[PciAddress, PciDevice], kinds: dict[PciAddress, DeviceKind], parents: dict[PciAddress, PciAddress]
) -> dict[PciAddress, BridgeRole]:
    """What each bridge is in a PCIe tree, without reading config space.

    A port directly below the host bridge is a root port. Below it, a bridge that leads to bridges only is
    the upstream port of a switch, and those bridges are its downstream ports; one that leads to anything
    else, or to nothing, leads to conventional PCI or is not told. A function whose class cannot be read does
    not decide what its neighbours are.
    """
    below: dict[PciAddress, list[PciAddress]] = {}
    for child, parent in parents.items():
        below.setdefault(parent, []).append(child)
    found: dict[PciAddress, BridgeRole] = {}
    for address in sorted(devices, key=lambda one: devices[one].path.count("/")):
        if kinds[address] != "bridge":
            continue
        above = found.get(parents[address]) if address in parents else None
        children = [child for child in below.get(address, []) if devices[child].class_code is not None]
        if address not in parents:
            found[address] = "root_port"
        elif above == "upstream_port":
            found[address] = "downstream_port"
        elif children and all(kinds[child] == "bridge" for child in children):
            found[address] = "upstream_port"
        else:
            found[address] = "pci_bridge"
    return found
