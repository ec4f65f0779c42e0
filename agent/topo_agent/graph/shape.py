"""The shape of a machine: one short word that is equal for machines wired alike, and another one where wiring differs.

What is in it:

- the model of the processor, and whether the machine is virtual;
- packages and NUMA nodes: how many CPUs of which package are online in which node, by the threads of their cores;
- of a NUMA node its memory, roughly (`memory_class`), its kind where the machine tells kinds apart, its distances,
  and for one without CPUs which nodes reach it best;
- every PCI function but virtual ones, below the function or root that it hangs below: class, vendor, device and
  subsystem, the most that its link can do, the other functions of its card, and which NUMA node it is near;
- NVLink and xGMI: which functions are joined, by how many links, with what bandwidth and weight.

What is out of it:

- who a part is: serials, GUIDs, UUIDs, addresses, names of devices and of the host, chassis, rack, clique, slots;
- numbers that firmware or kernel give anew: PCI domains, buses and devices, host bridges, NUMA nodes, packages, CPUs.
  Which of two equal nodes is called 0 does not matter;
- versions and settings: kernel, BIOS, drivers and whether one is bound, SR-IOV (how many functions a card may have is
  a setting of the card or its driver), MIG, partitions of AMD GPUs, IOMMU groups, huge pages, ACS;
- what only some kernels tell of a CPU: dies, clusters, caches, capacity, kind. The model stands for it;
- what the vendor calls the machine and its board, and `uname -m`, which is the word of the asking process;
- what only drivers say of a function: memory and name of a GPU, ports of a NIC, model of a drive, disks, interfaces;
- NUMA nodes without CPUs that are empty or the memory of a GPU: they come and go with its driver;
- virtual functions, bonds, VLANs, software RDMA, remote drives; and all that is state.

A CPU that is offline does not count: the kernel does not tell where it belongs. So a machine with one has another shape
than with that CPU online. Unknown is a value of its own: a machine that was recorded without a fact, or whose driver
did not answer, has another shape than with it. Whoever publishes a shape should hold the last good one.

How: trees are hashed from their leaves, children as a multiset. What is joined across trees (NUMA nodes by distances,
GPUs by links, functions to the node they are near) is a graph, and `colouring` says whether two of those are the same.
"""

from __future__ import annotations

from collections import Counter
from string import digits
from typing import NamedTuple

from topo_agent.graph.colouring import Graph, certificate, hashed
from topo_agent.graph.nodes import Device, Memory
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuId, NumaId, PackageId, Ref, numa_ref, package_ref

VERSION = "topo-agent/shape/1"
"""Part of what is hashed: another way to make shapes gives other words, and none that means something else here."""

_LENGTH = 16

_GIB = 1 << 30


def shape(topology: Topology) -> str:
    """The shape of a machine, `"c31f0a9d27be4485"`: fit for the value of a Kubernetes label.

    It begins with a letter, so that YAML without quotes does not take it for a number (`1234567890123456`, `12e4…`).
    """
    parts = (topology.cpus, topology.memories, topology.devices, topology.links)
    whole = hashed(
        VERSION,
        topology.machine.cpu_model,
        topology.machine.virtual,
        [part is None for part in parts],  # not told is not the same as none
        certificate(_wiring(topology)),
    )
    return whole.lstrip(digits)[:_LENGTH]


