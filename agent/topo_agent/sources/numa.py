"""sys/devices/system/node -> NumaNode: CPUs, memory, distances, and where memory without CPUs came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.facts import Hugepages, NumaNode
from topo_agent.host import Host
from topo_agent.ids import CpuSet, NumaId, PciAddress, cpulist
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, members

_ROOT = "sys/devices/system/node"
_GPUS = "proc/driver/nvidia/gpus"
_HUGEPAGES = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)


class Found(NamedTuple):
    nodes: tuple[NumaNode, ...]
    hugepages: tuple[tuple[NumaId, tuple[Hugepages, ...]], ...]


def read(host: Host, notes: Notes, online_cpus: CpuSet | None) -> Found | None:
    """Every online node, by id; None where the kernel has no NUMA or nothing is recorded of it."""
    directories = _numbers(Entry(host, _ROOT, notes).names())
    if not directories:
        return None
    listed = Entry(host, _ROOT, notes).want("online", parse.cpulist)
    ids = sorted(directories if listed is None else listed & frozenset(directories))
    dax, gpus = _dax(host, notes), _gpu_memory(host, notes)
    nodes = [_node(host, notes, NumaId(node), ids, online_cpus, dax, gpus) for node in ids]
    pages = [(node, _hugepages(Entry(host, f"{_ROOT}/node{node}", notes))) for node in map(NumaId, ids)]
    return Found(tuple(_without_overlap(nodes, notes)), tuple((node, some) for node, some in pages if some))


def _numbers(names: Iterable[str]) -> list[int]:
    return [node for name in names if (node := parse.numbered(name, "node")) is not None]


def _node(
    host: Host,
    notes: Notes,
    node: NumaId,
    ids: list[int],
    online_cpus: CpuSet | None,
    dax: dict[int, str],
    gpus: dict[int, PciAddress],
) -> NumaNode:
    entry = Entry(host, f"{_ROOT}/node{node}", notes)
    cpus = entry.want("cpulist", parse.cpulist, "cpus")
    if cpus is None:  # kernels before 2.6.38 have the mask only
        cpus = entry.want("cpumap", parse.cpumask, "cpus")
    if cpus is not None and online_cpus is not None:
        cpus &= online_cpus  # a list may still name CPUs that were taken offline
    initiators, bandwidth = _initiators(entry) if len(ids) > 1 else ((), None)
    distances = _distances(entry, ids)
    return NumaNode(
        id=node,
        cpus=cpus,
        memory_bytes=entry.want("meminfo", lambda text: parse.meminfo(text, "MemTotal"), "memory_bytes"),
        distances=distances,
        initiators=initiators,
        read_bandwidth=bandwidth,
        dax=dax.get(node),
        gpu=gpus.get(node),
        unknown=entry.unknown,
    )


def _distances(entry: Entry, ids: list[int]) -> tuple[tuple[NumaId, int], ...] | None:
    """The kernel prints one column for each *online* node, in order (drivers/base/node.c), not one for each id."""
    row = entry.want("distance", parse.numbers, "distances")
    if row is None:
        return None
    if len(row) != len(ids):
        entry.say_unknown("distances", Unknown.CONTRADICTS)
        entry.notes.add(
            Level.CONFLICT,
            entry.path,
            "distance_columns",
            f"{len(row)} distances for {len(ids)} online nodes: which is whose cannot be told",
        )
        return None
    return tuple((NumaId(node), value) for node, value in zip(ids, row, strict=True))


def _initiators(entry: Entry) -> tuple[tuple[NumaId, ...], int | None]:
    """Who reaches this memory best, by HMAT; access0 counts every initiator, access1 those with CPUs only."""
    for access in ("access1", "access0"):
        names = entry.names(f"{access}/initiators")
        nodes = tuple(map(NumaId, _numbers(names)))
        if nodes:
            return tuple(sorted(nodes)), entry.want(f"{access}/initiators/read_bandwidth", parse.count)
    return (), None


def _hugepages(entry: Entry) -> tuple[Hugepages, ...]:
    found = []
    for name in entry.names("hugepages"):
        matched = _HUGEPAGES.fullmatch(name)
        pages = entry.want(f"hugepages/{name}/nr_hugepages", parse.count) if matched else None
        if matched and pages is not None:
            found.append(Hugepages(size_bytes=int(matched[1]) * 1024, pages=pages))
    return tuple(sorted(found, key=lambda pages: pages.size_bytes))


def _dax(host: Host, notes: Notes) -> dict[int, str]:
    """Node -> the path of the DAX device whose memory the kmem driver handed to the kernel as that node."""
    found: dict[int, str] = {}
    for _, entry in members(host, "sys/bus/dax/devices", notes):
        node = entry.want("target_node", parse.decimal) if entry.link("driver") == "kmem" else None
        if node is not None and node >= 0:
            found[node] = entry.path
    return found


def _gpu_memory(host: Host, notes: Notes) -> dict[int, PciAddress]:
    """Node -> the GPU whose memory it is, where the NVIDIA driver says so (`Node:      250`)."""
    found: dict[int, PciAddress] = {}
    for name, entry in members(host, _GPUS, notes):
        node = entry.want("numa_status", _node_of_status)
        try:
            found |= {} if node is None else {node: PciAddress.parse(name)}
        except ValueError as error:
            notes.add(Level.DEGRADED, entry.path, "name_garbled", str(error))
    return found


def _node_of_status(text: str) -> int | None:
    """`"Node:      250"` among other lines -> `250`; None where the driver gives no number."""
    pairs = (line.partition(":") for line in text.splitlines())
    return next((parse.numbered(value.strip()) for key, _, value in pairs if key.strip() == "Node"), None)


def _without_overlap(nodes: list[NumaNode], notes: Notes) -> list[NumaNode]:
    """A CPU is in one node. Nodes that share one contradict each other; the others are not concerned."""
    told = Counter(cpu for node in nodes for cpu in node.cpus or ())
    shared = frozenset(cpu for cpu, times in told.items() if times > 1)
    if not shared:
        return nodes
    disputed = [node.id for node in nodes if node.cpus and node.cpus & shared]
    named = ", ".join(map(str, disputed))
    notes.add(
        Level.CONFLICT,
        _ROOT,
        "numa_overlap",
        f"CPUs {cpulist(shared)} are in more than one node; the CPUs of nodes {named} are unknown",
    )
    return [_unknown_cpus(node) if node.id in disputed else node for node in nodes]


def _unknown_cpus(node: NumaNode) -> NumaNode:
    return node._replace(cpus=None, unknown=tuple(sorted((*node.unknown, ("cpus", Unknown.CONTRADICTS)))))
