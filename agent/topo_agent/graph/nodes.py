"""The nodes of the graph: what a machine is made of, each thing in its place and with its sources.

Named tuples with real annotations, for the reason that facts.py gives.
"""

from typing import Literal, NamedTuple

from topo_agent.diagnostics import UnknownFields
from topo_agent.facts import Clique, MemoryKind, PcieLink, Platform
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
    compute_partition: str | None = None
    memory_partition: str | None = None
    compute_units: int | None = None
    hive: str | None = None
    fabric: str | None = None
    cliques: tuple[Clique, ...] = ()
    platform: Platform | None = None
    virtualization: str | None = None  # "passthrough", "vgpu", "host_vgpu", "host_vsga"
    mig: bool = False  # it is cut into MIG devices, or waits to be
    unknown: UnknownFields = ()


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


class Mig(NamedTuple):
    """A MIG device: a part of a GPU, where its GPU is. Nothing counts it as a GPU."""

    ref: Ref
    partition_of: Ref
    gpu_instance: int
    compute_instance: int | None
    uid: str | None  # MIG UUID
    title: str | None
    memory_bytes: int | None
    unknown: UnknownFields = ()

    @property
    def profile(self) -> str | None:
        """`"NVIDIA H100 80GB HBM3 MIG 3g.40gb"` -> `"3g.40gb"`."""
        _, mark, profile = (self.title or "").rpartition("MIG ")
        return profile if mark and profile else None


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


PeerKind = Literal["gpu", "switch", "cpu", "unknown"]


class Link(NamedTuple):
    """NVLink or xGMI between two GPUs, or from a GPU to something that is not one of ours."""

    a: Ref
    b: Ref | None  # None: a switch or a processor that has no address here
    kind: Literal["nvlink", "xgmi"]
    peer: PeerKind
    links: int | None  # how many; None where only the whole is told
    bytes_per_second: int | None
    weight: int | None = None


class PortState(NamedTuple):
    """What a port of a NIC does now."""

    up: bool | None
    bits_per_second: int | None
    mtu: int | None


Node = Package | Memory | Root | Device | Mig | Virtual
