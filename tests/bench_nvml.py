"""What a question to NVML costs: `python -m tests.bench_nvml` prints wall time and the child's memory per profile."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import nvml_stub
from topo_agent.host import Unavailable, child

_TIMES = 5

# A small parent of its own: until it runs another program, a child counts the memory of the one that started it.
_MEASURED = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "topo_agent.host.answering", "nvml"], os.environ,
                     file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)])
print(os.wait4(pid, 0)[2].ru_maxrss)
"""


def main() -> None:
    rows: list[tuple[str, ...]] = [("profile", "GPUs", "KiB", "ms", "slowest", "MiB")]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        libraries = {old: Path(folder, f"old-{old}") for old in (False, True)}
        for old, place in libraries.items():
            place.mkdir()
            nvml_stub.build(place, old_driver=old)
        names = [name for name in nvml_stub.PROFILES if name not in ("hang", "slow-start")]
        rows += [row(name, libraries, Path(folder, "table")) for name in names]
    for line in rows:
        print(f"{line[0]:<18}{line[1]:>6}{line[2]:>8}{line[3]:>8}{line[4]:>9}{line[5]:>7}")


def row(name: str, libraries: dict[bool, Path], table: Path) -> tuple[str, ...]:
    short = nvml_stub.profile(name)
    said = nvml_stub.document(short)
    table.write_text(nvml_stub.table(said, short.get("faults", {})), encoding="utf-8")
    os.environ["TOPO_AGENT_STUB_NVML"] = str(table)
    os.environ["LD_LIBRARY_PATH"] = str(libraries[short.get("old_driver", False)])
    times: list[float] = []
    answer = ""
    for _ in range(_TIMES):
        began = time.perf_counter()
        try:
            answer = json.dumps(child.ask_in_child("nvml", 30))
        except Unavailable:
            answer = ""
        times.append((time.perf_counter() - began) * 1000)
    size = f"{len(answer) / 1024:.0f}" if answer else "-"
    command = [sys.executable, "-S", "-c", _MEASURED]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    middle, most = statistics.median(times), max(times)
    return name, str(len(said["gpus"])), size, f"{middle:.0f}", f"{most:.0f}", f"{peak / 1024:.1f}"


if __name__ == "__main__":
    main()
