"""NUMA nodes -> Memory: what kind each is, and which CPUs a node without CPUs is near."""

from __future__ import annotations

from topo_agent.facts import MemoryKind, NumaNode
from topo_agent.graph.locality import nearest_with_cpus
from topo_agent.graph.nodes import Memory
from topo_agent.ids import CpuSet, NumaId, numa_ref

_HBM_FACTOR = 2
"""Soft-reserved memory is HBM if HMAT gives it at least twice the bandwidth of the plain nodes, as hwloc judges."""


def read(numa: tuple[NumaNode, ...] | None, online: CpuSet) -> tuple[Memory, ...] | None:
    """Every node; a kernel without NUMA has one, assumed, that holds all its CPUs. None where CPUs are unknown too."""
    if numa is None:
        whole = Memory(ref=numa_ref(NumaId(0)), id=NumaId(0), cpus=online, sources=(("id", "assumed"),))
        return (whole,) if online else None
    kinds = _kinds(numa)
    with_cpus = {node.id: node.cpus for node in numa if node.cpus}
    return tuple(
        Memory(
            ref=numa_ref(node.id),
            id=node.id,
            cpus=node.cpus,
            near_cpus=nearest_with_cpus(node, with_cpus) if node.cpus == frozenset() else None,
            memory_bytes=node.memory_bytes,
            kind=kinds[node.id],
            gpu=node.gpu,
            distances=node.distances,
            unknown=node.unknown,
        )
        for node in numa
    )


def _kinds(numa: tuple[NumaNode, ...]) -> dict[NumaId, MemoryKind | None]:
    """Kinds, where the machine tells its memories apart: one plain node among plain nodes is not called DRAM."""
    plain = [node.read_bandwidth for node in numa if node.read_bandwidth and node.dax is None and node.gpu is None]
    baseline = min(plain, default=None)
    kinds = {node.id: _special(node, baseline) for node in numa}
    if any(kinds.values()):
        for node in numa:
            if kinds[node.id] is None and node.dax is None and node.read_bandwidth is not None:
                kinds[node.id] = "dram"
    return kinds


def _special(node: NumaNode, baseline: int | None) -> MemoryKind | None:
    if node.gpu is not None:
        return "gpu"
    if node.dax is not None and "/ndbus" in node.dax:
        return "nvm"
    if node.dax is not None and ("/ACPI0017:" in node.dax or "/cxl" in node.dax):
        return "cxl"
    if baseline and node.read_bandwidth and node.read_bandwidth >= _HBM_FACTOR * baseline:
        return "hbm"
    return None
