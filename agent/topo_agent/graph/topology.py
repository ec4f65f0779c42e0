"""Topology: the nodes of the graph, their parents, and how to walk them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from topo_agent.diagnostics import Diagnostic
from topo_agent.facts import (
    Acs,
    Cache,
    Cpu,
    FabricState,
    GpuDirect,
    Hugepages,
    IrqState,
    LinkState,
    Machine,
    PeerAccess,
    StandardNode,
)
from topo_agent.graph.nodes import (
    Device,
    DeviceKind,
    Link,
    Memory,
    Mig,
    Node,
    Package,
    PeerKind,
    PortState,
    Root,
    Virtual,
)
from topo_agent.host import Source
from topo_agent.ids import CpuSet, NumaId, Ref


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One machine. `==` compares structure only: state and diagnostics ride along."""

    source: Source = field(compare=False)
    machine: Machine
    cpus: tuple[Cpu, ...] | None
    caches: tuple[Cache, ...] | None
    packages: tuple[Package, ...] | None
    memories: tuple[Memory, ...] | None
    standard_nodes: tuple[StandardNode, ...] = ()  # for the list form of numaNode: graph/standard.py
    roots: tuple[Root, ...] | None
    devices: tuple[Device, ...] | None
    migs: tuple[Mig, ...] = ()
    virtuals: tuple[Virtual, ...] = ()
    links: tuple[Link, ...] | None = None  # None: nothing here tells of NVLink or xGMI
    peer_access: tuple[PeerAccess, ...] = ()
    allowed_cpus: CpuSet | None = field(default=None, compare=False)
    default_routes: frozenset[Ref] | None = field(default=None, compare=False)  # NICs; None: not recorded
    links_now: tuple[tuple[Ref, LinkState], ...] = field(default=(), compare=False)
    ports_now: tuple[tuple[Ref, tuple[PortState, ...]], ...] = field(default=(), compare=False)
    nvlinks_now: tuple[tuple[Ref, Ref | None, PeerKind, int], ...] = field(default=(), compare=False)  # active ones
    fabrics_now: tuple[tuple[Ref, FabricState], ...] = field(default=(), compare=False)
    hugepages_now: tuple[tuple[Ref, tuple[Hugepages, ...]], ...] = field(default=(), compare=False)
    irqs_now: tuple[tuple[Ref, IrqState], ...] = field(default=(), compare=False)
    gpudirect: GpuDirect | None = field(default=None, compare=False)  # None: not asked for
    acs: tuple[tuple[Ref, Acs], ...] | None = field(default=None, compare=False)  # None: not asked for
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)

    @cached_property
    def nodes(self) -> Mapping[Ref, Node]:
        """Every node by its name."""
        parts: tuple[tuple[Node, ...] | None, ...] = (
            self.packages,
            self.memories,
            self.roots,
            self.devices,
            self.migs,
            self.virtuals,
        )
        return MappingProxyType({node.ref: node for part in parts for node in part or ()})

    def device(self, ref: Ref | None) -> Device | None:
        node = self.nodes.get(ref) if ref is not None else None
        return node if isinstance(node, Device) else None

    def function(self, ref: Ref | None) -> Device | None:
        """The PCI function that a node is, or that a MIG device is a part of."""
        node = self.nodes.get(ref) if ref is not None else None
        return self.device(node.partition_of if isinstance(node, Mig) else ref)

    def of_kind(self, *kinds: DeviceKind) -> tuple[Device, ...]:
        """The devices of some kinds in bus order, virtual functions among them."""
        return tuple(device for device in self.devices or () if device.kind in kinds)

    def parent(self, ref: Ref) -> Ref | None:
        """What a node hangs below: a function below a function or its root, a MIG device below its GPU, a NUMA node
        below its package.
        """
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
        found: dict[Ref, Ref | None] = {device.ref: device.parent or device.root for device in self.devices or ()}
        found |= {mig.ref: mig.partition_of for mig in self.migs}
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
