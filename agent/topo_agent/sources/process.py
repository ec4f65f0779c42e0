"""The `process` document: what the asking process may use and sees, which is no fact of the machine's wiring."""

from __future__ import annotations

from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.host import Host, Json, Unavailable, as_object
from topo_agent.ids import CpuSet


class Process(NamedTuple):
    allowed_cpus: CpuSet | None = None  # None: not recorded
    architecture: str | None = None
    default_routes: tuple[str, ...] | None = None  # interfaces that the default route leaves by; None: not recorded


def read(host: Host, notes: Notes) -> Process:
    """Everything that the document tells; an answer of the wrong shape counts as not recorded."""
    try:
        answer = host.document("process")
    except Unavailable:
        return Process()
    said = as_object(answer)
    architecture = said.get("architecture")
    return Process(
        allowed_cpus=_cpus(said.get("allowed_cpus"), notes),
        architecture=architecture if isinstance(architecture, str) else None,
        default_routes=_names(said.get("default_routes")),
    )


def _cpus(listed: Json, notes: Notes) -> CpuSet | None:
    if listed is None:
        return None
    if isinstance(listed, list) and all(isinstance(cpu, int) and cpu >= 0 for cpu in listed):
        return frozenset(cpu for cpu in listed if isinstance(cpu, int))
    notes.add(Level.DEGRADED, "process", Unknown.UNREADABLE.value, "allowed_cpus is no list of CPUs")
    return None


def _names(listed: Json) -> tuple[str, ...] | None:
    return tuple(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else None
