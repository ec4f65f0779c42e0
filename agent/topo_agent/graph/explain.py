"""Between two devices: every hop with its link, the narrowest of them, and who else goes through it."""

from __future__ import annotations

from typing import NamedTuple

from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.hops import SCOPE, has_link
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import physical
from topo_agent.graph.paths import Path, Paths
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref


class Hop(NamedTuple):
    """One thing on the way. `link` is the one above it, towards the root; a host bridge has none."""

    ref: Ref
    device: Device | None
    bytes_per_second: int | None  # at most
    now_bytes_per_second: int | None  # None without a maximum too: an emulated port tells neither


class Sharers(NamedTuple):
    """Who sends through the narrowest link, and by how much all together could exceed it."""

    devices: tuple[Ref, ...]
    ratio: float | None  # sum of their own links over the narrowest one; None where one does not tell


class Explanation(NamedTuple):
    path: Path
    hops: tuple[Hop, ...]  # from a to b, both included
    narrowest: Hop | None  # at most
    narrowest_now: Hop | None  # of those that tell; it may be another one
    sharers: Sharers | None
    unknown: tuple[str, ...]


def between(topology: Topology, one: Device, other: Device) -> Explanation:
    """Everything about the way from `one` to `other`."""
    paths = Paths(topology)
    path = paths.between(one, other)
    via = path.via if path.a == one.ref else path.via[::-1]
    hops = tuple(_hop(topology, paths, ref) for ref in (one.ref, *via, other.ref))
    # The link above the deepest common bridge is not used: the way turns round below it.
    both = {one.ref, *topology.ancestors(one.ref)} & {other.ref, *topology.ancestors(other.ref)}
    linked = [hop for hop in hops if hop.device is not None and hop.ref not in both]
    narrowest = next((hop for hop in linked if paths.hops.link_end(hop.ref) == path.bottleneck), None)
    return Explanation(
        path=path,
        hops=hops,
        narrowest=narrowest,
        narrowest_now=_narrowest_now(linked),
        sharers=None if narrowest is None else _sharers(topology, paths, narrowest),
        unknown=tuple(_unknown(path, linked)),
    )


def nearest(topology: Topology, one: Device) -> tuple[Path, ...]:
    """The paths from one device to every GPU, NIC and drive, nearest first."""
    paths = Paths(topology)
    others = [other for other in physical(topology, *SCOPE) if other.ref != one.ref]
    found = [paths.between(one, other) for other in others]
    return tuple(sorted(found, key=lambda path: (path.rank, not path.certain, len(path.via), path.a, path.b)))


def _hop(topology: Topology, paths: Paths, ref: Ref) -> Hop:
    device = topology.device(ref)
    if device is None:
        return Hop(ref, None, None, None)
    end = paths.hops.link_end(ref)
    linked = topology.device(end)
    states = dict(topology.links_now)
    now = states.get(end) or (states.get(linked.parent) if linked and linked.parent else None)
    rate = paths.hops.rate(ref)
    return Hop(ref, device, rate, of_lanes(now.gts, now.width) if now and rate is not None else None)


def _narrowest_now(linked: list[Hop]) -> Hop | None:
    links = (hop for hop in linked if hop.device and has_link(hop.device))
    rates = {(hop.now_bytes_per_second, hop.ref): hop for hop in links if hop.now_bytes_per_second is not None}
    return rates[min(rates)] if rates else None


def _sharers(topology: Topology, paths: Paths, narrowest: Hop) -> Sharers:
    behind = {narrowest.ref, *topology.below(narrowest.ref)}
    devices = [one for one in physical(topology, *SCOPE) if one.ref in behind]
    rates = [paths.hops.rate(one.ref) for one in devices]
    known = [rate for rate in rates if rate is not None]
    whole = narrowest.bytes_per_second
    ratio = sum(known) / whole if whole and len(known) == len(rates) else None
    return Sharers(tuple(one.ref for one in devices), ratio)


def _unknown(path: Path, linked: list[Hop]) -> list[str]:
    found = [] if path.certain else [path.reason]
    silent = [str(hop.device.address) for hop in linked if hop.device and hop.bytes_per_second is None]
    if silent:
        found.append(f"the link speed of {', '.join(silent)}")
    return found
