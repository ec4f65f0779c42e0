"""`--overlay`: what an operator says, where it goes, and every way of saying it wrongly."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.paper import NVIDIA, Files, inventory, machine, place, put, topology, two_sockets
from tests.schemas import FOLDER
from topo_agent.cli import cli
from topo_agent.graph.applied import Unresolved, resolve
from topo_agent.graph.build import build
from topo_agent.graph.overlay import EMPTY, ROLES, Overlay
from topo_agent.graph.topology import Topology
from topo_agent.host import recording
from topo_agent.ids import NumaId
from topo_agent.readers.overlay import BadOverlay, parse

PUBLISHED: dict[str, Any] = json.loads((FOLDER / "overlay.json").read_text(encoding="utf-8"))
SCHEMA = Draft202012Validator(PUBLISHED)

WHOLE = """\
# which socket the slots are on: the manual, page 12
roots:
  pci0000:20: 0
  "pci0000:30": 1
roles: {mlx5_1: storage, "0000:41:00.0": management}
pairs:
  gpu0: [mlx5_0, mlx5_1]
data_direct:
  "0000:61:00.0": mlx5_0
"""


def silent() -> Files:
    """Two sockets whose firmware says nothing: a GPU, and three NICs on roots of their own."""
    files = two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=-1)
    for number, bus in enumerate((0x31, 0x41, 0x51)):
        root = f"{bus - 1:02x}"
        path = f"pci0000:{root}/{root}:01.0/{bus:02x}:00.0"
        files |= put(path, node=-1, verbs=f"mlx5_{number}", interface=f"eth{number}")
    return files


# --- reading -------------------------------------------------------------------------------------------------


def test_everything_at_once() -> None:
    said = parse(WHOLE, "site.yaml")
    assert said.roots == {"pci0000:20": 0, "pci0000:30": 1}
    assert said.roles == {"mlx5_1": "storage", "0000:41:00.0": "management"}
    assert said.pairs == {"gpu0": ("mlx5_0", "mlx5_1")}
    assert said.data_direct == {"0000:61:00.0": "mlx5_0"}
    assert said.where["roots.pci0000:30"] == "site.yaml:4"
    assert said.where["pairs.gpu0"] == "site.yaml:7"


@pytest.mark.parametrize("text", ["{}", "roots: {}", "roots: {}\nroles: {}\npairs: {}", "pairs: {gpu0: []}"])
def test_little(text: str) -> None:
    said = parse(text, "f")
    assert (said.roots, said.roles) == (EMPTY.roots, EMPTY.roles)


BAD: list[tuple[str, int | None, str | None, str]] = [  # text, line, field, what is expected
    ("root: {}", 1, "root", "did you mean roots"),
    ("roots: {}\nnodes: {}", 2, "nodes", "roots"),
    ("roots:\n  pci0000:15: -1", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("roots:\n  pci0000:15: one", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("roots:\n  pci0000:15: 1.0", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("roots:\n  pci0000:15: [0]", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("roots:\n  pci0000:15:", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("roots:\n  pci0000:15: ²", 2, "roots.pci0000:15", "number of a NUMA node"),
    ("data_direct:\n  61:00.0: [mlx5_0]", 2, "data_direct.61:00.0", "expected a NIC"),
    ("data_direct:\n  61:00.0:", 2, "data_direct.61:00.0", "expected a NIC"),
    ("roots: [pci0000:15]", 1, "roots", "map"),
    ("roots: 3", 1, "roots", "map"),
    ("roles:\n  mlx5_0: storag", 2, "roles.mlx5_0", "did you mean storage"),
    ("roles:\n  mlx5_0: Storage", 2, "roles.mlx5_0", "compute"),
    ("roles:\n  mlx5_0: vf", 2, "roles.mlx5_0", "compute"),
    ("roles:\n  mlx5_0: {storage: true}", 2, "roles.mlx5_0", "compute"),
    ("roles:\n  mlx5_0:", 2, "roles.mlx5_0", "compute"),
    ("pairs:\n\n  gpu0: mlx5_0", 3, "pairs.gpu0", "list"),
    ("pairs:\n  gpu0: [[mlx5_0]]", 2, "pairs.gpu0", "list"),
    ("pairs:\n  gpu0: {mlx5_0: 1}", 2, "pairs.gpu0", "list"),
    ("pairs: nothing", 1, "pairs", "map"),
    ("roots:\n  pci0000:15: 0\n  pci0000:15: 1", 3, "pci0000:15", "twice"),
    ("roots: {}\nroots: {}", 2, "roots", "twice"),
    ("roots:\n\tpci0000:15: 0", 2, None, "YAML"),
    ("roots: {", None, None, "YAML"),
    ("roles: !!python/object:os.system {a: b}", 1, None, "tag"),
    ("- roots", 1, None, "map"),
    ("just words", 1, None, "map"),
    ("roots: {}\n---\nroles: {}", 2, None, "one document"),
    ("roots: *nobody", 1, None, "nobody"),
]


@pytest.mark.parametrize(("text", "line", "field", "expected"), BAD)
def test_bad_overlays(text: str, line: int | None, field: str | None, expected: str) -> None:
    with pytest.raises(BadOverlay) as caught:
        parse(text, "site.yaml")
    message = str(caught.value)
    assert message.startswith("site.yaml: ")
    assert "\n" not in message
    assert expected in message
    if line is not None:
        assert f"line {line}" in message
    if field is not None:
        assert f" {field}: " in message


@given(
    st.text(max_size=60)
    | st.from_regex(r"(roots|roles|pairs):\n  [a-z0-9:\[\]{},&*!'\"-]{0,20}: [^\n]{0,20}", fullmatch=True)
)
def test_any_text(text: str) -> None:
    """An overlay, or one line that names the file."""
    message = ""
    try:
        parse(text, "site.yaml")
    except BadOverlay as error:
        message = str(error)
    assert message == "" or (message.startswith("site.yaml: ") and "\n" not in message)


def test_a_bomb() -> None:
    """A billion laughs is given up."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(BadOverlay):
        parse("\n".join(lines), "site.yaml")


