"""sys/class/infiniband -> RdmaDevice: InfiniBand, RoCE and EFA devices, and software ones told apart."""

from __future__ import annotations

import re
from typing import NamedTuple

from topo_agent.diagnostics import Notes
from topo_agent.facts import RdmaDevice, RdmaPort, RdmaPortState
from topo_agent.host import Host
from topo_agent.ids import function_in
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, class_members

_CLASS = "sys/class/infiniband"
_GIDS_AT_MOST = 16  # of 256 entries; the first ones belong to the interface itself
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec", re.ASCII)
_STATE = re.compile(r"[0-9]{1,2}: ([A-Za-z_]{1,32})", re.ASCII)
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", re.ASCII)


class Found(NamedTuple):
    devices: tuple[RdmaDevice, ...]
    now: tuple[tuple[str, int, RdmaPortState], ...]


def read(host: Host, notes: Notes) -> Found:
    """Every RDMA device. Which card it is on comes from its path, never from its name or number."""
    devices: list[RdmaDevice] = []
    now: list[tuple[str, int, RdmaPortState]] = []
    for name, entry in class_members(host, _CLASS, notes):
        if not entry.names():
            continue  # the link leads nowhere: unplugged, or a driver half bound
        names = entry.names("ports") if entry.has("ports") else []
        numbers = sorted(port for one in names if (port := parse.numbered(one)) is not None)
        devices.append(_device(name, entry, numbers))
        now += [(name, number, _port_state(entry, number)) for number in numbers]
    return Found(tuple(devices), tuple(now))


def _device(name: str, entry: Entry, numbers: list[int]) -> RdmaDevice:
    parent = entry.offered("parent", parse.clean) or None
    return RdmaDevice(
        name=name,
        function=None if parent else function_in(entry.path),  # before 5.12 rxe hung below the function of its NIC
        node_guid=entry.offered("node_guid", guid, "uid"),
        board_guid=entry.offered("sys_image_guid", guid),
        board_id=entry.offered("board_id", parse.clean) or None,
        firmware=entry.offered("fw_ver", parse.clean) or None,
        ports=tuple(_port(entry, number) for number in numbers),
        parent=parent,
        unknown=entry.unknown,
    )


def _port(entry: Entry, number: int) -> RdmaPort:
    ndevs = f"ports/{number}/gid_attrs/ndevs"
    # An empty GID, and every GID of InfiniBand, answers EINVAL (drivers/infiniband/core/sysfs.c).
    netdevs = {entry.peek(f"{ndevs}/{index}", parse.clean) for index in entry.names(ndevs)[:_GIDS_AT_MOST]}
    return RdmaPort(
        number=number,
        link_layer=entry.want(f"ports/{number}/link_layer", parse.clean),
        netdevs=tuple(sorted(filter(None, netdevs))),
    )


def _port_state(entry: Entry, number: int) -> RdmaPortState:
    return RdmaPortState(
        state=entry.now(f"ports/{number}/state", _state),
        bits_per_second=entry.now(f"ports/{number}/rate", rate),
    )


def guid(text: str) -> str | None:
    """`"0200:0000:0000:0001\\n"` -> the same; None for one that is all zero."""
    word = parse.clean(text).lower()
    if not _GUID.fullmatch(word):
        raise ValueError(f"{word[:40]!r} is no GUID")
    return word if word.strip("0:") else None


def rate(text: str) -> int:
    """Bits per second: `"400 Gb/sec (4X NDR)"` -> `400000000000`, `"2.5 Gb/sec (1X SDR)"` -> `2500000000`."""
    matched = _RATE.match(parse.clean(text))
    if not matched:
        raise ValueError(f"{text[:40]!r} is no rate")
    return int(float(matched[1]) * 1_000_000_000)


def _state(text: str) -> str:
    """`"4: ACTIVE"` -> `"ACTIVE"`."""
    matched = _STATE.fullmatch(parse.clean(text))
    if not matched:
        raise ValueError(f"{text[:40]!r} is no port state")
    return matched[1]
