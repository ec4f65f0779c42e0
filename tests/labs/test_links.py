"""Links that go up and down and get other names, in this kernel, while the agent runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import Agent

WITHIN = 2.0  # seconds from the last event to the end of the scan: issue 8, point 7
ONE, OTHER, RENAMED = "taLab0", "taLab1", "taLab2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def pair() -> Iterator[None]:
    """Two interfaces that are each other's other end."""
    for name in (ONE, RENAMED):  # of a run that was killed
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
    try:
        ip("link", "add", ONE, "type", "veth", "peer", "name", OTHER)
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no pair of interfaces can be made here: {error}")
    yield
    for name in (ONE, RENAMED):
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


@pytest.mark.usefixtures("pair")
def test_up_down_and_another_name(tmp_path: Path) -> None:
    """With --rescan 1h nothing but an event begins a scan."""
    agent = Agent(tmp_path / "http", "--state-dir", str(tmp_path / "state"), "--rescan", "1h").ready()
    try:
        agent.wait_for(lambda: agent.scans() >= 1)
        quiet(agent)
        for words in (("up",), ("down",), ("name", RENAMED)):
            before, scanned = agent.metrics()["topo_agent_events_total"], agent.scans()
            done = time.monotonic()
            ip("link", "set", ONE, *words)
            took = scanned_again(agent, scanned, before)
            print(f"{' '.join(words)}: scanned {took:.2f} s after")
            assert took <= WITHIN
            assert time.monotonic() - done <= 5 * WITHIN  # it was heard soon
            quiet(agent)
        assert f"net/{ONE}/" not in agent.get("/topology.json").body
    finally:
        agent.kill()


def scanned_again(agent: Agent, scanned: float, events: float) -> float:
    """Seconds from the last event, which has to be a new one, to the end of the scan."""
    heard: list[float] = []  # when there were more
    seen = events

    def over() -> bool:
        nonlocal seen
        said = agent.metrics()
        if said["topo_agent_events_total"] > seen:
            seen = said["topo_agent_events_total"]
            heard.append(time.monotonic())
        return said['topo_agent_scans_total{result="ok"}'] > scanned

    agent.wait_for(over)
    assert heard, "a scan without an event"
    return time.monotonic() - heard[-1]


def quiet(agent: Agent) -> None:
    """Until no event has come for a second: making the pair, and IPv6 on it, are some, too."""
    while True:
        before = agent.metrics()["topo_agent_events_total"], agent.scans()
        time.sleep(1.2)
        if (agent.metrics()["topo_agent_events_total"], agent.scans()) == before:
            return
