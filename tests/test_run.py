"""`topo-agent run` as it is used: a process of its own, asked over HTTP, told by signals, and hurt."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent import Agent, children, state, wait_for
from tests.paper import DEVICES, function, machine, netdev, two_sockets
from tests.test_cli import answer
from topo_agent.host.unpack import unpack

STOP_WITHIN = 2.0  # seconds: issue 8, point 1
NIC, OTHER, THIRD = "0000:17:00.0", "0000:18:00.0", "0000:19:00.0"
PAGES = {
    "/": "text/html; charset=utf-8",
    "/topology.json": "application/json",
    "/matrix.txt": "text/plain; charset=utf-8",
    "/findings.json": "application/json",
    "/metrics": "text/plain; version=0.0.4; charset=utf-8",
    "/healthz": "text/plain; charset=utf-8",
    "/readyz": "text/plain; charset=utf-8",
}
# A burst that settles at once, and deadlines that a test can wait for. The scan itself has --timeout besides.
SOON = """\
from topo_agent.daemon import loop, schedule
schedule.SETTLE, loop._LATE, loop._RETRY = 0.05, 2.0, 0.5
"""

# SIGUSR1: the monotonic clock is 50 seconds further on.
JUMP = """\
import signal, time
really, ahead = time.monotonic, 0.0
def monotonic(): return really() + ahead
time.monotonic = monotonic
def jump(*_):
    global ahead
    ahead = 50.0
signal.signal(signal.SIGUSR1, jump)
"""

Start = Callable[..., Agent]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A small machine with three NICs."""
    files = two_sockets()
    for number, address in enumerate((NIC, OTHER, THIRD)):
        files |= function(address, under="pci0000:16", numa_node="1\n")
        files |= netdev(f"eth{number}", f"pci0000:16/{address}")
    root = tmp_path / "box"
    unpack(machine(files), str(root))
    return root


@pytest.fixture
def start(box: Path, tmp_path: Path) -> Iterator[Start]:
    """Agents that look at the small machine, and that are gone afterwards."""
    started: list[Agent] = []

    def run(*arguments: str, around: str = SOON) -> Agent:
        where = ("--from", str(box), "--state-dir", str(tmp_path / "state"))
        agent = Agent(tmp_path / "http", *where, *arguments, around=around)
        started.append(agent)
        return agent.ready()

    yield run
    for agent in started:
        if agent.running:
            agent.kill()


def stuck(tmp_path: Path) -> tuple[Path, str]:
    """While that file exists, a scanner of an agent with that around it stops before it can do anything."""
    hold, site = tmp_path / "hold", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import os, signal\nif os.path.exists({str(hold)!r}): os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    return hold, f"{SOON}import sys\nsys.path.insert(0, {str(site)!r})\n"


def unplug(box: Path, address: str = NIC) -> None:
    link = box / DEVICES / address
    shutil.rmtree(link.resolve())
    link.unlink()


def changes(tmp_path: Path) -> list[str]:
    """What `topo-agent history` prints, without the times."""
    return [line.split("  ", 1)[1] for line in answer("history", "--state-dir", str(tmp_path / "state")).splitlines()]


def reached(agent: Agent, scans: float) -> None:
    agent.wait_for(lambda: agent.scans() >= scans)


def devices(document: dict[str, Any]) -> set[str]:
    return {one["address"] for one in document["devices"] if "address" in one}


# --- what it offers ------------------------------------------------------------------------------------------


def test_every_page(start: Start, tmp_path: Path) -> None:
    agent = start(around="")
    for path, kind in PAGES.items():
        said = agent.get(path)
        assert (said.status, said.headers["content-type"]) == (200, kind), path
    assert agent.get("/nosuch").status == 404
    assert "openmetrics" in agent.get("/metrics", accept="application/openmetrics-text").headers["content-type"]
    tag = agent.get("/topology.json").headers["etag"]
    assert agent.get("/topology.json", if_none_match=tag).status == 304
    assert devices(agent.topology()) == {NIC, OTHER, THIRD}
    agent.wait_for((tmp_path / "state/topology.json").exists)
    assert json.loads((tmp_path / "state/topology.json").read_text()) == agent.topology()
    status, took = agent.stop()
    assert status == 0
    assert took <= STOP_WITHIN
    assert not [line for line in agent.log if "Traceback" in line]


