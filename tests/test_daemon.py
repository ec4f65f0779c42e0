"""The parts of the agent that stays: when it scans, the process that scans, what it tells systemd and writes."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures, paper
from tests.test_cli import environment
from topo_agent.daemon.log import Log
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.repeated import Repeated
from topo_agent.daemon.scanner import Question
from topo_agent.daemon.schedule import Schedule
from topo_agent.daemon.worker import Worker
from topo_agent.graph.checks import findings
from topo_agent.graph.pairing import pairs
from topo_agent.host import Unavailable, uevents
from topo_agent.host.netlink import LinkEvents
from topo_agent.host.uevents import Uevents
from topo_agent.host.unpack import unpack
from topo_agent.publishers.state import State, history
from topo_agent.views.changes import changes
from topo_agent.views.page import page

# --- when ----------------------------------------------------------------------------------------------------


def test_a_burst_is_one_scan() -> None:
    """Issue 8, point 1: settle 0.5 s."""
    when = Schedule(300, 0)
    assert when.due() == 0
    when.scanning(0)
    assert when.due() == 300
    for tenth in range(10):
        when.woken(10 + tenth / 10)
    assert when.due() == pytest.approx(10.9 + 0.5)
    when.scanning(11.4)
    assert when.due() == pytest.approx(311.4)


def test_a_burst_that_does_not_end_is_looked_at() -> None:
    """Issue 8, point 1: at most 5 s."""
    when = Schedule(300, 0)
    when.scanning(0)
    for tenth in range(1000):
        when.woken(10 + tenth / 10)
    assert when.due() == 15


def test_an_event_while_it_scans_is_the_next_scan() -> None:
    when = Schedule(300, 0)
    when.scanning(0)
    when.woken(1)
    assert when.due() == 1.5


def test_a_failure_is_tried_again_soon() -> None:
    when = Schedule(300, 0)
    when.scanning(0)
    when.retry(15)
    assert when.due() == 15
    when.scanning(15)
    assert when.due() == 315


def test_a_link_that_is_low_twice() -> None:
    """pairing.md §12: in two scans at least 60 s apart."""
    seen = Repeated()
    seen.read(["link_width:a", "link_speed:b"], 0)
    assert seen.again(59) == []
    seen.read(["link_width:a"], 30)
    seen.read(["link_width:a", "link_speed:b"], 60)
    assert seen.again(60) == ["link_width:a"]
    seen.read([], 61)
    assert seen.again(200) == []


# --- the process that scans ----------------------------------------------------------------------------------


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.stop()
    assert one.left == 0


def answer(worker: Worker, seconds: float = 30) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        select.select([worker.fileno()], [], [], 1)
        for said in worker.heard():
            return said
    pytest.fail("no answer")


def asked(**more: Any) -> dict[str, Any]:
    return Question(**more)._asdict()


@pytest.fixture
def box(common: Path) -> Path:
    return fixtures.tree("dgx-h100", common)


def test_one_process_answers_again_and_again(worker: Worker, box: Path) -> None:
    worker.ask(asked(source=str(box)))
    first, pid = answer(worker), worker.pid
    worker.ask(asked(source=str(box)))
    second = answer(worker)
    assert worker.pid == pid
    assert {key: said for key, said in first.items() if key != "cost"} == {
        key: said for key, said in second.items() if key != "cost"
    }
    assert "8 GPUs" in first["status"]
    assert json.loads(first["topology"])["digest"] == first["digest"]


def test_what_moves_by_itself_is_seen(worker: Worker, tmp_path: Path) -> None:
    """The same structure is no reason to answer as before."""
    address = "0000:17:00.0"
    link = paper.link_files() | {"current_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n"}
    files = paper.two_sockets() | paper.function(address, under="pci0000:16", files=link)
    unpack(paper.machine(files), str(tmp_path / "box"))
    widths = []
    for width in ("16\n", "8\n", "8\n", "16\n"):
        (tmp_path / "box" / paper.DEVICES / address / "current_link_width").write_text(width)
        worker.ask(asked(source=str(tmp_path / "box")))
        said = answer(worker)
        widths.append(json.loads(said["topology"])["state"][f"pci:{address}"]["link"]["width"])
    assert widths == [16, 8, 8, 16]


def test_what_is_no_machine_is_a_sentence(worker: Worker, box: Path) -> None:
    worker.ask(asked(source="/nowhere"))
    assert "/nowhere" in answer(worker)["error"]
    worker.ask(asked(source=str(box)))
    assert answer(worker)["whole"] is True


def test_a_process_that_hangs_is_given_up(worker: Worker, box: Path) -> None:
    worker.ask(asked(source=str(box)))
    assert answer(worker)
    hung = worker.pid or 0
    os.kill(hung, signal.SIGSTOP)
    worker.ask(asked(source=str(box)))
    worker.give_up()
    assert (worker.pid, worker.fileno()) == (None, -1)
    worker.ask(asked(source=str(box)))
    assert worker.pid != hung
    assert answer(worker)["whole"] is True


def test_a_process_that_ends_is_told(worker: Worker, box: Path) -> None:
    worker.ask(asked(source=str(box)))
    assert answer(worker)
    os.kill(worker.pid or 0, signal.SIGKILL)
    with pytest.raises(EOFError, match="status -9"):
        answer(worker)


def test_whoever_asked_is_gone(box: Path) -> None:
    """kill -9 of the agent while it is answered: no traceback in the journal."""
    child = subprocess.Popen(
        [sys.executable, "-m", "topo_agent.daemon.scanner"], env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.close()
    _, said = child.communicate(json.dumps(asked(source=str(box))).encode() + b"\n", timeout=60)
    assert (child.returncode, said) == (0, b"")


CIRCLES = """
import gc, importlib, sys, weakref
from topo_agent.daemon import scanner

