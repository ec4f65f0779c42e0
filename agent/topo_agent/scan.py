"""Ask a host about everything once -> Inventory. The only place that outlives a source that fails whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from topo_agent.diagnostics import Level, Notes
from topo_agent.facts import Inventory, Machine
from topo_agent.host import Host
from topo_agent.sources import cpu, machine, numa, pci

T = TypeVar("T")

_NOBODY = Machine(
    vendor=None, product=None, board=None, bios_version=None, architecture=None, kernel=None, virtual=None,
    hypervisor=None, cpu_model=None,
)  # fmt: skip


def scan(host: Host, *, caches: bool = False) -> Inventory:
    """Everything that today's sources know to ask. Never raises for what a machine says or fails to say.

    `caches` reads the caches of every CPU too, which costs more than all the rest together.
    """
    notes = Notes()

    def source(name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:  # a source that fails whole costs itself
            notes.add(Level.LOST, name, "source_failed", f"{type(error).__name__}: {error}")
            return None

    cpus = source("cpu", lambda: cpu.read(host, notes))
    online = None if cpus is None else frozenset(one.id for one in cpus if one.online)
    found = source("pci", lambda: pci.read(host, notes))
    return Inventory(
        source=host.source,
        machine=source("machine", lambda: machine.read(host, notes)) or _NOBODY,
        cpus=cpus,
        caches=source("cache", lambda: cpu.caches(host, notes, cpus or ())) if caches else None,
        numa=source("numa", lambda: numa.read(host, notes, online)),
        pci=found.devices if found else None,
        buses=found.buses if found else (),
        slots=found.slots if found else (),
        allowed_cpus=source("process", lambda: machine.allowed_cpus(host, notes)),
        links_now=found.links_now if found else (),
        diagnostics=tuple(notes),
    )