def test_what_changed(start: Start, box: Path, tmp_path: Path) -> None:
    """Published once, where it changed: log, history, file, counters. A scan that finds the same writes nothing."""
    agent = start()
    file = tmp_path / "state/topology.json"
    agent.wait_for(file.exists)
    before = file.stat()
    agent.rescan()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    generation = agent.metrics()["topo_generation"]

    unplug(box)
    agent.rescan()
    agent.wait_for_line(f"topology: removed pci:{NIC} (nic eth0)")
    assert changes(tmp_path) == [f"removed pci:{NIC} (nic eth0)"]
    after = agent.metrics()
    assert after["topo_generation"] == generation + 1
    assert after['topo_changes_total{kind="removed"}'] == 1
    assert not [series for series in after if NIC in series]
    assert [series for series in after if OTHER in series]
    assert devices(agent.topology()) == devices(json.loads(file.read_text())) == {OTHER, THIRD}
    assert file.stat().st_ino != before.st_ino


def test_settings_are_read_anew(start: Start, tmp_path: Path) -> None:
    """Bad ones cost a line, and the old ones stay; a state directory of another name is filled at once."""
    settings = tmp_path / "settings.toml"
    settings.write_text('rescan = "1h"\n')
    agent = start("--config", str(settings))
    agent.wait_for_line("topology: ")  # pages are there before it is said
    settings.write_text('rescam = "1s"\n')
    mark = len(agent.log)
    agent.send(signal.SIGHUP)
    agent.wait_for_line("not read anew, the old ones stay", mark)
    assert len(agent.log) == mark + 1
    assert "rescan" in agent.log[mark]  # the nearest name
    assert agent.scans() == 1

    settings.write_text('rescan = "1s"\nlog-format = "json"\n')
    agent.send(signal.SIGHUP)
    agent.wait_for_line("read anew", mark + 1)
    assert json.loads(agent.lines("read anew", mark + 1)[0])["event"] == "settings"
    reached(agent, 3)


def test_a_group_that_cannot_be(start: Start, tmp_path: Path) -> None:
    """Issue 8, point 1: bad new settings, and the old ones stay. No gid_t is as large as that."""
    settings = tmp_path / "settings.toml"
    settings.write_text("")
    agent = start("--config", str(settings))
    settings.write_text('state-group = "99999999999"\n')
    agent.send(signal.SIGHUP)
    agent.wait_for_line("not read anew, the old ones stay")
    settings.write_text("")
    agent.rescan()
    assert agent.stop()[0] == 0


