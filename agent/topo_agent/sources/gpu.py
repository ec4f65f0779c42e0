"""What drivers say of GPUs -> Gpu and GpuLink: device nodes, proc/driver/nvidia, and the NVML document.

docs/schema/nvml-document.json describes the document; host/nvml.py asks, everything is decided here. An
answer of the form {"error": "NOT_SUPPORTED"} is no value, whatever field it stands in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from topo_agent.diagnostics import NOT_HERE, Level, Notes
from topo_agent.facts import FabricState, Gpu, GpuLink, MigDevice, NvLinkState, PciDevice, PeerAccess
from topo_agent.host import Host, Json, Unavailable, as_array, as_object, as_objects
from topo_agent.ids import CpuSet, NumaId, PciAddress, function_in
from topo_agent.sources import parse
from topo_agent.sources.answers import Answers, number, refusals, text
from topo_agent.sources.entry import class_members, members

if TYPE_CHECKING:
    from topo_agent.sources.mig import Mig
    from topo_agent.sources.rack import Rack

_NODES = {"drm": re.compile(r"(card|renderD)[0-9]+", re.ASCII), "accel": re.compile(r"accel[0-9]+", re.ASCII)}
_PROC = "proc/driver/nvidia/gpus"

# nvml.h nvmlIntNvLinkDeviceType_t
_REMOTE_GPU, _REMOTE_CPU, _REMOTE_SWITCH = 0, 1, 2

# nvml.h nvmlGpuVirtualizationMode_t; 0 is none
_VIRTUALIZATION: dict[int, Literal["passthrough", "vgpu", "host_vgpu", "host_vsga"]] = {
    1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga",
}  # fmt: skip

_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", re.ASCII)
_NO_PLACE = re.compile(r"f+:ff:ff\.[0f]", re.ASCII)
_NVSWITCH_CLASS = 0x0680

PeerKind = Literal["gpu", "switch", "cpu", "unknown"]
Peer = tuple[PeerKind, PciAddress | None]


class Found(NamedTuple):
    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...] | None  # None: nobody here tells of NVLink
    now: tuple[NvLinkState, ...]
    peer_access: tuple[PeerAccess, ...] = ()
    migs: tuple[MigDevice, ...] = ()
    fabrics: tuple[FabricState, ...] = ()


def read(host: Host, notes: Notes, present: Mapping[PciAddress, PciDevice]) -> Found:
    """Everything that drivers say, one Gpu for each GPU and origin. `present` are the functions on the bus."""
    gpus = [*_drm(host, notes), *_proc(host, notes)]
    try:
        answer = host.document("nvml")
    except Unavailable as missing:
        if missing.reason not in NOT_HERE:
            notes.add(Level.DEGRADED, "nvml", "nvml_unavailable", f"the NVIDIA driver was not heard: {missing}")
        return Found(tuple(gpus), None, ())
    asked = list(_asked(answer, notes))
    peers = {address: "gpu" for address, _ in asked} | {
        address: "switch" for address, one in present.items() if (one.class_code or 0) >> 8 == _NVSWITCH_CLASS
    }
    found = [pair for address, one in asked for pair in nvlinks(address, one, peers)]
    told = any(isinstance(one.get("nvlinks"), list) for _, one in asked)
    from topo_agent.sources import mig, rack  # here: a machine without NVML starts sooner

    parts = {address: mig.read(address, one.get("mig"), notes) for address, one in asked}
    racks = {address: rack.read(address, one) for address, one in asked}
    return Found(
        (*gpus, *(_nvml(address, one, parts[address], racks[address]) for address, one in asked)),
        tuple(link for link, _ in found) if told else None,
        tuple(now for _, now in found),
        tuple(_peer_access(answer, asked)),
        tuple(device for place in sorted(parts) for device in parts[place].devices),
        tuple(one.state for one in racks.values() if one.state is not None),
    )


def _peer_access(answer: Json, asked: Iterable[tuple[PciAddress, Answers]]) -> Iterator[PeerAccess]:
    """The pairs of the document, by address: it numbers them by NVML's index."""
    places = {number(one.get("index")): address for address, one in asked}
    places.pop(None, None)  # a GPU that has lost its number
    for pair in as_objects(as_object(answer).get("pairs")):
        said = pair.get("p2p")
        if isinstance(said, dict):
            first, second = (places.get(number(pair.get(end))) for end in ("a", "b"))
            if first is not None and second is not None:
                status = ((name, code) for name, one in said.items() if (code := number(one)) is not None)
                yield PeerAccess(min(first, second), max(first, second), tuple(sorted(status)))


def _drm(host: Host, notes: Notes) -> Iterator[Gpu]:
    """The device nodes of every function that has some: what a container is given."""
    nodes: dict[PciAddress, list[str]] = {}
    for folder, pattern in _NODES.items():
        for name, entry in class_members(host, f"sys/class/{folder}", notes, pattern.fullmatch):
            function = function_in(entry.path)
            if function is not None:
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
    for one in as_array(as_object(answer).get("gpus")):
        said = as_object(one)
        address = bus_id(said.get("bdf"))
        if address is None:
            notes.add(Level.LOST, "nvml", "gpu_without_place", "a GPU of the NVML document has no PCI address")
            continue
        yield address, said


