"""Ends the programs of a lab whose own process died before it could.

Runs beside it and reads its standard input, which ends with that process, whatever ended it: `+ PID` is the leader of
a process group that started, `- PID` one that is over. At the end what still runs is killed and the folder removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time


def main() -> None:
    leaders: set[int] = set()
    for line in sys.stdin:
        sign, leader = line.split()
        (leaders.add if sign == "+" else leaders.discard)(int(leader))
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    for _ in range(50):  # what dies may still write
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        if not os.path.exists(sys.argv[1]):
            break
        time.sleep(0.1)


if __name__ == "__main__":
    main()
