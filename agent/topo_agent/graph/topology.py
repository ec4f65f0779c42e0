"""Topology: the nodes of the graph, their parents, and how to walk them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from topo_agent.diagnostics import Diagnostic, UnknownFields
from topo_agent.facts import Cache, Cpu, Hugepages, IrqState, LinkState, Machine, MemoryKind, PcieLink
from topo_agent.host import Source
from topo_agent.ids import CpuSet, NumaId, PackageId, PciAddress, Ref

Origin = Literal["firmware", "bridge", "cpulist", "nvml", "kfd", "netlink", "operator", "imported", "assumed"]
"""Who says so, for a fact that is not a plain file."""

DeviceKind = Literal["gpu", "nic", "nvme", "nvswitch", "bridge", "host_bridge", "other"]
BridgeRole = Literal["root_port", "upstream_port", "downstream_port", "pci_bridge"]


class Package(NamedTuple):
    """A processor socket with its online CPUs."""

    ref: Ref
    id: PackageId
    cpus: CpuSet
    cores: tuple[CpuSet, ...] | None  # the threads of each core; None where not every CPU tells
    dies: tuple[tuple[int, CpuSet], ...] = ()


class Memory(NamedTuple):
    """A NUMA node: a place of memory, of CPUs, or of both."""

    ref: Ref
    id: NumaId
    cpus: CpuSet | None
    near_cpus: CpuSet | None = None  # for a node without CPUs: those that reach it best
    memory_bytes: int | None = None
    kind: MemoryKind | None = None  # None: the machine does not tell its memories apart
    gpu: PciAddress | None = None
    distances: tuple[tuple[NumaId, int], ...] | None = None
    sources: tuple[tuple[str, Origin], ...] = ()
    unknown: UnknownFields = ()


class Root(NamedTuple):
    """A PCI host bridge, `pci0000:15`; below VMBus or a platform with its whole path, so that none merge."""

    ref: Ref
    name: str
    numa_node: NumaId | None
    cpus: CpuSet | None
    sources: tuple[tuple[str, Origin], ...] = ()
    unknown: UnknownFields = ()


class Standard(NamedTuple):
    """What the upstream Kubernetes helper publishes for a function; None where it publishes nothing."""

    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None


class Names(NamedTuple):
    """What people call a function. Names are for reading: they change from boot to boot."""

    netdev: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()
    nvme: tuple[str, ...] = ()  # controller, then its disks
    nvme_path: tuple[str, ...] = ()  # hidden paths of multipath disks
    block: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # card0, renderD128, accel0
    nvml_index: int | None = None


class GpuPart(NamedTuple):
    """What drivers add to a GPU."""

    memory_bytes: int | None = None
    memory_node: NumaId | None = None  # the NUMA node that its own memory is
    partitions: int | None = None
    compute_units: int | None = None
    hive: str | None = None


class NicPort(NamedTuple):
    netdev: str | None
    rdma: str | None
    rdma_port: int | None
    link_layer: str | None  # "InfiniBand", "Ethernet"
    address: str | None


class NicPart(NamedTuple):
    """What drivers add to a NIC: one entry for each port."""

    ports: tuple[NicPort, ...]
    firmware: str | None = None
    dpu: bool = False  # a processor of its own stands between this function and the cable


class NvmePart(NamedTuple):
    """What the driver adds to an NVMe controller."""

    transport: str | None
    model: str | None
    firmware: str | None
    subsystem: str | None
    remote: str | None = None


class Device(NamedTuple):
    """One PCI function, in its place."""

    ref: Ref
    kind: DeviceKind
    role: BridgeRole | None  # bridges only
    address: PciAddress
    class_code: int | None
    vendor: int | None
    device: int | None
    subvendor: int | None
    subdevice: int | None
    driver: str | None
    parent: Ref | None  # the function above; None: right below its root, or unknown
    root: Ref | None
    numa_node: NumaId | None
    numa_nodes: tuple[NumaId, ...]
    cpus: CpuSet | None
    link: PcieLink | None
    physfn: Ref | None
    sriov_total: int | None
    sriov_enabled: int | None
    iommu_group: int | None
    slot: str | None
    standard: Standard
    names: Names = Names()
    uid: str | None = None  # who it is across boots: GPU UUID, node GUID, serial
    board: str | None = None  # equal on all ports and functions of one card
    title: str | None = None  # what its driver calls it: "NVIDIA H100 80GB HBM3"
    gpu: GpuPart | None = None
    nic: NicPart | None = None
    nvme: NvmePart | None = None
    sources: tuple[tuple[str, Origin], ...] = ()
    unknown: UnknownFields = ()


VirtualKind = Literal["virtual_nic", "software_rdma", "remote_nvme"]


class Virtual(NamedTuple):
    """Something on no PCI function that people name: a bond, a VLAN, a software RDMA device, a remote drive."""

    ref: Ref
    kind: VirtualKind
    name: str
    type: str | None  # "bond", "vlan", "tcp"
    lower: tuple[Ref, ...] = ()  # the functions that it stands on
    vlan_id: int | None = None
    names: Names = Names()
    nvme: NvmePart | None = None
    uid: str | None = None


class Link(NamedTuple):
    """NVLink or xGMI between two GPUs, or from a GPU to something that is not one of ours."""

    a: Ref
    b: Ref | None  # None: a switch or a processor that has no address here
    kind: Literal["nvlink", "xgmi"]
    peer: Literal["gpu", "switch", "cpu", "unknown"]
    links: int | None  # how many; None where only the whole is told
    bytes_per_second: int | None
    weight: int | None = None


class PortState(NamedTuple):
    """What a port of a NIC does now."""

    up: bool | None
    bits_per_second: int | None
    mtu: int | None


Node = Package | Memory | Root | Device | Virtual


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One machine. `==` compares structure only: state and diagnostics ride along."""

    source: Source = field(compare=False)
    machine: Machine
    cpus: tuple[Cpu, ...] | None
    caches: tuple[Cache, ...] | None
    packages: tuple[Package, ...] | None
    memories: tuple[Memory, ...] | None
    roots: tuple[Root, ...] | None
    devices: tuple[Device, ...] | None
    virtuals: tuple[Virtual, ...] = ()
    links: tuple[Link, ...] | None = None  # None: nothing here tells of NVLink or xGMI
    allowed_cpus: CpuSet | None = field(default=None, compare=False)
    links_now: tuple[tuple[Ref, LinkState], ...] = field(default=(), compare=False)
    ports_now: tuple[tuple[Ref, tuple[PortState, ...]], ...] = field(default=(), compare=False)
    nvlinks_now: tuple[tuple[Ref, Ref | None, int], ...] = field(default=(), compare=False)  # active ones
    hugepages_now: tuple[tuple[Ref, tuple[Hugepages, ...]], ...] = field(default=(), compare=False)
    irqs_now: tuple[tuple[Ref, IrqState], ...] = field(default=(), compare=False)
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)

    @cached_property
    def nodes(self) -> Mapping[Ref, Node]:
        """Every node by its name."""
        parts: tuple[tuple[Node, ...] | None, ...] = (
            self.packages,
            self.memories,
            self.roots,
            self.devices,
            self.virtuals,
        )
        return MappingProxyType({node.ref: node for part in parts for node in part or ()})

    def device(self, ref: Ref | None) -> Device | None:
        node = self.nodes.get(ref) if ref is not None else None
        return node if isinstance(node, Device) else None

    def of_kind(self, *kinds: DeviceKind) -> tuple[Device, ...]:
        """The devices of some kinds in bus order, virtual functions among them."""
        return tuple(device for device in self.devices or () if device.kind in kinds)

    def parent(self, ref: Ref) -> Ref | None:
        """What a node hangs below: a function below a function or its root, a NUMA node below its package."""
        return self._parents.get(ref)

    def children(self, ref: Ref) -> tuple[Ref, ...]:
        """What hangs directly below, in order."""
        return self._children.get(ref, ())

    def ancestors(self, ref: Ref) -> Iterator[Ref]:
        """Everything above, nearest first."""
        above = self.parent(ref)
        while above is not None:
            yield above
            above = self.parent(above)

    def below(self, ref: Ref) -> Iterator[Ref]:
        """Everything below, depth first."""
        for child in self.children(ref):
            yield child
            yield from self.below(child)

    def memory(self, node: NumaId | None) -> Memory | None:
        return next((memory for memory in self.memories or () if memory.id == node), None)

    @cached_property
    def online_cpus(self) -> CpuSet:
        return frozenset(cpu.id for cpu in self.cpus or () if cpu.online)

    @cached_property
    def cores(self) -> int | None:
        """How many cores are online; None where a CPU does not tell its siblings."""
        online = [cpu.threads for cpu in self.cpus or () if cpu.online]
        return len(set(online)) if online and all(online) else None

    @cached_property
    def _parents(self) -> dict[Ref, Ref]:
        found = {device.ref: device.parent or device.root for device in self.devices or ()}
        for package in self.packages or ():
            for memory in self.memories or ():
                near = memory.cpus or memory.near_cpus
                if near and near <= package.cpus:
                    found[memory.ref] = package.ref
        return {child: parent for child, parent in found.items() if parent is not None}

    @cached_property
    def _children(self) -> dict[Ref, tuple[Ref, ...]]:
        found: dict[Ref, list[Ref]] = {}
        for child, parent in self._parents.items():
            found.setdefault(parent, []).append(child)
        return {parent: tuple(children) for parent, children in found.items()}
