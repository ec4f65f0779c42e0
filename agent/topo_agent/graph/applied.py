"""An overlay put on a topology: names resolved to devices, and contradictions with firmware told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes
from topo_agent.facts import Inventory
from topo_agent.graph.find import NoSuchDevice, find
from topo_agent.graph.kinds import is_data_direct
from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.overlay import Overlay, Role
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref


class Unresolved(Exception):
    """A name in an overlay that is no device here; one line with the place in the file."""


class Resolved(NamedTuple):
    """The operator's word, by the names of the graph."""

    roles: Mapping[Ref, Role] = MappingProxyType({})
    pairs: Mapping[Ref, tuple[Ref, ...]] = MappingProxyType({})
    data_direct: Mapping[Ref, Ref] = MappingProxyType({})  # NIC -> its DMA function


SILENT = Resolved()


def resolve(overlay: Overlay, topology: Topology) -> Resolved:
    """Roles, pairs and Data Direct functions by device; Unresolved for a root, a node or a name that is not here."""
    _absent_roots(overlay, topology)

    def found(name: str, field: str) -> tuple[Ref, Device | None]:
        try:
            ref = find(topology, name)
        except NoSuchDevice as error:
            raise Unresolved(f"{overlay.where.get(field, 'overlay')}: {field}: {error}") from None
        return ref, topology.device(ref)

    def one(name: str, field: str, kind: DeviceKind) -> Ref:
        ref, device = found(name, field)
        if device is None or device.kind != kind:
            raise Unresolved(f"{overlay.where.get(field, 'overlay')}: {field}: {name} is no {kind.upper()}")
        return ref

    def direct(name: str, field: str) -> Ref:
        ref, device = found(name, field)
        if device is None or not is_data_direct(device):
            raise Unresolved(f"{overlay.where.get(field, 'overlay')}: {field}: {name} is no Data Direct function")
        return ref

    return Resolved(
        roles={one(name, f"roles.{name}", "nic"): role for name, role in overlay.roles.items()},
        pairs={
            one(gpu, f"pairs.{gpu}", "gpu"): tuple(one(nic, f"pairs.{gpu}", "nic") for nic in nics)
            for gpu, nics in overlay.pairs.items()
        },
        data_direct={
            one(nic, f"data_direct.{dma}", "nic"): direct(dma, f"data_direct.{dma}")
            for dma, nic in overlay.data_direct.items()
        },
    )


def contradictions(overlay: Overlay, inventory: Inventory, notes: Notes) -> None:
    """What firmware says of the functions below a root, where the overlay says something else. The operator wins."""
    for root, node in overlay.roots.items():
        inside = f"/{root}/"
        told = {one.numa_node for one in inventory.pci or () if inside in f"{one.path}/"} - {None}
        if told and told != {node}:
            said = ", ".join(str(one) for one in sorted(one for one in told if one is not None))
            place = overlay.where.get(f"roots.{root}", "overlay")
            notes.add(
                Level.CONFLICT,
                f"root:{root}",
                "overlay_contradicts",
                f"{place} says NUMA node {node}, firmware says {said}; the overlay is believed",
            )


def _absent_roots(overlay: Overlay, topology: Topology) -> None:
    """Unresolved for a root, or a NUMA node, that is not there."""
    names = {root.name for root in topology.roots or ()}
    nodes = {memory.id for memory in topology.memories or ()}
    for root, node in overlay.roots.items():
        place = overlay.where.get(f"roots.{root}", "overlay")
        if root not in names:
            raise Unresolved(
                f"{place}: roots.{root}: no such root here; there are {', '.join(sorted(names)) or 'none'}"
            )
        if node not in nodes and topology.memories is not None:
            raise Unresolved(f"{place}: roots.{root}: no NUMA node {node} here")