# --- the schema ----------------------------------------------------------------------------------------------


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["properties"].keys() == {"roots", "roles", "pairs", "data_direct"}
    assert tuple(PUBLISHED["properties"]["roles"]["additionalProperties"]["enum"]) == ROLES


def accepts(text: str) -> bool:
    try:
        parse(text, "f")
    except BadOverlay:
        return False
    return True


# Not those that a schema never sees: no YAML, a key that is there twice, 1.0 which is an integer to JSON.
SAME = [
    WHOLE,
    "{}",
    "roots: {}",
    "pairs: {gpu0: []}",
    *(
        text
        for text, _, field, expected in BAD
        if field and expected != "twice" and "1.0" not in text and "\t" not in text
    ),
]


@pytest.mark.parametrize("text", SAME)
def test_the_schema_and_the_reader_agree(text: str) -> None:
    assert accepts(text) == SCHEMA.is_valid(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "roots:",
        "pairs: {gpu0: [1]}",
        'roots: {"pci0000:15": "0"}',
        "roots: {pci0000:15: 100000}",
    ],
)
def test_the_schema_and_the_reader_agree_in_corners(text: str) -> None:
    assert accepts(text) == SCHEMA.is_valid(yaml.safe_load(text))


# --- what becomes of it --------------------------------------------------------------------------------------


def overlaid(files: Files, **roots: int) -> Topology:
    """`p20=1`: root pci0000:20 is on node 1."""
    return build(inventory(files), Overlay(roots={f"pci0000:{name[1:]}": NumaId(node) for name, node in roots.items()}))


def test_a_root_on_a_node() -> None:
    found = overlaid(silent(), p20=0, p30=1)
    gpu, nic, other = (place(found, f"0000:{bus}:00.0") for bus in ("21", "31", "41"))
    assert (gpu.numa_node, gpu.cpus, dict(gpu.sources)["numa_node"]) == (0, frozenset(range(4)), "operator")
    assert (nic.numa_node, dict(nic.sources)["numa_node"]) == (1, "operator")
    assert (other.numa_node, dict(other.sources).get("numa_node")) == (None, None)
    assert "numa_node" not in dict(gpu.unknown)