class Circle:
    def __init__(self):
        self.itself = self

made, left, scan = [], [], scanner.scan

def circular(host, **how):
    importlib.import_module(["colorsys", "colorsys", "sched", "sched"][len(made)])
    made.append(weakref.ref(Circle()))
    left.append(sum(one() is not None for one in made[:-1]))
    return scan(host, **how)

scanner.scan = circular
gc.disable()
scanner.main()
print(left, file=sys.stderr)
"""


def test_circles_do_not_outlive_their_scan(box: Path) -> None:
    """Those of pyroute2's messages; neither where a scan imports something, nor where it changes nothing."""
    done = subprocess.run(
        [sys.executable, "-c", CIRCLES], env=environment(), input=4 * (json.dumps(asked(source=str(box))) + "\n"),
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == "[0, 0, 0, 0]\n"


# --- events of the kernel ------------------------------------------------------------------------------------


VETH = f"ta{os.getpid()}"  # tests may run side by side


def _can_make_links() -> bool:
    ip = shutil.which("ip")
    if ip is None or os.geteuid() != 0:
        return False
    made = subprocess.run([ip, "link", "add", f"{VETH}p", "type", "veth"], capture_output=True, check=False)
    subprocess.run([ip, "link", "del", f"{VETH}p"], capture_output=True, check=False)
    return made.returncode == 0


needs_links = pytest.mark.skipif(not _can_make_links(), reason="no `ip` here, or no right to make an interface")


@needs_links
@pytest.mark.parametrize("kind", [Uevents, LinkEvents])
def test_a_new_interface_is_heard(kind: Callable[[], Any]) -> None:
    try:
        events = kind()
    except Unavailable as error:
        pytest.skip(str(error))
    name = f"{VETH}a"
    subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{VETH}b"], check=True)
    try:
        until, heard = time.monotonic() + 10, ""
        while name not in heard and time.monotonic() < until:
            select.select([events.fileno()], [], [], 1)
            heard += " ".join(events.heard())
    finally:
        subprocess.run(["ip", "link", "del", name], check=True)
    assert name in heard
    getattr(events, "close", lambda: None)()


def test_a_user_namespace_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """lib/kobject_uevent.c, uevent_net_init: only namespaces of the first user namespace get events."""
    monkeypatch.setattr(uevents, "_uid_map", lambda: ("0", "100000", "65536"))
    with pytest.raises(Unavailable, match="user namespace"):
        Uevents()


def test_no_libudev_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyudev looks for the library when it is first used; in a small container it is not there."""
    import pyudev

    def missing(*_: object, **__: object) -> None:
        raise ImportError("No library named udev")

    monkeypatch.setattr(pyudev, "Context", missing)
    with pytest.raises(Unavailable, match="no libudev"):
        Uevents()


# --- what changed --------------------------------------------------------------------------------------------

BEFORE: dict[str, Any] = {
    "devices": [
        {"id": "pci:0000:18:00.0", "kind": "nic", "names": {"rdma": ["mlx5_0"]}, "numa_node": "numa:0"},
        {"id": "pci:0000:1b:00.0", "kind": "gpu", "link": {"max_gts": 32.0, "max_width": 16}},
    ],
    "paths": [{"a": "pci:0000:18:00.0", "b": "pci:0000:1b:00.0", "class": "PIX", "reason": "common switch"}],
    "state": {"pci:0000:1b:00.0": {"link": {"gts": 32.0}}},
}


def differing(**parts: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.sentence) for one in changes(BEFORE, {**BEFORE, **parts})]


def test_state_is_no_change() -> None:
    assert differing(state={}, diagnostics=[{"level": "note"}]) == []


def test_a_device_that_went() -> None:
    assert differing(devices=BEFORE["devices"][1:], paths=[]) == [
        ("removed", "removed pci:0000:18:00.0 (nic mlx5_0)"),
    ]


def test_a_device_that_came() -> None:
    new = {"id": "pci:0000:41:00.0", "kind": "nvme", "names": {"nvme": ["nvme0"]}}
    assert differing(devices=[*BEFORE["devices"], new]) == [("added", "added pci:0000:41:00.0 (nvme nvme0)")]


def test_a_device_that_is_elsewhere() -> None:
    nic, gpu = BEFORE["devices"]
    assert differing(
        devices=[{**nic, "numa_node": "numa:1"}, {**gpu, "link": {"max_gts": 16.0, "max_width": 16}}],
        paths=[{**BEFORE["paths"][0], "class": "SYS"}],
    ) == [
        ("numa", "pci:0000:18:00.0 (nic mlx5_0): numa_node was numa:0, is numa:1"),
        ("link_max", "pci:0000:1b:00.0 (gpu): link was max_gts 32.0, max_width 16, is max_gts 16.0, max_width 16"),
        ("path", "path pci:0000:18:00.0 to pci:0000:1b:00.0: was PIX, is SYS"),
    ]


def test_another_reason_for_the_same_is_no_change() -> None:
    assert differing(paths=[{**BEFORE["paths"][0], "reason": "another sentence"}]) == []


def test_findings_of_repeated_readings() -> None:
    """Issue 7, point 4: one snapshot gives info, only a repeated reading gives warning; a GPU may be idle for long."""
    topology = fixtures.topology("xe9680-h200")
    low = [one for one in findings(topology, pairs(topology)) if one.code in ("link_speed", "link_width")]
    again = frozenset(f"{one.code}:{subject}" for one in low for subject in one.subjects)
    after = findings(topology, pairs(topology), again)
    told = {(one.code, subject): one.severity for one in after for subject in one.subjects}
    for one in low:
        assert one.severity == "info"
        for subject in one.subjects:
            idle = one.code == "link_speed" and "idle" in one.evidence
            assert told[one.code, subject] == ("info" if idle else "warning")


# --- files ---------------------------------------------------------------------------------------------------


def test_the_state_directory(tmp_path: Path) -> None:
    state = State(str(tmp_path / "run"), mode=0o640, changes=3)
    state.topology('{"a": 1}\n')
    assert (tmp_path / "run/topology.json").read_text() == '{"a": 1}\n'
    assert (tmp_path / "run/topology.json").stat().st_mode & 0o777 == 0o640
    for number in range(5):
        state.changed([{"what": f"change {number}"}])
    assert [one["what"] for one in history(str(tmp_path / "run"))] == ["change 2", "change 3", "change 4"]
    again = State(str(tmp_path / "run"), changes=3)
    again.changed([{"what": "after a restart"}])
    assert [one["what"] for one in history(str(tmp_path / "run"))] == ["change 3", "change 4", "after a restart"]
    state.topology(None)
    state.topology(None)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["history.jsonl"]


def test_a_history_that_is_damaged_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_bytes(b'{"what": "one"}\n\xff\xfe\n[1]\n{"what": "tw')
    assert history(str(tmp_path)) == [{"what": "one"}]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(str(tmp_path))
    state.topology("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        state.topology("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"topology.json": "old"}


# --- words ---------------------------------------------------------------------------------------------------


def test_systemd_hears(tmp_path: Path) -> None:
    """sd_notify(3): one datagram, a word a line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        said = Notify({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
        said.say("READY=1", "STATUS=8 GPUs\nFDSTORE=1")
        assert manager.recv(1000) == b"READY=1\nSTATUS=8 GPUs FDSTORE=1"
    assert said.watchdog == 30
    said.say("WATCHDOG=1")  # nobody listens any more


def test_a_watchdog_of_somebody_else() -> None:
    assert Notify({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}).watchdog is None
    Notify({}).say("READY=1")


def test_the_log() -> None:
    out = io.StringIO()
    log = Log("json", out=out, clock=lambda: "2026-05-04T03:02:01Z")
    log.note("topology", "removed\na NIC", kind="removed")
    log.once("scan", "no answer")
    log.once("scan", "no answer")
    log.well("scan", "again")
    log.well("scan", "again")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0] == {
        "time": "2026-05-04T03:02:01Z", "level": "info", "event": "topology", "message": "removed a NIC",
        "kind": "removed",
    }  # fmt: skip
    assert [(one["level"], one["message"]) for one in lines[1:]] == [("warning", "no answer"), ("info", "again")]


def test_the_log_of_the_journal() -> None:
    """sd-daemon(3): the priority in front."""
    out = io.StringIO()
    Log(out=out, journal=True).trouble("files", "full")
    assert out.getvalue() == "<4>files: full\n"


def test_the_page_is_only_text() -> None:
    """A device may be called anything."""
    text = page("topo-agent", tree="<script>alert(1)</script>", matrix='"&', findings="")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text
