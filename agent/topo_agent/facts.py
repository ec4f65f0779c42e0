"""What was found on a machine: one class for each kind of thing, and Inventory.

Most are named tuples, and their annotations are no strings: a dataclass, or a string to compile for every
field, costs so much at every start that `dump` would take half as long again.

Facts hold ids, never other facts; the relations live in the graph. None is unknown, and `unknown` says
why. Structure (wiring, identity, maxima) and state (what moves by itself) are separate types: "has the
machine changed?" is `==` on everything here whose name does not end in State.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from topo_agent.diagnostics import Diagnostic, UnknownFields
from topo_agent.host import Source
from topo_agent.ids import CpuId, CpuSet, NumaId, PackageId, PciAddress

MemoryKind = Literal["dram", "hbm", "nvm", "cxl", "gpu"]


class Machine(NamedTuple):
    """Whose machine it is, as firmware and kernel name it. No serial and no host name: those are not wiring."""

    vendor: str | None  # class/dmi/id/sys_vendor
    product: str | None  # …/product_name
    board: str | None  # …/board_name
    bios_version: str | None  # …/bios_version
    architecture: str | None  # uname -m
    kernel: str | None  # proc/sys/kernel/osrelease
    virtual: bool | None  # CPU flag `hypervisor`, sys/hypervisor; None where nothing tells
    hypervisor: str | None  # sys/hypervisor/type, or the maker that DMI names
    cpu_model: str | None  # proc/cpuinfo `model name`
    unknown: UnknownFields = ()


class Cpu(NamedTuple):
    """One hardware thread (a PU). An offline one has no place: its topology directory is gone."""

    id: CpuId
    online: bool
    package: PackageId | None = None  # topology/physical_package_id; opaque, -1 is unknown
    die: int | None = None  # topology/die_id
    cluster: int | None = None  # topology/cluster_id
    core: int | None = None  # topology/core_id: unique within a die only
    threads: CpuSet = frozenset()  # topology/thread_siblings_list: who shares this core, online only
    kind: str | None = None  # the PMU that names it: "cpu_core", "cpu_atom" (hybrid machines only)
    capacity: int | None = None  # cpu_capacity: 1024 is the fastest core (Arm)
    unknown: UnknownFields = ()


class Cache(NamedTuple):
    """One cache and who shares it; read only where asked for."""

    level: int
    type: str  # "Data", "Instruction", "Unified"
    size_bytes: int | None
    cpus: CpuSet


class Hugepages(NamedTuple):
    """A setting of this boot: state."""

    size_bytes: int
    pages: int  # node<N>/hugepages/hugepages-<size>kB/nr_hugepages


class NumaNode(NamedTuple):
    """A memory domain of the kernel. Has CPUs, memory, both or neither."""

    id: NumaId
    cpus: CpuSet | None  # node<N>/cpulist, only those online; empty is a node without CPUs
    memory_bytes: int | None  # node<N>/meminfo MemTotal; 0 is a node without memory
    distances: tuple[tuple[NumaId, int], ...] | None  # SLIT row by node id; None is unknown
    initiators: tuple[NumaId, ...] = ()  # node<N>/access{0,1}/initiators: who reaches it best
    read_bandwidth: int | None = None  # …/initiators/read_bandwidth in MB/s: HMAT's word, for comparison
    dax: str | None = None  # the kmem DAX device that this memory came from, by its parent
    gpu: PciAddress | None = None  # proc/driver/nvidia/gpus/<bdf>/numa_status names this node
    unknown: UnknownFields = ()


class StandardNode(NamedTuple):
    """A NUMA node as the upstream Kubernetes helper reads it: for graph/standard.py alone."""

    id: NumaId
    distances: tuple[int, ...] | None  # node<N>/distance, by column; None where it does not take all for numbers
    socket: int | None  # physical_package_id of the first CPU in node<N>/cpulist; None where it finds none


class PcieLink(NamedTuple):
    """What a link could do at best."""

    max_gts: float | None  # max_link_speed: GT/s per lane
    max_width: int | None  # max_link_width: lanes


class LinkState(NamedTuple):
    """What a link does now. An idle GPU trains its link down: this is not structure."""

    gts: float | None  # current_link_speed
    width: int | None  # current_link_width


class PciDevice(NamedTuple):
    """One PCI function, bridges included."""

    address: PciAddress
    path: str  # where its link points, below sys/devices; "" when the entry is a plain directory
    class_code: int | None  # 24 bits: 0x120000
    vendor: int | None
    device: int | None
    numa_node: NumaId | None  # own numa_node file; -1 is unknown
    subvendor: int | None = None
    subdevice: int | None = None
    driver: str | None = None  # None: no driver is bound
    local_cpus: CpuSet | None = None  # local_cpulist, asked only where numa_node is silent
    link: PcieLink | None = None  # None: no PCIe link (integrated, conventional, or not recorded)
    physfn: PciAddress | None = None  # a VF's PF
    sriov_total: int | None = None  # a PF's sriov_totalvfs
    sriov_enabled: int | None = None  # a PF's sriov_numvfs
    iommu_group: int | None = None
    unknown: UnknownFields = ()


class PciBus(NamedTuple):
    """The locality that a host bridge tells: pci<dddd>:<bb>/pci_bus/<dddd>:<bb>/cpulistaffinity."""

    root: str  # "sys/devices/pci0000:15": the directory of the host bridge
    cpus: CpuSet


class Slot(NamedTuple):
    """A physical slot that firmware names: bus/pci/slots/<name>/address = 0000:82:00."""

    name: str
    domain: int
    bus: int
    device: int | None  # None: a slot that is a whole bus


class Netdev(NamedTuple):
    """A network interface, on a PCI function or not. Its address and speed are in NetdevState."""

    name: str  # class/net/<name>
    function: PciAddress | None  # the PCI function in its path; None: virtual, or on no PCI bus
    kind: str | None  # uevent DEVTYPE, or linkinfo of netlink: "bond", "vlan", "bridge"; None is plain
    link_type: int | None  # type: 1 Ethernet, 32 InfiniBand, 772 loopback (include/uapi/linux/if_arp.h)
    port: int | None  # dev_port: which port of a function that has several
    switch_id: str | None  # phys_switch_id: equal on all ports of one embedded switch
    port_name: str | None  # phys_port_name: "p0" a port, "pf0vf3" the representor of a VF
    address: str | None  # address, unless it is all zero
    lower: tuple[str, ...] = ()  # lower_<name>: what a bond, a VLAN or a bridge is made of
    vlan_id: int | None = None  # netlink
    altnames: tuple[str, ...] = ()  # netlink
    other_bus: bool = False  # it has a device, and not on PCI: Hyper-V, a platform, USB
    unknown: UnknownFields = ()


class NetdevState(NamedTuple):
    """What an interface does now."""

    operstate: str | None
    carrier: bool | None
    bits_per_second: int | None  # speed; -1 and EINVAL (no link) are unknown
    mtu: int | None


class RdmaPort(NamedTuple):
    number: int
    link_layer: str | None  # "InfiniBand", "Ethernet"
    netdevs: tuple[str, ...] = ()  # gid_attrs/ndevs: which interfaces its GIDs belong to


class RdmaPortState(NamedTuple):
    state: str | None  # "ACTIVE", "DOWN"
    bits_per_second: int | None  # rate: "400 Gb/sec (4X NDR)"


class RdmaDevice(NamedTuple):
    """An RDMA device. Without a PCI function it is software (rxe, siw) or belongs to something else (scif)."""

    name: str  # class/infiniband/<name>; a name is no identity: mlx5_0 may be another card after a boot
    function: PciAddress | None
    node_guid: str | None
    board_guid: str | None  # sys_image_guid: equal on all ports and functions of one card
    board_id: str | None  # board_id: the maker's part, "MT_0000000838"
    firmware: str | None  # fw_ver
    ports: tuple[RdmaPort, ...]
    parent: str | None = None  # parent: the interface that a software device runs on
    unknown: UnknownFields = ()


class Nvme(NamedTuple):
    """An NVMe controller, with the disks that it serves."""

    name: str  # class/nvme/<name>; on kernels before 4.4 the disk stands for its controller
    function: PciAddress | None  # None: a fabric (TCP, RDMA, Fibre Channel) or no PCI bus
    transport: str | None  # "pcie", "tcp", "rdma", "fc"
    namespaces: tuple[str, ...]  # "nvme0n1": the disks that people mount
    path_names: tuple[str, ...] = ()  # "nvme0c0n1": hidden paths of a multipath disk
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    subsystem: str | None = None  # subsysnqn
    remote: str | None = None  # address of a fabric: where the other end is
    unknown: UnknownFields = ()


class Disk(NamedTuple):
    """A block device that is no NVMe, and the PCI function it hangs off: vda of a virtio function."""

    name: str
    function: PciAddress


class Clique(NamedTuple):
    """One of the cliques of a GPU in its NVLink cluster: nvml.h nvmlGpuFabricClique_v1_t."""

    type: Literal["unicast_pointer", "multicast_pointer", "unicast_logical_endpoint", "multicast_logical_endpoint"]
    id: int


FabricStep = Literal["not_supported", "not_started", "in_progress", "completed"]
"""nvml.h NVML_GPU_FABRIC_STATE_…, in their order."""


class FabricState(NamedTuple):
    """How the NVLink fabric of a GPU is now: nvml.h nvmlGpuFabricInfo_v3_t."""

    function: PciAddress
    state: FabricStep | None  # None: one that nvml.h has not
    status: int | None  # nvmlReturn_t, 0 is up; it says nothing before the state is completed
    health_mask: int | None  # None: an older driver
    health: Literal["healthy", "unhealthy", "limited_capacity"] | None  # the summary, else what the mask amounts to
    faults: tuple[str, ...] = ()  # what the mask names
    ruled_out: tuple[str, ...] = ()  # faults that it says there are not; of the rest it tells nothing


class Platform(NamedTuple):
    """Where a GPU is in its rack (Blackwell and later): nvml.h nvmlPlatformInfo_v2_t."""

    chassis_serial: str | None
    slot: int | None  # of the chassis; counts switch trays too
    tray: int | None  # compute trays only
    host_id: int | None  # the node within the slot
    module_id: int | None  # the GPU within the node
    unknown: UnknownFields = ()


class MigDevice(NamedTuple):
    """A part of a GPU that counts as a device: a compute instance in a GPU instance. It has no PCI function."""

    function: PciAddress  # the GPU that it is a part of
    gpu_instance: int  # nvmlDeviceGetGpuInstanceId
    compute_instance: int | None  # nvmlDeviceGetComputeInstanceId
    uuid: str | None
    name: str | None  # "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    memory_bytes: int | None
    unknown: UnknownFields = ()

    @property
    def place(self) -> tuple[int, int]:
        """Where it is in its GPU. Compute instance 0 is the only one of nearly every GPU instance."""
        return self.gpu_instance, self.compute_instance or 0


class Gpu(NamedTuple):
    """What a driver says of one GPU. The function itself is a PciDevice; these two are joined in the graph."""

    function: PciAddress
    origin: Literal["drm", "nvidia", "nvml", "kfd"]
    name: str | None = None
    uuid: str | None = None
    nvml_index: int | None = None  # the order of nvidia-smi (NVML)
    memory_bytes: int | None = None
    nodes: tuple[str, ...] = ()  # device nodes by name: "card0", "renderD128", "accel0"
    partitions: int | None = None  # KFD nodes of one GPU: CPX shows eight
    compute_partition: str | None = None  # current_compute_partition: SPX whole, DPX, TPX, QPX, CPX one for each die
    memory_partition: str | None = None  # current_memory_partition: NPS1 whole, NPS4 four
    compute_units: int | None = None
    hive: str | None = None  # xGMI hive, hex
    numa_node: NumaId | None = None  # the node of its own memory (Grace)
    fabric: str | None = None  # "<cluster uuid>.<clique>" of an NVLink fabric that is up
    cliques: tuple[Clique, ...] = ()  # all of them with their types, where the driver tells these (615)
    platform: Platform | None = None
    virtualization: Literal["passthrough", "vgpu", "host_vgpu", "host_vsga"] | None = None  # None: none, or not told
    mig: bool | None = None  # MIG is on; None: nobody tells
    near_cpus: CpuSet | None = None  # NVML's CPU affinity: clipped to the asker's cpuset, a last resort
    unknown: UnknownFields = ()


class GpuLink(NamedTuple):
    """NVLink or xGMI from one GPU, all links to the same peer together."""

    function: PciAddress
    kind: Literal["nvlink", "xgmi"]
    peer: PciAddress | None  # None: not visible
    peer_kind: Literal["gpu", "switch", "cpu", "unknown"]
    links: int | None  # how many; None where only the whole is told (xGMI)
    bytes_per_second: int | None  # all links together, one direction, at most
    weight: int | None = None  # KFD: 15 for each xGMI hop


class NvLinkState(NamedTuple):
    """How many of the NVLinks of a GPU to one peer are up. A link that sleeps is up."""

    function: PciAddress
    peer: PciAddress | None
    peer_kind: Literal["gpu", "switch", "cpu", "unknown"]
    active: int


class PeerAccess(NamedTuple):
    """What the driver lets two GPUs do with each other's memory, by capability: read, write, nvlink, atomics, pci."""

    a: PciAddress
    b: PciAddress
    status: tuple[tuple[str, int], ...]  # nvml.h nvmlGpuP2PStatus_t, 0 is yes; what was refused is left out


