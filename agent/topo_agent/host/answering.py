"""The process that asks a driver, for child.py: `python -m topo_agent.host.answering nvml`.

It writes its answer to stdout, as {"answer": …} or {"unavailable": [reason, sentence]}, and how far it came to stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from typing import NoReturn

from topo_agent.host import Json, Unavailable

MARK = "topo-agent: "
"""Begins what this process says itself on stderr; the rest is the library's."""
DOORS = {"nvml": "the NVIDIA driver"}
"""Modules of this package that can be asked, and what is behind them."""


def main() -> NoReturn:
    """Its answer to stdout, which nobody else may write to; it ends without asking the library."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    _end_with_parent()
    try:
        said: dict[str, Json] = {"answer": _asked(sys.argv[1])}
    except Unavailable as missing:
        said = {"unavailable": [missing.reason, str(missing)]}
    data = memoryview(json.dumps(said).encode("ascii"))
    while data:
        data = data[os.write(answers, data) :]
    os._exit(0)


def _asked(name: str) -> Json:
    if name not in DOORS:
        raise Unavailable("not_supported", f"nothing here answers for {name}")
    try:
        door = importlib.import_module(f"topo_agent.host.{name}")
    except ImportError as error:
        raise Unavailable("not_supported", str(error)) from None
    answer: Json = door.ask(lambda stage: os.write(2, f"{MARK}{stage}\n".encode()))
    return answer


def _end_with_parent() -> None:
    """Nobody reads the answer of a parent that was killed; and a crash is told, no core is dumped."""
    import ctypes
    import resource

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # linux/prctl.h PR_SET_PDEATHSIG
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
