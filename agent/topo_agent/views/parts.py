"""What is no function: packages, caches, NUMA nodes, roots, links and paths -> objects of the JSON document."""

from __future__ import annotations

from topo_agent.diagnostics import Unknown
from topo_agent.facts import Cache
from topo_agent.graph.nodes import Link, Memory, Package, Root
from topo_agent.graph.paths import Path
from topo_agent.host import Json
from topo_agent.ids import cpulist
from topo_agent.views.fields import present, why


def package(one: Package) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "cpus": cpulist(one.cpus),
        "cores": None if one.cores is None else [cpulist(core) for core in one.cores],
    }
    if len(one.dies) > 1:
        said["dies"] = {str(die): cpulist(cpus) for die, cpus in one.dies}
    return said


def cache(one: Cache) -> dict[str, Json]:
    """One cache and the CPUs that share it."""
    said: dict[str, Json] = {"level": one.level, "type": one.type, "cpus": cpulist(one.cpus)}
    return said | present({"size_bytes": one.size_bytes})


def memory(one: Memory) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "cpus": None if one.cpus is None else cpulist(one.cpus),
        "memory_bytes": one.memory_bytes,
        "distances": None if one.distances is None else {str(node): distance for node, distance in one.distances},
    }
    if one.cpus == frozenset():
        said["near_cpus"] = None if one.near_cpus is None else cpulist(one.near_cpus)
    if one.kind is not None:
        said["kind"] = one.kind
    if one.gpu is not None:
        said["gpu"] = f"pci:{one.gpu}"
    return said | why(one.sources, one.unknown)


def root(one: Root) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "numa_node": one.numa_node,
        "cpus": None if one.cpus is None else cpulist(one.cpus),
    }
    return said | why(one.sources, one.unknown)


def link(one: Link) -> dict[str, Json]:
    said: dict[str, Json] = {
        "a": str(one.a),
        "b": str(one.b) if one.b else None,
        "kind": one.kind,
        "peer": one.peer,
    }
    said |= present({"count": one.links, "max_bytes_per_second": one.bytes_per_second, "weight": one.weight})
    return said | ({} if one.b else {"unknown": {"b": Unknown.HIDDEN.value}})


def path(one: Path) -> dict[str, Json]:
    """How far apart two devices are."""
    return {
        "a": str(one.a),
        "b": str(one.b),
        "class": one.class_,
        "nccl_class": one.nccl_class,
        "certain": one.certain,
        "via": [str(ref) for ref in one.via],
        **present(
            {"bottleneck": str(one.bottleneck) if one.bottleneck else None, "bytes_per_second": one.bytes_per_second}
        ),
        "reason": one.reason,
    }
