"""What the agent that stays costs, for tests.bench_daemon and tests/labs/test_cost.py.

Memory and growth are those of the real program whose interval is 0, so that it scans without a pause; the machine is
the 8-GPU fixture as a directory. Idle it looks at this machine as it is installed. All is read from outside, and
nothing of it is wall time: other programs may run beside it.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests import fixtures
from tests.agent import Agent, children

MACHINE = "dgx-h100"
MEMORY = 64 << 20  # issue 8, point 8, this and what follows
WARM = 200  # rescans
GROWTH = 1 << 20  # bytes from there on: what a measurement differs by
IDLE = 0.05  # percent of a core
CPU, RATIO = 0.025, 1.0  # seconds of a rescan, or as many times lstopo's
WINDOW = 40  # rescans whose CPU time is measured together
NO_PAUSE = "from topo_agent.daemon import loop; loop._POLL = 0.0"


class Figure(NamedTuple):
    """One that has a limit."""

    said: str
    at_most: str
    good: bool

    def __str__(self) -> str:
        return f"{self.said} (at most {self.at_most}: {'ok' if self.good else 'ABOVE'})"


def rescans(folder: Path, count: int) -> Generator[Figure, None, None]:
    """Memory when it is warm, a rescan's processor time, and how much it has grown after so many."""
    box = fixtures.tree(MACHINE, folder)
    with agent(folder, "--from", str(box), around=NO_PAUSE) as one:
        reach(one, WARM)
        warm, parts, held = memory(one), shares(one), anonymous(one)
        yield Figure(f"{MACHINE}: {mib(warm)} after {WARM} rescans, {parts}", mib(MEMORY), warm <= MEMORY)
        yield against_lstopo(one, box)
        reach(one, count)
        grown, said = anonymous(one) - held, one.metrics()
        left = f"{said['topo_agent_open_descriptors']:.0f} descriptors, {said['topo_agent_threads']:.0f} threads"
        yield Figure(
            f"{MACHINE}: {grown / (1 << 10):+.0f} KiB of {mib(held)} of its own after {count} rescans, {left}",
            mib(GROWTH),
            grown <= GROWTH,
        )


def against_lstopo(one: Agent, box: Path) -> Figure:
    """The agent scans without a pause; in turn with its windows lstopo reads the same tree."""
    ours, theirs = [], []
    for _ in range(5):
        scans, spent = one.scans(), cpu_seconds(one)
        reach(one, scans + WINDOW)
        ours.append((cpu_seconds(one) - spent) / (one.scans() - scans))
        theirs.append(lstopo(box))
    each, other = sorted(ours)[1], min(theirs)  # what others do at the same time makes it more, and never less
    scan = one.metrics()["topo_agent_scan_cpu_seconds"]
    said = (
        f"{MACHINE}: a rescan {each * 1e3:.1f} ms of CPU, views and files included, pages not, of which the last"
        f" scan in its own process took {scan * 1e3:.1f} ms"
    )
    if not other:
        return Figure(f"{said}; no lstopo-no-graphics here (Debian: hwloc-nox)", f"{CPU * 1e3:g} ms", 0 < each <= CPU)
    said += f"; lstopo {other * 1e3:.1f} ms, ratio {each / other:.2f}"
    return Figure(said, f"{CPU * 1e3:g} ms or {RATIO:g} times lstopo", 0 < each <= max(CPU, RATIO * other))


def lstopo(box: Path) -> float:
    """Its CPU time; 0 where it is not installed."""
    program = shutil.which("lstopo-no-graphics")
    if not program:
        return 0.0
    environment = os.environ | {"HWLOC_FSROOT": str(box), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "-x86"}
    command = [program, "--whole-io", "--of", "xml", "--force", f"{box}.xml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Idle:
    """An agent that has nothing to do, since what follows its start is over."""

    def __init__(self, one: Agent) -> None:
        self._agent = one
        one.wait_for(lambda: one.scans() >= 1)
        one.wait_for(self._rests)
        self._begin()

    def _rests(self) -> bool:
        return len({cpu_seconds(self._agent) for _ in range(4)}) == 1

    def _begin(self) -> None:
        self._scans, self._since = self._agent.scans(), time.monotonic()
        self._spent = cpu_seconds(self._agent)

    def over(self, seconds: float) -> tuple[Figure, float]:
        """From the last figure or the start on, at least for so long; and how many rescans were among it."""
        time.sleep(max(self._since + seconds - time.monotonic(), 0.0))
        spent, took = cpu_seconds(self._agent) - self._spent, time.monotonic() - self._since
        scans = self._agent.scans() - self._scans
        self._begin()
        share = spent / took * 100
        said = f"idle for {took:.0f} s: {spent * 1e3:.3f} ms, {share:.4f}% of a core, {scans:.0f} rescans among it"
        return Figure(said, f"{IDLE}%", share <= IDLE), scans

    def memory(self) -> Figure:
        """With what listens to the kernel, which a machine in a directory needs not."""
        used, parts = memory(self._agent), shares(self._agent)
        return Figure(f"idle, live: {mib(used)}, {parts}", mib(MEMORY), used <= MEMORY)


@contextmanager
def idle(folder: Path, *arguments: str) -> Iterator[Idle]:
    with agent(folder, *arguments) as one:
        yield Idle(one)


@contextmanager
def agent(folder: Path, *arguments: str, around: str = "") -> Iterator[Agent]:
    folder.mkdir(exist_ok=True)
    one = Agent(folder / "http", "--state-dir", str(folder / "state"), *arguments, around=around)
    try:
        yield one.ready()
    finally:
        one.stop()


def reach(one: Agent, scans: float) -> None:
    """Asked rarely: an answer costs, too."""
    while one.scans() < scans:
        time.sleep(0.5)


def processes(one: Agent) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in (one.pid, *children(one.pid))]


def memory(one: Agent) -> int:
    """PSS, children included. Another agent beside it has a half of the libraries: 8 MiB less."""
    return _median(one, lambda process: process.memory_full_info().pss)


def anonymous(one: Agent) -> int:
    """What is its own, children included, whatever else runs: proc(5), smaps_rollup."""
    return _median(one, _anonymous)


def _median(one: Agent, of: Callable[[psutil.Process], int]) -> int:
    """Of several moments, for a scan needs more while it lasts."""
    found = []
    for _ in range(9):
        found.append(sum(map(of, processes(one))))
        time.sleep(0.1)
    return int(statistics.median(found))


def _anonymous(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    said = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
    return (said["Anonymous"] + said["Swap"]) << 10


def shares(one: Agent) -> str:
    return ", ".join(f"{process.memory_full_info().pss >> 20} MiB {name}"
                     for name, process in zip(("loop", "scanner"), processes(one), strict=False))  # fmt: skip


def cpu_seconds(one: Agent) -> float:
    """Of the threads that stay: one that answered a client takes its own with it, once it has ended."""
    time.sleep(0.3)
    return sum(sum(_nanoseconds(process.pid)) for process in processes(one)) / 1e9


def _nanoseconds(pid: int) -> Iterator[int]:
    """Of every thread: /proc/PID/stat counts hundredths of a second only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield int((task / "schedstat").read_text(encoding="ascii").split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
