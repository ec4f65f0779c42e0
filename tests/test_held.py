"""Publish, hold, retract: the rules of labels.md, section 7, as invariants over random events (graph/held.py)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import paper
from tests.paper import NVIDIA, answers, grown, nvml, topology
from tests.test_checks import linked
from tests.test_rack import FILES, ZERO, A, B, fabric, gpus
from topo_agent.graph import fabric as fabrics
from topo_agent.graph.fabric import Level, Place, Reading, known, none, unsure
from topo_agent.graph.held import Fact, Held
from topo_agent.graph.labels import value
from topo_agent.graph.readings import readings
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.publishers.kube import annotation

TIME = "2026-05-04T03:02:01Z"
Broken = Callable[[dict[str, Json]], Topology]
OTHER = "00c0ffee-53bf-49b5-a436-b66766c413c3"


def nvlink(found: Topology) -> dict[Level, Reading]:
    return fabrics.decide(fabrics.nvlink(found))


def tray(*fabrics: dict[str, Json]) -> Topology:
    """Two GPUs, and what each says of its fabric."""
    said: list[dict[str, Json]] = [{"fabric": one} for one in fabrics]
    return gpus(*said)


def clique(*some: dict[str, Json]) -> Reading:
    return nvlink(tray(*some))["nvlink-clique"]


def domain(*some: dict[str, Json]) -> Reading:
    return nvlink(tray(*some))["nvlink-domain"]


# What NVML says -> a reading


def test_all_gpus_agree() -> None:
    """leptonai/gpud PR 1106: a GB200 reads this cluster, clique 4026, Completed, Success."""
    assert clique(fabric(), fabric()) == known("9c6f5af3-53bf-49b5-a436-b66766c413c3.4026", "nvml")
    assert domain(fabric(), fabric()) == known("9c6f5af3-53bf-49b5-a436-b66766c413c3", "nvml")


@pytest.mark.parametrize(
    "one",
    [{"state": 2}, {"state": 1}, {"state": 0, "status": 0}, {"status": 3}, {"uuid": OTHER}, {"uuid": None},
     {"uuid": ZERO}],
)  # fmt: skip
def test_one_that_does_not_agree_is_no_evidence(one: dict[str, Json]) -> None:
    """Section 4: ours is stricter than GFD, which passes over a GPU that is not attached."""
    assert clique(fabric(), fabric(**one)).standing == "unsure"
    assert domain(fabric(), fabric(**one)).standing == "unsure"


def test_two_cliques_of_one_domain() -> None:
    assert clique(fabric(), fabric(cliques=[{"id": 7}])).standing == "unsure"
    assert domain(fabric(), fabric(cliques=[{"id": 7}])).standing == "known"


def test_a_board_that_is_up_and_has_no_cluster() -> None:
    """dra-driver-nvidia-gpu issue 1264: HGX H100 is Completed, Success, and all zeros: positively none."""
    assert clique(fabric(uuid=ZERO), fabric(uuid=ZERO)).standing == "none"


@pytest.mark.parametrize("said", [{"error": "TIMEOUT"}, {"error": "UNKNOWN"}, {"error": "NOT_SUPPORTED"}])
def test_an_error_is_no_evidence(said: dict[str, Json]) -> None:
    assert clique(said, said).standing == "unsure"
    assert clique(fabric(), said).standing == "unsure"


def test_a_gpu_that_the_driver_does_not_name() -> None:
    """Section 4: a PCI GPU that NVML lacks makes the state suspect, unless it is given to a virtual machine."""
    third = grown("pci000a:00/00:00.0/01:00.0", NVIDIA)
    documents = nvml(*(answers(at, index, [], fabric=fabric()) for index, at in enumerate((A, "0009:01:00.0"))))
    assert nvlink(topology(FILES | third, documents=documents))["nvlink-clique"].standing == "unsure"
    away = grown("pci000a:00/00:00.0/01:00.0", NVIDIA | {"driver": "vfio-pci"})
    assert nvlink(topology(FILES | away, documents=documents))["nvlink-clique"].standing == "known"


def test_no_gpu_is_positive_evidence() -> None:
    assert nvlink(topology({}))["nvlink-clique"].standing in ("none", "unsure")
    nothing = grown("pci0008:00/00:00.0/01:00.0")  # a NIC
    assert nvlink(topology(nothing))["nvlink-clique"].standing == "none"


@pytest.mark.parametrize(
    ("some", "standing"),
    [
        ([{}, {}], "known"),
        ([{}, {"state": 2}], "known"),  # passed over
        ([{}, {"uuid": ZERO}], "known"),
        ([{}, {"status": 3}], "known"),
        ([{}, {"uuid": OTHER}], "unsure"),
        ([{}, {"cliques": [{"id": 7}]}], "unsure"),
        ([{"uuid": ZERO}, {"uuid": ZERO}], "none"),
        ([{"state": 2}, {"state": 2}], "unsure"),
    ],
)
def test_the_rule_of_gfd(some: list[dict[str, Json]], standing: str) -> None:
    """labels.md, section 4, of NVIDIA/k8s-device-plugin internal/lm/imex.go."""
    assert fabrics.gfd_clique(tray(*(fabric(**one) for one in some))).standing == standing


def test_gfd_fails_as_a_whole() -> None:
    """ "any other error → the whole labeler fails"."""
    found = gpus({"fabric": fabric()}, {"fabric": {"error": "UNKNOWN"}})
    assert fabrics.gfd_clique(found).standing == "unsure"
    found = gpus({"fabric": fabric()}, {"fabric": {"error": "NOT_SUPPORTED"}})
    assert fabrics.gfd_clique(found).standing == "known"


def test_the_first_source_that_knows_wins() -> None:
    assert fabrics.decide([("rack", none("a", "")), ("rack", known("r", "b"))]) == {"rack": known("r", "b")}
    assert fabrics.decide([("rack", unsure("a", "")), ("rack", known("r", "b"))])["rack"].standing == "unsure"


# Readings over time


def held_after(*readings: Reading) -> str | None:
    held = Held()
    for number, reading in enumerate(readings):
        held.read({"rack": reading}, float(number), TIME)
    return held.published["rack"].raw if "rack" in held.published else None


@pytest.mark.parametrize("source", ["label", "file"])
def test_a_label_is_not_written_another_way(source: str) -> None:
    """Only the label is left of what was published: it stays, and the raw value comes with the next reading."""
    held = Held()
    written = value("rack 09")
    held.remember({"rack": Fact(written, source, TIME)})
    assert held.published["rack"].label == written
    held.read({"rack": known("rack 09", "mapping")}, 0.0, "2026-06-06T06:06:06Z")
    assert held.published["rack"] == Fact("rack 09", "mapping", TIME)
    assert held.published["rack"].label == written
    assert not held.undecided


def test_a_label_that_nobody_could_have_written() -> None:
    """An annotation may say so all the same."""
    assert Fact("rack 09", "label", TIME).label == value("rack 09")


X, Y, NONE, UNSURE = known("x", "s"), known("y", "s"), none("s", "gone"), unsure("s", "an error")


@pytest.mark.parametrize(
    ("readings", "published"),
    [
        ([X], None),
        ([X, X], "x"),
        ([X, UNSURE, X], None),
        ([X, X, UNSURE, UNSURE, UNSURE], "x"),
        ([X, X, Y], "x"),
        ([X, X, Y, X, Y], "x"),
        ([X, X, Y, Y], "y"),
        ([X, X, NONE], "x"),
        ([X, X, NONE, UNSURE, NONE], "x"),
        ([X, X, NONE, NONE], None),
    ],
)
def test_what_is_published(readings: list[Reading], published: str | None) -> None:
    assert held_after(*readings) == published


def test_a_doubt_is_told_after_the_hold() -> None:
    held = Held()
    for now, reading in ((0.0, X), (1.0, X), (2.0, UNSURE), (601.0, UNSURE)):
        held.read({"rack": reading}, now, TIME)
    assert list(held.doubted(602.0, 600)) == []
    assert list(held.doubted(603.0, 600)) == [("rack", "an error")]
    held.read({"rack": X}, 604.0, TIME)
    assert list(held.doubted(9999.0, 600)) == []


def test_a_scan_that_fails_is_no_evidence() -> None:
    """Not for what is published, and not between two readings in a row."""
    held = Held()
    for now, reading in ((0.0, X), (1.0, X), (2.0, NONE)):
        held.read({"rack": reading}, now, TIME)
    held.failed("no scan", 3.0)
    assert not held.undecided
    held.read({"rack": NONE}, 4.0, TIME)
    assert held.published["rack"].raw == "x"
    for now in range(5, 700):
        held.failed("no scan", float(now))
    assert held.published["rack"].raw == "x"
    assert [state for _, _, state, _ in held.standing({"key": "rack"})] == ["suspect"]
    assert list(held.doubted(606.0, 600)) == [("rack", "no scan")]
    held.read({"rack": X}, 700.0, TIME)
    assert [state for _, _, state, _ in held.standing({"key": "rack"})] == ["published"]


def test_since_when_survives_a_restart() -> None:
    fact = Fact("x", "s", "2025-01-01T00:00:00Z")
    before, after = Held(), Held()
    before.remember({"rack": fact})
    for held in (before, after):
        held.read({"rack": X}, 0.0, TIME)
        held.read({"rack": X}, 1.0, TIME)
    after.remember({"rack": fact})
    assert before.published == after.published == {"rack": fact}


def test_what_is_known_by_now_is_newer_than_the_memory() -> None:
    held = Held()
    held.read({"rack": Y}, 0.0, TIME)
    held.read({"rack": Y}, 1.0, TIME)
    held.remember({"rack": Fact("x", "s", "2025-01-01T00:00:00Z")})
    assert held.published["rack"].raw == "y"


READINGS = st.sampled_from([X, Y, NONE, UNSURE, "restart"])


@given(st.lists(READINGS, max_size=60))
def test_invariants(events: list[Reading | str]) -> None:
    """Nothing is published that two readings in a row did not say; nothing is removed but by two that say so."""
    held, row = Held(), list[str | None]()
    for number, event in enumerate(events):
        before = held.published.get("rack")
        if isinstance(event, str):
            again = Held()
            again.remember(annotation.read(annotation.written(held.published), ["rack"]))
            assert again.published == held.published
            held, row = again, []
            continue
        held.read({"rack": event}, float(number), TIME)
        row = [] if event.standing == "unsure" else [*row, event.raw]
        after = held.published.get("rack")
        if after != before:
            assert row[-2:] == [after.raw if after else None] * 2
        elif row[-2:] == [event.raw] * 2:
            assert (after.raw if after else None) == event.raw


# A day


class Day(NamedTuple):
    readings: int
    faults: int
    truths: int
    changes: int


SCANS = 24 * 12 * 2  # a reading each 2.5 minutes


def simulated(chance: random.Random) -> Day:
    """A tray whose fabric is moved now and then, and whose driver, fabric manager and agent fail meanwhile.

    Faults are what labels.md tells of: IN_PROGRESS, NOT_STARTED, NOT_SUPPORTED after COMPLETED, errors, time-outs, a
    status, GPUs that disagree, a GPU that is gone from the driver, a driver that is not there.
    """
    held, seen, counts = Held(), set[str | None](), [0, 0, 0]
    truth, published = fabric(), None
    for number, broken in zip(range(SCANS), faults(chance), strict=False):
        if chance.random() < 0.01:
            truth = fabric(uuid=chance.choice([OTHER, str(fabric()["uuid"])]), cliques=[{"id": chance.randrange(3)}])
            counts[1] += 1
        if chance.random() < 0.02:  # the agent is killed, and begins with the memory
            held, again = Held(), held.published
            held.remember(annotation.read(annotation.written(again), ["nvlink-clique"]))
        right = f"{truth['uuid']}.{truth['cliques'][0]['id']}"  # type: ignore[index,call-overload]
        seen.add(right)
        reading = nvlink(broken(truth) if broken else gpus({"fabric": truth}, {"fabric": truth}))["nvlink-clique"]
        counts[0] += broken is not None
        assert reading.standing != "none"
        assert reading.raw in (None, right)
        held.read({"nvlink-clique": reading}, number * 150.0, TIME)
        now = held.published["nvlink-clique"].raw if held.published else None
        assert now in seen | {None}
        assert published is None or now is not None  # nothing of this day is a reason to take it back
        counts[2] += now != published
        published = now
    return Day(SCANS, *counts)


def faults(chance: random.Random) -> Iterator[Broken | None]:
    """Long ones and short ones."""
    while True:
        fault = chance.choice(BROKEN)
        yield from [fault] * chance.choice([0, 1, 2, 5, 20])
        yield from [None] * chance.choice([1, 2, 5, 20])


def both(**said: Json) -> Broken:
    return lambda truth: gpus({"fabric": truth | said}, {"fabric": truth | said})


def second(said: dict[str, Json]) -> Broken:
    return lambda truth: gpus({"fabric": truth}, {"fabric": truth | said if "error" not in said else said})


BROKEN = [
    both(state=2), both(state=1), both(state=0, status=0), both(status=3), second({"state": 2}), second({"state": 0}),
    second({"error": "TIMEOUT"}), second({"error": "UNKNOWN"}), second({"uuid": ZERO}), second({"uuid": "N/A"}),
    second({"uuid": "deadbeef-53bf-49b5-a436-b66766c413c3"}), second({"status": 999}),
    lambda truth: gpus({"fabric": truth}),  # the driver does not name the other one
    lambda _: topology(FILES),  # no driver
]  # fmt: skip


def test_a_day_of_faults() -> None:
    """No flap and no false value: as many changes as truths, at most, and one for the first."""
    many = 20 if os.environ.get("TOPO_AGENT_LONG") else 2
    days = [simulated(random.Random(seed)) for seed in range(many)]  # noqa: S311 the same days each time
    for day in days:
        assert 1 <= day.changes <= day.truths + 1
        print(f"{day.readings} readings, {day.faults} of them faulty, {day.truths} moves, {day.changes} changes")
    assert sum(day.faults for day in days) > 200


def test_a_silent_driver_is_no_other_shape() -> None:
    """Links are part of a shape, and only the driver tells them."""
    whole, silent = gpus({"fabric": fabric()}, {"fabric": fabric()}), topology(FILES)
    assert readings(whole, (), Place({}))["shape"].standing == "known"
    assert readings(silent, (), Place({}))["shape"].standing == "unsure"


SWITCH = grown("pci0000:20/20:00.0/21:00.0", {"class_": "0x068000", "vendor": "0x10de", "device": "0x1af1"})


def test_links_that_move_are_no_other_shape() -> None:
    """A link that is down names no peer, and one of a fabric that comes up will name another."""
    up: dict[str, Json] = {"fabric": fabric()}
    for told, standing in (
        (linked(18, 18), "known"),
        (linked(18, 16), "unsure"),
        (linked(16, 16), "known"),  # a board that uses not all of them, as those of 2 V100
        (linked(18, 18, 0), "known"),  # a pair with a bridge, and a card without
        (linked(0, 0), "known"),  # no bridge at all: nobody is at the other ends
        (gpus(up, {"fabric": fabric(state=2)}), "known"),  # its links are up already
    ):
        assert readings(told, (), Place({}))["shape"].standing == standing


@pytest.mark.parametrize(("state", "standing"), [(0, "known"), (1, "unsure"), (2, "unsure"), (3, "known")])
def test_a_fabric_that_comes_up_is_waited_for(state: int, standing: str) -> None:
    """nvml.h NVML_GPU_FABRIC_STATE_…: where its links are down, as in a GB200 tray without IMEX."""
    down = [paper.nvlink(number, "FFFFFFFF:FF:FF.0", 2, 0) for number in range(18)]
    said = [answers(at, index, down, fabric=fabric(state=state)) for index, at in enumerate((A, B))]
    found = topology(FILES, documents=nvml(*said))
    assert readings(found, (), Place({}))["shape"].standing == standing


@pytest.mark.parametrize(("current", "standing"), [(1, "known"), (0, "unsure")])
def test_a_gpu_that_is_cut_is_not_waited_for(current: int, standing: str) -> None:
    """NVIDIA's guide to the fabric manager: in MIG mode the NVLinks of a GPU are off."""
    whole, off = ([paper.nvlink(number, "FFFFFFFF:FF:FF.0", 2, up) for number in range(18)] for up in (1, 0))
    mig: dict[str, Json] = {"current": current, "pending": current, "max_devices": 7, "devices": []}
    said = nvml(answers(A, 0, whole), answers(B, 1, off, mig=mig))
    assert readings(topology(FILES | SWITCH, documents=said), (), Place({}))["shape"].standing == standing


def test_switches_are_waited_for() -> None:
    """An HGX board whose fabric manager has not started yet: all links are down, and their switches are there."""
    down = [paper.nvlink(number, "FFFFFFFF:FF:FF.0", 2, 0) for number in range(12)]
    card = grown("pci0000:10/10:00.0/11:00.0", NVIDIA)
    said = nvml(answers("00000000:11:00.0", 0, down))
    assert readings(topology(card, documents=said), (), Place({}))["shape"].standing == "known"
    assert readings(topology(card | SWITCH, documents=said), (), Place({}))["shape"].standing == "unsure"
