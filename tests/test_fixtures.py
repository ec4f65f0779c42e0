"""Every machine in fixtures/, compared with its expected.json leaf by leaf: what a public source says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.expectations import KINDS, leaves, of_kind
from tests.fixtures import FOLDER, topology

NAMES = sorted(one.parent.name for one in FOLDER.glob("*/expected.json"))

# Keys that `leaves` does not ask about; any other that it leaves out is an error like a wrong answer.
REMARKS = {"cpulist_file", "cpus_derived", "numa_node_kernel"}


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))
    return found


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
    """An extra GPU or NIC is as wrong as a missing one, where the source names those of that kind."""
    if not of_kind(expected(name), kind):
        pytest.skip(f"its source names no {kind}")
    found = {str(one.address) for one in topology(name).devices or () if one.kind == kind}
    assert found == of_kind(expected(name), kind)
