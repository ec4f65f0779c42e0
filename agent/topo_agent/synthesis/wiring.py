"""The `pci` of a description -> roots with everything that hangs below them."""

from __future__ import annotations

from dataclasses import replace

from topo_agent.synthesis import parts
from topo_agent.synthesis.drivers import drive, network, vfs
from topo_agent.synthesis.expand import near
from topo_agent.synthesis.fields import Fields, Value
from topo_agent.synthesis.functions import NOWHERE, Function, Root
from topo_agent.synthesis.parts import Part

_COMMON = (
    *(
        "at",
        "via",
        "bus",
        "inner",
        "name",
        "ids",
        "class",
        "subsystem",
        "driver",
        "link",
        "now",
        "node",
        "slot",
        "iommu",
    ),
    *("suspended", "msi", "vfs"),
)
_NET = ("netdev", "rdma", "layer", "speed", "carrier", "mtu", "rdma_ports", "board", "mac")
_OWN = {
    "gpu": ("nodes", "bridges"),
    "nic": _NET,
    "nvme": ("controller", "namespaces", "multipath"),
    "nvswitch": (),
    "switch": ("ports", "ports_are"),
    "port": ("below",),
    "device": (*_NET, "disk", "nodes", "inside", "below"),
}
_BRIDGE = 0x0604


def root(value: Value, usual: Part) -> Root:
    """`{root: "0000:15", node: 0, ports: […]}`; `usual` is the root port of this machine."""
    said = value.fields("root", "prefix", "node", "port", "below", "ports")
    domain, _, bus = said["root"].word().rpartition(":")
    prefix, node, below, port = (said.get(name) for name in ("prefix", "node", "below", "port"))
    own = _part("port", port) if port else usual
    return Root(
        domain=said["root"].of(domain or "0").hexadecimal(32),
        bus=said["root"].of(bus).hexadecimal(8),
        prefix=_prefix(prefix) if prefix else "",
        node=_node(node) if node else NOWHERE,
        below=(*(function(one, usual=own) for one in (below.some() if below else ())), *_ports(said.get("ports"), own)),
        place=said["root"].place,
    )


def _prefix(value: Value) -> str:
    """What a root hangs below: `LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/<guid>`."""
    text = value.text()
    if not all(text.split("/")) or {".", ".."} & set(text.split("/")) or len(text) > 300 or not text.isprintable():
        raise value.wrong("expected a path below sys/devices")
    return text


def _node(value: Value) -> int:
    return NOWHERE if value.word() in ("none", "-1") else value.count(0, 1023)


def _kind(value: Value) -> str:
    """The one field that says what an item is: `gpu`, `nic`, …"""
    kinds = [kind for kind in parts.KINDS if value.has(kind)]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise value.wrong(f"{' and '.join(kinds)} at once")
    guess = next((found for key in [key for key, _ in value.pairs()] if (found := near(key, tuple(parts.KINDS)))), "")
    raise value.wrong(f"expected one of {', '.join(parts.KINDS)}{guess}")


def function(value: Value, usual: Part) -> Function:
    """One function. `usual` is what a port or a switch without a name of its own is."""
    if not value.is_map:
        raise value.wrong("expected a map of fields")
    kind = _kind(value)
    said = value.fields(kind, *_COMMON, *_OWN[kind])
    unnamed = kind in ("port", "switch") and said[kind].null
    part = _changed(said, usual if unnamed else _part(kind, said[kind]))
    made = _function(said, kind, part, usual)
    bridges = said.get("bridges")
    if part.inside is None or (bridges is not None and not bridges.truth()):
        return made
    upstream, downstream = (
        part._replace(ids=ids, klass=parts.BRIDGE, driver="pcieport", vf=None) for ids in part.inside
    )
    gpu = replace(made, at=None, node=None, slot=None, inner=None)
    port = Function(kind="port", part=downstream, place=made.place, bridge=True, below=(gpu,))
    return Function(
        kind="switch",
        part=upstream,
        place=made.place,
        at=made.at,
        node=made.node,
        slot=made.slot,
        inner=made.inner,
        bridge=True,
        below=(port,),
    )


