"""The ports of a NIC: which interface and which port of an RDMA device are one, and what each does now."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topo_agent.facts import Inventory, Netdev, NetdevState, RdmaDevice, RdmaPortState
from topo_agent.graph.nodes import Device, NicPort, PortState
from topo_agent.ids import Ref

# net/core/devlink.c: what a port of an embedded switch is called that leads to a function and not to a cable.
_REPRESENTOR = re.compile(r"(c[0-9]+)?pf[0-9]+(vf[0-9]+|sf[0-9]+)?", re.ASCII)

_ETHERNET, _INFINIBAND = 1, 32  # include/uapi/linux/if_arp.h


def is_network(netdev: Netdev) -> bool:
    """Is it an interface of a network: Ethernet or InfiniBand?"""
    return netdev.link_type in (_ETHERNET, _INFINIBAND)


def nic_ports(netdevs: list[Netdev], rdma: list[RdmaDevice]) -> Iterable[NicPort]:
    """One for each port: an RDMA port and the interface on it are one, told by GIDs, else by the port number.

    Representors of virtual functions (phys_port_name `pf0vf3`) are no ports.
    """
    left = [one for one in sorted(netdevs, key=lambda one: (one.port or 0, one.name)) if not is_representor(one)]
    for device in rdma:
        for port in device.ports or ():
            netdev = _same_port(left, port.netdevs, port.number, alone=len(rdma) == len(device.ports) == 1)
            if netdev is not None:
                left.remove(netdev)
            yield NicPort(
                netdev=netdev.name if netdev else None,
                rdma=device.name,
                rdma_port=port.number,
                link_layer=port.link_layer,
                address=netdev.address if netdev else None,
            )
        if not device.ports:
            netdev = left.pop(0) if len(rdma) == len(left) == 1 else None
            name, address = (netdev.name, netdev.address) if netdev else (None, None)
            yield NicPort(netdev=name, rdma=device.name, rdma_port=None, link_layer=None, address=address)
    for one in left:
        yield NicPort(netdev=one.name, rdma=None, rdma_port=None, link_layer=_layer(one), address=one.address)


def is_representor(netdev: Netdev) -> bool:
    """Does it stand for a function, and not for a cable?"""
    return netdev.port_name is not None and _REPRESENTOR.fullmatch(netdev.port_name) is not None


def now(inventory: Inventory, devices: Iterable[Device]) -> list[tuple[Ref, tuple[PortState, ...]]]:
    """What the ports of every NIC do now, in the order of its ports."""
    netdevs = dict(inventory.netdevs_now)
    rdma = {(name, number): state for name, number, state in inventory.rdma_now}
    return [
        (device.ref, tuple(_port_state(port, netdevs, rdma) for port in device.nic.ports))
        for device in devices
        if device.nic is not None and device.nic.ports
    ]


def _same_port(left: list[Netdev], told: tuple[str, ...], number: int, *, alone: bool) -> Netdev | None:
    """The interface of an RDMA port: one whose name its GIDs carry, the only one, or that of the same number."""
    named = next((one for one in left if one.name in told), None)
    if named is not None:
        return named
    if alone and len(left) == 1:
        return left[0]
    return next((one for one in left if one.port is not None and one.port + 1 == number), None)


def _layer(netdev: Netdev) -> str | None:
    return {_ETHERNET: "Ethernet", _INFINIBAND: "InfiniBand"}.get(netdev.link_type or 0)


def _port_state(
    port: NicPort, netdevs: dict[str, NetdevState], rdma: dict[tuple[str, int], RdmaPortState]
) -> PortState:
    """The interface knows its own speed; an InfiniBand one does not, and there the RDMA port does."""
    net = netdevs.get(port.netdev) if port.netdev else None
    verbs = rdma.get((port.rdma, port.rdma_port)) if port.rdma and port.rdma_port else None
    up = None if verbs is None or verbs.state is None else verbs.state == "ACTIVE"
    if up is None and net is not None:
        up = net.carrier if net.carrier is not None else {"up": True, "down": False}.get(net.operstate or "")
    speed = net.bits_per_second if net and net.bits_per_second else (verbs.bits_per_second if verbs and up else None)
    return PortState(up=up, bits_per_second=speed, mtu=net.mtu if net else None)
