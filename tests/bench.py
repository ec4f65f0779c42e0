"""Ratios against lstopo in the same run, on the same unpacked trees: `python -m tests.bench`.

Nothing here is a test: a time depends on the machine, a ratio hardly. lstopo (Debian: hwloc-nox) reads the
same tree through HWLOC_FSROOT, all of its I/O included, and writes XML to a file.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import machines, paper
from topo_agent.graph.build import build
from topo_agent.graph.paths import all_pairs
from topo_agent.host.live import LiveHost
from topo_agent.host.unpack import unpack
from topo_agent.scan import scan
from topo_agent.views.document import document

RUNS = 11
GOALS = {  # (machine, what): at most this many times the wall time of lstopo
    ("hwloc-128arm", "scan"): 0.5,
    ("dell-xe9680-snc2", "scan"): 1.0,
    ("dell-xe9680-snc2", "dump -f json"): 3.0,
    ("hwloc-128arm", "dump -f json"): 4.0,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trees = {name: machines.tree(name, Path(folder)) for name in ("dell-xe9680-snc2", "hwloc-128arm")}
        if shutil.which("lstopo-no-graphics"):
            for name, tree in trees.items():
                against_lstopo(name, tree)
        else:
            print("no lstopo-no-graphics here (Debian: apt install hwloc-nox): no ratios")
        for name, tree in trees.items():
            where_time_goes(name, tree)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        growth(Path(folder))


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def against_lstopo(name: str, tree: Path) -> None:
    """The two in turn, so that a machine that slows down slows both; the median of the ratios."""
    environment = os.environ | {"HWLOC_FSROOT": str(tree), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "-x86"}
    # An installed package has its byte code beside it; a checkout may be told to write none.
    compiled = os.environ | {"PYTHONPYCACHEPREFIX": f"{tree.parent}/byte-code", "PYTHONDONTWRITEBYTECODE": ""}
    lstopo = ["lstopo-no-graphics", "--whole-io", "--of", "xml", "--force", str(tree) + ".xml"]
    dump = [sys.executable, "-m", "topo_agent", "dump", "-f", "json", "--from", str(tree), "-o", str(tree) + ".json"]
    host = LiveHost(str(tree))
    works: dict[str, Callable[[], object]] = {
        "lstopo": lambda: subprocess.run(lstopo, env=environment, check=True, capture_output=True),
        "scan": lambda: scan(host),
        "dump -f json": lambda: subprocess.run(dump, env=compiled, check=True, capture_output=True),
    }
    times: dict[str, list[float]] = {what: [] for what in works}
    for _ in range(RUNS):
        for what, work in works.items():
            times[what].append(seconds(work))
    for what in ("scan", "dump -f json"):
        ratios = [ours / theirs for ours, theirs in zip(times[what][1:], times["lstopo"][1:], strict=True)]
        ratio, goal = statistics.median(ratios), GOALS[name, what]
        verdict = "ok" if ratio <= goal else "ABOVE"
        print(
            f"{name}: {what} {statistics.median(times[what]) * 1e3:.1f} ms, lstopo"
            f" {statistics.median(times['lstopo']) * 1e3:.1f} ms, ratio {ratio:.2f} (at most {goal}: {verdict})"
        )


def where_time_goes(name: str, tree: Path) -> None:
    """Stages, and how many opens and reads a device costs."""
    inventory = scan(LiveHost(str(tree)))
    topology = build(inventory)
    stages: dict[str, Callable[[], object]] = {
        "scan": lambda: scan(LiveHost(str(tree))),
        "build": lambda: build(inventory),
        "paths": lambda: list(all_pairs(topology)),
        "document": lambda: document(topology),
    }
    spent = {stage: min(seconds(work) for _ in range(RUNS)) for stage, work in stages.items()}
    print(f"{name}: " + ", ".join(f"{stage} {least * 1e3:.1f} ms" for stage, least in spent.items()))
    with counted() as calls:
        scan(LiveHost(str(tree)))
    functions, cpus = len(inventory.pci or ()), len(inventory.cpus or ())
    made = ", ".join(f"{calls[call]} {call}" for call in ("open", "read", "readlink", "listdir"))
    print(f"{name}: {made} for {functions} functions and {cpus} CPUs")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often the calls that cost are made."""
    calls: Counter[str] = Counter()
    originals = {name: getattr(os, name) for name in ("open", "read", "readlink", "listdir")}

    def counting(name: str) -> Callable[..., object]:
        def call(*args: object, **how: object) -> object:
            calls[name] += 1
            return originals[name](*args, **how)

        return call

    for name in originals:
        setattr(os, name, counting(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _memory() -> str | None:
    """A file system in memory, as sysfs is: on a disk's, looking a name up costs more the more names there are."""
    place = "/dev/shm"  # noqa: S108 - the file system itself; the folder in it has a random name
    return place if os.path.ismount(place) and os.access(place, os.W_OK) else None


def growth(folder: Path) -> None:
    """Ten times the functions should cost eleven times as much at most, and 2,048 CPUs beside them add only themselves.

    The machines take turns: an agent scans once and rarely, so none may find the processor's caches full of its
    own files. It is processor time, that of the kernel included.
    """
    print(f"growth, on {folder.parent}:")
    for cpus in (8, 2048):
        trees = {count: large(folder / f"{cpus}-{count}", cpus, count) for count in (200, 2000)}
        for what, work in (("scan", _scan), ("scan and build", _build)):
            spent: dict[int, list[float]] = {count: [] for count in trees}
            for _ in range(RUNS):
                for count, tree in trees.items():
                    started = time.process_time()
                    work(tree)
                    spent[count].append(time.process_time() - started)
            small, many = (statistics.median(spent[count]) for count in (200, 2000))
            verdict = "ok" if many / small <= 11 else "ABOVE"
            print(
                f"{cpus} CPUs with 200 and 2000 functions: {what} {small * 1e3:.1f} and {many * 1e3:.1f} ms,"
                f" ratio {many / small:.1f} (at most 11: {verdict})"
            )


def large(directory: Path, cpus: int, functions: int) -> Path:
    """Two packages, two NUMA nodes, and NICs of eight functions below a root port each."""
    half = cpus // 2
    halves = {0: range(half), 1: range(half, cpus)}
    files = paper.cpus(halves, threads=2) | paper.nodes(halves, {0: (10, 21), 1: (21, 10)})
    for number in range(functions // 8):
        domain, bus = divmod(number, 200)
        root = f"pci{domain:04x}:{bus:02x}"
        port = f"{domain:04x}:{bus:02x}:01.0"
        files |= paper.bridge(port, under=root, numa_node=f"{number % 2}\n")
        for place in range(7):
            address = f"{domain:04x}:{bus + 1:02x}:00.{place}"
            files |= paper.function(address, under=f"{root}/{port}", numa_node=f"{number % 2}\n")
    unpack(paper.machine(files), str(directory))
    return directory


def _scan(tree: Path) -> None:
    scan(LiveHost(str(tree)))


def _build(tree: Path) -> None:
    build(scan(LiveHost(str(tree))))


if __name__ == "__main__":
    main()
