"""Values and keys of labels, what a mapping says, and the memory in an annotation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_agent.commands.labels import OPTIONS
from topo_agent.graph.fabric import Place
from topo_agent.graph.held import Fact
from topo_agent.graph.labels import filler, keys, value
from topo_agent.publishers.kube import annotation
from topo_agent.readers import mapping
from topo_agent.readers.mapping import BadMapping, find, parse
from topo_agent.settings import SETTINGS, values

# k8s.io/apimachinery pkg/util/validation, labelValueFmt and LabelValueMaxLength.
LEGAL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"  # labels.md, section 2

LINES = """\
node,rack,block,leaf
# the first row of the hall
gpu-a-*,rack-07,block-a,leaf-3

4C4C4544-0051-3010-8054-B4C04F565831,rack-08,block-a,
gpu-b-?,rack 09,,leaf-3
"""


@pytest.mark.parametrize("raw", ["rack-07", "1825024170029", CLIQUE, "block-a.rack-07", "x", "0", "a" * 63])
def test_a_value_that_fits_is_itself(raw: str) -> None:
    assert value(raw) == raw


@pytest.mark.parametrize(
    ("raw", "begins"),
    [("rack 07", "rack-07-x"), ("_rack/07!", "rack-07-x"), ("b" * 64, "b" * 51), ("日本", "x"), ("..", "x")],
)  # fmt: skip
def test_a_value_that_does_not_fit_ends_with_a_hash(raw: str, begins: str) -> None:
    said = value(raw)
    assert said.startswith(begins)
    assert re.fullmatch(r"(.*-)?x[0-9a-f]{10}", said)


@given(st.text(min_size=1, max_size=256))
def test_every_value_is_legal(raw: str) -> None:
    said = value(raw)
    assert said
    assert LEGAL.fullmatch(said)
    assert len(said) <= 63
    assert value(raw) == said


@given(st.sets(st.text(alphabet="ab -_./x0123456789", min_size=1, max_size=80), min_size=2, max_size=20))
def test_two_values_stay_two(raw: set[str]) -> None:
    assert len({value(one) for one in raw}) == len(raw)


def test_a_value_that_looks_cut_is_told_from_one_that_is() -> None:
    cut = value("rack 07")
    assert value(cut) != cut


@pytest.mark.parametrize(
    "raw",
    ["", " ", "N/A", "none", "Default string", "To be filled by O.E.M.", "Not Specified", "0123456789", "unknown",
     "no-imds-data", "00000000-0000-0000-0000-000000000000", "FFFFFFFF", "....", "xxxxxxxx"],
)  # fmt: skip
def test_fillers(raw: str) -> None:
    """labels.md, section 3."""
    assert filler(raw)


@pytest.mark.parametrize("raw", ["0", "7", "rack-0", "a", "None-1", CLIQUE, "1825024170029"])
def test_no_fillers(raw: str) -> None:
    assert not filler(raw)


def test_keys() -> None:
    found = keys("example.com", [("topology.kubernetes.io/rack", "rack")], gpu_clique=True)
    assert found["example.com/rack"] == found["topology.kubernetes.io/rack"] == "rack"
    assert found["nvidia.com/gpu.clique"] == "nvidia.com/gpu.clique"
    assert "nvidia.com/gpu.clique" not in keys("example.com", [], gpu_clique=False)


# A mapping


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["gpu-a-17"], {"rack": "rack-07", "block": "block-a", "leaf": "leaf-3"}),
        (["n1", "4c4c4544-0051-3010-8054-b4c04f565831"], {"rack": "rack-08", "block": "block-a"}),
        (["gpu-b-1"], {"rack": "rack 09", "leaf": "leaf-3"}),
        (["GPU-A-17"], {"rack": "rack-07", "block": "block-a", "leaf": "leaf-3"}),
    ],
)
def test_a_mapping(names: list[str], place: dict[str, str]) -> None:
    found = find(parse(LINES, "nodes.csv"), names, "nodes.csv")
    assert (found.values, found.certain) == (place, True)


UUID = "4c4c4544-0051-3010-8054-b4c04f565831"


def test_a_node_that_no_line_names() -> None:
    names = ["gpu-b-12", UUID.replace("8", "9")]
    assert find(parse(LINES, "nodes.csv"), names, "nodes.csv") == Place(
        {}, "no line of nodes.csv names this node", certain=True
    )


@pytest.mark.parametrize(
    "node", [UUID, UUID.upper(), UUID.replace("-", ""), "4c4c4544-*", "*5831", "4c4c4544" + "?" * 28]
)
def test_a_node_whose_uuid_is_not_known(node: str) -> None:
    """labels.md, section 7: only positive evidence takes a label back, and the line may be this node's. It may as well
    be a second one that is: one by the name alone is no evidence either.
    """
    for text in (f"node,rack\n{node},r1\n", f"node,rack\n{node},r1\ngpu-*,r9\n"):
        found = find(parse(text, "f"), ["gpu-b-12", ""], "f", unnamed=True)
        why = "a line of f may name the systemUUID of this node, which is not known"
        assert found == Place({}, why, certain=False)
        assert find(parse(text, "f"), ["gpu-b-12", "0" * 31 + "1"], "f").certain
    # Where nobody will learn it, a line that fits counts.
    assert find(parse(text, "f"), ["gpu-b-12"], "f").values == {"rack": "r9"}
    found = find(parse(f"node,rack\n{node},r1\n", "f"), ["gpu-b-12"], "f")
    assert found == Place({}, "no line of f names this node, and its systemUUID is not known", certain=False)


@pytest.mark.parametrize("node", ["gpu-a-*", "n1", "fade", "rack7-node?", "b200-*", "a100-*", "dc1-*"])
def test_a_line_that_is_of_no_uuid(node: str) -> None:
    """One that is not known is no reason to doubt it: the first dash of a UUID is its ninth sign."""
    assert find(parse(f"node,rack\n{node},r1\n", "f"), ["gpu-b-12"], "f", unnamed=True).certain


def test_two_lines_that_fit_are_an_error() -> None:
    """labels.md, section 6.2: no label then; one that is published stays."""
    found = find(parse(LINES + "gpu-a-17,rack-1,,\n", "f"), ["gpu-a-17"], "f")
    assert found == Place({}, "f: lines 3 and 7 both name this node", certain=False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f: expected a first line such as node,rack,block,leaf"),
        ("host,rack\n", "f: expected a first line such as node,rack,block,leaf"),
        ("node\n", "f: expected a first line such as node,rack,block,leaf"),
        ("node,rack,rack\n", "f: expected a first line such as node,rack,block,leaf"),
        ("node,rack\nn1\n", "f:2: expected 2 fields, and these are 1"),
        ("node,rack\n\n# c\nn1,r,x\n", "f:4: expected 2 fields, and these are 3"),
        ("node,rack\n[a],r\n", "f:2: expected the name of a node, a systemUUID or a pattern"),
        ("node,rack\nn1,a\x07b\n", "f:2: expected printable names of at most 256 signs"),
        (f"node,rack\nn1,{'r' * 257}\n", "f:2: expected printable names of at most 256 signs"),
        ('node,rack\n"n1,r\n', "f: expected a mapping of nodes (CSV): unexpected end of data"),
        (
            "node,rack,block\nn1,r1,b1\nn2,r1,b2\n",
            "f:3: rack r1 is in block b2, and in b1 on line 2: expected racks whose names differ",
        ),
    ],
)
def test_bad_mappings(text: str, error: str) -> None:
    with pytest.raises(BadMapping) as caught:
        parse(text, "f")
    assert str(caught.value) == error


def test_a_pattern_of_stars_costs_no_time() -> None:
    lines = parse(f"node,rack\n{'*a' * 100}*,r\n", "f")
    assert not find(lines, ["a" * 99 + "b"], "f").values


def test_a_mapping_that_is_not_there(tmp_path: Path) -> None:
    found = mapping.place(str(tmp_path / "no.csv"), ["n1"])
    assert not found.certain
    assert found.why.endswith("no.csv: expected a mapping of nodes (CSV); No such file or directory")
    assert mapping.place(None, ["n1"]).certain


# The annotation


def test_the_memory_comes_back() -> None:
    facts = {
        "rack": Fact("rack 07", "mapping", "2026-05-04T03:02:01Z"),
        "shape": Fact("ab", "pci", "2026-05-04T03:02:01Z"),
    }
    assert annotation.read(annotation.written(facts), ["rack", "shape", "leaf"]) == facts
    assert annotation.read(annotation.written(facts), ["leaf"]) == {}


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "7", '{"rack": 7}', '{"rack": {"raw": "", "source": "s", "since": "2026-05-04T03:02:01Z"}}',
     '{"rack": {"raw": "r", "source": "s", "since": "yesterday"}}', "[" * 100_000],
)  # fmt: skip
def test_a_memory_that_is_none(text: str | None) -> None:
    """Anybody may write an annotation."""
    assert annotation.read(text, ["rack"]) == {}


def test_options_are_those_of_the_settings() -> None:
    by_field = {one.field: one for one in SETTINGS}
    for field, metavar, about in OPTIONS:
        one = by_field[field]
        assert (metavar, about) == (None if one.kind is values.SWITCH else one.kind.metavar, one.help)
