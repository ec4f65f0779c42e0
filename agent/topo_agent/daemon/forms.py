"""The forms in which the agent offers a machine: what a scan's answer consists of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from topo_agent.facts import Inventory
from topo_agent.graph import checks, pairing
from topo_agent.graph.applied import Resolved, resolve
from topo_agent.graph.build import build
from topo_agent.graph.fabric import Place, unsure
from topo_agent.graph.overlay import EMPTY, Overlay
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.views import findings, matrix, metrics, summary, tree
from topo_agent.views.document import as_json, document

Choices = tuple[pairing.Choice, ...]

_WIDTH = 100  # columns
_LINKS = ("link_width", "link_speed")


def built(inventory: Inventory, overlay: Overlay) -> tuple[Topology, Choices]:
    """Unresolved where the overlay speaks of what is not here."""
    topology = build(inventory, overlay)
    operator = resolve(overlay, topology) if overlay is not EMPTY else Resolved()
    return topology, pairing.pairs(topology, operator)


def forms(topology: Topology, choices: Choices, *, pairs: bool, again: Iterable[str], slices: str) -> dict[str, Json]:
    """All but the labels. `again`: links that earlier readings found low; `slices`: "scalar", "list" or "" for none."""
    found = checks.findings(topology, choices, frozenset(again))
    said = document(topology)
    return {
        "digest": said["digest"],
        "topology": as_json(said),
        "findings": json.dumps(findings.as_data(found), indent=2, ensure_ascii=False) + "\n",
        "families": metrics.families(topology, choices, found, pairs=pairs),
        "problems": sum(one.severity != "info" for one in found),
        "low": [f"{one.code}:{subject}" for one in found if one.code in _LINKS for subject in one.subjects],
        "matrix": matrix.matrix(topology),
        "tree": tree.tree(topology, width=_WIDTH),
        "status": ", ".join(summary.counts(topology)),
        "devices": _devices(topology, slices) if slices else [],
    }


def _devices(topology: Topology, slices: str) -> list[Json]:
    from topo_agent.views.slices import candidates

    numa: Literal["scalar", "list"] = "list" if slices == "list" else "scalar"
    return [[*one] for one in candidates(topology, numa=numa)]


def doubted(readings: Iterable[str], why: str) -> dict[str, Json]:
    """Nobody is sure of any of them."""
    return {name: [*unsure("driver", why)] for name in readings}


def labels(topology: Topology, choices: Choices, place: Place) -> dict[str, Json]:
    """Each reading by its name."""
    from topo_agent.graph.readings import readings

    return {name: [*reading] for name, reading in readings(topology, choices, place).items()}
