"""The agent's own metrics: what they say, how many series they are, and that docs/metrics.md knows each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests import fixtures
from tests.agent import Agent
from tests.test_metrics import SERIES_AT_MOST, texts
from topo_agent.daemon.counts import Cost, Counts, published, sliced, together
from topo_agent.daemon.own import OWN, Family
from topo_agent.publishers.metrics import exposition

SOURCES = (
    "process", "cpu", "numa", "pci", "net", "netlink", "rdma", "nvme", "gpu", "nvml", "kfd", "machine", "standard",
    "irq", "gpudirect",
)  # fmt: skip
LEVELS = ("conflict", "degraded", "lost")
NOW = 1_790_000_000.0


def cost(**up: bool) -> Cost:
    return Cost(cpu_seconds=0.02, files=1500, seconds={"pci": 0.01, "views": 0.005}, up=up)


def series(families: Iterable[Family], name: str) -> dict[str, float]:
    """`{"pci": 1.0}`: the series of one name by their one label."""
    lines = exposition(families)[0].decode().splitlines()
    found = (re.fullmatch(rf'{name}\{{\w+="(\w+)"\}} (\S+)', line) for line in lines)
    return {one[1]: float(one[2]) for one in found if one}


def test_a_source_by_its_last_scan() -> None:
    counts = Counts()
    counts.scanned(cost(pci=True, nvml=True), NOW)
    counts.scanned(cost(pci=True, nvml=False), NOW + 60)
    assert series(counts.families(), "topo_agent_source_up") == {"pci": 1, "nvml": 0}
    heard = series(counts.families(), "topo_agent_last_success_timestamp_seconds")
    assert heard == {"pci": NOW + 60, "nvml": NOW}


def test_a_driver_that_is_unloaded_ages_not() -> None:
    counts = Counts()
    counts.scanned(cost(pci=True, nvml=True), NOW)
    counts.scanned(cost(pci=True), NOW + 60)
    assert series(counts.families(), "topo_agent_last_success_timestamp_seconds") == {"pci": NOW + 60}


def test_nobody_is_up_while_scans_fail() -> None:
    """Which source hangs is not known then: neither 1 nor 0 is true."""
    counts = Counts()
    counts.scanned(cost(pci=True), NOW)
    counts.failed("given_up")
    assert series(counts.families(), "topo_agent_source_up") == {}
    assert series(counts.families(), "topo_agent_scans_total")["given_up"] == 1
    counts.scanned(cost(pci=True), NOW + 60)
    assert series(counts.families(), "topo_agent_source_up") == {"pci": 1}


def test_nothing_is_told_before_the_first_scan() -> None:
    said = exposition(Counts().families())[0].decode()
    assert not re.search(r"(?m)^topo_agent_(scan_(duration|cpu|files)|source_up|last_success|diagnostics)", said)


def test_bounded() -> None:
    """With every source and every level, all publishers and the largest fixture: issue 8, point 4."""
    counts = Counts()
    notes = [(source, level, 1) for source in (*SOURCES, "graph") for level in (*LEVELS, "note")]
    seconds = dict.fromkeys((*SOURCES, "views"), 0.1)
    counts.scanned(Cost(0.1, 1, seconds, dict.fromkeys(SOURCES, True), notes), NOW)
    results = dict.fromkeys(("ok", "conflict", "denied", "error", "dropped_field"), 1)
    labels = [(f"topo-agent.io/{number}", "x", "published", "nvml") for number in range(16)]
    publishers = [published("node_labels", results, labels, {}), sliced(results, {"devices": 1, "values": 1}, None)]
    own = exposition(together([counts.families(), *publishers]))[0].decode()
    machines = max(len(re.findall("(?m)^topo_", texts(name).usual)) for name in fixtures.NAMES)
    assert len(re.findall("(?m)^topo_", own)) + machines <= SERIES_AT_MOST
    assert 'level="note"' not in own


def test_the_sources_are_these(common: Path, tmp_path: Path) -> None:
    """A closed list, on a running agent: the phases of a scan are its sources and the rest."""
    agent = Agent(tmp_path / "http", "--from", str(fixtures.tree("dgx-h100", common)), "--state-dir", "").ready()
    try:
        agent.wait_for(lambda: agent.scans() >= 1)
        said = agent.metrics()
    finally:
        agent.stop()
    phases = {found[1] for name in said if (found := re.fullmatch(r'topo_agent_scan_\w+{phase="(\w+)"}', name))}
    assert phases <= {*SOURCES, "views"}
    assert phases >= {*SOURCES, "views"} - {"netlink"}
    assert said["topo_agent_scan_files_read"] > 1000
    assert said['topo_agent_source_up{source="nvml"}'] == said['topo_agent_source_up{source="pci"}'] == 1
    assert 'topo_agent_source_up{source="kfd"}' not in said
    assert not [name for name in said if name.startswith("topo_agent_source_up") and not said[name]]


def test_each_is_in_the_list() -> None:
    names = [one.name for one in OWN]
    assert len({*names}) == len(names)
    used = {str(one["name"]) for one in [*Counts().families(), *published("x", {}, [], {}), *sliced({}, {}, None)]}
    assert used == {*names}
