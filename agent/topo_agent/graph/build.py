"""Put every fact in its place: packages, memory and PCI functions -> Topology.

The rules for sources that disagree are in bus.py, locality.py and memory.py, and nowhere else.
"""

from __future__ import annotations

from topo_agent.diagnostics import Notes
from topo_agent.facts import Cpu, Inventory
from topo_agent.graph import bus, join, links, memory, ports, virtual
from topo_agent.graph.applied import contradictions
from topo_agent.graph.nodes import Package
from topo_agent.graph.overlay import EMPTY, Overlay
from topo_agent.graph.topology import Topology
from topo_agent.ids import PackageId, numa_ref, package_ref, pci_ref


def build(inventory: Inventory, overlay: Overlay = EMPTY) -> Topology:
    """The topology of one inventory. Never fails: what cannot be placed is unknown, with its reason.

    `overlay` is what an operator knows better; what came from it is marked `operator`.
    """
    notes = Notes()
    contradictions(overlay, inventory, notes)
    online = frozenset[int](cpu.id for cpu in inventory.cpus or () if cpu.online)
    packages = _packages(inventory.cpus)
    memories = memory.read(inventory.numa, online, inventory.pci)
    roots, devices = bus.read(inventory, packages or (), memories, online, notes, overlay)
    joined = None if devices is None else tuple(join.devices(inventory, devices, memories or (), notes))
    return Topology(
        source=inventory.source,
        machine=inventory.machine,
        cpus=inventory.cpus,
        caches=inventory.caches,
        packages=packages,
        memories=memories,
        standard_nodes=inventory.standard_nodes,
        roots=roots,
        devices=joined,
        migs=join.migs(inventory, joined or ()) if inventory.migs else (),
        virtuals=virtual.read(inventory),
        links=links.read(inventory.gpu_links),
        peer_access=inventory.peer_access,
        allowed_cpus=inventory.allowed_cpus,
        default_routes=virtual.functions_of(inventory, inventory.default_routes),
        links_now=tuple((pci_ref(address), state) for address, state in inventory.links_now),
        ports_now=tuple(ports.now(inventory, joined or ())),
        hugepages_now=tuple((numa_ref(node), pages) for node, pages in inventory.hugepages_now),
        nvlinks_now=links.now(inventory.nvlinks_now),
        fabrics_now=tuple((pci_ref(state.function), state) for state in inventory.fabrics_now),
        irqs_now=tuple((pci_ref(state.function), state) for state in inventory.irqs_now),
        gpudirect=inventory.gpudirect,
        acs=None if inventory.acs is None else tuple((pci_ref(one.function), one) for one in inventory.acs),
        diagnostics=tuple(sorted({*inventory.diagnostics, *notes})),
    )


def _packages(cpus: tuple[Cpu, ...] | None) -> tuple[Package, ...] | None:
    if cpus is None:
        return None
    members: dict[PackageId, list[Cpu]] = {}
    for cpu in cpus:
        if cpu.online and cpu.package is not None:
            members.setdefault(cpu.package, []).append(cpu)
    return tuple(_package(package, members[package]) for package in sorted(members)) or None


def _package(package: PackageId, members: list[Cpu]) -> Package:
    cores = sorted({cpu.threads for cpu in members}, key=sorted)
    dies: dict[int, set[int]] = {}
    for cpu in members:
        if cpu.die is not None:
            dies.setdefault(cpu.die, set()).add(cpu.id)
    return Package(
        ref=package_ref(package),
        id=package,
        cpus=frozenset(cpu.id for cpu in members),
        cores=tuple(cores) if all(cores) else None,
        dies=tuple((die, frozenset(cpus)) for die, cpus in sorted(dies.items())),
    )
