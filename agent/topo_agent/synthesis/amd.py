"""AMD's KFD: sys/class/kfd/kfd/topology, as drivers/gpu/drm/amd/amdkfd/kfd_topology.c prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topo_agent.ids import CpuSet
from topo_agent.synthesis.fields import Place, Value
from topo_agent.synthesis.layout import Layout, Placed
from topo_agent.synthesis.named import named, ordered
from topo_agent.synthesis.tree import Tree

_KFD = "sys/devices/virtual/kfd/kfd"
_HT, _PCIE, _XGMI = 1, 2, 11  # include/uapi/linux/kfd_sysfs.h, CRAT io link types
_RENDER = 128  # the first render node of DRM
_ENABLED = 1
_PARTITION_IN = ("function", "top")


@dataclass(frozen=True, slots=True)
class Xgmi:
    a: str
    b: str
    weight: int
    mbps: int
    place: Place


@dataclass(frozen=True, kw_only=True)
class Amd:
    """What a description says of AMD's driver."""

    hives: tuple[tuple[str, ...], ...] | None  # None: all GPUs in one
    links: tuple[Xgmi, ...] | None  # None: each GPU of a hive to each other, one hop
    weight: int
    mbps: int
    order: tuple[str, ...]
    partitions: int
    partition_in: str
    old: bool  # no domain, hive_id and unique_id, as kernels before 5.0
    place: Place


def read(value: Value) -> Amd:
    said = value.fields("hives", "links", "weight", "mbps", "order", "partitions", "partition_in", "old")
    hives, links, weight, mbps = (said.get(name) for name in ("hives", "links", "weight", "mbps"))
    order, partitions, where, old = (said.get(name) for name in ("order", "partitions", "partition_in", "old"))
    lists = hives.items() if hives and hives.is_list else ()
    if hives and not hives.is_list:
        hives.choice("all", "none")
    none = hives is not None and hives.word() == "none"
    return Amd(
        hives=() if none else tuple(tuple(one.text() for one in hive.items()) for hive in lists) or None,
        links=None if links is None else tuple(_link(one) for one in links.items()),
        weight=weight.count(1, 255) if weight else 15,
        mbps=mbps.count(0) if mbps else 64000,
        order=tuple(one.text() for one in order.items()) if order else (),
        partitions=partitions.count(1, 8) if partitions else 1,
        partition_in=where.choice(*_PARTITION_IN) if where else _PARTITION_IN[0],
        old=old.truth() if old else False,
        place=value.place,
    )


def _link(value: Value) -> Xgmi:
    items = value.items()
    if len(items) != 4:
        raise value.wrong("expected two GPUs, a weight and MB/s, such as [gpu0, gpu1, 15, 50000]")
    return Xgmi(items[0].text(), items[1].text(), items[2].count(1, 255), items[3].count(), value.place)


def write(tree: Tree, layout: Layout, spec: Amd, nodes: Mapping[int, CpuSet]) -> None:
    """A KFD node for each NUMA node with CPUs, then one for each partition of each GPU."""
    gpus = ordered(layout, "amdgpu", spec.order, spec.place)
    tree.link("sys/class/kfd/kfd", _KFD)
    tree.write(f"{_KFD}/topology", generation_id=2)
    with_cpus = {node: cpus for node, cpus in nodes.items() if cpus}
    first = {id(one): len(with_cpus) + place * spec.partitions for place, one in enumerate(gpus)}
    links: dict[int, list[tuple[int, int, int, int]]] = {}  # node -> (type, to, weight, MB/s)
    processors = {numa: number for number, numa in enumerate(with_cpus)}
    for numa, number in processors.items():
        _processor(tree, number, len(with_cpus[numa]))
        links[number] = [(_HT, other, 32, 0) for other in processors.values() if other != number]
    hives = {id(named(layout, name, spec.place)): place for place, hive in enumerate(spec.hives or ()) for name in hive}
    minors = _render_minors(gpus, spec.partitions)
    for one in gpus:
        hive = 0 if spec.hives is None else hives.get(id(one))
        for partition in range(spec.partitions):
            number = first[id(one)] + partition
            _gpu(tree, spec, one, number, partition, hive, minors[id(one)][partition])
            links[number] = [(_PCIE, processors.get(one.node, 0), 20, 64000)] if processors else []
            links[number] += _inside(first[id(one)], number, spec.partitions)
    for a, b, weight, mbps in _xgmi(layout, spec, gpus, hives):
        for here in range(spec.partitions):
            for there in range(spec.partitions):
                links[first[a] + here].append((_XGMI, first[b] + there, weight, mbps))
    for number, found in links.items():
        for place, (kind, to, weight, mbps) in enumerate(found):
            path = f"{_KFD}/topology/nodes/{number}/io_links/{place}"
            said = {"type": kind, "node_from": number, "node_to": to, "weight": weight}
            _properties(tree, path, **said, min_bandwidth=mbps, max_bandwidth=mbps, flags=_ENABLED)


