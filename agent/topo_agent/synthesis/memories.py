"""NUMA nodes -> sys/devices/system/node, and the DAX devices and GPU files that name memories without CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topo_agent.ids import CpuSet, cpulist
from topo_agent.synthesis.cpus import Thread
from topo_agent.synthesis.memory import Extra, Numa, Rule
from topo_agent.synthesis.tree import Tree

_NODE = "sys/devices/system/node"
# Where the kernel hangs the memory that the kmem driver gives out again: drivers/{nvdimm,cxl,dax/hmem}
_DAX = {
    "nvm": "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region{0}/dax{0}.0/dax{0}.0",
    "cxl": "sys/devices/platform/ACPI0017:00/root0/decoder0.{0}/region{0}/dax_region{0}/dax{0}.0",
    "hbm": "sys/devices/platform/hmem.{0}/dax{0}.0",
}


def shared_out(spec: Numa, threads: Iterable[Thread], offline: CpuSet) -> dict[int, CpuSet]:
    """Node -> its online CPUs; only nodes that have some in the description."""
    if spec.cpus is not None:
        return {node: cpus - offline for node, cpus in zip(spec.ids, spec.cpus, strict=True)}
    found: dict[int, set[int]] = {node: set() for node in spec.ids}
    for one in threads:
        found[spec.ids[one.node]].add(one.cpu)
    return {node: frozenset(cpus) - offline for node, cpus in found.items()}


def distances(spec: Numa, packages: Mapping[int, frozenset[int]]) -> dict[int, list[int]] | None:
    """Node -> its row, one number for each node by id. `packages`: the packages that each node has CPUs of."""
    every = spec.every
    if spec.matrix is not None:
        return {node: list(row) for node, row in zip(every, spec.matrix, strict=True)}
    if spec.rule is None:
        return None
    extra = {node: one for one in spec.extra for node in one.ids}
    return {node: [_distance(spec, packages, extra, node, other) for other in every] for node in every}


def _distance(spec: Numa, packages: Mapping[int, frozenset[int]], extra: Mapping[int, Extra], a: int, b: int) -> int:
    rule = spec.rule or Rule()
    if a == b:
        return rule.local
    if a in extra and b in extra:
        return max(extra[a].among, extra[b].among)
    if a in extra or b in extra:
        one, other = (extra[a], b) if a in extra else (extra[b], a)
        return one.distance if other in one.near else one.far
    return rule.package if packages[a] & packages[b] else rule.other


def write(tree: Tree, spec: Numa, nodes: Mapping[int, CpuSet], rows: Mapping[int, list[int]] | None) -> None:
    """drivers/base/node.c."""
    memory = dict(zip(spec.ids, spec.memory, strict=True)) | {
        node: one.memory for one in spec.extra for node in one.ids
    }
    every = sorted(memory)
    with_memory = cpulist(node for node, size in memory.items() if size)
    with_cpus = cpulist(node for node, cpus in nodes.items() if cpus)
    tree.write(_NODE, online=cpulist(every), possible=spec.possible or cpulist(every))
    tree.write(_NODE, has_cpu=with_cpus, has_memory=with_memory, has_normal_memory=with_memory)
    for node in every:
        path = f"{_NODE}/node{node}"
        tree.link(f"sys/bus/node/devices/node{node}", path)
        tree.cpus(path, "cpumap", "cpulist", nodes.get(node, ()))
        size = memory[node] >> 10
        tree.text(
            f"{path}/meminfo", f"Node {node} MemTotal:       {size:8} kB\nNode {node} MemFree:        {size:8} kB\n"
        )
        if rows is not None:
            tree.text(f"{path}/distance", _row(rows[node], every))
        for page, pages in spec.hugepages if memory[node] else ():
            tree.write(f"{path}/hugepages/hugepages-{page}kB", nr_hugepages=pages, free_hugepages=pages)
        for cpu in sorted(nodes.get(node, ())):
            tree.link(f"{path}/cpu{cpu}", f"sys/devices/system/cpu/cpu{cpu}")
            tree.link(f"sys/devices/system/cpu/cpu{cpu}/node{node}", path)
        if node in spec.ids and spec.bandwidth and memory[node]:
            _initiators(tree, node, (node,), spec.bandwidth)
    for number, one in enumerate(spec.extra):
        _extra(tree, one, number)


def _row(row: list[int], every: list[int]) -> str:
    """node_read_distance() puts a blank before every node but node 0, also where that is the first one."""
    return "".join(f"{' ' if node else ''}{value}" for node, value in zip(every, row, strict=True)) + "\n"


def _initiators(tree: Tree, node: int, near: Iterable[int], bandwidth: int) -> None:
    """drivers/acpi/numa/hmat.c: who reaches a memory best, and how fast in MB/s."""
    for access in ("access0", "access1"):
        path = f"{_NODE}/node{node}/{access}/initiators"
        tree.write(path, read_bandwidth=bandwidth, write_bandwidth=bandwidth)
        for other in near:
            tree.link(f"{path}/node{other}", f"{_NODE}/node{other}")


def _extra(tree: Tree, one: Extra, number: int) -> None:
    for node in one.ids:
        if one.bandwidth:
            _initiators(tree, node, one.near, one.bandwidth)
        if one.kind in _DAX:
            path = _DAX[one.kind].format(number)
            tree.write(path, target_node=node, size=one.memory, numa_node=one.near[0])
            tree.link(f"{path}/driver", "sys/bus/dax/drivers/kmem")
            tree.link(f"{path}/subsystem", "sys/bus/dax")
            tree.link(f"sys/bus/dax/devices/dax{number}.0", path)
            tree.link(f"sys/bus/dax/drivers/kmem/dax{number}.0", path)