def _nvml(address: PciAddress, one: Answers, parts: Mig, where: Rack) -> Gpu:
    unknown = dict(refusals(one, {"name": "model", "uuid": "uid"})) | where.unknown | dict(parts.unknown)
    index, memory, node = (number(one.get(key)) for key in ("index", "memory_bytes", "numa_node_id"))
    return Gpu(
        function=address,
        origin="nvml",
        name=text(one.get("name")),
        uuid=text(one.get("uuid")),
        nvml_index=index,
        memory_bytes=memory,
        nodes=_minor(number(one.get("minor"))),
        fabric=where.fabric,
        cliques=where.cliques,
        platform=where.platform,
        virtualization=_VIRTUALIZATION.get(number(one.get("virtualization_mode")) or 0),
        near_cpus=_affinity(one.get("cpu_affinity")),
        numa_node=None if node is None else NumaId(node),
        mig=parts.enabled,
        unknown=tuple(sorted(unknown.items())),
    )


def nvlinks(
    address: PciAddress, one: Answers, peers: Mapping[PciAddress, str]
) -> Iterator[tuple[GpuLink, NvLinkState]]:
    """The NVLinks of one GPU, those to the same peer together. `peers`: what GPUs and switches are on the bus."""
    common = number(one.get("nvlink_mbps"))  # before Hopper the driver tells one speed for all links
    counts: Counter[Peer] = Counter()
    active: Counter[Peer] = Counter()
    speeds: dict[Peer, list[tuple[int | None, bool]]] = {}
    for link in as_objects(one.get("nvlinks")):
        state = number(link.get("state"))
        if state is not None:
            peer = _peer(address, link, peers)
            counts[peer] += 1
            up = state in (1, 2, 3)  # nvml.h: active, asleep, traffic disabled
            active[peer] += up
            speed = number(link.get("speed_mbps"))
            speeds.setdefault(peer, []).append((common if speed is None else speed, up))
    for peer, count in sorted(counts.items(), key=str):
        kind, where = peer
        found = GpuLink(
            function=address,
            kind="nvlink",
            peer=where,
            peer_kind=kind,
            links=count,
            bytes_per_second=_together(speeds[peer]),
        )
        yield found, NvLinkState(address, where, kind, active[peer])


def _together(told: list[tuple[int | None, bool]]) -> int | None:
    """Bytes per second of links to one peer, by what each says in MB/s and whether it is up.

    What a link says that is down is of its state, and not of how it is made: it counts as those that are up.
    """
    said = [speed for speed, up in told if up] or [speed for speed, _ in told]
    known = [speed for speed in said if speed is not None]
    if len(known) < len(said) or (len(said) < len(told) and len({*known}) > 1):
        return None
    return sum(known) * len(told) // len(said) * 1_000_000 or None


def _peer(address: PciAddress, link: Answers, peers: Mapping[PciAddress, str]) -> Peer:
    """What is at the other end: by the type that the driver tells first, then by who is at that address.

    The GPU's own address (a virtual machine) is no place. An address of nothing but f, or none, is that of a
    switch that is no PCI function (NVLink 5), unless the driver says otherwise.
    """
    said = link.get("remote_bdf")
    remote = bus_id(said)
    where = remote if remote in peers and remote != address else None
    kind = number(link.get("remote_type"))
    if kind == _REMOTE_SWITCH:
        return "switch", None if remote == address else remote
    if kind == _REMOTE_CPU:
        return "cpu", None
    if where is not None:
        return ("gpu" if peers[where] == "gpu" else "switch"), where
    hidden = isinstance(said, str) and remote is None
    return ("switch" if hidden and kind != _REMOTE_GPU else "unknown"), None


def bus_id(said: Json) -> PciAddress | None:
    """`"00000000:3B:00.0"` -> `0000:3b:00.0`; None for what is no place, `"FFFFFFFF:FF:FF.0"` among it."""
    matched = _BUS_ID.fullmatch(said.lower()) if isinstance(said, str) else None
    if not matched or _NO_PLACE.fullmatch(matched[0]):
        return None
    try:
        return PciAddress.parse(f"{int(matched[1], 16):04x}:{matched[2]}")
    except ValueError:
        return None


def _affinity(said: Json) -> CpuSet | None:
    """64-bit words in hex, lowest first: `["0x5", "0x1"]` -> `{0, 2, 64}`; an empty answer is none."""
    if not isinstance(said, list) or len(said) > parse.CPUS_AT_MOST // 64:
        return None
    try:
        words = [parse.hexadecimal(word, 64) if isinstance(word, str) else 0 for word in said]
    except ValueError:
        return None
    return (
        frozenset(place * 64 + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1) or None
    )
