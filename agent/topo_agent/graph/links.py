"""NVLink and xGMI of each GPU -> links between GPUs, each once."""

from __future__ import annotations

from collections import Counter

from topo_agent.facts import GpuLink, NvLinkState
from topo_agent.graph.nodes import Link, PeerKind
from topo_agent.graph.topology import Topology
from topo_agent.ids import PciAddress, Ref, pci_ref


def nvlinks(topology: Topology) -> tuple[Counter[Ref], Counter[Ref]]:
    """(how many NVLinks are up, how many there are) of each device: a link counts at both of its ends."""
    up, whole = Counter[Ref](), Counter[Ref]()
    for a, b, _, count in topology.nvlinks_now:
        up.update({end: count for end in (a, b) if end is not None})
    for link in topology.links or ():
        if link.kind == "nvlink" and link.links is not None:
            whole.update({end: link.links for end in (link.a, link.b) if end is not None})
    return up, whole


def read(told: tuple[GpuLink, ...] | None) -> tuple[Link, ...] | None:
    """Links by their ends; what both ends tell is one link, and the end that tells more is believed."""
    if told is None:
        return None
    found: dict[tuple[Ref, Ref | None, str], Link] = {}
    for one in told:
        link = _link(one)
        key = (link.a, link.b, link.peer)
        known = found.get(key)
        if known is None or _weight(known) < _weight(link):
            found[key] = link
    return tuple(sorted(found.values(), key=lambda link: (link.a, link.b or Ref("", ""), link.peer)))


def now(told: tuple[NvLinkState, ...]) -> tuple[tuple[Ref, Ref | None, PeerKind, int], ...]:
    """(ends, kind of the peer, links that are up); a link that one of its two ends sees down is down."""
    found: dict[tuple[Ref, Ref | None, PeerKind], int] = {}
    for one in told:
        key = (*_ends(one.function, one.peer), one.peer_kind)
        found[key] = min(found.get(key, one.active), one.active)
    return tuple((*key, found[key]) for key in sorted(found, key=str))


def _weight(link: Link) -> tuple[int, int]:
    return link.bytes_per_second or 0, link.links or 0


def _ends(function: PciAddress, peer: PciAddress | None) -> tuple[Ref, Ref | None]:
    """The two ends in order, so that a link is the same from both sides."""
    here, there = pci_ref(function), None if peer is None else pci_ref(peer)
    return (there, here) if there is not None and there < here else (here, there)


def _link(one: GpuLink) -> Link:
    here, there = _ends(one.function, one.peer)
    return Link(
        a=here,
        b=there,
        kind=one.kind,
        peer=one.peer_kind,
        links=one.links,
        bytes_per_second=one.bytes_per_second,
        weight=one.weight,
    )
