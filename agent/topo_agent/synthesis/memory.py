"""What a description says of NUMA nodes: those with CPUs, and those that are memory only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from topo_agent.ids import CpuSet, cpulist
from topo_agent.synthesis.fields import Fields, Place, Value

KINDS = ("empty", "plain", "gpu", "hbm", "nvm", "cxl")
_NODES_AT_MOST = 1024  # the largest MAX_NUMNODES of any architecture's Kconfig


@dataclass(frozen=True, slots=True)
class Extra:
    """Nodes without CPUs: all of one kind, near the same nodes."""

    ids: tuple[int, ...]
    kind: str
    memory: int
    gpu: str | None
    near: tuple[int, ...]
    distance: int  # to the nodes it is near
    far: int  # to other nodes with CPUs
    among: int  # to other nodes without CPUs
    bandwidth: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Rule:
    """Distances by how far apart two nodes with CPUs are."""

    local: int = 10
    package: int = 12
    other: int = 20


@dataclass(frozen=True, kw_only=True)
class Numa:
    """What a description says of NUMA nodes; `ids` are those with CPUs."""

    ids: tuple[int, ...]
    cpus: tuple[CpuSet, ...] | None  # None: shared out evenly
    memory: tuple[int, ...]
    rule: Rule | None  # None: no distances
    matrix: tuple[tuple[int, ...], ...] | None
    hugepages: tuple[tuple[int, int], ...]  # kB of a page, pages
    bandwidth: int | None
    extra: tuple[Extra, ...]
    possible: str | None
    place: Place

    @property
    def every(self) -> list[int]:
        return sorted((*self.ids, *(node for one in self.extra for node in one.ids)))


def read(value: Value, packages: int) -> Numa:
    """The nodes; there are as many as packages where nothing is said."""
    said = value.fields("nodes", "ids", "cpus", "memory", "distance", "hugepages", "bandwidth", "extra", "possible")
    ids, cpus = _ids(said, packages)
    bandwidth, pages, possible, extra = (said.get(name) for name in ("bandwidth", "hugepages", "possible", "extra"))
    distance = said.get("distance")
    found = Numa(
        ids=ids,
        cpus=cpus,
        memory=_memory(said.get("memory"), ids),
        rule=None if distance is not None and distance.word() == "none" else _rule(distance),
        matrix=None,
        hugepages=tuple(_pages(key, one) for key, one in pages.pairs()) if pages else (),
        bandwidth=bandwidth.count(1) if bandwidth else None,
        extra=tuple(_extra(one, ids) for one in extra.items()) if extra else (),
        possible=cpulist(possible.cpus()) if possible else None,
        place=value.place,
    )
    if len(found.every) > len(set(found.every)):
        counts = Counter(found.every)
        raise value.wrong(f"node {next(node for node in found.every if counts[node] > 1)} is there twice")
    if len(found.every) > _NODES_AT_MOST:
        raise value.wrong(f"more than {_NODES_AT_MOST} nodes")
    return (
        found
        if distance is None or not distance.is_list
        else replace(found, matrix=_matrix(distance, len(found.every)))
    )


def _ids(said: Fields, packages: int) -> tuple[tuple[int, ...], tuple[CpuSet, ...] | None]:
    lists, nodes, named = said.get("cpus"), said.get("nodes"), said.get("ids")
    cpus: tuple[CpuSet, ...] | None = None
    if lists:
        seen: set[int] = set()
        for listed in lists.items():  # told at the first that repeats: each word may stand for thousands
            one = frozenset(listed.cpus())
            if seen & one:
                raise listed.wrong(f"CPU {min(seen & one)} is in another node already")
            seen |= one
            cpus = (*(cpus or ()), one)
            if len(cpus) > _NODES_AT_MOST:
                raise lists.wrong(f"more than {_NODES_AT_MOST} nodes")
        cpus = cpus or ()
    ids = tuple(one.count(0, _NODES_AT_MOST - 1) for one in named.items()) if named else None
    count = nodes.count(1, _NODES_AT_MOST) if nodes else len(ids or cpus or range(packages))
    ids = ids or tuple(range(count))
    if len(ids) != count or (cpus is not None and len(cpus) != count):
        told = "" if cpus is None else f" and {len(cpus)} lists of CPUs"
        raise said.place.wrong(f"{count} nodes with CPUs, but {len(ids)} ids{told}")
    return ids, cpus


def _pages(key: str, value: Value) -> tuple[int, int]:
    """`2 MiB: 512` -> (2048, 512)."""
    return value.of(key).size() >> 10, value.count()


def _memory(value: Value | None, ids: tuple[int, ...]) -> tuple[int, ...]:
    """One size for all, or one for each."""
    if value is None:
        return tuple(64 << 30 for _ in ids)
    sizes = [one.size() for one in value.items()] if value.is_list else [value.size()] * len(ids)
    if len(sizes) != len(ids):
        raise value.wrong(f"{len(sizes)} sizes for {len(ids)} nodes with CPUs")
    return tuple(sizes)


def _rule(value: Value | None) -> Rule:
    if value is None or not value.is_map:
        return Rule()
    said = value.fields("local", "package", "other")
    found = {name: one.count(1, 255) for name in ("local", "package", "other") if (one := said.get(name))}
    return Rule(**found)


def _matrix(value: Value, count: int) -> tuple[tuple[int, ...], ...]:
    """One row for each node, by id; those without CPUs too."""
    rows = tuple(tuple(one.count(1, 255) for one in row.items()) for row in value.items())
    wrong = next((row for row, numbers in zip(value.items(), rows, strict=True) if len(numbers) != count), None)
    if wrong is not None or len(rows) != count:
        raise (wrong or value).wrong(f"distances are square: {count} rows of {count} for {count} nodes")
    return rows


def _extra(value: Value, ids: tuple[int, ...]) -> Extra:
    said = value.fields("id", "ids", "kind", "memory", "gpu", "near", "distance", "far", "among", "bandwidth")
    numbers = said["ids"].cpus() if value.has("ids") else (said["id"].count(0, _NODES_AT_MOST - 1),)
    kind, memory, gpu, near, bandwidth = (said.get(name) for name in ("kind", "memory", "gpu", "near", "bandwidth"))
    distance, far, among = (said.get(name) for name in ("distance", "far", "among"))
    named = tuple(one.count() for one in near.some()) if near else ids[:1]
    stranger = next((node for node in named if node not in ids), None)
    if near and stranger is not None:
        raise near.wrong(f"there is no node {stranger} with CPUs")
    found = Extra(
        ids=numbers,
        kind=kind.choice(*KINDS) if kind else "plain",
        memory=memory.size() if memory else 0,
        gpu=gpu.text() if gpu else None,
        near=named,
        distance=distance.count(1, 255) if distance else 17,
        far=far.count(1, 255) if far else 28,
        among=among.count(1, 255) if among else 28,
        bandwidth=bandwidth.count(1) if bandwidth else None,
        place=value.place,
    )
    if (found.kind == "gpu") != (found.gpu is not None) and found.memory:
        raise value.wrong("kind gpu and the GPU whose memory it is go together")
    if found.kind in ("gpu", "hbm", "nvm", "cxl") and len(numbers) != 1:
        raise value.wrong(f"expected one node of kind {found.kind}")
    return found
