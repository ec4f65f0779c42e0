"""Every fixture in every view, compared with fixtures/<name>/expected/. `make golden` writes them anew.

A golden file shows a reviewer what a change does. That it is right is shown by expected.json, which was typed
from a public source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fixtures
from topo_agent.graph.checks import findings
from topo_agent.graph.pairing import pairs
from topo_agent.graph.topology import Topology
from topo_agent.publishers.metrics import exposition
from topo_agent.views import findings as findings_view
from topo_agent.views import pairs as pairs_view
from topo_agent.views import table
from topo_agent.views.bind import bind
from topo_agent.views.document import as_json, document
from topo_agent.views.matrix import matrix
from topo_agent.views.metrics import families
from topo_agent.views.tree import tree


def _lists(topology: Topology) -> str:
    parts = []
    for kind in table.KINDS:
        if kind not in ("cpus", "pci"):  # hundreds of lines that the document has too
            columns = table.COLUMNS[kind]
            parts.append(f"# {kind}\n{table.FORMATS['table'](table.rows(topology, kind), columns)}")
    return "\n".join(parts)


def _metrics(topology: Topology) -> str:
    choices = pairs(topology)
    body, _ = exposition(families(topology, choices, findings(topology, choices)))
    return body.decode()


VIEWS: dict[str, Callable[[Topology], str]] = {
    "tree.txt": tree,
    "matrix.txt": lambda topology: matrix(topology, ("gpu", "nic", "nvme")),
    "lists.txt": _lists,
    "bind.txt": bind,
    "pairs.txt": lambda topology: pairs_view.as_table(topology, pairs(topology), 120),
    "findings.txt": lambda topology: findings_view.as_text(findings(topology, pairs(topology)), 120),
    "metrics.txt": _metrics,
    "topology.json": lambda topology: as_json(document(topology)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", fixtures.NAMES)
def test_view(name: str, view: str, golden: Callable[[Path, str], None]) -> None:
    golden(fixtures.FOLDER / name / "expected" / view, VIEWS[view](fixtures.topology(name)))


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_the_document_is_json(name: str) -> None:
    said = document(fixtures.topology(name))
    assert json.loads(as_json(said)) == json.loads(json.dumps(said))
