"""The JSON document: described by its schema, the same bytes for the same machine, structure apart from state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import schemas
from tests.machines import MACHINES, needs_machines
from tests.paper import Files, function
from tests.paper import topology as on_paper
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Failure
from topo_agent.scan import scan
from topo_agent.views.document import document


def topology(root: str) -> Topology:
    return build(scan(LiveHost(root)))


def test_the_schemas_are_schemas() -> None:
    assert schemas.published()
    for path in schemas.published():
        Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_this_machine_is_described() -> None:
    said = document(topology("/"))
    for path in schemas.published():
        schemas.readers(path).validate(said)
    schemas.strict(schemas.published()[-1]).validate(said)


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_described(name: str, tree: Callable[[str], Path]) -> None:
    said = document(topology(str(tree(name))))
    for path in schemas.published():
        schemas.readers(path).validate(said)
    schemas.strict(schemas.published()[-1]).validate(said)


def test_a_key_that_nobody_described_is_refused() -> None:
    said: dict[str, Any] = document(topology("/"))
    said["machine"]["colour"] = "green"
    assert not schemas.strict(schemas.published()[-1]).is_valid(said)
    assert schemas.readers(schemas.published()[-1]).is_valid(said)


@needs_machines
@pytest.mark.parametrize("name", ["dell-xe9680-snc2", "hwloc-2s-dax-nvme-ib"])
def test_same_machine_same_bytes(name: str, tree: Callable[[str], Path]) -> None:
    first, second = (json.dumps(document(topology(str(tree(name))))) for _ in range(2))
    assert first == second


def nulls_without_reason(said: Any, where: str = "") -> list[str]:
    """Fields that were asked and not answered, in objects that do not say why."""
    if isinstance(said, list):
        return [one for part in said for one in nulls_without_reason(part, where)]
    if not isinstance(said, dict):
        return []
    here = f"{where}/{said.get('id', '')}"
    bare = [f"{here}: {key}" for key, value in said.items() if value is None and key not in said.get("unknown", {})]
    return bare + [one for key, value in said.items() for one in nulls_without_reason(value, f"{here}/{key}")]


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_every_null_says_why(name: str, tree: Callable[[str], Path]) -> None:
    said = document(topology(str(tree(name))))
    del said["state"]  # what something does now may be unknown for a moment, without a reason
    assert nulls_without_reason(said) == []


def test_what_fails_is_null_and_says_why() -> None:
    """Every optional field of a function at once: the schema must tell its readers to expect null."""
    at = "sys/devices/pci0000:16/0000:17:00.0"
    names = ("sriov_totalvfs", "sriov_numvfs", "max_link_speed", "iommu_group", "physfn", "subsystem_vendor")
    files = function("0000:17:00.0", under="pci0000:16") | {f"{at}/{name}": Failure(5) for name in names}
    other: Files = {"max_link_speed": "2.5 GT/s PCIe\n", "max_link_width": Failure(5)}
    files |= function("0000:18:00.0", under="pci0000:16", files=other)
    said: Any = document(on_paper(files))
    schemas.strict(schemas.published()[-1]).validate(said)
    first, second = said["devices"]
    for field in ("sriov", "iommu_group", "physfn", "subsystem_vendor_id"):
        assert (first[field], first["unknown"][field]) == (None, "unreadable")
    assert (second["link"], second["unknown"]["link"]) == (None, "unreadable")
