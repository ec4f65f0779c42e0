"""What the agent that stays costs: `python -m tests.bench_daemon [--rescans 5000] [--idle 600]`.

Memory and growth are those of the real program whose interval is 0, so that it scans without a pause; the machine is
the 8-GPU fixture as a directory. Idle it looks at this machine as it is installed. All is read from outside.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests import fixtures
from tests.agent import Agent, children

MACHINE = "xe9680-h200"
MEMORY = 64 << 20  # issue 8, point 8, this and what follows
WARM = 200  # rescans
GROWTH = 1 << 20  # bytes from there on: what a measurement differs by
IDLE = 0.05  # percent of a core
CPU, RATIO = 0.025, 1.0  # seconds of a rescan, or as many times lstopo's
WINDOW = 40  # rescans whose CPU time is measured together
NO_PAUSE = "from topo_agent.daemon import loop; loop._POLL = 0.0"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_daemon")
    parser.add_argument("--rescans", type=int, default=1000, help="how many of them must not make it grow")
    parser.add_argument("--idle", type=float, default=60 if os.environ.get("CI") else 120, metavar="SECONDS")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # An installed package has its byte code beside it; a checkout may be told to write none.
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/byte-code"
        rescans(Path(folder), max(chosen.rescans, WARM + WINDOW))
        idle(Path(folder), chosen.idle)


def verdict(at_most: str, *, good: bool) -> str:
    return f"at most {at_most}: {'ok' if good else 'ABOVE'}"


def rescans(folder: Path, count: int) -> None:
    box = fixtures.tree(MACHINE, folder)
    with agent(folder, "--from", str(box), around=NO_PAUSE) as one:
        reach(one, WARM)
        warm = memory(one)
        print(
            f"{MACHINE}: {mib(warm)} after {WARM} rescans ({verdict(mib(MEMORY), good=warm <= MEMORY)}); {shares(one)}"
        )
        against_lstopo(one, box)
        reach(one, count)
        late = memory(one)
        grown, said = late - warm, one.metrics()
        print(
            f"{MACHINE}: {mib(late)} after {count} rescans, {grown / (1 << 10):+.0f} KiB"
            f" ({verdict('1 MiB', good=grown <= GROWTH)}); {said['topo_agent_open_descriptors']:.0f} descriptors,"
            f" {said['topo_agent_threads']:.0f} threads"
        )


def against_lstopo(one: Agent, box: Path) -> None:
    """The agent scans without a pause; in turn with its windows lstopo reads the same tree."""
    if not shutil.which("lstopo-no-graphics"):
        print("no lstopo-no-graphics here (Debian: apt install hwloc-nox): no ratio")
    ours, theirs = [], []
    for _ in range(5):
        scans, spent = one.scans(), cpu_seconds(one)
        reach(one, scans + WINDOW)
        ours.append((cpu_seconds(one) - spent) / (one.scans() - scans))
        theirs.append(lstopo(box))
    each = statistics.median(ours)
    said = f"{MACHINE}: a rescan {each * 1e3:.1f} ms of CPU, views and files included, pages not"
    other = statistics.median(theirs)
    if other:
        good = each <= CPU or each <= RATIO * other
        said += f", lstopo {other * 1e3:.1f} ms, ratio {each / other:.2f}"
        print(f"{said} ({verdict(f'{CPU * 1e3:g} ms or {RATIO:g} times lstopo', good=good)})")
    else:
        print(f"{said} ({verdict(f'{CPU * 1e3:g} ms', good=each <= CPU)})")
    scan = one.metrics()["topo_agent_scan_cpu_seconds"]
    print(f"{MACHINE}: of that the last scan in its own process, views included, {scan * 1e3:.1f} ms")


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


def idle(folder: Path, seconds: float) -> None:
    with agent(folder) as one:
        time.sleep(10)  # what follows the start is over
        scans, spent = one.scans(), cpu_seconds(one)
        time.sleep(seconds)
        share = (cpu_seconds(one) - spent) / seconds * 100
        print(
            f"idle for {seconds:g} s: {share:.4f}% of a core ({verdict(f'{IDLE}%', good=share <= IDLE)}),"
            f" {one.scans() - scans:.0f} rescans among it; {mib(memory(one))}"
        )


@contextmanager
def agent(folder: Path, *arguments: str, around: str = "") -> Iterator[Agent]:
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
    """PSS, children included: the median of several moments, for a scan needs more while it lasts."""
    found = []
    for _ in range(9):
        found.append(sum(process.memory_full_info().pss for process in processes(one)))
        time.sleep(0.1)
    return int(statistics.median(found))


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


if __name__ == "__main__":
    main()
