"""Record, replay, compare: a recording tells the same machine as whatever it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests import machines
from tests.machines import MACHINES, needs_machines
from tests.paper import function, machine, two_sockets
from tests.test_cli import answer, run
from topo_agent.graph.build import build
from topo_agent.host import Host, Json, covered, recording
from topo_agent.host.opening import open_host
from topo_agent.host.paper import Link
from topo_agent.host.unpack import unpack
from topo_agent.scan import scan
from topo_agent.views.document import document

needs_machine = pytest.mark.parametrize("name", MACHINES)

PSEUDONYMOUS = ("uid", "address", "names", "serial", "guid", "node_guid", "subsystem", "remote", "subject", "message")
"""The keys below which a recording may hold a pseudonym (contract, section 4: who a device is, and its names)."""

Leaf = tuple[tuple[str, ...], Json, Json]


def told(host: Host) -> dict[str, Json]:
    """The document without what says how it came to be."""
    return {key: part for key, part in document(build(scan(host))).items() if key != "source"}


def differences(one: Json, other: Json, at: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every place where two documents differ; a key or item that only one has counts at its parent."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], (*at, key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, (*at, str(place)))
    elif one != other or type(one) is not type(other):
        yield at, one, other


def equal_up_to_pseudonyms(one: Mapping[str, Json], other: Mapping[str, Json]) -> None:
    """What differs are names, and each name became one other name that nothing else became."""
    found = [leaf for leaf in differences({**one}, {**other}) if leaf[0] != ("digest",)]
    assert [leaf for leaf in found if not set(leaf[0]) & set(PSEUDONYMOUS)] == []
    pairs = {(str(mine), str(theirs)) for at, mine, theirs in found if at[0] != "diagnostics"}
    assert len({mine for mine, _ in pairs}) == len(pairs) == len({theirs for _, theirs in pairs}), sorted(pairs)
    assert found or one["digest"] == other["digest"]


@pytest.mark.parametrize(
    "device",
    [
        {"id": "pci:0000:00:03.0", "uid": "02:fc:00:00:00:01", "numa_node": None},
        {"id": "pci:0000:00:03.0", "uid": "02:fc:00:00:00:01"},
        {"id": "pci:0000:00:03.0", "uid": "02:fc:00:00:00:01", "numa_node": False},
        {"id": "pci:0000:00:03.0", "uid": "02:fc:00:00:00:02", "numa_node": 0},
        None,
    ],
)
def test_the_comparison_sees_what_differs(device: Json) -> None:
    one: Json = {"devices": [{"id": "pci:0000:00:03.0", "uid": "02:fc:00:00:00:01", "numa_node": 0}], "state": {}}
    assert list(differences(one, one)) == []
    assert len(list(differences(one, {"devices": [device] if device else [], "state": {}}))) == 1


@cache
def of_archive(name: str) -> tuple[dict[str, Json], str, str]:
    """The document of a machine in its archive, and its recordings: with its names, and without."""
    host = machines.host(name)
    return told(host), recording.write(host, keep_names=True), recording.write(host)


@needs_machines
@needs_machine
def test_a_recording_tells_what_its_archive_tells(name: str) -> None:
    said, kept, _ = of_archive(name)
    assert list(differences(said, told(recording.parse(kept)))) == []


@needs_machines
@needs_machine
def test_a_redacted_recording_tells_the_same_under_other_names(name: str) -> None:
    said, _, hidden = of_archive(name)
    equal_up_to_pseudonyms(said, told(recording.parse(hidden)))


@needs_machines
@needs_machine
def test_recording_a_recording_gives_the_same_bytes(name: str) -> None:
    _, kept, hidden = of_archive(name)
    named, other = recording.parse(kept), recording.parse(hidden)
    assert recording.write(named, keep_names=True) == kept
    assert recording.write(other) == hidden
    assert recording.write(other, keep_names=True) == hidden
    assert recording.write(named) == hidden  # redacted today or later


def test_this_machine_on_paper() -> None:
    """What moves between two looks at a live machine (free memory) is the same when one look is kept."""
    paper = covered.copy(open_host(None))
    kept, hidden = recording.write(paper, keep_names=True), recording.write(paper)
    assert list(differences(told(paper), told(recording.parse(kept)))) == []
    equal_up_to_pseudonyms(told(paper), told(recording.parse(hidden)))
    assert recording.write(recording.parse(kept), keep_names=True) == kept
    assert recording.write(recording.parse(kept)) == hidden == recording.write(recording.parse(hidden))


def test_this_machine_has_the_same_structure_as_its_recording() -> None:
    live = told(open_host(None))
    replayed = told(recording.parse(recording.write(open_host(None), keep_names=True)))
    assert [leaf for leaf in differences(live, replayed) if leaf[0][0] != "state"] == []
    assert live["digest"] == replayed["digest"]


def test_the_state_of_this_machine_is_recorded_too() -> None:
    """Which values moved meanwhile nobody knows; which were asked does not change."""
    live, replayed = asked(open_host(None)), asked(recording.parse(recording.write(open_host(None), keep_names=True)))
    for now in live.values():
        now.discard("irqs")  # the next test
    for now in replayed.values():
        now.discard("irqs")
    assert live == replayed


def asked(host: Host) -> dict[str, set[str]]:
    state = told(host)["state"]
    assert isinstance(state, dict)
    return {of: {*now} for of, now in state.items() if isinstance(now, dict)}


def test_interrupts_are_recorded_too(tmp_path: Path) -> None:
    files = function("0000:00:03.0", under="pci0000:00", files={"net/eth0/type": "1\n", "msi_irqs/24": "msix\n"})
    files |= {"proc/irq/24/effective_affinity_list": "1\n", "proc/irq/24/smp_affinity_list": "0-1\n"}
    files |= {"sys/class/net/eth0": Link("../../devices/pci0000:00/0000:00:03.0/net/eth0")}
    unpack(machine(two_sockets() | files), str(tmp_path / "root"))
    host = open_host(str(tmp_path / "root"))
    assert asked(host) == {"pci:0000:00:03.0": {"irqs", "ports"}}
    assert asked(recording.parse(recording.write(host, keep_names=True))) == asked(host)


def dumped(source: str) -> dict[str, Json]:
    found: dict[str, Json] = json.loads(answer("dump", "-f", "json", "--from", source))
    del found["source"]
    return found


@needs_machines
@pytest.mark.parametrize("name", ["dell-xe9680-snc2", "hwloc-2s-dax-nvme-ib"])
def test_the_program_does_it(name: str, tmp_path: Path, tree: Callable[[str], Path]) -> None:
    """From the directory, by commands, through files, and through a directory made from the recording."""
    kept, hidden, again = (str(tmp_path / one) for one in ("kept.topo", "hidden.topo", "again.topo"))
    answer("record", "--from", str(tree(name)), "--keep-names", "-o", kept)
    answer("record", "--from", str(tree(name)), "-o", hidden)
    answer("record", "--from", hidden, "-o", again)
    assert Path(again).read_bytes() == Path(hidden).read_bytes()
    assert answer("record", "--from", hidden) == Path(hidden).read_text(encoding="utf-8")
    before = dumped(str(tree(name)))
    assert list(differences(before, dumped(kept))) == []
    equal_up_to_pseudonyms(before, dumped(hidden))
    assert run("synth", kept, "-o", str(tmp_path / "made")).returncode == 0
    assert list(differences(before, dumped(str(tmp_path / "made")))) == []