def _render_minors(gpus: list[Placed], partitions: int) -> dict[int, list[int]]:
    """The render nodes of each GPU, by id(): that of its function in bus order, those of more partitions after all."""
    found = {}
    for rank, one in enumerate(sorted(gpus, key=lambda one: one.address)):
        after = _RENDER + len(gpus) + rank * (partitions - 1)
        names = [f"renderD{_RENDER + rank}"] if one.spec.nodes is None else one.spec.nodes
        own = next((int(name.removeprefix("renderD")) for name in names if name.startswith("renderD")), 0)
        found[id(one)] = [own, *range(after, after + partitions - 1)]
    return found


def _inside(first: int, number: int, partitions: int) -> list[tuple[int, int, int, int]]:
    """Links from one partition to the others of its GPU."""
    return [(_XGMI, other, 13, 819200) for other in range(first, first + partitions) if other != number]


def _xgmi(layout: Layout, spec: Amd, gpus: list[Placed], hives: Mapping[int, int]) -> list[tuple[int, int, int, int]]:
    """Directed links between GPUs, by id()."""
    if spec.links is not None:
        found = []
        for one in spec.links:
            a, b = id(named(layout, one.a, one.place)), id(named(layout, one.b, one.place))
            if a == b:
                raise one.place.wrong("a GPU has no link to itself")
            found += [(a, b, one.weight, one.mbps), (b, a, one.weight, one.mbps)]
        return found
    where = {id(one): 0 for one in gpus} if spec.hives is None else hives
    return [
        (id(a), id(b), spec.weight, spec.mbps)
        for a in gpus
        for b in gpus
        if a is not b and where.get(id(a), -1) == where.get(id(b), -2)
    ]


def _processor(tree: Tree, number: int, cores: int) -> None:
    path = f"{_KFD}/topology/nodes/{number}"
    tree.write(path, gpu_id=0)
    tree.text(f"{path}/name", "\n")
    _properties(
        tree, path, cpu_cores_count=cores, simd_count=0, mem_banks_count=1, location_id=0, vendor_id=0, device_id=0
    )


def _gpu(tree: Tree, spec: Amd, one: Placed, number: int, partition: int, hive: int | None, minor: int) -> None:
    path, at, part = f"{_KFD}/topology/nodes/{number}", one.address, one.spec.part
    location = at.bus << 8 | at.device << 3 | at.function
    location += partition if spec.partition_in == "function" else partition << 28
    units = (part.slots or 64) // spec.partitions
    said = {"cpu_cores_count": 0, "simd_count": units * 4, "simd_per_cu": 4, "vendor_id": part.ids[0]}
    said |= {"device_id": part.ids[1], "location_id": location, "drm_render_minor": minor}
    if not spec.old:
        said |= {"domain": at.domain, "num_xcc": 1, "unique_id": int(tree.digits(f"unique {at}", 16), 16)}
        said["hive_id"] = 0 if hive is None else int(tree.digits(f"hive {hive}", 16), 16)
    tree.write(path, gpu_id=10000 + number, name="ip discovery")
    _properties(tree, path, **said)


def _properties(tree: Tree, path: str, **values: int) -> None:
    tree.text(f"{path}/properties", "".join(f"{key} {value}\n" for key, value in values.items()))
