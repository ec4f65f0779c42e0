"""What drivers say of GPUs -> Gpu and GpuLink: device nodes, proc/driver/nvidia, and the NVML document.

docs/schema/nvml-document.json describes the document; host/nvml.py asks, everything is decided here. An
answer of the form {"error": "NOT_SUPPORTED"} is no value, whatever field it stands in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown, UnknownFields
from topo_agent.facts import Gpu, GpuLink, NvLinkState
from topo_agent.host import Host, Json, Unavailable
from topo_agent.ids import NumaId, PciAddress, function_in
from topo_agent.sources import parse
from topo_agent.sources.entry import members

_NODES = {"drm": re.compile(r"(card|renderD)[0-9]+", re.ASCII), "accel": re.compile(r"accel[0-9]+", re.ASCII)}
_PROC = "proc/driver/nvidia/gpus"

# nvml.h nvmlIntNvLinkDeviceType_t
_REMOTE_GPU, _REMOTE_CPU, _REMOTE_SWITCH = 0, 1, 2

_ERRORS = {"NOT_SUPPORTED": Unknown.NOT_SUPPORTED, "FUNCTION_NOT_FOUND": Unknown.NOT_SUPPORTED,
           "NO_PERMISSION": Unknown.NOT_PERMITTED, "TIMEOUT": Unknown.TIMEOUT}  # fmt: skip

_NO_PLACE = re.compile(r"[fF:.]*[fF][fF:.]*0?", re.ASCII)

Answers = dict[str, Json]
PeerKind = Literal["gpu", "switch", "cpu", "unknown"]
Peer = tuple[PeerKind, PciAddress | None]


class Found(NamedTuple):
    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...] | None  # None: nobody here tells of NVLink
    now: tuple[NvLinkState, ...]


def read(host: Host, notes: Notes) -> Found:
    """Everything that drivers say, one Gpu for each GPU and origin."""
    gpus = [*_drm(host, notes), *_proc(host, notes)]
    try:
        answer = host.document("nvml")
    except Unavailable as missing:
        if missing.reason not in (Unknown.NOT_RECORDED.value, Unknown.NOT_SUPPORTED.value):
            notes.add(Level.DEGRADED, "nvml", "nvml_unavailable", f"the NVIDIA driver was not heard: {missing}")
        return Found(tuple(gpus), None, ())
    asked = list(_asked(answer, notes))
    present = {address for address, _ in asked}
    found = [pair for address, one in asked for pair in nvlinks(address, one, present)]
    told = any(isinstance(one.get("nvlinks"), list) for _, one in asked)
    return Found(
        (*gpus, *(_nvml(address, one) for address, one in asked)),
        tuple(link for link, _ in found) if told else None,
        tuple(now for _, now in found),
    )


def _drm(host: Host, notes: Notes) -> Iterator[Gpu]:
    """The device nodes of every function that has some: what a container is given."""
    nodes: dict[PciAddress, list[str]] = {}
    for folder, pattern in _NODES.items():
        for name, entry in members(host, f"sys/class/{folder}", notes):
            function = function_in(entry.path)
            if function is not None and pattern.fullmatch(name):
                nodes.setdefault(function, []).append(name)
    for function, names in sorted(nodes.items()):
        yield Gpu(function=function, origin="drm", nodes=tuple(sorted(names)))


def _proc(host: Host, notes: Notes) -> Iterator[Gpu]:
    """proc/driver/nvidia/gpus/<bdf>/information: model and UUID without any library."""
    for name, entry in members(host, _PROC, notes):
        said = entry.want("information", _lines) or {}
        try:
            function = PciAddress.parse(name)
        except ValueError as error:
            notes.add(Level.DEGRADED, f"{_PROC}/{name}", "name_garbled", str(error))
            continue
        uuid = said.get("GPU UUID", "")
        yield Gpu(
            function=function,
            origin="nvidia",
            name=said.get("Model") or None,
            uuid=uuid if uuid.startswith("GPU-") and "?" not in uuid else None,  # "GPU-????…" before first use
            nodes=_minor(parse.numbered(said.get("Device Minor", ""))),
        )


def _minor(number: int | None) -> tuple[str, ...]:
    """`3` -> `("nvidia3",)`: the device file of a GPU."""
    return () if number is None else (f"nvidia{number}",)


def _lines(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _asked(answer: Json, notes: Notes) -> Iterator[tuple[PciAddress, Answers]]:
    """(function, answers) for every GPU of the document that says where it is."""
    gpus = answer.get("gpus") if isinstance(answer, dict) else None
    for one in gpus if isinstance(gpus, list) else ():
        address = bus_id(one.get("bdf")) if isinstance(one, dict) else None
        if address is None or not isinstance(one, dict):
            notes.add(Level.LOST, "nvml", "gpu_without_place", "a GPU of the NVML document has no PCI address")
            continue
        yield address, one


def _nvml(address: PciAddress, one: Answers) -> Gpu:
    index, memory, node = (_number(one.get(key)) for key in ("index", "memory_bytes", "numa_node_id"))
    return Gpu(
        function=address,
        origin="nvml",
        name=_text(one.get("name")),
        uuid=_text(one.get("uuid")),
        nvml_index=index,
        memory_bytes=memory,
        nodes=_minor(_number(one.get("minor"))),
        numa_node=None if node is None else NumaId(node),
        unknown=_refusals(one, {"name": "model", "uuid": "uid"}),
    )


def _refusals(one: Answers, fields: Mapping[str, str]) -> UnknownFields:
    """Which of these were refused, and how, by what the document calls them."""
    refused = {field: said for key, field in fields.items() if isinstance(said := one.get(key), dict)}
    codes = {key: _ERRORS.get(str(said.get("error")), Unknown.DRIVER_ERROR) for key, said in refused.items()}
    return tuple(sorted(codes.items()))


def nvlinks(address: PciAddress, one: Answers, gpus: set[PciAddress]) -> Iterator[tuple[GpuLink, NvLinkState]]:
    """The NVLinks of one GPU, those to the same peer together."""
    links = one.get("nvlinks")
    counts: Counter[Peer] = Counter()
    active: Counter[Peer] = Counter()
    speeds: Counter[Peer] = Counter()
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict) and _number(link.get("state")) is not None:
            peer = _peer(address, link, gpus)
            counts[peer] += 1
            active[peer] += _number(link.get("state")) in (1, 2, 3)  # nvml.h: active, asleep, traffic disabled
            speeds[peer] += _number(link.get("speed_mbps")) or 0
    for peer, count in sorted(counts.items(), key=str):
        kind, where = peer
        found = GpuLink(
            function=address,
            kind="nvlink",
            peer=where,
            peer_kind=kind,
            links=count,
            bytes_per_second=speeds[peer] * 1_000_000 or None,
        )
        yield found, NvLinkState(address, where, active[peer])


def _peer(address: PciAddress, link: Answers, gpus: set[PciAddress]) -> Peer:
    """What is at the other end: by the type that the driver tells first, then by who is at that address.

    The GPU's own address (a virtual machine), an address of nothing but f (NVLink 5 switches) and an
    unreadable one are all "not visible".
    """
    remote = bus_id(link.get("remote_bdf"))
    where = None if remote == address else remote
    kind = _number(link.get("remote_type"))
    if kind == _REMOTE_SWITCH:
        return "switch", where
    if kind == _REMOTE_CPU:
        return "cpu", None
    if where in gpus:
        return "gpu", where
    return ("gpu" if kind == _REMOTE_GPU and where is not None else "unknown"), where


def bus_id(said: Json) -> PciAddress | None:
    """`"00000000:3B:00.0"` -> `0000:3b:00.0`; None for what is no place, `"FFFFFFFF:FF:FF.0"` among it."""
    if not isinstance(said, str) or _NO_PLACE.fullmatch(said):
        return None
    domain, _, rest = said.strip().lower().partition(":")
    try:
        return PciAddress.parse(f"{int(domain, 16):04x}:{rest}")
    except ValueError:
        return None


def _number(said: Json) -> int | None:
    return said if isinstance(said, int) and not isinstance(said, bool) and said >= 0 else None


def _text(said: Json) -> str | None:
    return said if isinstance(said, str) and said else None
