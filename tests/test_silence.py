"""What falls silent: a driver, a scanner, one kind of events. What was known stands as long as it should."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.agent import Agent, children
from tests.paper import DEVICES, machine
from tests.test_daemon import answer, asked
from tests.test_run import SOON, changes
from topo_agent.daemon import drivers
from topo_agent.daemon.worker import Worker
from topo_agent.host import Json, Unavailable

GPU = "0000:1b:00.0"  # the first one of a DGX H100: layouts.md
ANSWER: Json = {"gpus": []}
RETRY = f"{SOON}loop._RETRY = 0.2\n"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return fixtures.tree("dgx-h100", tmp_path)


@pytest.fixture
def driver(box: Path) -> Path:
    return box / "documents/nvml.json"


@pytest.fixture
def ask(box: Path) -> Iterator[Ask]:
    """What the scanner answers, with labels."""
    worker = Worker()

    def one(**more: Any) -> dict[str, Any]:
        worker.ask(asked(source=str(box), labels=True, **more))
        return answer(worker)

    yield one
    worker.stop()


def notes(said: dict[str, Any]) -> set[str]:
    return {one["code"] for one in json.loads(said["topology"]).get("diagnostics", [])}


def test_its_last_answers_stand(ask: Ask, driver: Path) -> None:
    whole = driver.read_text()
    before = ask()
    assert (before["silent"], before["stale"]) == ("", 0)
    assert before["labels"]["shape"][0] == "known"

    driver.write_text("{")  # as a driver whose answer is none
    after = ask()
    assert after["digest"] == before["digest"]
    assert after["families"] == before["families"]
    assert after["stale"] > 0
    assert "nvml.json" in after["silent"]
    assert notes(after) == notes(before) | {"nvml_stale"}
    assert after["labels"]["shape"][0] == "unsure"  # held: the same answers again confirm nothing
    assert after["labels"]["gpu-count"] == before["labels"]["gpu-count"]  # which sysfs tells

    driver.write_text(whole)
    again = ask()
    assert {**again, "cost": 0} == {**before, "cost": 0}


def test_not_for_ever(ask: Ask, driver: Path) -> None:
    """After --stale-after seconds, what it said is unknown; what sysfs says is not."""
    before = ask()
    driver.write_text("{")
    after = ask(stale_after=0.0)
    assert after["stale"] == 0
    assert after["silent"]
    assert notes(after) == notes(before) | {"nvml_unavailable"}
    topologies = [json.loads(one["topology"]) for one in (before, after)]
    assert ["nvlink" in one for one in map(json.dumps, topologies)] == [True, False]
    assert [sum(one.get("kind") == "gpu" for one in said["devices"]) for said in topologies] == [8, 8]


def test_how_long_it_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first time that it was not heard, however often it is asked again; and anew after an answer."""
    lasting, now, here, missing = drivers.Lasting(), [0.0], machine({}), Unavailable("driver_error", "it crashed")
    monkeypatch.setattr("topo_agent.daemon.drivers.monotonic", lambda: now[0])
    for begun in (0.0, 1000.0):
        now[0] = begun
        lasting.heard(ANSWER, begun)
        for later in (100.0, 400.0, 699.0):
            now[0] = begun + later
            assert lasting.missed(missing, here, 600.0) == ANSWER
            assert lasting.age == later
        now[0] = begun + 700.0
        with pytest.raises(Unavailable):
            lasting.missed(missing, here, 600.0)
        assert (lasting.age, lasting.silent) == (0.0, "it crashed")


def test_what_an_overlay_knows_of_a_gpu_that_is_silent(ask: Ask, box: Path, driver: Path, tmp_path: Path) -> None:
    """It names a GPU by what only the driver tells: labels wait, and what stood stands."""
    shutil.rmtree(box / "proc/driver")
    (uuid, *_) = (one["uuid"] for one in json.loads(driver.read_text())["gpus"] if one["bdf"].lower().endswith(GPU))
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(f'pairs: {{"{uuid}": ["0000:18:00.0"]}}\n')
    before = ask(overlay=str(overlay))
    assert before["labels"]
    driver.write_text("{")
    after = ask(overlay=str(overlay))
    assert after["digest"] == before["digest"]
    assert {name: one[0] for name, one in after["labels"].items()} == dict.fromkeys(before["labels"], "unsure")


def test_a_gpu_that_left_the_bus(ask: Ask, box: Path, driver: Path) -> None:
    """What is told of it, and of its links, is not true any more."""
    ask()
    driver.write_text("{")
    link = box / DEVICES / GPU
    shutil.rmtree(link.resolve())
    link.unlink()
    after = ask()
    assert (after["stale"], bool(after["silent"])) == (0, True)
    assert "nvml_unavailable" in notes(after)
    assert "nvlink" not in after["topology"]


