"""Where the interrupts of NICs go now: <function>/msi_irqs and proc/irq/<n>. State only."""

from __future__ import annotations

from collections.abc import Iterable

from topo_agent.diagnostics import Notes
from topo_agent.facts import IrqState
from topo_agent.host import Host
from topo_agent.ids import PciAddress
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry


def read(host: Host, notes: Notes, functions: Iterable[tuple[PciAddress, str]]) -> tuple[IrqState, ...]:
    """The interrupts of some functions, given with their paths; one without a readable interrupt is left out."""
    found = []
    for address, path in functions:
        place = Entry(host, path or f"sys/bus/pci/devices/{address}", notes)
        cpus = [_affinity(Entry(host, f"proc/irq/{irq}", notes)) for irq in place.names("msi_irqs")]
        known = [one for one in cpus if one is not None]
        if known:
            found.append(IrqState(function=address, vectors=len(cpus), cpus=frozenset[int]().union(*known)))
    return tuple(found)


def _affinity(irq: Entry) -> frozenset[int] | None:
    return irq.now("effective_affinity_list", parse.cpulist) or irq.now("smp_affinity_list", parse.cpulist)
