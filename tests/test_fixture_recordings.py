"""Every recording in fixtures/ that has an expected.json, compared with it leaf by leaf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.expectations import KINDS, leaves, of_kind
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host.opening import open_host
from topo_agent.scan import scan

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(one.parent.name for one in FIXTURES.glob("*/expected.json") if (one.parent / "host.topo").exists())

# Keys that `leaves` does not ask about; any other that it leaves out is an error like a wrong answer.
REMARKS = {"cpulist_file", "cpus_derived", "numa_node_kernel"}


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))
    return found


def topology(name: str) -> Topology:
    return build(scan(open_host(str(FIXTURES / name / "host.topo"))))


@pytest.mark.parametrize("name", NAMES)
def test_agrees(name: str) -> None:
    asked = list(leaves(expected(name), topology(name)))
    wrong = [f"{leaf.path}: {leaf.found!r}, and not {leaf.wanted[0]!r}" for leaf in asked if not leaf.agrees]
    print(f"{name}: agreed/asked {len(asked) - len(wrong)}/{len(asked)}")
    assert not wrong
    paths = {leaf.path for leaf in asked}
    typed = {
        f"{section}.{thing}.{key}"
        for section in ("functions", "numa")
        for thing, said in expected(name).get(section, {}).items()
        for key in said
        if key not in REMARKS
    }
    assert typed <= paths
    assert asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_more_and_no_fewer(name: str, kind: str) -> None:
    """An extra GPU or NIC is as wrong as a missing one."""
    if "functions" not in expected(name):
        pytest.skip("its expected.json names no functions")
    found = {str(one.address) for one in topology(name).devices or () if one.kind == kind}
    assert found == of_kind(expected(name), kind)