def test_a_driver_that_is_unloaded(ask: Ask, driver: Path) -> None:
    """It is not silent, it is not there: its answers go at once."""
    ask()
    driver.unlink()
    after = ask()
    assert (after["stale"], after["silent"]) == (0, "")
    assert "nvlink" not in after["topology"]


def test_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs again and again keeps a scan for a few times what it usually takes, and then for longer, as
    one that starts anew does. One that refuses keeps nobody.
    """
    monkeypatch.setattr("topo_agent.daemon.drivers.monotonic", lambda: 100.0)
    lasting, here = drivers.Lasting(), machine({})
    assert lasting.patience(60.0) == 60.0
    lasting.heard(ANSWER, 98.0)
    for missing, expected in (("driver_error", 60.0), ("timeout", 11.0), ("timeout", 22.0), ("timeout", 44.0),
                              ("timeout", 60.0)):  # fmt: skip
        assert lasting.missed(Unavailable(missing), here, 600.0) == ANSWER
        assert lasting.patience(60.0) == expected
    assert lasting.patience(4.0) == 4.0
    lasting.heard(ANSWER, 98.0)
    assert lasting.patience(60.0) == 60.0


def test_the_agent_says_so(box: Path, driver: Path, tmp_path: Path) -> None:
    """A gauge, a note on the page and a line of the log, and no change of the structure. It is tried again soon."""
    whole = driver.read_text()
    file, collected = tmp_path / "state/topology.json", tmp_path / "collected.prom"
    where = ("--from", str(box), "--state-dir", str(file.parent), "--textfile", str(collected), "--rescan", "1h")
    agent = Agent(tmp_path / "http", *where, around=RETRY).ready()

    def marked() -> list[bool]:
        """On the page, in both files."""
        return ["stale for" in agent.get("/").body, "nvml_stale" in file.read_text(),
                "\ntopo_agent_stale 1.0\n" in collected.read_text()]  # fmt: skip

    try:
        agent.wait_for(lambda: agent.scans() >= 1)
        assert agent.metrics()["topo_agent_stale"] == 0
        assert marked() == [False] * 3
        driver.write_text("{")
        agent.rescan()
        assert agent.metrics()["topo_agent_stale"] == 1
        assert agent.metrics()["topo_generation"] == 0
        assert marked() == [True] * 3
        scans = agent.scans()
        agent.wait_for(lambda: agent.scans() > scans)  # nobody has asked for it
        driver.write_text(whole)
        agent.wait_for_line("driver: it answers again")
        assert changes(tmp_path) == []
        agent.wait_for(lambda: agent.metrics()["topo_agent_stale"] == 0)
        agent.wait_for(lambda: marked() == [False] * 3)
        assert len(agent.lines("driver: silent")) == 1
        driver.write_text("{")
        agent.rescan()
        agent.wait_for(lambda: agent.metrics()["topo_agent_stale"] == 1)
        driver.unlink()  # as one that is unloaded
        agent.wait_for_line("driver: there is none any more")
    finally:
        agent.kill()


def test_a_scanner_that_cannot_be_ended(box: Path, tmp_path: Path) -> None:
    """As one that waits in the kernel: no other is started beside it, and scans go on once it has gone."""
    stays = f"{RETRY}from topo_agent.daemon import worker\nworker.os.killpg = lambda *_: None\n"
    where = ("--from", str(box), "--state-dir", str(tmp_path / "state"), "--timeout", "1", "--rescan", "1h")
    agent = Agent(tmp_path / "http", *where, around=stays).ready()
    try:
        agent.wait_for(lambda: agent.scans() >= 1)
        early, mark, stuck = agent.scans("given_up"), len(agent.log), agent.scanner()
        os.kill(stuck, signal.SIGSTOP)
        agent.send(signal.SIGHUP)
        agent.wait_for(lambda: agent.scans("given_up") > early)
        agent.wait_for(lambda: agent.scans("error") >= 3)
        assert children(agent.pid) == [stuck]
        assert len(agent.lines("waits in the kernel")) == 1
        os.kill(stuck, signal.SIGKILL)
        agent.wait_for_line("scan: scans succeed again", mark)
        assert agent.scanner() != stuck
    finally:
        agent.kill()


@pytest.mark.parametrize("kind", ["uevents.Uevents", "netlink.LinkEvents"])
def test_one_kind_of_events_is_not_enough(kind: str, tmp_path: Path) -> None:
    """Where the kernel tells of links and not of devices, or the other way round, the clock has to do."""
    around = f"""\
from topo_agent.daemon import loop
from topo_agent.host import Unavailable, netlink, uevents
loop._POLL = 0.3
def none(): raise Unavailable("not_permitted", "in a test")
{kind} = none
"""
    agent = Agent(tmp_path / "http", "--state-dir", str(tmp_path / "state"), "--rescan", "1h", around=around).ready()
    try:
        assert len(agent.lines("will come (in a test): looking every minute")) == 1
        agent.wait_for(lambda: agent.scans() >= 5)
    finally:
        agent.kill()
