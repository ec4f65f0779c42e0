"""NICs as people count them: the ports and functions of one card together, and what the card is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topo_agent.graph.applied import Resolved
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import physical
from topo_agent.graph.overlay import Role
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

OPERATOR = "operator"


class Card(NamedTuple):
    """One network card, or one drive."""

    functions: tuple[Ref, ...]  # in bus order
    role: Role
    reason: str  # why it has that role
    data_direct: Ref | None = None  # the function next to a GPU that moves its data, as the operator says

    @property
    def ref(self) -> Ref:
        """The function that it is called after."""
        return self.functions[0]


def nics(topology: Topology, operator: Resolved) -> tuple[Card, ...]:
    """Every card with its role. Of what the operator says, one function speaks for its card.

    Each signal alone misjudges some platform (NVSentinel counted them), so that all are used, the operator's
    word wins, and the reason is printed.
    """
    boards: dict[str, list[Device]] = {}
    for nic in physical(topology, "nic"):
        boards.setdefault(nic.board or str(nic.address), []).append(nic)
    rdma = {name: any(one.names.rdma for one in nics) for name, nics in boards.items()}
    dpus = {name: all(one.nic is not None and one.nic.dpu for one in nics) for name, nics in boards.items()}
    plain_rdma = any(rdma[name] and not dpus[name] for name in boards)
    found = []
    for name, members in boards.items():
        role, reason = _role(topology, members, operator.roles)
        guess = role == "compute" and reason != OPERATOR
        if guess and dpus[name] and plain_rdma:
            role, reason = "dpu", "a DPU, beside RDMA cards that are none"
        if guess and not rdma[name] and any(rdma.values()):
            role, reason = "ethernet", "no RDMA device, and other cards here have one"
        engine = next((operator.data_direct[one.ref] for one in members if one.ref in operator.data_direct), None)
        found.append(Card(tuple(one.ref for one in members), role, reason, engine))
    return tuple(found)


def _role(topology: Topology, members: list[Device], roles: Mapping[Ref, Role]) -> tuple[Role, str]:
    said = next((roles[one.ref] for one in members if one.ref in roles), None)
    if said is not None:
        return said, OPERATOR
    leaving = [one for one in members if one.ref in (topology.default_routes or ())]
    if leaving:
        return "default_route", f"the default route leaves by {' '.join(leaving[0].names.netdev)}"
    return "compute", "nothing says otherwise"


def drives(topology: Topology) -> tuple[Card, ...]:
    """NVMe drives, each a card of its own."""
    return tuple(Card((one.ref,), "compute", "a drive") for one in physical(topology, "nvme"))
