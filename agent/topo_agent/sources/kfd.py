"""sys/class/kfd/kfd/topology -> Gpu and GpuLink of AMD: partitions folded into their GPU, xGMI between GPUs.

include/uapi/linux/kfd_sysfs.h and drivers/gpu/drm/amd/amdkfd/kfd_topology.c. KFD numbers are decimal, and
its node numbers are no NUMA ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.facts import Gpu, GpuLink
from topo_agent.host import Host
from topo_agent.ids import PciAddress
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, members

_CLASS = "sys/class/kfd"
_NODES = f"{_CLASS}/kfd/topology/nodes"
_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI
_RENDER = 128  # include/drm/drm_drv.h: render nodes begin there
_MEGABYTE = 1_000_000

_COMPUTE = re.compile(r"[SDTQC]PX", re.ASCII)
_MEMORY = re.compile(r"NPS[1-9]", re.ASCII)

Properties = dict[str, int]


class Found(NamedTuple):
    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...] | None  # None: there is no KFD here
    hidden: int = 0  # nodes that the device cgroup hides from us


class _Node(NamedTuple):
    number: int
    function: PciAddress
    properties: Properties


def read(host: Host, notes: Notes, present: Mapping[PciAddress, str]) -> Found:
    """The GPUs of KFD. `present` are the functions on the bus and their paths: a partition number may hide in the
    function bits.
    """
    numbers = _numbers(host, notes)
    if numbers is None:
        return Found((), None)
    on_the_bus = frozenset(present)
    nodes = [node for number in numbers if (node := _node(host, notes, number, on_the_bus)) is not None]
    nodes = _by_unique_id(nodes)
    places = {node.number: node.function for node in nodes}
    cpus = frozenset(numbers) - places.keys()
    together: dict[PciAddress, list[_Node]] = {}
    for node in nodes:
        together.setdefault(node.function, []).append(node)
    links = [link for node in nodes for link in _links(host, notes, node, places, cpus)]
    gpus = tuple(
        _gpu(function, same, Entry(host, present.get(function, ""), notes))
        for function, same in sorted(together.items())
    )
    return Found(gpus, tuple(_merged(links)), hidden=sum(one.code == "kfd_node_hidden" for one in notes))


def _numbers(host: Host, notes: Notes) -> list[int] | None:
    """The nodes; None where there is no KFD. One that is there tells its processors even where it has no GPU."""
    if "kfd" not in Entry(host, _CLASS, notes).names():
        return None
    names = Entry(host, _NODES, notes).names()
    found = sorted(number for name in names if (number := parse.numbered(name)) is not None)
    if not found:
        level = Level.LOST if host.source.complete else Level.NOTE
        notes.add(
            level, f"{_CLASS}/kfd", "kfd_unreadable", "KFD is here, and its nodes are not: no partitions, no xGMI"
        )
    return found or None


def _node(host: Host, notes: Notes, number: int, present: frozenset[PciAddress]) -> _Node | None:
    """A GPU node; None for a CPU, and for one whose properties the device cgroup hides from us."""
    entry = Entry(host, f"{_NODES}/{number}", notes)
    try:
        properties = _properties(host.text(f"{entry.path}/properties"))
    except PermissionError:
        notes.add(Level.NOTE, entry.path, "kfd_node_hidden", "not permitted: this container may not use that GPU")
        return None
    except (OSError, ValueError) as error:
        notes.add(Level.LOST, entry.path, "kfd_node_unreadable", f"left out: {error}")
        return None
    if not properties.get("simd_count") or not properties.get("vendor_id"):
        return None
    return _Node(number, place(properties, present), properties)


def place(properties: Properties, present: frozenset[PciAddress]) -> PciAddress:
    """`{"location_id": 0x501, "domain": 0}` -> 0000:05:00.0 when no function 1 is on the bus: a partition.

    Bits 15-8 are the bus, 7-3 the device, 2-0 the function, or the partition on some kernels.
    """
    location, domain = properties.get("location_id", 0), properties.get("domain", 0)
    exact = PciAddress(domain, location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7)
    return exact if exact in present else exact._replace(function=0)


def _by_unique_id(nodes: list[_Node]) -> list[_Node]:
    """Partitions of one GPU are on one card and carry one unique_id: they stand where the first of them does."""
    first: dict[tuple[object, ...], PciAddress] = {}
    keys = [(*node.function.card, node.properties.get("unique_id", node.function)) for node in nodes]
    for key, node in zip(keys, nodes, strict=True):
        first[key] = min(first.get(key, node.function), node.function)
    return [node._replace(function=first[key]) for key, node in zip(keys, nodes, strict=True)]


def _gpu(function: PciAddress, nodes: list[_Node], on_the_bus: Entry) -> Gpu:
    hive = nodes[0].properties.get("hive_id")
    unique = nodes[0].properties.get("unique_id")
    units = [node.properties.get("simd_count", 0) // max(node.properties.get("simd_per_cu", 1), 1) for node in nodes]
    return Gpu(
        function=function,
        origin="kfd",
        name=_product(on_the_bus),
        uuid=f"0x{unique:016x}" if unique else None,  # above 2^53: a number would lose digits in JSON
        partitions=len(nodes) if len(nodes) > 1 else None,
        compute_units=sum(units) or None,
        compute_partition=_mode(on_the_bus, "current_compute_partition", _COMPUTE),
        memory_partition=_mode(on_the_bus, "current_memory_partition", _MEMORY),
        nodes=tuple(f"renderD{minor}" for minor in _render_minors(nodes)),
        hive=f"0x{hive:016x}" if hive else None,
        unknown=() if unique else (("uid", Unknown.NOT_SUPPORTED),),
    )


def _product(on_the_bus: Entry) -> str | None:
    """What the card calls itself (amdgpu_fru_eeprom.c): `"AMD Instinct MI300X OAM"`; server cards only.

    KFD's own name of a node is that of a chip, or that its chips are found by looking ("ip discovery").
    """
    said = on_the_bus.want("product_name", parse.clean) if on_the_bus.path else None
    return said if said and not parse.filler(said) else None


def _mode(on_the_bus: Entry, name: str, known: re.Pattern[str]) -> str | None:
    """How amdgpu cuts a GPU (amdgpu_gfx.c, amdgpu_gmc.c): `"CPX\\n"` -> `"CPX"`; None for "UNKNOWN", and without it."""
    said = on_the_bus.want(name, parse.clean) if on_the_bus.path else None
    return said if said and known.fullmatch(said) else None


def _render_minors(nodes: list[_Node]) -> list[int]:
    """Device files for every partition: DRM has those of all but the first on a platform device (amdgpu_xcp.c)."""
    minors = {node.properties.get("drm_render_minor", 0) for node in nodes}
    return sorted(minor for minor in minors if _RENDER <= minor < 1 << 20)  # 0 or -1: DRM has none


def _links(
    host: Host, notes: Notes, node: _Node, places: dict[int, PciAddress], others: frozenset[int]
) -> Iterator[GpuLink]:
    """The xGMI links of a node to other GPUs. A peer that is not recorded is unknown, not unlinked."""
    folder = f"{_NODES}/{node.number}/io_links"
    for _, entry in members(host, folder, notes):
        said = entry.want("properties", _properties)
        if said is None or said.get("type") != _XGMI:
            continue
        peer = places.get(said.get("node_to", -1))
        if peer == node.function:
            continue  # between partitions of one GPU
        yield GpuLink(
            function=node.function,
            kind="xgmi",
            peer=peer,
            peer_kind="gpu"
            if peer is not None
            else "cpu"
            if _is_cpu(host, said.get("node_to", -1), others)
            else "unknown",
            links=None,
            bytes_per_second=said.get("max_bandwidth", 0) * _MEGABYTE or None,  # 0 is "not reported"
            weight=said.get("weight"),
        )


def _is_cpu(host: Host, number: int, others: frozenset[int]) -> bool:
    """A node that is recorded, and no GPU; a hidden GPU does not tell."""
    if number not in others:
        return False
    said = Entry(host, f"{_NODES}/{number}", Notes()).peek("properties", _properties) or {}
    return said.get("cpu_cores_count", 0) > 0


def _merged(links: list[GpuLink]) -> Iterator[GpuLink]:
    """One link for each pair of GPUs: partitions repeat it, and the lightest is the direct one."""
    best: dict[tuple[PciAddress, PciAddress | None], GpuLink] = {}
    for link in links:
        known = best.get((link.function, link.peer))
        if known is None or (link.weight or 0) < (known.weight or 0):
            best[link.function, link.peer] = link
    yield from (best[key] for key in sorted(best, key=str))


def _properties(text: str) -> Properties:
    """`"simd_count 1216\\nlocation_id 6912\\n"` -> `{"simd_count": 1216, "location_id": 6912}`."""
    words = (line.split() for line in text.splitlines())
    found = {
        line[0]: parse.count(line[1]) for line in words if len(line) == 2 and line[1].isascii() and line[1].isdigit()
    }
    if text.strip() and not found:
        raise ValueError("no line 'key value'")
    return found
