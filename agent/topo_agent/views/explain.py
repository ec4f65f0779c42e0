"""The way between two devices, or everything near one -> text and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topo_agent.graph.explain import Explanation, Hop
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import labels
from topo_agent.graph.paths import Path
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.ids import Ref
from topo_agent.views import names, parts, table
from topo_agent.views.devices import Row, names_of
from topo_agent.views.fields import present
from topo_agent.views.text import fit
from topo_agent.views.units import byte_rate, link_name

_ROLES = {"root_port": "root port", "upstream_port": "switch", "downstream_port": "switch port", "pci_bridge": "bridge"}


def between(topology: Topology, said: Explanation, width: int) -> str:
    """Every hop on a line with the link above it, then what follows from them."""
    called = labels(topology)
    path = said.path
    ends = " to ".join(_name(topology, hop.ref, called) for hop in (said.hops[0], said.hops[-1]))
    lines = [
        f"{ends}: {path.class_}{'' if path.certain else ' (not certain)'}, {path.nccl_class} to NCCL",
        f"because: {path.reason}",
        "",
        *(f"  {_hop(topology, hop, called)}" for hop in said.hops),
        "",
        *_bandwidth(said, called),
        *(f"not known: {one}" for one in said.unknown),
    ]
    return "\n".join(fit(line, width) for line in lines) + "\n"


def _hop(topology: Topology, hop: Hop, called: dict[Ref, str]) -> str:
    if hop.device is None:
        return f"{hop.ref.key} host bridge"
    text = _name(topology, hop.ref, called)
    if hop.device.link is not None:
        text += f" · {link_name(hop.device.link.max_gts, hop.device.link.max_width)}"
    if hop.bytes_per_second is not None:
        text += f" · {byte_rate(hop.bytes_per_second)}"
    if hop.now_bytes_per_second is not None and hop.now_bytes_per_second != hop.bytes_per_second:
        text += f", now {byte_rate(hop.now_bytes_per_second)}"
    return text


def _name(topology: Topology, ref: Ref, called: dict[Ref, str]) -> str:
    device = topology.device(ref)
    if device is None:
        return ref.key
    title = device.title or names.title(device.vendor, device.device)
    own = " ".join(names_of(device))
    word = called.get(ref) or _ROLES.get(device.role or "", device.kind)
    return f"{str(device.address).removeprefix('0000:')} {word} {title}{' ' + own if own else ''}"


def _bandwidth(said: Explanation, called: dict[Ref, str]) -> Iterator[str]:
    if said.narrowest is None or said.narrowest.bytes_per_second is None:
        yield "narrowest link: not known"
        return
    at_best = said.narrowest.bytes_per_second
    now = said.narrowest_now
    slower = ""
    if now is not None and now.now_bytes_per_second is not None and now.now_bytes_per_second < at_best:
        slower = f"; now above {now.ref.key}, {byte_rate(now.now_bytes_per_second)}"
    yield f"narrowest link: above {said.narrowest.ref.key}, {byte_rate(at_best)} (estimate){slower}"
    if said.sharers and len(said.sharers.devices) > 1:
        shared = " ".join(called[ref] for ref in said.sharers.devices)
        ratio = "" if said.sharers.ratio is None else f", {said.sharers.ratio:.1f} times what it carries"
        yield f"shared by: {shared}{ratio}"


def near(topology: Topology, one: Device, paths: Sequence[Path]) -> str:
    """Everything near one device as a table, nearest first."""
    called = labels(topology)
    rows = [_near(topology, one, path, called) for path in paths]
    return table.table(rows, ("device", "address", "name", "class", "nccl", "bandwidth", "sure", "why"))


def _near(topology: Topology, one: Device, path: Path, called: dict[Ref, str]) -> Row:
    other = topology.device(path.b if path.a == one.ref else path.a)
    return {
        "device": called.get(other.ref, other.ref.key) if other else None,
        "address": str(other.address) if other else None,
        "name": " ".join(names_of(other)) if other else None,
        "class": path.class_,
        "nccl": path.nccl_class,
        "bandwidth": "" if path.bytes_per_second is None else byte_rate(path.bytes_per_second),
        "sure": path.certain,
        "why": path.reason,
    }


def near_data(paths: Sequence[Path]) -> list[Json]:
    return [parts.path(path) for path in paths]


def as_data(said: Explanation) -> dict[str, Json]:
    """The same for programs."""
    hops: list[Json] = [
        present(
            {
                "id": str(hop.ref),
                "max_bytes_per_second": hop.bytes_per_second,
                "now_bytes_per_second": hop.now_bytes_per_second,
            }
        )
        for hop in said.hops
    ]
    found: dict[str, Json] = {"path": parts.path(said.path), "hops": hops, "unknown": [*said.unknown]}
    if said.narrowest is not None:
        found["narrowest"] = str(said.narrowest.ref)
    if said.sharers is not None:
        shared: dict[str, Json] = {
            "devices": [str(ref) for ref in said.sharers.devices],
            "ratio": said.sharers.ratio,
        }
        found["shared_by"] = present(shared)
    return found
