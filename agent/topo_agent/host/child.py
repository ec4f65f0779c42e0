"""A question to a driver that may never answer, asked in a process of its own that can be given up.

answering.py is that process; this is its parent, which waits until a deadline. A process that sits in the kernel
outlives SIGKILL: it is left alone and remembered (turn.py), and nobody else of this user asks before it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from topo_agent.host import DOCUMENT_LIMIT, Json, Silent, Unavailable, Watch, as_array, as_object
from topo_agent.host.answering import DOORS, MARK
from topo_agent.host.turn import Turn

SLOW_START = 5.0
"""Seconds of initialisation that are worth a word: eight GPUs that the driver keeps ready take about one."""

_TICK = 0.25  # seconds between two looks at the clock
_TO_DIE = 2.0  # seconds that SIGKILL takes at most where the kernel can be interrupted
_TO_END = 0.3  # the answer is here: its process is waited for only so long
_NOISE = 64 * 1024  # bytes of stderr that are kept

_INITIALISING = "initialising"

_LEFT: list[subprocess.Popen[bytes]] = []
"""Children that did not end when they were killed: reaped when they do."""


def ask_in_child(name: str, deadline: float, watch: Watch | None = None) -> Json:
    """The document that host/<name>.py gives, at most `deadline` seconds from now.

    Unavailable with `timeout`, with `driver_error` for a crash or an answer that is none, or as the child says.
    """
    watch = watch or Silent()
    question = _Question(name, time.monotonic() + deadline, deadline)
    try:
        return question.asked(watch)
    finally:
        watch.done()


class _Question:
    """One document asked once."""

    def __init__(self, name: str, until: float, seconds: float) -> None:
        self._name = name
        self._called = DOORS.get(name, name)
        self._until = until
        self._seconds = seconds
        self._stage = ""
        self._noise = b""
        self._starting: float | None = None  # when initialisation began
        self._start: float | None = None  # how long it took

    def asked(self, watch: Watch) -> Json:
        with self._turn(watch) as lock:
            process = self._spawned()
            lock.write(process.pid, "asking")
            said = None
            try:
                said = self._listen(process, watch)
            finally:
                self._end(process, lock, said)
        answer = self._read(process, said)
        if self._start is not None and self._start >= SLOW_START:
            watch.remark(_slow(self._called, self._start, answer))
        return answer

    @contextlib.contextmanager
    def _turn(self, watch: Watch) -> Iterator[Turn]:
        """Nobody else of this user asks until this is left, or while a process that was given up still lives."""
        for process in [*_LEFT]:
            if process.poll() is not None:
                _LEFT.remove(process)
        lock = Turn(self._name)
        try:
            while (other := lock.taken()) is not None:
                pid, _, doing = other
                if doing == "stuck":
                    why = f"process {pid} still waits for an earlier answer and cannot be ended; not asked again"
                    raise Unavailable("timeout", why)
                if time.monotonic() >= self._until:
                    raise Unavailable("timeout", f"{self._waited()}; process {pid} asks it already")
                watch.waiting(f"waiting for process {pid}, which asks {self._called}")
                time.sleep(_TICK / 5)
            yield lock
        finally:
            lock.close()

    def _spawned(self) -> subprocess.Popen[bytes]:
        """A fresh interpreter in `/`, not where we were started: `-m` looks for modules there first."""
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [path for path in sys.path if os.path.isabs(path)]
        paths += [] if root in paths else [root]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "topo_agent.host.answering", self._name],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, cwd="/",
                close_fds=True, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable("driver_error", f"no process could be started to ask: {error}") from None

    def _listen(self, process: subprocess.Popen[bytes], watch: Watch) -> bytes:
        """All that it writes to stdout until it closes it."""
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 both are pipes
        said = bytearray()
        with selectors.DefaultSelector() as pipes, process.stdout as out, process.stderr as err:
            pipes.register(out, selectors.EVENT_READ)
            pipes.register(err, selectors.EVENT_READ)
            while True:
                rest = self._until - time.monotonic()
                if rest <= 0:
                    raise Unavailable("timeout", f"{self._waited()}{self._reached()}")
                for key, _ in pipes.select(min(rest, _TICK)):
                    chunk = os.read(key.fd, 1 << 16)
                    if key.fileobj is err:
                        if not chunk:
                            pipes.unregister(err)
                        self._hear(chunk)
                    elif not chunk:
                        self._drain(err)
                        return bytes(said)
                    else:
                        said += chunk
                        if len(said) > DOCUMENT_LIMIT:
                            raise Unavailable("driver_error", f"the answer is longer than {DOCUMENT_LIMIT >> 20} MiB")
                watch.waiting(f"asking {self._called} … {self._stage}")

    def _drain(self, err: object) -> None:
        """What is left on stderr: a crash explains itself there before stdout closes."""
        descriptor = getattr(err, "fileno")()  # noqa: B009 typed as IO[bytes]
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(descriptor, 1 << 16):
                self._hear(chunk)

    def _hear(self, chunk: bytes) -> None:
        """How far it came, line by line; anything else on stderr is the library's, its end is kept."""
        self._noise = (self._noise + chunk)[-_NOISE:]
        lines = self._noise.split(b"\n")
        self._noise = lines.pop()
        for line in lines:
            text = line.decode("utf-8", "replace")
            if not text.startswith(MARK):
                continue
            now = time.monotonic()
            self._stage = text.removeprefix(MARK)[:80]
            if self._stage == _INITIALISING:
                self._starting = now
            elif self._starting is not None and self._start is None:
                self._start = now - self._starting

    def _end(self, process: subprocess.Popen[bytes], lock: Turn, said: bytes | None) -> None:
        """It has answered and ends by itself, or is killed; what does neither is left, and remembered."""
        if said is None:
            process.kill()
        try:
            process.wait(_TO_END if said else _TO_DIE)
        except subprocess.TimeoutExpired:
            # Closing the last handle of a GPU may take seconds, which no signal shortens: that one ends by itself.
            lock.write(process.pid, "ending" if said else "stuck")
            if said == b"":
                process.kill()
            _LEFT.append(process)
        else:
            lock.clear()

    def _read(self, process: subprocess.Popen[bytes], said: bytes) -> Json:
        status = process.returncode
        if not said and status is not None and status < 0:
            raise Unavailable("driver_error", f"its library crashed ({_signal(-status)}){self._reached()}")
        try:
            whole = json.loads(said)
        except (ValueError, RecursionError):
            raise Unavailable("driver_error", f"what came is no answer (status {status}){self._reached()}") from None
        match whole:
            case {"answer": answer}:
                found: Json = answer
                return found
            case {"unavailable": [str(reason), str(why)]}:
                raise Unavailable(reason, why)
        raise Unavailable("driver_error", "what came is no answer")

    def _waited(self) -> str:
        return f"no answer within {self._seconds:g} s (--timeout)"

    def _reached(self) -> str:
        if self._stage == _INITIALISING:
            return "; it was still initialising, which takes long where persistence mode is off"
        return f"; it came as far as {self._stage}" if self._stage else ""


def _slow(called: str, seconds: float, answer: Json) -> str:
    modes = [as_object(gpu).get("persistence_mode") for gpu in as_array(as_object(answer).get("gpus"))]
    told = f"{called} took {seconds:.0f} s to initialise"
    return f"{told}: persistence mode is off; nvidia-persistenced keeps it ready" if 0 in modes else told


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
