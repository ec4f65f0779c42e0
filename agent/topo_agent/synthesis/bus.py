"""Placed functions -> their directories below sys/devices, as drivers/pci/pci-sysfs.c and pci-driver.c fill them."""

from __future__ import annotations

from collections.abc import Mapping

from topo_agent.ids import CpuSet, cpulist
from topo_agent.synthesis.functions import NOWHERE
from topo_agent.synthesis.layout import Layout, Placed
from topo_agent.synthesis.parts import Ids, Link, Part
from topo_agent.synthesis.tree import Tree

_SPEEDS = {2.5: "2.5 GT/s PCIe", 5.0: "5.0 GT/s PCIe", 8.0: "8.0 GT/s PCIe"}  # drivers/pci/probe.c
_SPEEDS |= {16.0: "16.0 GT/s PCIe", 32.0: "32.0 GT/s PCIe", 64.0: "64.0 GT/s PCIe"}


class Near:
    """The CPUs that the kernel calls near a function: those of its node, or all of them."""

    def __init__(self, nodes: Mapping[int, CpuSet], online: CpuSet, *, told: bool) -> None:
        self.nodes = nodes
        self.online = online
        self.told = told  # a kernel without NUMA has no numa_node files

    def cpus(self, node: int) -> CpuSet:
        return self.online if node == NOWHERE or not self.told else self.nodes.get(node, frozenset())


def identity(one: Placed) -> tuple[Ids, int, str | None]:
    """Ids, class and driver: those of the part, or those of a virtual function."""
    part, vfs = one.spec.part, one.spec.vfs
    if one.physfn is not None and vfs is not None:
        return vfs.ids, vfs.klass, vfs.driver
    klass = part.klass
    network = one.spec.network
    if network is not None and network.layer == "InfiniBand" and klass == 0x020000:
        klass = 0x020700  # a port of a ConnectX that is set to InfiniBand
    return part.ids, klass, part.driver


def write(tree: Tree, layout: Layout, near: Near) -> None:
    """Every host bridge and every function."""
    for bridge in layout.bridges:
        path = f"sys/devices/{bridge.path}"
        tree.directory(path)
        _bus(tree, path, bridge.domain, bridge.bus, near.cpus(bridge.node))
        tree.text(f"{path}/uevent", "")
    for one in layout.functions.values():
        _function(tree, one, near)
        if one.spec.slot is not None and one.physfn is None:
            place = f"{one.address.domain:04x}:{one.address.bus:02x}:{one.address.device:02x}"
            tree.write(f"sys/bus/pci/slots/{one.spec.slot}", address=place)


def _bus(tree: Tree, directory: str, domain: int, bus: int, cpus: CpuSet) -> None:
    """drivers/pci/probe.c: the bus below a bridge, with the CPUs near it."""
    name = f"{domain:04x}:{bus:02x}"
    path = f"{directory}/pci_bus/{name}"
    tree.cpus(path, "cpuaffinity", "cpulistaffinity", cpus)
    tree.link(f"sys/class/pci_bus/{name}", path)