def test_paths_are_those_of_where_it_was_started(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scanner is elsewhere."""
    (tmp_path / "overlay.yaml").write_text('roots: {"pci0000:16": 1}\n')
    monkeypatch.chdir(tmp_path)
    agent = start("--overlay", "overlay.yaml")
    assert not agent.lines("scan: ")


def test_another_state_directory(box: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f"state-dir = '{tmp_path}/one'\n")
    agent = Agent(tmp_path / "http", "--from", str(box), "--config", str(settings)).ready()
    try:
        agent.wait_for((tmp_path / "one/topology.json").exists)
        settings.write_text(f"state-dir = '{tmp_path}/two'\n")
        agent.send(signal.SIGHUP)
        agent.wait_for((tmp_path / "two/topology.json").exists)
        assert not (tmp_path / "one/topology.json").exists()  # nobody would keep it right
        # A history that cannot be read is no reason to stop.
        (tmp_path / "three/history.jsonl").mkdir(parents=True)
        settings.write_text(f"state-dir = '{tmp_path}/three'\n")
        agent.send(signal.SIGHUP)
        agent.wait_for((tmp_path / "three/topology.json").exists)
        unplug(box)
        agent.rescan()
        agent.wait_for_line("history: cannot be written: Is a directory")
    finally:
        assert agent.stop()[0] == 0


def test_signals_while_it_writes(start: Start) -> None:
    """Handled between two turns, however many come: never in the middle of a line of the log."""
    agent = start()
    for _ in range(300):
        agent.send(signal.SIGHUP)
        time.sleep(0.001)
    agent.wait_for_line("read anew")
    assert agent.get("/healthz").status == 200
    status, took = agent.stop()
    assert (status, took <= STOP_WITHIN) == (0, True)
    assert not [line for line in agent.log if "Traceback" in line or "Error" in line]


def test_no_huge_pages(start: Start) -> None:
    """proc_pid_status(5), THP_enabled: a stack of a thread would be 2 MiB where kernels give them to everybody."""
    agent = start()
    for pid in (agent.pid, agent.scanner()):
        said = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert said.get("THP_enabled", "0").strip() == "0"  # Linux before 5.0 does not tell


# --- what hurts it -------------------------------------------------------------------------------------------


def test_stopped_while_the_scanner_is_stuck(start: Start) -> None:
    """SIGTERM ends it within 2 s, the scanner with it."""
    agent = start()
    scanner = agent.scanner()
    os.kill(scanner, signal.SIGSTOP)
    agent.send(signal.SIGHUP)
    agent.wait_for_line("read anew")
    status, took = agent.stop()
    assert status == 0
    assert took <= STOP_WITHIN
    assert state(scanner) == ""


def test_killed(start: Start, box: Path, tmp_path: Path) -> None:
    """kill -9: the scanner hears the end of its questions and ends. The next agent listens on the same Unix socket,
    whose file was left, and keeps the history.
    """
    agent = start()
    unplug(box)
    agent.rescan()
    agent.wait_for_line("removed")
    scanner = agent.scanner()
    agent.stop(signal.SIGKILL)
    wait_for(lambda: state(scanner) in ("", "Z"))  # Z: whoever is its parent now has not asked yet
    assert agent.place.exists()
    assert (tmp_path / "state/topology.json").exists()

    again = start()
    unplug(box, OTHER)
    again.rescan()
    wait_for(lambda: changes(tmp_path) == [f"removed pci:{NIC} (nic eth0)", f"removed pci:{OTHER} (nic eth1)"])


def test_a_full_disk(start: Start, box: Path, tmp_path: Path) -> None:
    """The pages stay right and the old file whole. One line says it, and one that it is over: by then, with the next
    scan, the files are as they should be.
    """
    agent = start()
    file = tmp_path / "state/topology.json"
    agent.wait_for(file.exists)
    old = file.read_text()
    limits = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    unplug(box)
    agent.rescan()
    agent.wait_for_line("cannot be written")
    agent.rescan()
    assert devices(agent.topology()) == {OTHER, THIRD}
    assert file.read_text() == old
    assert [path.name for path in file.parent.iterdir()] == ["topology.json"]
    assert len(agent.lines("state: cannot be written")) == 1
    assert agent.metrics()["topo_agent_file_errors_total"] >= 2

    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, limits)
    agent.rescan()
    agent.wait_for_line("state: can be written again")
    assert json.loads(file.read_text()) == agent.topology()
    assert changes(tmp_path) == [f"removed pci:{NIC} (nic eth0)"]


def test_a_clock_that_jumps(start: Start, tmp_path: Path) -> None:
    """A day on and two days back: scans go on at their pace, nothing is stale, nothing changed."""
    jump = tmp_path / "jump"
    around = f"""\
import os, time
really = time.time
def jumped():
    try:
        with open({str(jump)!r}) as file: return really() + float(file.read() or 0)
    except OSError: return really()
time.time = jumped"""
    agent = start("--rescan", "1s", "--stale-after", "10s", around=SOON + around)
    for seconds in (86400, -86400):
        fresh = jump.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.rename(jump)
        before = agent.scans()
        reached(agent, before + 2)
        said = agent.metrics()
        heard = said['topo_agent_last_success_timestamp_seconds{source="pci"}']
        assert heard == pytest.approx(time.time() + seconds, abs=3600)
        assert said["topo_agent_stale"] == said["topo_generation"] == 0
        assert agent.get("/healthz").status == agent.get("/readyz").status == 200
    assert agent.scans("error") == agent.scans("given_up") == 0
    assert agent.lines("topology: ") == agent.lines("topology: ")[:1]


def test_no_descriptor_left(start: Start) -> None:
    """EMFILE: a scan that cannot be started is a sentence, and the last good facts stay. Who asks may get no answer
    meanwhile; when there are descriptors again, all goes on.
    """
    agent = start("--rescan", "1s")
    os.kill(agent.scanner(), signal.SIGKILL)
    limits = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
    agent.wait_for_line("scan: no scan can be started: Too many open files")
    with contextlib.suppress(OSError, http.client.HTTPException):
        agent.get("/healthz", within=0.5)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
    agent.wait_for_line("scan: scans succeed again")
    assert agent.get("/healthz").status == 200
    assert devices(agent.topology()) == {NIC, OTHER, THIRD}
    assert agent.scans("error") >= 2
    assert not agent.lines("removed")


def test_a_scanner_that_is_stuck(start: Start, box: Path, tmp_path: Path) -> None:
    """Given up after its deadline. The last good facts stay, marked as stale, for --stale-after; then they are unknown:
    no page, no series, no file. A new scanner makes all good, and what changed meanwhile is told.
    """
    hold, around = stuck(tmp_path)
    file, collected = tmp_path / "state/topology.json", tmp_path / "collected.prom"
    agent = start("--timeout", "1", "--stale-after", "30s", "--textfile", str(collected), around=around + JUMP)
    agent.wait_for(file.exists)

    early = agent.scans("given_up")  # the first one may have been too slow here
    unplug(box)
    hold.touch()
    os.kill(agent.scanner(), signal.SIGSTOP)
    agent.send(signal.SIGHUP)
    agent.wait_for(lambda: agent.scans("given_up") > early)
    assert agent.metrics()["topo_agent_stale"] == 1
    assert devices(agent.topology()) == {NIC, OTHER, THIRD}
    assert "stale for" in agent.get("/").body
    agent.wait_for(lambda: "\ntopo_agent_stale 1.0\n" in collected.read_text())
    agent.send(signal.SIGUSR1)
    agent.wait_for(lambda: agent.get("/topology.json").status == 503)
    said = agent.metrics()
    assert not [series for series in said if series.startswith("topo_nic_info")]
    assert said['topo_agent_scans_total{result="ok"}'] == 1
    assert not file.exists()
    assert not collected.exists()
    assert agent.get("/healthz").status == 200
    assert agent.get("/readyz").status == 503

    hold.unlink()
    agent.wait_for(lambda: agent.get("/readyz").status == 200)
    agent.wait_for_line(f"topology: removed pci:{NIC}")
    assert devices(json.loads(file.read_text())) == {OTHER, THIRD}
    assert agent.metrics()["topo_agent_stale"] == 0
    assert len(children(agent.pid)) == 1  # those that were given up have been waited for
    assert len(agent.lines("given up")) <= 2 + bool(early)  # one line, and one that nothing is known any more


def test_a_document_of_an_earlier_run(box: Path, tmp_path: Path) -> None:
    """It may be of a machine that was rebuilt since: as long as nothing is known, there is none."""
    (tmp_path / "state").mkdir()
    left = [tmp_path / "state/topology.json", tmp_path / "collected.prom"]
    for file in left:
        file.write_text("{}\n")
    hold, around = stuck(tmp_path)
    hold.touch()
    where = ["--state-dir", str(left[0].parent), "--textfile", str(left[1])]
    agent = Agent(tmp_path / "http", "--from", str(box), *where, around=around)
    try:
        agent.wait_for_line("listening: ")
        agent.wait_for(lambda: not any(file.exists() for file in left))
        assert agent.get("/topology.json").status == 503
    finally:
        agent.kill()


def test_a_second_one_takes_nothing_from_the_first(start: Start, box: Path, tmp_path: Path) -> None:
    agent = start()
    file = tmp_path / "state/topology.json"
    agent.wait_for(file.exists)
    second = Agent(tmp_path / "http", "--from", str(box), "--state-dir", str(tmp_path / "state"))
    assert second.ended() != 0
    assert "somebody answers there already" in second.log[-1]
    assert json.loads(file.read_text()) == agent.topology()


def test_an_event_while_the_scanner_is_stuck(start: Start) -> None:
    """The new scanner, whose pipes have the numbers of the old one's, is heard."""
    agent = start("--timeout", "1", around=f"{SOON}\nloop._LATE = 4.0")
    early, mark = agent.scans("given_up"), len(agent.log)
    os.kill(agent.scanner(), signal.SIGSTOP)
    agent.send(signal.SIGHUP)
    agent.wait_for(lambda: len(agent.lines("read anew")) == 1)
    time.sleep(0.3)  # a burst has settled: the scan has begun
    agent.send(signal.SIGHUP)
    agent.wait_for_line("scan: scans succeed again", mark)
    assert agent.scans("given_up") == early + 1
    assert len(agent.lines("read anew")) == 2
    assert not agent.lines("waits in the kernel")


def test_one_failure_after_a_long_time(start: Start) -> None:
    """--stale-after begins with the first scan that fails, and not with the last one that did not."""
    agent = start("--timeout", "1", "--stale-after", "30s", around=SOON + JUMP)
    agent.send(signal.SIGUSR1)
    os.kill(agent.scanner(), signal.SIGKILL)
    agent.wait_for(lambda: agent.scans("error") >= 1)
    agent.wait_for_line("scan: scans succeed again")
    assert not agent.lines("unknown since")


def test_a_file_that_is_a_pipe(start: Start, box: Path) -> None:
    """Passed over at once."""
    place = (box / DEVICES / NIC).resolve() / "numa_node"
    place.unlink()
    os.mkfifo(place)
    agent = start()
    assert agent.scans("given_up") == agent.scans("error") == 0
    assert devices(agent.topology()) == {NIC, OTHER, THIRD}


@contextlib.contextmanager
def blocked(file: Path) -> Iterator[None]:
    """A file of a FUSE daemon that never answers: whoever opens it, or asks what it is, waits in the kernel."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    try:
        options = f"fd={device},rootmode=100000,user_id=0,group_id=0"  # of the kernel's fuse.rst; 0100000 is S_IFREG
        words = ["mount", "-i", "-t", "fuse", "-o", options, "blocked", str(file)]
        made = subprocess.run(words, pass_fds=[device], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no right to mount: {made.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(file)], check=True)
    finally:
        os.close(device)


@pytest.mark.skipif(not (shutil.which("mount") and shutil.which("umount")), reason="no `mount` here")
def test_a_file_that_blocks(start: Start, box: Path) -> None:
    """It costs scans, each given up after its time, and neither the pages nor the loop. The facts stay, stale."""
    agent = start("--timeout", "1")
    early = agent.scans("given_up")
    with blocked((box / DEVICES / NIC).resolve() / "numa_node"):
        agent.send(signal.SIGHUP)
        agent.wait_for(lambda: agent.scans("given_up") > early)
        assert agent.get("/healthz").status == 200
        assert agent.metrics()["topo_agent_stale"] == 1
        assert devices(agent.topology()) == {NIC, OTHER, THIRD}
    agent.wait_for_line("scan: scans succeed again")
    assert agent.metrics()["topo_agent_stale"] == 0
    assert agent.lines("topology: ") == agent.lines("topology: ")[:1]
    agent.wait_for(lambda: len(children(agent.pid)) == 1)