class IrqState(NamedTuple):
    """Where the interrupts of a function go now."""

    function: PciAddress
    vectors: int
    cpus: CpuSet  # effective_affinity_list of all of them


class Acs(NamedTuple):
    """How a function treats traffic between its neighbours, from configuration space: only where a probe asked.

    A setting of this boot, and known to root only: no structure.
    """

    function: PciAddress
    acs_redirect: bool | None  # does its ACS send peer-to-peer traffic to the root? None: it has no ACS, or `unknown`
    enabled: tuple[str, ...] = ()  # bits of the ACS Control register, as lspci calls them: "ReqRedir"
    ats: bool | None = None  # does it use translated addresses (ATS Control, bit 15)? None: it cannot, or `unknown`
    unknown: UnknownFields = ()


class GpuDirect(NamedTuple):
    """What of the running kernel decides whether a NIC reaches the memory of a GPU: only where checks asked."""

    modules: frozenset[str] | None  # names in sys/module; None: there is no such directory here
    open_modules: bool | None  # proc/driver/nvidia/version: "Open Kernel Module"; None: no such file
    domains: tuple[tuple[int, str], ...] = ()  # kernel/iommu_groups/<group>/type: "DMA", "DMA-FQ", "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that a host said. `cpus` is None where the host says nothing of CPUs at all."""

    source: Source
    machine: Machine
    cpus: tuple[Cpu, ...] | None
    caches: tuple[Cache, ...] | None = None  # None: not asked for
    numa: tuple[NumaNode, ...] | None = None  # None: the kernel has no NUMA, or nothing is recorded
    standard_nodes: tuple[StandardNode, ...] = ()
    pci: tuple[PciDevice, ...] | None = None  # None: no PCI bus here, or nothing is recorded
    buses: tuple[PciBus, ...] = ()
    slots: tuple[Slot, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    nvme: tuple[Nvme, ...] = ()
    disks: tuple[Disk, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    migs: tuple[MigDevice, ...] = ()
    kfd_hidden: int = 0  # KFD nodes that the device cgroup hides
    gpu_links: tuple[GpuLink, ...] | None = None  # None: nothing here tells of NVLink or xGMI
    peer_access: tuple[PeerAccess, ...] = ()
    allowed_cpus: CpuSet | None = field(default=None, compare=False)  # what the asking process may use
    default_routes: tuple[str, ...] | None = field(default=None, compare=False)  # interfaces; None: not recorded
    links_now: tuple[tuple[PciAddress, LinkState], ...] = field(default=(), compare=False)
    hugepages_now: tuple[tuple[NumaId, tuple[Hugepages, ...]], ...] = field(default=(), compare=False)
    netdevs_now: tuple[tuple[str, NetdevState], ...] = field(default=(), compare=False)
    rdma_now: tuple[tuple[str, int, RdmaPortState], ...] = field(default=(), compare=False)
    fabrics_now: tuple[FabricState, ...] = field(default=(), compare=False)
    nvlinks_now: tuple[NvLinkState, ...] = field(default=(), compare=False)
    irqs_now: tuple[IrqState, ...] = field(default=(), compare=False)
    gpudirect: GpuDirect | None = field(default=None, compare=False)  # None: not asked for
    acs: tuple[Acs, ...] | None = field(default=None, compare=False)  # None: not asked for
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)
