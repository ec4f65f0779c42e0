"""Flat tables: the same cells in every format, and nothing in a cell that breaks a line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines import MACHINES, needs_machines
from tests.paper import Files, cpus, function, topology, two_sockets
from tests.test_pci import LINK, virtual, vmd
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host.live import LiveHost
from topo_agent.scan import scan
from topo_agent.views import table

KINDS = ["numa", "cpus", "pci"]


def check(found: Topology, kind: str) -> None:
    rows, columns = table.rows(found, kind), table.ALL_COLUMNS[kind]
    assert [set(row) for row in rows] == [set(columns)] * len(rows)
    assert json.loads(table.as_json(rows, columns)) == rows
    read = list(csv.DictReader(io.StringIO(table.comma_separated(rows, columns))))
    text = {True: "yes", False: "no", None: ""}
    assert read == [
        {name: text[cell] if cell is None or isinstance(cell, bool) else str(cell) for name, cell in row.items()}
        for row in rows
    ]
    lines = table.table(rows, columns).splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[0].split() == [name.upper() for name in columns]


@needs_machines
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MACHINES)
def test_round_trip(name: str, kind: str, tree: Callable[[str], Path]) -> None:
    check(build(scan(LiveHost(str(tree(name))))), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "files", [{}, vmd(), virtual(), cpus({-1: range(3)}, offline=[3])], ids=["nothing", "vmd", "vf", "cpus"]
)
def test_round_trip_of_small_machines(files: Files, kind: str) -> None:
    check(topology(files), kind)


def rows_of(files: Files, kind: str) -> list[dict[str, str]]:
    found = topology(files)
    text = table.comma_separated(table.rows(found, kind), table.ALL_COLUMNS[kind])
    return list(csv.DictReader(io.StringIO(text)))


def test_cells_of_functions() -> None:
    rows = {row["address"]: row for row in rows_of(virtual() | vmd(), "pci")}
    assert rows["0000:1d:01.0"]["vf_of"] == "0000:1d:00.0"
    assert rows["0000:1d:00.0"]["link"] == "Gen5 x16"
    assert rows["10001:84:00.0"]["numa"] == "1"
    assert (rows["10001:84:00.0"]["root"], rows["10001:84:00.0"]["parent"]) == ("pci0000:6f", "10001:80:07.0")


def test_a_list_with_commas_stays_one_cell() -> None:
    files = cpus({0: [0, 2, 4], 1: [1, 3, 5]}) | {
        f"sys/devices/system/node/node{node}/cpulist": text for node, text in enumerate(["0,2,4\n", "1,3,5\n"])
    }
    assert [row["cpus"] for row in rows_of(files, "numa")] == ["0,2,4", "1,3,5"]


def test_unknown_and_does_not_apply() -> None:
    found = topology(two_sockets() | function("0000:17:00.0", under="pci0000:16"))
    header, line = table.table(table.rows(found, "pci"), ("address", "numa", "vf_of")).splitlines()
    assert line.split() == ["0000:17:00.0", "?", "-"]
    assert header.split() == ["ADDRESS", "NUMA", "VF_OF"]
    (row,) = json.loads(table.as_json(table.rows(found, "pci"), ("address", "numa", "vf_of")))
    assert row == {"address": "0000:17:00.0", "numa": None, "vf_of": ""}


def test_an_offline_cpu_has_no_place() -> None:
    rows = {row["cpu"]: row for row in rows_of(cpus({0: [1]}, offline=[0]), "cpus")}
    assert (rows["0"]["online"], rows["0"]["package"], rows["0"]["numa"]) == ("no", "", "")
    assert (rows["1"]["online"], rows["1"]["package"], rows["1"]["numa"]) == ("yes", "0", "0")


DIRTY = "\x1b[2Jx\x07\x9b"


@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_cell_has_no_control_characters(form: str) -> None:
    """A driver, a slot and a root have the names that a recording gives them; a terminal would obey."""
    files = function("0000:17:00.0", under=f"{DIRTY}/pci0000:16", driver=DIRTY, files=LINK)
    files |= {f"sys/bus/pci/slots/{DIRTY}/address": "0000:17:00\n"}
    found = topology(files)
    text = table.FORMATS[form](table.rows(found, "pci"), table.ALL_COLUMNS["pci"])
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    "form",
    [
        "json",
        *(one for one in ("table", "csv")),
    ],
)
def test_a_table_can_be_printed(form: str) -> None:
    found = topology(function("0000:17:00.0", under="pci0000:16", driver="\ud800"))
    assert table.FORMATS[form](table.rows(found, "pci"), ("address", "driver")).encode()