def _part(kind: str, value: Value) -> Part:
    """A part by its short name, or by its ids."""
    known = parts.KINDS[kind]
    if value.word() in known:
        return known[value.word()]
    if ":" in value.word():
        klass, driver = parts.USUAL[kind]
        return Part(value.ids(), klass, driver, None)
    raise value.wrong(
        f"there is no {kind} {value.word()[:40]!r}{near(value.word(), known)}; there are {', '.join(known)}"
    )


def _changed(said: Fields, part: Part) -> Part:
    """The part with the fields that the description says otherwise."""
    ids, subsystem, driver = said.get("ids"), said.get("subsystem"), said.get("driver")
    klass = said.get("class")
    return part._replace(
        ids=ids.ids() if ids else part.ids,
        klass=klass.hexadecimal(24) if klass else part.klass,
        subsystem=subsystem.ids() if subsystem else part.subsystem,
        driver=part.driver if driver is None else None if driver.word() == "none" else driver.name(),
        link=said["link"].link() if said.get("link") else part.link,
    )


def _function(said: Fields, kind: str, part: Part, usual: Part) -> Function:
    name, at, inner, now, node = (said.get(key) for key in ("name", "at", "inner", "now", "node"))
    slot, iommu, suspended, msi, virtual = (said.get(key) for key in ("slot", "iommu", "suspended", "msi", "vfs"))
    inside, disk, nodes = said.get("inside"), said.get("disk"), said.get("nodes")
    bridge = kind in ("port", "switch") or part.klass >> 8 == _BRIDGE
    if inner and not bridge and part.inside is None:
        raise inner.wrong("only a bridge has a bus below it")
    below = said.get("below")
    if below and not bridge:
        raise below.wrong("only a bridge has something below it")
    return Function(
        kind=kind,
        part=part,
        place=said.place,
        name=name.name() if name else None,
        at=place(at) if at else None,
        inner=inner.hexadecimal(8) if inner else None,
        now=now.link() if now else None,
        node=_node(node) if node else None,
        slot=slot.name() if slot else None,
        iommu=iommu.count(0, 1 << 20) if iommu else None,
        suspended=suspended.truth() if suspended else False,
        msi=msi.count(0, 4096) if msi else 0,
        vfs=vfs(virtual, part) if virtual else None,
        bridge=bridge,
        below=tuple(_below(said, kind, part)),
        several=kind == "switch"
        and (are := said.get("ports_are")) is not None
        and are.choice("devices", "functions") == "functions",
        inside=root(inside, usual) if inside else None,
        network=network(said) if said.value.has("netdev") or said.value.has("rdma") else None,
        drive=drive(said) if kind == "nvme" else None,
        disk=disk.name() if disk else None,
        nodes=None if nodes is None else () if nodes.word() == "none" else tuple(one.name() for one in nodes.some()),
    )


def place(value: Value) -> tuple[int, int]:
    """`01.0` -> (1, 0): device and function."""
    device, dot, number = value.word().partition(".")
    if not dot or len(device) > 2 or number not in tuple("01234567"):
        raise value.wrong("expected device and function such as 01.0")
    found = value.of(device).hexadecimal(5)
    return found, int(number)


def _below(said: Fields, kind: str, part: Part) -> list[Function]:
    if kind == "switch":
        return _ports(said.get("ports"), part._replace(ids=part.downstream or part.ids))
    below = said.get("below")
    return [function(one, part) for one in below.some()] if below else []


def _ports(value: Value | None, usual: Part) -> list[Function]:
    """The ports of a switch or a root: each item is a port, or what is behind a port of its own."""
    found: list[Function] = []
    for item in value.some() if value else ():
        if item.is_list:
            first, *rest = item.items()
            port = _port_of(first, usual)
            found.append(replace(port, below=(*port.below, *(function(one, usual) for one in rest))))
        elif item.has("port"):
            found.append(function(item, usual))
        else:
            found.append(_port_of(item, usual))
    return found


def _port_of(item: Value, usual: Part) -> Function:
    """The port above an item that does not name its port: at `via`, with the bus `bus` below it."""
    if not item.is_map:
        raise item.wrong("expected a map of fields")
    keys = dict(item.pairs())
    via, bus = keys.get("via"), keys.get("bus")
    below = function(item, usual)
    return Function(
        kind="port",
        part=usual,
        place=item.place,
        at=place(via) if via else None,
        inner=bus.hexadecimal(8) if bus else None,
        bridge=True,
        below=(below,),
    )