def test_the_standard_attribute_stays_that_of_the_kernel() -> None:
    """Contract §4: `standard` is exactly what the upstream helper would publish."""
    plain, said = topology(silent()), overlaid(silent(), p20=0)
    assert place(said, "0000:21:00.0").standard == place(plain, "0000:21:00.0").standard


def test_nothing_said_is_nothing_changed() -> None:
    assert build(inventory(silent()), EMPTY) == topology(silent())


@pytest.mark.parametrize(("said", "contradicts"), [(0, False), (1, True)])
def test_a_contradiction(said: int, contradicts: bool) -> None:  # noqa: FBT001 a parameter of a table
    files = two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=0)
    found = overlaid(files, p20=said)
    notes = [one for one in found.diagnostics if one.code == "overlay_contradicts"]
    assert len(notes) == contradicts
    gpu = place(found, "0000:21:00.0")
    assert (gpu.numa_node, dict(gpu.sources)["numa_node"]) == (said, "operator")  # the operator is believed
    if contradicts:
        assert "NUMA node 1" in notes[0].message
        assert "firmware says 0" in notes[0].message


def test_silence_is_no_contradiction() -> None:
    assert not [one for one in overlaid(silent(), p20=1).diagnostics if one.code == "overlay_contradicts"]


# --- names ---------------------------------------------------------------------------------------------------

UNRESOLVED = [
    ("roots:\n  pci0000:21: 0", "site.yaml:2", "roots.pci0000:21", "pci0000:20"),
    ("roots:\n  pci0000:20: 7", "site.yaml:2", "roots.pci0000:20", "node 7"),
    ("roles:\n\n  mlx5_7: storage", "site.yaml:3", "roles.mlx5_7", "mlx5_0"),
    ("roles: {GPU-5f: storage}", "site.yaml:1", "roles.GPU-5f", "GPU-5f"),
    ("pairs:\n  gpu9: [mlx5_0]", "site.yaml:2", "pairs.gpu9", "gpu9"),
    ("pairs:\n  gpu0: [mlx5_0, mlx5_9]", "site.yaml:2", "pairs.gpu0", "mlx5_9"),
]


@pytest.mark.parametrize(("text", "where", "field", "word"), UNRESOLVED)
def test_names_that_are_not_here(text: str, where: str, field: str, word: str) -> None:
    said = parse(text, "site.yaml")
    with pytest.raises(Unresolved) as caught:
        resolve(said, build(inventory(silent()), said))
    message = str(caught.value)
    assert message.startswith(f"{where}: {field}: ")
    assert word in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["roles: {gpu0: storage}", "roles: {numa:0: storage}", "pairs: {mlx5_0: [mlx5_1]}", "pairs: {gpu0: [gpu0]}",
             "pairs: {gpu0: [numa:0]}", "data_direct: {gpu0: mlx5_0}", "data_direct: {mlx5_1: mlx5_0}"],
)  # fmt: skip
def test_names_of_the_wrong_kind(text: str) -> None:
    """What has no effect is an error and not silence."""
    with pytest.raises(Unresolved):
        resolve(parse(text, "site.yaml"), topology(silent()))


@pytest.mark.parametrize("name", ["mlx5_1", "eth1", "0000:41:00.0", "41:00.0", "pci:0000:41:00.0", "NIC1"])
def test_every_name_of_a_nic(name: str) -> None:
    found = topology(silent())
    said = resolve(Overlay(roles={name: "storage"}), found)
    assert said.roles == {place(found, "0000:41:00.0").ref: "storage"}


# --- the command ---------------------------------------------------------------------------------------------


