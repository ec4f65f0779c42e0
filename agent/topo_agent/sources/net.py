"""sys/class/net -> Netdev: every interface, and the PCI function in its path, however deep below it.

sysfs tells nearly all; netlink is asked only where something stands on something else, for VLAN ids.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topo_agent.diagnostics import Notes
from topo_agent.facts import Netdev, NetdevState
from topo_agent.host import Host, Json, Unavailable, as_array, as_object, as_objects
from topo_agent.ids import PciAddress, function_in
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, class_members

_CLASS = "sys/class/net"
_LOOPBACK = 772
_MEGABIT = 1_000_000
_ADDRESS = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){0,31}", re.ASCII)  # MAX_ADDR_LEN of linux/netdevice.h


class Found(NamedTuple):
    netdevs: tuple[Netdev, ...]
    now: tuple[tuple[str, NetdevState], ...]


def read(host: Host, notes: Notes) -> Found:
    """Every interface but the loopback. `bonding_masters` is a file in the same directory, and none."""
    netdevs: list[Netdev] = []
    now: list[tuple[str, NetdevState]] = []
    for name, entry in class_members(host, _CLASS, notes, "bonding_masters".__ne__):
        if not entry.has("uevent") and not entry.has("type"):
            continue
        netdev = _netdev(name, entry)
        if netdev.link_type != _LOOPBACK and name != "lo":
            netdevs.append(netdev)
            now.append((name, _state(entry)))
    stacked = any(netdev.lower for netdev in netdevs)
    return Found(tuple(_with_netlink(host, netdevs) if stacked else netdevs), tuple(now))


def _netdev(name: str, entry: Entry) -> Netdev:
    event = entry.want("uevent", parse.uevent) or {}
    return Netdev(
        name=name,
        function=function_in(entry.path) or _function_of_link(entry),
        kind=event.get("DEVTYPE"),
        link_type=entry.offered("type", parse.count),
        port=entry.offered("dev_port", parse.count),
        switch_id=_answer(entry, "phys_switch_id"),
        port_name=_answer(entry, "phys_port_name"),
        address=entry.offered("address", _address, "uid"),
        lower=tuple(one.removeprefix("lower_") for one in entry.names() if one.startswith("lower_")),
        other_bus=entry.has("device") and function_in(entry.path) is None and _function_of_link(entry) is None,
        unknown=entry.unknown,
    )


def _function_of_link(entry: Entry) -> PciAddress | None:
    """The function that `device` names, for trees in which the class directory is a copy and no link."""
    target = entry.target("device") if entry.has("device") else None
    return None if target is None else function_in(target)


def _state(entry: Entry) -> NetdevState:
    """An interface that is down answers EINVAL to `carrier` and then to `speed`: it is asked once."""
    carrier = entry.now("carrier", parse.count) if entry.has("carrier") else None
    ask = entry.has("speed") and (carrier == 1 or not entry.has("carrier"))
    speed = entry.now("speed", parse.decimal) if ask else None
    return NetdevState(
        operstate=entry.now("operstate", parse.clean) if entry.has("operstate") else None,
        carrier=None if carrier is None else carrier == 1,
        bits_per_second=speed * _MEGABIT if speed is not None and speed > 0 else None,
        mtu=entry.now("mtu", parse.count) if entry.has("mtu") else None,
    )


def _answer(entry: Entry, name: str) -> str | None:
    """A file that answers EOPNOTSUPP on every interface whose driver has nothing to say."""
    return (entry.now(name, parse.clean) or None) if entry.has(name) else None


def _address(text: str) -> str | None:
    """`"02:00:00:00:00:01\\n"` -> the same; None for one that nobody has set, and for a kind that has none."""
    word = parse.clean(text).lower()
    if not _ADDRESS.fullmatch(word) and text != "\n":
        raise ValueError(f"{word[:40]!r} is no hardware address")
    return word if word.strip("0:") else None


def _with_netlink(host: Host, netdevs: list[Netdev]) -> list[Netdev]:
    told = _links(host)
    return [_completed(netdev, told[netdev.name]) if netdev.name in told else netdev for netdev in netdevs]


def _completed(netdev: Netdev, link: dict[str, Json]) -> Netdev:
    """VLAN id, other names, and the kind where uevent told none."""
    vlan, names, kind = link.get("vlan_id"), link.get("altnames"), link.get("kind")
    return netdev._replace(
        vlan_id=vlan if isinstance(vlan, int) and not isinstance(vlan, bool) and 0 <= vlan < 4096 else None,
        altnames=tuple(name for name in as_array(names) if isinstance(name, str)),
        kind=kind if isinstance(kind, str) else netdev.kind,
    )


def _links(host: Host) -> dict[str, dict[str, Json]]:
    try:
        answer = host.document("netlink")
    except Unavailable:
        return {}
    found = as_objects(as_object(answer).get("links"))
    return {name: link for link in found if isinstance(name := link.get("name"), str)}
