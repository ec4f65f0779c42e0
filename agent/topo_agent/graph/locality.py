"""Which NUMA node and which CPUs a PCI function is near, and who says so. Unknown where nobody does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topo_agent.diagnostics import Unknown
from topo_agent.facts import NumaNode
from topo_agent.graph.nodes import Memory, Origin, Package
from topo_agent.ids import CpuSet, NumaId


class Near(NamedTuple):
    """An answer with its origin, or none with the reason."""

    numa_node: NumaId | None
    cpus: CpuSet | None
    origin: Origin | None
    reason: Unknown | None


class Places(NamedTuple):
    """The NUMA nodes and CPUs of a machine, as far as locality needs them. `memories` None: not told."""

    memories: Mapping[NumaId, Memory] | None
    online: CpuSet

    def by_firmware(self, node: NumaId | None, origin: Origin) -> Near | None:
        """A node that a `numa_node` file names. One without CPUs stands for the single node near it."""
        if node is None:
            return None
        if self.memories is None:
            return Near(node, None, origin, None)
        memory = self.memories.get(node)
        if memory is None:
            return Near(None, None, None, Unknown.CONTRADICTS)  # names a node that is not online
        if memory.cpus is None or memory.cpus:
            return Near(node, memory.cpus, origin, None)
        return self._around(memory.near_cpus or frozenset(), origin)

    def by_cpus(self, cpus: CpuSet | None, origin: Origin) -> Near | None:
        """The node around a list of CPUs. All CPUs, or none, say nothing; parts of several nodes contradict."""
        near = (cpus or frozenset()) & self.online
        if not near or near == self.online or self.memories is None:
            return None
        around = self._around(near, origin)
        if around is not None:
            return around
        touched = [memory.cpus for memory in self.memories.values() if memory.cpus and memory.cpus & near]
        if touched and frozenset[int]().union(*touched) == near:
            return Near(None, near, origin, None)  # whole nodes: near CPUs, but no one node
        return Near(None, None, None, Unknown.CONTRADICTS)

    def _around(self, cpus: CpuSet, origin: Origin) -> Near | None:
        """The one node that holds some CPUs."""
        for node, memory in (self.memories or {}).items():
            if cpus and memory.cpus and cpus <= memory.cpus:
                return Near(node, memory.cpus, origin, None)
        return None

    def only(self) -> Near | None:
        """The one node of a machine that has one, if it holds all its CPUs."""
        nodes = list((self.memories or {}).values())
        if len(nodes) != 1 or (nodes[0].cpus is not None and nodes[0].cpus != self.online):
            return None
        return Near(nodes[0].id, nodes[0].cpus, "assumed", None)


def decide(answers: Iterable[Near | None], silence: Unknown) -> Near:
    """The first answer with a node wins; CPUs alone are kept; otherwise the reason why there is none."""
    cpus_only: Near | None = None
    reason = silence
    for answer in answers:
        if answer is None:
            continue
        if answer.numa_node is not None:
            return answer
        if answer.cpus is not None:
            cpus_only = cpus_only or answer
        elif answer.reason is not None:
            reason = answer.reason
    return cpus_only._replace(reason=reason) if cpus_only else Near(None, None, None, reason)


def nearest_with_cpus(node: NumaNode, with_cpus: Mapping[NumaId, CpuSet]) -> CpuSet | None:
    """The CPUs that reach a CPU-less node best: by HMAT's initiators, else by the smallest SLIT distance."""
    named = [with_cpus[other] for other in node.initiators if other in with_cpus]
    if not named and node.distances is not None:
        reachable = {other: value for other, value in node.distances if other in with_cpus}
        best = min(reachable.values(), default=None)
        named = [with_cpus[other] for other, value in reachable.items() if value == best]
    return frozenset[int]().union(*named) if named else None


def siblings(node: NumaId, memories: Mapping[NumaId, Memory], packages: Iterable[Package]) -> tuple[NumaId, ...]:
    """The node, then the other nodes with CPUs of its package at its smallest distance (SNC, NPS), ascending."""
    memory = memories.get(node)
    package = next((one for one in packages if memory and memory.cpus and memory.cpus <= one.cpus), None)
    if memory is None or memory.distances is None or package is None:
        return (node,)
    others = {
        other: value
        for other, value in memory.distances
        if other != node and (found := memories.get(other)) and found.cpus
    }
    best = min(others.values(), default=None)
    near = [
        other for other, value in others.items() if value == best and (memories[other].cpus or set()) <= package.cpus
    ]
    return (node, *sorted(near))
