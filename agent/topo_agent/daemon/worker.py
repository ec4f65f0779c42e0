"""The process that scans, as the loop sees it: it may be given up at any moment, and another one takes its place.

`python -m topo_agent.daemon.scanner` is that process. It is asked with one line of JSON and answers with some.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from topo_agent.daemon import memory
from topo_agent.host import Json

_LINE_AT_MOST = 64 << 20  # bytes of one answer
_STEP = 1 << 20  # bytes of one reading


class Worker:
    """One child at most. What hangs in the kernel outlives SIGKILL: it is left, and reaped when it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self.gave_up = 0.0
        """When the last one was, by the monotonic clock."""
        self._said = bytearray()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def left(self) -> int:
        """How many were given up and have not ended."""
        self._left = [one for one in self._left if one.poll() is None]
        return len(self._left)

    def fileno(self) -> int:
        """Of its answers; -1 while there is no child."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else -1

    def ask(self, question: dict[str, Json]) -> None:
        """OSError where no process can be started, or the one there is does not take the question."""
        if self._process is None:
            self._left = [one for one in self._left if one.poll() is None]  # reaped
            self._process = _spawned()
            self._said.clear()
            os.set_blocking(self.fileno(), False)
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def heard(self) -> Iterator[dict[str, Json]]:
        """Every whole answer that has come; EOFError where the child ended or says what is no answer."""
        while True:
            try:
                chunk = os.read(self.fileno(), _STEP)
            except BlockingIOError:
                break
            if not chunk:
                raise EOFError(self._end())
            self._said += chunk
            if len(self._said) > _LINE_AT_MOST:
                raise EOFError("its answer does not end")
        *lines, rest = bytes(self._said).split(b"\n") if b"\n" in self._said else (self._said,)
        self._said = bytearray(rest)
        for line in lines:
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                raise EOFError("its answer is none") from None
            if isinstance(said, dict):
                yield said

    def give_up(self) -> None:
        """Killed with all that it started, and not waited for."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._left.append(process)
        self.gave_up = time.monotonic()

    def stop(self) -> None:
        """Given up, and waited for as long as a process takes that can be killed at all."""
        self.give_up()
        for process in self._left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)

    def _end(self) -> str:
        assert self._process is not None  # noqa: S101 it has just answered
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return f"it ended with status {self._process.returncode}"


def _spawned() -> subprocess.Popen[bytes]:
    """A fresh interpreter in `/`, in a group of its own; its words on stderr are ours."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [path for path in sys.path if os.path.isabs(path)]
    paths += [] if root in paths else [root]
    return subprocess.Popen(
        [sys.executable, "-m", "topo_agent.daemon.scanner"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | memory.FOR_CHILDREN | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd="/", start_new_session=True,
    )  # fmt: skip
