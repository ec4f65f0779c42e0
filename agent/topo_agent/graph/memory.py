"""NUMA nodes -> Memory: what kind each is, and which CPUs a node without CPUs is near."""

from __future__ import annotations

from topo_agent.facts import MemoryKind, NumaNode, PciDevice
from topo_agent.graph.locality import nearest_with_cpus
from topo_agent.graph.nodes import Memory
from topo_agent.ids import CpuSet, NumaId, PciAddress, numa_ref

_HBM_FACTOR = 2
"""Soft-reserved memory is HBM if HMAT gives it at least twice the bandwidth of the plain nodes, as hwloc judges."""


def read(
    numa: tuple[NumaNode, ...] | None, online: CpuSet, pci: tuple[PciDevice, ...] | None
) -> tuple[Memory, ...] | None:
    """Every node; a kernel without NUMA has one, assumed, that holds all its CPUs. None where CPUs are unknown too."""
    if numa is None:
        whole = Memory(ref=numa_ref(NumaId(0)), id=NumaId(0), cpus=online, sources=(("id", "assumed"),))
        return (whole,) if online else None
    kinds = _kinds(numa)
    with_cpus = {node.id: node.cpus for node in numa if node.cpus}
    beside = {one.address: one.numa_node for one in pci or ()}
    return tuple(
        Memory(
            ref=numa_ref(node.id),
            id=node.id,
            cpus=node.cpus,
            near_cpus=_near(node, with_cpus, beside) if node.cpus == frozenset() else None,
            memory_bytes=node.memory_bytes,
            kind=kinds[node.id],
            gpu=node.gpu,
            distances=node.distances,
            unknown=node.unknown,
        )
        for node in numa
    )


def _near(node: NumaNode, with_cpus: dict[NumaId, CpuSet], beside: dict[PciAddress, NumaId | None]) -> CpuSet | None:
    """The memory of a GPU is near what the GPU is near: its distances to all processors may be the same."""
    place = beside.get(node.gpu) if node.gpu is not None else None
    return with_cpus[place] if place in with_cpus else nearest_with_cpus(node, with_cpus)


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
