"""Bonds, VLANs and other interfaces on no function of their own -> sys/devices/virtual/net, and what netlink says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topo_agent.host import Json, resolve
from topo_agent.host.paper import Link
from topo_agent.synthesis.devices import add, mac
from topo_agent.synthesis.fields import Place, Value
from topo_agent.synthesis.functions import Network
from topo_agent.synthesis.layout import Layout
from topo_agent.synthesis.tree import Tree

_VIRTUAL = "sys/devices/virtual/net"
_KINDS = ("bond", "vlan", "bridge", "dummy")


@dataclass(frozen=True, slots=True)
class Stacked:
    name: str
    kind: str
    on: tuple[str, ...]
    vlan_id: int | None
    place: Place


def read(value: Value) -> tuple[tuple[Stacked, ...], dict[str, tuple[str, ...]]]:
    """The interfaces, and other names of any interface: `net: {stacked: […], altnames: {eth0: [enp1s0]}}`."""
    said = value.fields("stacked", "altnames")
    stacked, others = said.get("stacked"), said.get("altnames")
    made = tuple(_stacked(one) for one in stacked.items()) if stacked else ()
    return made, {name: tuple(one.name() for one in names.some()) for name, names in others.pairs()} if others else {}


def _stacked(value: Value) -> Stacked:
    said = value.fields(*_KINDS, "on", "id")
    kinds = [kind for kind in _KINDS if value.has(kind)]
    if len(kinds) != 1:
        raise value.wrong(f"expected one of {', '.join(_KINDS)}")
    on, number = said.get("on"), said.get("id")
    if kinds[0] == "vlan" and number is None:
        raise value.wrong("the field 'id' is missing")
    return Stacked(
        name=said[kinds[0]].name(),
        kind=kinds[0],
        on=tuple(one.name() for one in on.some()) if on else (),
        vlan_id=number.count(0, 4095) if number else None,
        place=value.place,
    )


def interfaces(layout: Layout) -> dict[str, Network]:
    """Every interface of a function, with what is said of it. Wrong where two have one name."""
    found: dict[str, Network] = {}
    for one in layout.functions.values():
        said = one.spec.network if one.physfn is None else None
        for name in said.netdevs if said else ():
            if name in found or name == "lo" or said is None:
                raise one.spec.place.wrong(f"two interfaces are called {name!r}")
            found[name] = said
    return found


def bonded(tree: Tree, layout: Layout, stacked: tuple[Stacked, ...]) -> dict[str, str]:
    """The address of every interface in a bond: that of the bond's first."""
    known = interfaces(layout)
    found: dict[str, str] = {}
    for one in stacked:
        for name in one.on if one.kind == "bond" else ():
            if name in known and one.on[0] in known:
                found[name] = mac(tree, known[one.on[0]], one.on[0])
    return found


def write(tree: Tree, layout: Layout, stacked: tuple[Stacked, ...]) -> None:
    """The loopback and everything stacked; links `lower_…` and `upper_…` as net/core/dev.c makes them."""
    where = {name: _leads(tree, name) for name in interfaces(layout)}
    add(tree, "net", f"{_VIRTUAL}/lo", None)
    tree.text(f"{_VIRTUAL}/lo/uevent", "INTERFACE=lo\nIFINDEX=1\n")
    tree.write(f"{_VIRTUAL}/lo", type=772, address="00:00:00:00:00:00", mtu=65536, carrier=1, operstate="unknown")
    for one in stacked:
        path = f"{_VIRTUAL}/{one.name}"
        if one.name in where or one.name == "lo":
            raise one.place.wrong(f"two interfaces are called {one.name!r}")
        where[one.name] = path
        add(tree, "net", path, None)
        tree.text(
            f"{path}/uevent",
            (f"DEVTYPE={one.kind}\n" if one.kind != "dummy" else "") + f"INTERFACE={one.name}\nIFINDEX=9\n",
        )
        tree.write(
            path, type=1, mtu=1500, carrier=1, operstate="up", address=tree.mac(one.on[0] if one.on else one.name)
        )
        for name in one.on:
            if name not in where:
                raise one.place.wrong(f"there is no interface {name!r} below {one.name}; say it first")
            tree.link(f"{path}/lower_{name}", where[name])
            tree.link(f"{where[name]}/upper_{one.name}", path)
            if one.kind in ("bond", "bridge"):
                tree.link(f"{where[name]}/master", path)
        if one.kind == "bond":
            tree.write(f"{path}/bonding", slaves=" ".join(one.on), mode="802.3ad 4")
    bonds = [one.name for one in stacked if one.kind == "bond"]
    if bonds:
        tree.write("sys/class/net", bonding_masters=" ".join(bonds))


def document(tree: Tree, layout: Layout, stacked: tuple[Stacked, ...], altnames: Mapping[str, tuple[str, ...]]) -> Json:
    """docs/schema/netlink-document.json"""
    links: dict[str, dict[str, Json]] = {"lo": {"name": "lo"}}
    for name, said in interfaces(layout).items():
        links[name] = {"name": name, "perm_address": mac(tree, said, name)}
    for one in stacked:
        links[one.name] = {"name": one.name}
        if one.kind != "dummy":
            links[one.name]["kind"] = one.kind
        if one.vlan_id is not None:
            links[one.name]["vlan_id"] = one.vlan_id
    for name, others in altnames.items():
        if name in links:
            links[name]["altnames"] = [*sorted(others)]
    return {"links": [links[name] for name in sorted(links)]}


def _leads(tree: Tree, name: str) -> str:
    """Where the link of an interface in its class leads."""
    entry = tree.entries[f"sys/class/net/{name}"]
    return (resolve("sys/class/net", entry.target) if isinstance(entry, Link) else None) or ""
