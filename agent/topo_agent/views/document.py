"""Topology -> the JSON document `topo-agent/v1`, as docs/schema/topo-agent-v1.json describes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from topo_agent.diagnostics import Diagnostic, Unknown
from topo_agent.facts import LinkState, Machine
from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.hops import SCOPE
from topo_agent.graph.nodes import PortState
from topo_agent.graph.paths import all_pairs
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, Source, as_array, as_object, as_objects
from topo_agent.ids import Ref, cpulist
from topo_agent.views import functions, parts
from topo_agent.views.fields import present, why

SCHEMA = "topo-agent/v1"

T = TypeVar("T")

_NOT_WIRING = frozenset({"kernel"})  # of the machine: changes with an update, not with a screwdriver


def document(topology: Topology, around: Ref | None = None) -> dict[str, Json]:
    """The machine as plain data. A part that was not recorded at all is absent.

    `around` keeps what is above and below one node, and its distances; `digest` is that of the whole machine.
    """
    structure: dict[str, Json] = {
        "machine": _machine(topology.machine, topology),
        "packages": _part(topology.packages, parts.package),
        "caches": _part(topology.caches, parts.cache),
        "numa": _part(topology.memories, parts.memory),
        "roots": _part(topology.roots, parts.root),
        "devices": _devices(topology),
        "links": _part(topology.links, parts.link),
    }
    structure = {name: part for name, part in structure.items() if part is not None}
    said: dict[str, Json] = {
        "schema": SCHEMA,
        "digest": digest(structure),
        "source": _source(topology.source, topology),
        **structure,
    }
    if topology.devices is not None:
        said["paths_scope"] = list(SCOPE)
        said["paths"] = [parts.path(one) for one in all_pairs(topology)]
    said["state"] = _state(topology)
    said["diagnostics"] = [_diagnostic(one) for one in topology.diagnostics]
    return said if around is None else _restricted(said, topology, around)


def as_json(said: Mapping[str, Json]) -> str:
    """The document as JSON with a line for each device, path and so on: to read, to grep and to diff."""
    lines = []
    for key, part in said.items():
        if isinstance(part, list) and part and isinstance(part[0], dict):
            items = ",\n".join(f"    {_compact(one)}" for one in part)
            lines.append(f"  {_compact(key)}: [\n{items}\n  ]")
        elif key == "state" and isinstance(part, dict) and part:
            items = ",\n".join(f"    {_compact(name)}: {_compact(now)}" for name, now in part.items())
            lines.append(f"  {_compact(key)}: {{\n{items}\n  }}")
        else:
            lines.append(f"  {_compact(key)}: {_compact(part)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


_compact = json.JSONEncoder(ensure_ascii=False).encode


def digest(structure: Mapping[str, Json]) -> str:
    """`sha256:…` over structure only: the same machine gives the same digest, whatever its links do now."""
    machine = structure.get("machine")
    if isinstance(machine, dict):
        machine = {key: value for key, value in machine.items() if key not in _NOT_WIRING}
    canonical = json.dumps({**structure, "machine": machine}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def _part(items: Iterable[T] | None, show: Callable[[T], dict[str, Json]]) -> list[Json] | None:
    return None if items is None else [show(item) for item in items]


def _devices(topology: Topology) -> list[Json] | None:
    """The functions in bus order, then parts of GPUs, then what sits on no function."""
    if topology.devices is None and not topology.virtuals:
        return None
    migs = (functions.mig(one, topology.device(one.partition_of)) for one in topology.migs)
    return [*map(functions.device, topology.devices or ()), *migs, *map(functions.virtual, topology.virtuals)]


def _restricted(said: dict[str, Json], topology: Topology, around: Ref) -> dict[str, Json]:
    """One node, what is above and below it, the memory it is near, and every link and path that ends at it."""
    one = topology.function(around)
    end = str(one.ref if one else around)  # a MIG device has no links and distances but those of its GPU
    memory = topology.memory(one.numa_node) if one else None
    near = (memory.ref, *topology.ancestors(memory.ref)) if memory else ()
    kept = {str(ref) for ref in (around, *near, *topology.ancestors(around), *topology.below(around))}
    found = dict(said)
    for key in ("packages", "numa", "roots", "devices"):
        if key in said:
            found[key] = [one for one in as_objects(said[key]) if one.get("id") in kept]
    for key in ("links", "paths"):
        if key in said:
            found[key] = [one for one in as_objects(said[key]) if end in (one["a"], one["b"])]
    found["state"] = {key: now for key, now in as_object(said["state"]).items() if key in kept}
    return found


def _source(source: Source, topology: Topology) -> dict[str, Json]:
    said: dict[str, Json] = {"kind": source.kind, "complete": source.complete, "redacted": source.redacted}
    optional: dict[str, Json] = {
        "privileged": source.privileged,
        "scope": source.scope,
        "allowed_cpus": None if topology.allowed_cpus is None else cpulist(topology.allowed_cpus),
    }
    return said | present(optional)


def _machine(machine: Machine, topology: Topology) -> dict[str, Json]:
    said: dict[str, Json] = {
        "vendor": machine.vendor,
        "product": machine.product,
        "board": machine.board,
        "bios_version": machine.bios_version,
        "architecture": machine.architecture,
        "cpu_model": machine.cpu_model,
        "kernel": machine.kernel,
        "virtual": machine.virtual,
    }
    if machine.hypervisor is not None:
        said["hypervisor"] = machine.hypervisor
    if topology.cpus is not None:
        said["online_cpus"] = cpulist(topology.online_cpus)
        offline = [cpu.id for cpu in topology.cpus if not cpu.online]
        if offline:
            said["offline_cpus"] = cpulist(offline)
        said["cores"] = topology.cores
    unknown = dict(machine.unknown)
    if topology.cpus is not None and topology.cores is None:
        unknown["cores"] = Unknown.NOT_SUPPORTED if topology.source.complete else Unknown.NOT_RECORDED
    return said | why((), tuple(sorted(unknown.items())))


def _state(topology: Topology) -> dict[str, Json]:
    """What moves by itself, by the id of what it belongs to."""
    state: dict[str, dict[str, Json]] = {}
    for ref, link in topology.links_now:
        state.setdefault(str(ref), {})["link"] = _link_now(link)
    for ref, ports in topology.ports_now:
        state.setdefault(str(ref), {})["ports"] = [_port_now(port) for port in ports]
    for ref, irqs in topology.irqs_now:
        state.setdefault(str(ref), {})["irqs"] = {"count": irqs.vectors, "cpus": cpulist(irqs.cpus)}
    for a, b, _, active in topology.nvlinks_now:
        now = state.setdefault(str(a), {})
        now["nvlinks"] = [*as_array(now.get("nvlinks")), {"peer": str(b) if b else None, "active": active}]
    for ref, fabric in topology.fabrics_now:
        state.setdefault(str(ref), {})["fabric"] = functions.fabric_now(fabric)
    for ref, hugepages in topology.hugepages_now:
        pages: dict[str, Json] = {str(some.size_bytes): some.pages for some in hugepages}
        state.setdefault(str(ref), {})["hugepages"] = pages
    return {**state}


def _port_now(port: PortState) -> dict[str, Json]:
    return {"up": port.up, "bits_per_second": port.bits_per_second, "mtu": port.mtu}


def _link_now(link: LinkState) -> dict[str, Json]:
    return {"gts": link.gts, "width": link.width, "bytes_per_second": of_lanes(link.gts, link.width)}


def _diagnostic(one: Diagnostic) -> dict[str, Json]:
    return {"level": one.level.value, "subject": one.subject, "code": one.code, "message": one.message}