def run(files: Files, overlay: str | bytes, *arguments: str) -> tuple[int, str, str]:
    """(status, what was written, stderr) of a command with this overlay, called site.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        box, out, site = (Path(folder) / name for name in ("box.topo", "out", "site.yaml"))
        box.write_text(recording.write(machine(files)), encoding="utf-8")
        site.write_bytes(overlay if isinstance(overlay, bytes) else overlay.encode())
        command = [*arguments, "--from", str(box), "-o", str(out), "--overlay", str(site)]
        done = CliRunner().invoke(cli, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return done.exit_code, text, done.stderr.replace(folder + "/", "")


def test_the_document_names_the_operator() -> None:
    status, text, _ = run(silent(), "roots: {pci0000:20: 1}", "dump", "-f", "json")
    assert status == 0
    devices = {one["id"]: one for one in json.loads(text)["devices"]}
    gpu, other = devices["pci:0000:21:00.0"], devices["pci:0000:31:00.0"]
    assert (gpu["numa_node"], gpu["sources"]["numa_node"], gpu["cpus"]) == (1, "operator", "4-7")
    assert "numaNode" not in gpu["standard"]
    assert other["numa_node"] is None
    assert "numa_node" not in other.get("sources", {})


def test_roles_and_pairs_are_marked() -> None:
    text = "roles: {mlx5_1: storage}\npairs: {gpu0: [mlx5_2]}"
    status, said, _ = run(silent(), text, "pairs", "-f", "json")
    (one,) = json.loads(said)
    assert (status, one["chosen"], one["confidence"]) == (0, ["pci:0000:51:00.0"], "operator")
    assert one["left_out"] == [{"functions": ["pci:0000:41:00.0"], "role": "storage", "reason": "operator"}]


def test_a_root_changes_the_pairs() -> None:
    text = "roots: {pci0000:20: 0, pci0000:30: 1, pci0000:40: 0, pci0000:50: 1}"
    assert json.loads(run(silent(), "{}", "pairs", "-f", "json")[1])[0]["class"] == "SYS"
    (one,) = json.loads(run(silent(), text, "pairs", "-f", "json")[1])
    assert (one["chosen"], one["class"]) == (["pci:0000:41:00.0"], "NODE")


def test_confidence_of_what_an_operator_said() -> None:
    """pairing.md §10.4: low for uncertain NUMA, flat VM, overlay; or `operator`, which says more. Not medium."""
    text = "roots: {pci0000:20: 0, pci0000:30: 1, pci0000:40: 0, pci0000:50: 1}"
    (one,) = json.loads(run(silent(), text, "pairs", "-f", "json")[1])
    assert one["confidence"] in ("low", "operator")


def test_a_contradiction_is_an_error_finding() -> None:
    files = two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=0)
    status, text, _ = run(files, "\nroots: {pci0000:20: 1}", "check", "-f", "json")
    (one,) = (one for one in json.loads(text) if one["code"] == "overlay_contradicts")
    assert (status, one["severity"], one["subjects"]) == (1, "error", ["root:pci0000:20"])
    assert "site.yaml:2" in one["evidence"]
    assert run(files, "roots: {pci0000:20: 0}", "check", "-f", "json")[0] == 0


@pytest.mark.parametrize(
    "command", [("dump",), ("pairs",), ("check",), ("explain", "gpu0", "mlx5_0"), ("list", "gpus")]
)
@pytest.mark.parametrize(
    "text", ["roots: {pci0000:20: x}", "rotos: {}", "roles: {nobody: storage}", "roots: {pci0000:99: 0}"]
)
def test_bad_overlays_are_status_3(command: tuple[str, ...], text: str) -> None:
    status, said, error = run(silent(), text, *command)
    assert (status, said) == (3, "")
    assert re.fullmatch(r"topo-agent: site\.yaml:( line)? ?1: [^\n]+\n", error), error


@pytest.mark.parametrize("text", [b"\xff\xfe", b"roots: {\0}", b""])
def test_what_is_no_text(text: bytes) -> None:
    status, said, error = run(silent(), text, "dump")
    assert (status, said) == (3, "")
    assert error.startswith("topo-agent: site.yaml")
    assert error.count("\n") == 1


def test_no_such_overlay(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["dump", "--overlay", str(tmp_path / "none.yaml")])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "none.yaml" in done.stderr
