"""What the upstream Kubernetes helper would publish for every function and NUMA node, against what we would.

`upstream/` is a small program on the helper's own package; it reads the machines as directories.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import fixtures
from tests.labs import golang
from tests.labs.apt import CannotStart
from tests.machines import MACHINES, needs_machines
from tests.paper import DEVICES, NODE, Files, function, topology, two_sockets
from tests.test_pci import virtual, vmd
from tests.test_standard import LISTS
from topo_agent.graph.build import build
from topo_agent.graph.standard import numa_nodes
from topo_agent.graph.topology import Topology
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Link
from topo_agent.scan import scan
from topo_agent.views import functions as documented

PREFIX = "resource.kubernetes.io"
TYPES = {str: "string", int: "int"}  # how a ResourceSlice calls them
ANSWER_SECONDS = 60.0

NIC = "0000:17:00.0"
VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531334632/pci0001:00"


def linked(target: str, *, address: str = NIC, numa_node: str | None = "1\n") -> Files:
    """A function whose link says something else."""
    files = two_sockets() | function(address, under="pci0000:16", numa_node=numa_node)
    return files | {f"{DEVICES}/{address}": Link(target)}


def silent(text: str | None) -> Files:
    """A function whose numa_node is this."""
    return two_sockets() | function(NIC, under="pci0000:16", numa_node=text)


HARD: dict[str, Files] = {
    "virtual functions": virtual(),
    "VMD": vmd(),
    "a domain of 32 bits": function("10000:00:04.0", under="pci10000:00", numa_node="0\n"),
    "Hyper-V": two_sockets() | function("0001:00:00.0", under=VMBUS, numa_node="1\n"),
    "a platform": two_sockets() | function(NIC, under="platform/soc/pci0000:00", numa_node="1\n"),
    "a plain directory": two_sockets() | {f"{DEVICES}/{NIC}/class": "0x020000\n", f"{DEVICES}/{NIC}/numa_node": "1\n"},
    "a link to another function": linked("../../../devices/pci0000:16/0000:18:00.0")
    | function("0000:18:00.0", under="pci0000:16", numa_node="1\n"),
    "a slash after the target": linked(f"../../../devices/pci0000:16/{NIC}/"),
    "a target with detours": linked(f"../../../devices/./pci0000:16/../pci0000:16//{NIC}"),
    # Upstream's numa_node of an absolute link is that of the machine it runs on, not of the tree: no node here.
    "an absolute target": linked("/sys/devices/pci0000:16/0000:fe:1f.7", address="0000:fe:1f.7", numa_node="-1\n"),
    **{f"numa_node {text!r}": silent(text) for text in ("-1\n", "0\n", "2", " 1 \n", "1024\n", "\n", "x\n", None)},
}


# Where upstream says now this, now that, for it takes any CPU of a node: ours is what it says of the first one, as
# everywhere else.
UNSTEADY = {"contradicting-files": {"2", "3"}}  # node 3 lists a CPU of node 2, in another socket


class Answer(NamedTuple):
    """The attributes with numaNode as a scalar and as a list, each as canonical JSON."""

    scalar: str
    listed: tuple[str, ...]  # with the first CPU of each node, then all different answers with any


class Lab:
    """The program, and how many of its answers were ours."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self.functions = self.nodes = self.agreed = self.unsteady = 0

    def upstream(self, root: Path, places: Iterable[str]) -> dict[str, tuple[Answer, list[str]]]:
        """By place: what upstream would publish, and its errors."""
        asked = [*places]
        done = subprocess.run(
            [self._program],
            input="".join(f"{root} {place}\n" for place in asked),
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=True,
        )
        said = [json.loads(line) for line in done.stdout.splitlines()]
        return {place: (_answer(one), one["errors"]) for place, one in zip(asked, said, strict=True)}

    def compare(self, name: str, root: Path, found: Topology, extra: Iterable[int] = ()) -> None:
        """Ask of every function and node that the tree has, known to us or not."""
        nodes = {int(path.name[4:]) for path in (root / NODE).glob("node[0-9]*")} | {*extra}
        functions = sorted(os.listdir(root / DEVICES)) if (root / DEVICES).is_dir() else []
        upstream = self.upstream(root, (*functions, *map(str, sorted(nodes))))
        ours = _ours(found, functions, nodes)
        unsteady = UNSTEADY.get(name, set())
        wrong = {
            place: f"{ours[place]}, upstream {answer}, {errors}"
            for place, (answer, errors) in upstream.items()
            if ours[place] != (answer._replace(listed=answer.listed[:1] * 2) if place in unsteady else answer)
        }
        self.functions += len(functions)
        self.nodes += len(nodes)
        self.unsteady += len(unsteady)
        self.agreed += len(upstream) - len(wrong)
        print(f"{name}: {len(upstream) - len(wrong)}/{len(upstream)}, {len(functions)} functions, {len(nodes)} nodes")
        assert wrong == {}


def _answer(said: Any) -> Answer:
    return Answer(_canonical(said["scalar"]), tuple(map(_canonical, (said["first"], *said["lists"]))))


def _canonical(attributes: object) -> str:
    return json.dumps(attributes, sort_keys=True, separators=(",", ":"))


def _ours(found: Topology, functions: Iterable[str], nodes: Iterable[int]) -> dict[str, Answer]:
    """What a slice of ours would hold: what the document says, and nothing of a function that is not there."""
    known = {str(one.address): documented.device(one)["standard"] for one in found.devices or ()}

    def said(standard: Any) -> Answer:
        scalar = {f"{PREFIX}/{key}": {TYPES[type(value)]: value} for key, value in standard.items()}
        listed: dict[str, object] = dict(scalar)
        if "numaNode" in standard:
            listed[f"{PREFIX}/numaNode"] = {"ints": [*numa_nodes(standard["numaNode"], found.standard_nodes)]}
        return Answer(_canonical(scalar), (_canonical(listed),) * 2)

    answers = {address: said(known.get(address, {})) for address in functions}
    return answers | {str(node): said({"numaNode": node}) for node in nodes}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        found = Lab(golang.built(Path(__file__).parent / "upstream"))
    except CannotStart as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield found
    asked = f"{found.functions} functions, {found.nodes} nodes, {found.unsteady} of them by their first CPU"
    print(f"\nagreed {found.agreed}/{found.functions + found.nodes}: {asked}")


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_fixture(name: str, lab: Lab, common: Path) -> None:
    lab.compare(name, fixtures.tree(name, common), fixtures.topology(name))


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machine(name: str, lab: Lab, tree: Callable[[str], Path]) -> None:
    root = tree(name)
    lab.compare(name, root, build(scan(LiveHost(str(root)))))


@pytest.mark.parametrize("name", HARD)
def test_hard_function(name: str, lab: Lab, tmp_path: Path) -> None:
    lab.compare(name, written(HARD[name], tmp_path), topology(HARD[name]))


@pytest.mark.parametrize("name", LISTS)
def test_hard_list(name: str, lab: Lab, tmp_path: Path) -> None:
    """Those of the unit tests, whose values are thus upstream's."""
    files, expected = LISTS[name]
    lab.compare(name, written(files, tmp_path), topology(files), expected)


def written(files: Files, root: Path) -> Path:
    """The files as a directory, absolute links too."""
    for path, entry in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            place.symlink_to(entry.target)
        elif isinstance(entry, str):
            place.write_text(entry, encoding="utf-8", newline="")
        else:
            place.mkdir(exist_ok=True)
    return root