def _function(tree: Tree, one: Placed, near: Near) -> None:
    path, address = one.directory, str(one.address)
    (vendor, device), klass, driver = identity(one)
    subvendor, subdevice = one.spec.part.subsystem or (0, 0)
    tree.link(f"sys/bus/pci/devices/{address}", path)
    tree.link(f"{path}/subsystem", "sys/bus/pci")
    tree.write(path, vendor=f"0x{vendor:04x}", device=f"0x{device:04x}", revision="0x00")
    tree.write(path, subsystem_vendor=f"0x{subvendor:04x}", subsystem_device=f"0x{subdevice:04x}")
    tree.write(path, **{"class": f"0x{klass:06x}"})
    tree.text(f"{path}/uevent", _uevent(one, klass, (vendor, device), (subvendor, subdevice), driver))
    if near.told:
        tree.write(path, numa_node=one.node)
    tree.cpus(path, "local_cpus", "local_cpulist", near.cpus(one.node))
    if driver is not None:
        tree.link(f"{path}/driver", f"sys/bus/pci/drivers/{driver}")
        tree.link(f"sys/bus/pci/drivers/{driver}/{address}", path)
    if one.spec.iommu is not None and one.physfn is None:
        tree.link(f"{path}/iommu_group", f"sys/kernel/iommu_groups/{one.spec.iommu}")
        tree.link(f"sys/kernel/iommu_groups/{one.spec.iommu}/devices/{address}", path)
    tree.write(f"{path}/power", runtime_status="suspended" if one.spec.suspended else "active")
    for number in range(one.spec.msi if one.physfn is None else 0):
        irq = 32 + one.address.bus * 64 + one.address.device * 8 + number
        tree.write(f"{path}/msi_irqs", **{str(irq): "msix"})
        cpus = cpulist(near.cpus(one.node))
        tree.write(f"proc/irq/{irq}", effective_affinity_list=cpus, smp_affinity_list=cpus)
    _link(tree, one)
    if one.secondary is not None and one.subordinate is not None:
        tree.write(path, secondary_bus_number=one.secondary, subordinate_bus_number=one.subordinate)
        _bus(tree, path, one.address.domain, one.secondary, near.cpus(one.node))
    _sriov(tree, one)


def _uevent(one: Placed, klass: int, ids: Ids, subsystem: Ids, driver: str | None) -> str:
    lines = [f"DRIVER={driver}"] if driver else []
    modalias = f"v{ids[0]:08X}d{ids[1]:08X}sv{subsystem[0]:08X}sd{subsystem[1]:08X}"
    lines += [
        f"PCI_CLASS={klass:04X}",
        f"PCI_ID={ids[0]:04X}:{ids[1]:04X}",
        f"PCI_SUBSYS_ID={subsystem[0]:04X}:{subsystem[1]:04X}",
        f"PCI_SLOT_NAME={one.address}",
        f"MODALIAS=pci:{modalias}bc{klass >> 16:02X}sc{klass >> 8 & 0xFF:02X}i{klass & 0xFF:02X}",
    ]
    return "\n".join(lines) + "\n"


def _link(tree: Tree, one: Placed) -> None:
    most = one.spec.part.link
    if most is None:
        return
    now = link_now(one)
    # A virtual function has its PF's capabilities; its status register is all zero (SR-IOV 1.1, 3.5.4).
    speed, width = (_SPEEDS[now[0]], now[1]) if now and one.physfn is None else ("Unknown", 0)
    tree.write(one.directory, max_link_speed=_SPEEDS[most[0]], max_link_width=most[1])
    tree.write(one.directory, current_link_speed=speed, current_link_width=width)


def link_now(one: Placed) -> Link | None:
    """What a link runs at: as described, else what both ends can do. A port shows the link below it."""
    if one.spec.now is not None:
        return one.spec.now
    if one.spec.kind == "port":
        below = one.spec.below[0] if one.spec.below else None
        if below is None or below.part.link is None:
            return None  # an empty port trains no link
        return below.now or _both(one.spec.part, below.part)
    above = one.parent.spec.part if one.parent is not None and one.parent.spec.kind == "port" else one.spec.part
    return _both(one.spec.part, above)


def _both(one: Part, other: Part) -> Link | None:
    if one.link is None:
        return None
    end = other.link or one.link
    return min(one.link[0], end[0]), min(one.link[1], end[1])


def _sriov(tree: Tree, one: Placed) -> None:
    """drivers/pci/iov.c"""
    vfs = one.spec.vfs
    if vfs is None:
        return
    if one.physfn is not None:
        tree.link(f"{one.directory}/physfn", one.physfn.directory)
        return
    tree.write(one.directory, sriov_totalvfs=vfs.total, sriov_numvfs=vfs.count, sriov_offset=vfs.offset)
    tree.write(one.directory, sriov_stride=vfs.stride, sriov_vf_device=f"{vfs.ids[1]:x}", sriov_drivers_autoprobe=1)
    for number, vf in enumerate(one.vfs):
        tree.link(f"{one.directory}/virtfn{number}", vf.directory)
