"""What people name that sits on no PCI function: bonds, VLANs, software RDMA devices, drives across a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from topo_agent.facts import Inventory, Netdev
from topo_agent.graph.join import nvme_part
from topo_agent.graph.nodes import Names, Virtual
from topo_agent.ids import Ref, pci_ref

_STACKED = frozenset({"bond", "team", "vlan"})
"""Bridges, veths and tunnels come and go with containers: they say nothing of the wiring."""


def read(inventory: Inventory) -> tuple[Virtual, ...]:
    """Every one of them, by its id."""
    found = [*_netdevs(inventory), *_rdma(inventory), *_drives(inventory)]
    return tuple(sorted(found, key=lambda one: one.ref))


def functions_of(inventory: Inventory, names: Iterable[str] | None) -> frozenset[Ref] | None:
    """The PCI functions below some interfaces, through bonds and VLANs; None for None."""
    if names is None:
        return None
    netdevs = {netdev.name: netdev for netdev in inventory.netdevs}
    found = (_functions(netdevs[name], netdevs) for name in names if name in netdevs)
    return frozenset(ref for refs in found for ref in refs)


def _netdevs(inventory: Inventory) -> Iterator[Virtual]:
    netdevs = {netdev.name: netdev for netdev in inventory.netdevs}
    present = _present(inventory)
    for netdev in inventory.netdevs:
        lower = tuple(sorted(_functions(netdev, netdevs) & present))
        stacked = netdev.kind in _STACKED and lower
        if netdev.function is None and (stacked or netdev.other_bus):
            yield Virtual(
                ref=Ref("net", netdev.name),
                kind="virtual_nic",
                name=netdev.name,
                type=netdev.kind if stacked else "other_bus",
                lower=lower,
                vlan_id=netdev.vlan_id,
                names=Names(netdev=(netdev.name,)),
            )


def _functions(netdev: Netdev, netdevs: Mapping[str, Netdev]) -> set[Ref]:
    """The PCI functions below an interface, through bonds and VLANs; each interface is looked at once."""
    seen: set[str] = set()
    found: set[Ref] = set()
    todo = [netdev]
    while todo:
        one = todo.pop()
        if one.name in seen:
            continue
        seen.add(one.name)
        if one.function is not None:
            found.add(pci_ref(one.function))
        else:
            todo += [netdevs[name] for name in one.lower if name in netdevs]
    return found


def _rdma(inventory: Inventory) -> Iterator[Virtual]:
    netdevs = {netdev.name: netdev for netdev in inventory.netdevs}
    present = _present(inventory)
    for device in inventory.rdma:
        if device.function is None:
            below = netdevs.get(device.parent) if device.parent else None
            yield Virtual(
                ref=Ref("rdma", device.name),
                kind="software_rdma",
                name=device.name,
                type=None,
                lower=tuple(sorted(_functions(below, netdevs) & present)) if below else (),
                names=Names(rdma=(device.name,)),
                uid=device.node_guid,
            )


def _present(inventory: Inventory) -> set[Ref]:
    return {pci_ref(device.address) for device in inventory.pci or ()}


def _drives(inventory: Inventory) -> Iterator[Virtual]:
    for one in inventory.nvme:
        if one.function is None:
            yield Virtual(
                ref=Ref("nvme", one.name),
                kind="remote_nvme",
                name=one.name,
                type=one.transport,
                names=Names(nvme=(one.name, *one.namespaces), nvme_path=one.path_names),
                nvme=nvme_part(one),
                uid=one.serial,
            )