def memory_class(size: int) -> int:
    """About what is installed, from MemTotal: 1127 GiB -> 1152 GiB, in bytes.

    MemTotal is what firmware and kernel leave. 1/64 goes to page descriptors (64 bytes for each 4 KiB); the kernel, a
    crash kernel and what firmware keeps take some 100 MB more, and differ between equal machines. So 1/64 is added, and
    the sum rounded to the nearest of eight steps between powers of two, which are 6 to 12 % apart: 3 % may be missing
    before the next lower one is nearer. 1 to 16 DIMMs of 2^n GiB are such steps, and 4, 6, 8, 10, 12 or 16 of 3 * 2^n,
    so a DIMM that failed shows. Whole GiB would tell equal machines apart that stand on two sides of a boundary.
    A step is 4 GiB at least: a small machine loses more of what it has.
    """
    whole = size * 64 // 63
    step = max(4 * _GIB, 1 << max(whole.bit_length() - 4, 0))
    return max((whole + step // 2) // step, 1) * step if size else 0


# The machine as a graph


def _wiring(topology: Topology) -> Graph:
    graph = Graph()
    memories = [one for one in topology.memories or () if not _of_a_driver(one)]
    _processors(graph, topology, memories)
    _memories(graph, memories)
    _Trees(topology, memories).put(graph)
    _links(graph, topology)
    return graph


def _of_a_driver(memory: Memory) -> bool:
    """A node that is empty, or the memory of a GPU: on POWER9 and Grace the driver makes or fills such."""
    return memory.cpus == frozenset() and (memory.memory_bytes == 0 or memory.kind == "gpu")


def _processors(graph: Graph, topology: Topology, memories: list[Memory]) -> None:
    """How many CPUs of each package are in each node, by the threads of their core; 0 threads: not told."""
    homes = {CpuId(cpu): memory.id for memory in memories for cpu in memory.cpus or ()}
    counts: dict[tuple[PackageId | None, NumaId | None], Counter[int]] = {}
    for cpu in topology.cpus or ():
        if cpu.online:
            counts.setdefault((cpu.package, homes.get(cpu.id)), Counter())[len(cpu.threads)] += 1
    for (package, node), threads in counts.items():
        socket = Ref("pkg", "?") if package is None else package_ref(package)
        place = Ref("numa", "?") if node is None else numa_ref(node)
        cpus = ("cpus", sorted(threads.items()))
        graph.join(socket, place, cpus, cpus)


def _memories(graph: Graph, memories: list[Memory]) -> None:
    rows = {memory.id: dict(memory.distances or ()) for memory in memories}
    for memory in memories:
        size = None if memory.memory_bytes is None else memory_class(memory.memory_bytes)
        graph.add(memory.ref, "numa", size, memory.kind, memory.cpus is None, rows[memory.id].get(memory.id))
        graph.meshed.add(memory.ref)
    for place, one in enumerate(memories):
        for other in memories[place + 1 :]:
            there, back = rows[one.id].get(other.id), rows[other.id].get(one.id)
            graph.join(one.ref, other.ref, ("distance", there, back), ("distance", back, there))
        for other in memories:
            if other.cpus and one.near_cpus and other.cpus <= one.near_cpus:
                graph.join(one.ref, other.ref, "reached from", "reaches")


def _links(graph: Graph, topology: Topology) -> None:
    """NVLink and xGMI. An end that nobody sees is a thing of its own: it may be any switch."""
    for number, link in enumerate(topology.links or ()):
        label = (link.kind, link.peer, link.links, link.bytes_per_second, link.weight)
        end = Ref("end", str(number)) if link.b is None else link.b
        graph.join(link.a, end, label, label)
        graph.meshed |= {link.a, end}


class _Near(NamedTuple):
    """Which NUMA nodes a function is near, and how that is known."""

    how: str  # "node"; "cpus" near whole nodes and no single one; "unknown"; "each" a root whose functions differ
    nodes: tuple[NumaId, ...] = ()


class _Trees:
    """Roots, and the functions below them.

    A function that is joined to nothing but what is above and below it becomes part of the label above, and so do all
    but a few: what functions are near is told by their root, where those right below it agree.
    """

    def __init__(self, topology: Topology, memories: list[Memory]) -> None:
        self.topology = topology
        self.functions = {one.ref: one for one in topology.devices or () if one.physfn is None}
        self.roots = [root.ref for root in topology.roots or ()]
        self.near = {ref: _near(one, memories) for ref, one in self.functions.items()}
        self.near |= self._near_roots()
        self.above = {ref: up if (up := topology.parent(ref)) in self.near else None for ref in self.functions}
        self.cards: dict[tuple[int, int, int], list[str]] = {}  # what all functions of a card are
        for one in self.functions.values():
            self.cards.setdefault(one.address.card, []).append(hashed(*_identity(one)))

    def put(self, graph: Graph) -> None:
        own = self._own()
        inside: dict[Ref | None, list[str]] = {}
        depth = {ref: sum(1 for _ in self.topology.ancestors(ref)) for ref in self.functions}
        for ref in sorted(self.functions, key=lambda ref: -depth[ref]):  # what is below comes first
            label = (*self._label(self.functions[ref]), sorted(inside.get(ref, ())))
            if ref in own:
                graph.add(ref, "function", *label)
            else:
                inside.setdefault(self.above[ref], []).append(hashed(*label))
        for ref in self.roots:
            graph.add(ref, "root", self.near[ref].how, sorted(inside.get(ref, ())))
        for ref in (*own, *self.roots):
            up = self.above.get(ref)
            if up is not None:
                graph.join(ref, up, "below", "above")
            if not self._as_above(ref):
                for node in self.near[ref].nodes:
                    graph.join(ref, numa_ref(node), "near", "near")

    def _own(self) -> set[Ref]:
        """The functions that are things of the graph: those joined to something else, and all above them."""
        linked = {end for link in self.topology.links or () for end in (link.a, link.b)}
        apart = [ref for ref in self.functions if ref in linked or not self._as_above(ref)]
        return {one for ref in apart for one in (ref, *self.topology.ancestors(ref)) if one in self.functions}

    def _as_above(self, ref: Ref) -> bool:
        """Is it near what the thing above it is near?"""
        up = self.above.get(ref)
        return up is not None and self.near[ref] == self.near[up]

    def _label(self, one: Device) -> tuple[object, ...]:
        """What a function is, without whoever is near or below."""
        unknown = dict(one.unknown)
        link = "unknown" if "link" in unknown else None if one.link is None else (*one.link,)
        how = "as above" if self._as_above(one.ref) else self.near[one.ref].how
        return (*_identity(one), link, sorted(self.cards[one.address.card]), how, "parent" in unknown)

    def _near_roots(self) -> dict[Ref, _Near]:
        """What all functions right below a root say; where they differ each says it itself."""
        told: dict[Ref | None, set[_Near]] = {ref: set() for ref in self.roots}
        for ref in self.functions:
            told.setdefault(self.topology.parent(ref), set()).add(self.near[ref])
        return {ref: told[ref].pop() if len(told[ref]) == 1 else _Near("each") for ref in self.roots}


def _identity(one: Device) -> tuple[int | None, ...]:
    """What a function is by itself: its kind and model, which need no driver."""
    return one.class_code, one.vendor, one.device, one.subvendor, one.subdevice


def _near(one: Device, memories: list[Memory]) -> _Near:
    """NVML's word is left out: it is that of a driver, and cut to the CPUs that whoever asks may use."""
    if "nvml" in dict(one.sources).values():
        return _Near("unknown")
    if one.numa_node is not None:
        return _Near("node", (one.numa_node,))
    around = tuple(memory.id for memory in memories if memory.cpus and one.cpus and memory.cpus <= one.cpus)
    return _Near("cpus", around) if around else _Near("unknown")
