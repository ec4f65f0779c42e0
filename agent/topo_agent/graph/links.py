"""NVLink and xGMI of each GPU -> links between GPUs, each once."""

from __future__ import annotations

from topo_agent.facts import GpuLink
from topo_agent.graph.topology import Link
from topo_agent.ids import Ref, pci_ref


def read(told: tuple[GpuLink, ...] | None) -> tuple[Link, ...] | None:
    """Links by their ends; what both ends tell is one link, and the end that tells more is believed."""
    if told is None:
        return None
    found: dict[tuple[Ref, Ref | None, str], Link] = {}
    for one in told:
        link = _link(one)
        key = (link.a, link.b, link.peer)
        known = found.get(key)
        if known is None or (known.bytes_per_second or 0, known.count or 0) < (
            link.bytes_per_second or 0,
            link.count or 0,
        ):
            found[key] = link
    return tuple(sorted(found.values(), key=lambda link: (link.a, link.b or Ref("", ""), link.peer)))


def _link(one: GpuLink) -> Link:
    here = pci_ref(one.function)
    there = None if one.peer is None else pci_ref(one.peer)
    if one.peer_kind == "gpu" and there is not None and there < here:
        here, there = there, here
    return Link(
        a=here,
        b=there,
        kind=one.kind,
        peer=one.peer_kind,
        count=one.count,
        active=one.active,
        bytes_per_second=one.bytes_per_second,
        weight=one.weight,
    )
