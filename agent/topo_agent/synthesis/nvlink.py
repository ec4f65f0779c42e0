"""What a description says of NVLink -> the links of each GPU as NVML lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topo_agent.host import Json
from topo_agent.synthesis.expand import near
from topo_agent.synthesis.fields import Place, Value
from topo_agent.synthesis.layout import Layout, Placed

_GPU, _CPU, _SWITCH, _UNKNOWN = 0, 1, 2, 255  # nvml.h nvmlIntNvLinkDeviceType_t
_VERSIONS = {"1.0": 1, "2.0": 2, "2.2": 3, "3.0": 4, "3.1": 5, "4.0": 6, "5.0": 7, "6.0": 8}
_TO = ("switches", "hidden", "own", "peers")
_HIDDEN = "FFFFFFFF:FF:FF.0"  # what NVLink 5 says of its switches


@dataclass(frozen=True, slots=True)
class Direct:
    """Links between two GPUs."""

    a: str
    b: str
    links: int
    place: Place


@dataclass(frozen=True, kw_only=True)
class NvLink:
    """`to`: switches that are on the bus, hidden ones, the own address (as some virtual machines say), or peers."""

    to: str
    links: tuple[int, ...]  # to each switch; one number where it is not known to which
    mbps: int
    version: int
    pairs: tuple[Direct, ...]
    down: Mapping[str, int]  # of these GPUs so many links are down
    place: Place


def read(value: Value) -> NvLink:
    said = value.fields("to", "links", "mbps", "version", "pairs", "down")
    to, links, mbps, version = (said.get(name) for name in ("to", "links", "mbps", "version"))
    pairs, down = said.get("pairs"), said.get("down")
    found = NvLink(
        to=to.choice(*_TO) if to else "peers",
        links=tuple(one.count(0, 64) for one in links.some()) if links else (),
        mbps=mbps.count(1) if mbps else 26562,
        version=_VERSIONS[version.choice(*_VERSIONS)] if version else _VERSIONS["4.0"],
        pairs=tuple(_direct(one) for one in pairs.items()) if pairs else (),
        down={key: one.count(0, 64) for key, one in down.pairs()} if down else {},
        place=value.place,
    )
    if (found.to == "peers") != bool(pairs) or (found.to != "peers") != bool(links):
        raise value.wrong("expected `pairs` to peers, and `links` to anything else")
    return found


def _direct(value: Value) -> Direct:
    items = value.items()
    if len(items) != 3:
        raise value.wrong("expected two GPUs and a number of links, such as [gpu0, gpu1, 4]")
    return Direct(items[0].text(), items[1].text(), items[2].count(1, 64), value.place)


def links(layout: Layout, spec: NvLink, gpus: list[Placed]) -> dict[str, list[Json]]:
    """The links of each GPU, by its address."""
    ends = {str(one.address): _ends(layout, spec, one) for one in gpus}
    names = {name: str(one.address) for name, one in layout.names.items()}
    for pair in spec.pairs:
        a, b = (_address(names, ends, name, pair.place) for name in (pair.a, pair.b))
        if a == b:
            raise pair.place.wrong("a GPU has no link to itself")
        ends[a] += [(_GPU, _bus_id(b))] * pair.links
        ends[b] += [(_GPU, _bus_id(a))] * pair.links
    down = {_address(names, ends, name, spec.place): count for name, count in spec.down.items()}
    return {
        address: [_link(spec, number, end, up=number >= down.get(address, 0)) for number, end in enumerate(found)]
        for address, found in ends.items()
    }


def _address(names: Mapping[str, str], ends: Mapping[str, object], name: str, place: Place) -> str:
    address = names.get(name, name)
    if address not in ends:
        raise place.wrong(f"there is no GPU {name!r} that NVIDIA's driver has{near(name, tuple(names))}")
    return address


def _bus_id(address: str) -> str:
    """`0000:1b:00.0` -> `00000000:1B:00.0`."""
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


def _ends(layout: Layout, spec: NvLink, gpu: Placed) -> list[tuple[int, str]]:
    """(type, address) of what is at the other end of each link that does not go to a peer."""
    if spec.to == "hidden":
        return [(_SWITCH, _HIDDEN)] * sum(spec.links)
    if spec.to == "own":
        return [(_UNKNOWN, _bus_id(str(gpu.address)))] * sum(spec.links)
    if spec.to == "peers":
        return []
    switches = list(layout.of("nvswitch"))
    counts = list(spec.links)
    if len(counts) == 1 and switches:
        most = counts[0]
        counts = [most // len(switches) + (number < most % len(switches)) for number in range(len(switches))]
    if len(counts) != len(switches):
        raise spec.place.wrong(f"links to {len(counts)} switches, and there are {len(switches)}")
    return [
        (_SWITCH, _bus_id(str(one.address))) for one, count in zip(switches, counts, strict=True) for _ in range(count)
    ]


def _link(spec: NvLink, number: int, end: tuple[int, str], *, up: bool) -> Json:
    return {
        "link": number, "state": int(up), "version": spec.version, "p2p": 1, "speed_mbps": spec.mbps,
        "remote_type": end[0], "remote_bdf": end[1],
    }  # fmt: skip
