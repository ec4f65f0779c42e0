"""Waits for a change and scans, until it is told to stop. One thread, and it never blocks.

What may hang (sysfs, a driver) runs in a worker that is given up after its time; what may be slow (clients) runs in
the threads of the server. Times are of the monotonic clock.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from topo_agent.daemon.counts import Counts
from topo_agent.daemon.known import Known
from topo_agent.daemon.log import Log
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.offer import Offer, Seen
from topo_agent.daemon.repeated import Repeated
from topo_agent.daemon.schedule import Schedule
from topo_agent.daemon.signals import caught
from topo_agent.daemon.worker import Worker
from topo_agent.host import Json
from topo_agent.settings import Settings

_LATE = 10.0  # seconds that a scan has besides the drivers' own time
_POLL = 60.0  # seconds between two scans where the kernel tells nothing
_RETRY = 15.0  # seconds after a scan that failed
_ENDS = 2.0  # seconds that a killed process takes at most where it can be killed
_CONFIRM = 1.0  # seconds after which a reading that is new is confirmed: labels follow within five, scans included


class Waker(Protocol):
    """A socket that says that something happened."""

    def fileno(self) -> int: ...

    def heard(self) -> list[str]: ...


class Loop:
    """What a scan brings is for `known`. `offer` and `counts` are read by others meanwhile."""

    def __init__(
        self,
        settings: Settings,
        *,
        source: str | None,
        log: Log,
        known: Known,
        offer: Offer,
        counts: Counts,
        wakers: list[Waker],
        polling: bool,
        reload: Callable[[], Settings],
        notify: Notify,
    ) -> None:
        self._settings, self._source, self._log = settings, source, log
        self._known, self._offer, self._counts = known, offer, counts
        self._wakers, self._polling = wakers, polling
        self._reload, self._notify = reload, notify
        self._schedule = Schedule(self._every(), time.monotonic())
        self._repeated = Repeated()
        self._worker = Worker()
        self._deadline: float | None = None  # of the scan that runs
        self._signalled: set[int] = set()  # and not looked at yet
        self._stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT; SIGHUP reads the settings anew."""
        self._known.begin()
        with ExitStack() as left:
            select = left.enter_context(selectors.DefaultSelector())
            signals = left.enter_context(caught(self._signalled))
            left.callback(self._worker.stop)
            select.register(signals, selectors.EVENT_READ, lambda: self._signals(signals))
            for waker in self._wakers:
                select.register(waker.fileno(), selectors.EVENT_READ, lambda one=waker: self._woken(one))
            child, answers = None, -1
            while not self._stopping:
                self._turn(time.monotonic())
                if child != self._worker.pid:  # its pipe may well have the number of the last one's
                    if answers >= 0:
                        select.unregister(answers)
                    child, answers = self._worker.pid, self._worker.fileno()
                    if answers >= 0:
                        select.register(answers, selectors.EVENT_READ, self._hear)
                now = time.monotonic()
                rest = self._wait(now)
                self._offer.turns_by = now + rest
                for key, _ in select.select(rest):
                    key.data()
            self._notify.say("STOPPING=1")

    # One turn

    def _turn(self, now: float) -> None:
        """What is due."""
        if self._deadline is not None and now >= self._deadline:
            self._failed(now, f"no scan within {self._settings.timeout + _LATE:g} s: given up", "given_up")
        if self._deadline is None and now >= self._schedule.due():
            self._scan(now)
        if now >= self._known.stale_at():
            self._known.forget()
        if self._notify.watchdog is not None:
            self._notify.say("WATCHDOG=1")

    def _wait(self, now: float) -> float:
        """Seconds until something is due. A turn in between is dear: each brings the program back into the caches."""
        due = self._schedule.due() if self._deadline is None else self._deadline
        fed = math.inf if self._notify.watchdog is None else now + self._notify.watchdog / 2
        return max(min(due, self._known.stale_at(), fed) - now, 0.0)

    def _woken(self, waker: Waker) -> None:
        heard = waker.heard()
        if heard:
            self._counts.events += len(heard)
            self._schedule.woken(time.monotonic())

    def _signals(self, woken: socket.socket) -> None:
        """Between two turns, for what a handler breaks into may be anything: half a line of the log."""
        woken.recv(4096)
        while self._signalled:
            if self._signalled.pop() == signal.SIGHUP:
                self._read_anew()
            else:
                self._stopping = True

    def _read_anew(self) -> None:
        try:
            settings = self._reload()
        except Exception as error:  # noqa: BLE001 whatever is wrong with the new settings, the old ones are good
            self._log.trouble("settings", f"not read anew, the old ones stay: {error}")
            return
        fixed = [name for name in _FIXED if getattr(settings, name) != getattr(self._settings, name)]
        if fixed:
            self._log.trouble("settings", f"{', '.join(fixed)}: changed, and needs a restart")
        self._settings = settings
        self._known.go_by(settings)
        self._log.form = settings.log_format
        now = time.monotonic()
        self._schedule.again(self._every(), now)
        self._schedule.woken(now)
        self._log.note("settings", "read anew")

    # Scans

    def _scan(self, now: float) -> None:
        self._schedule.scanning(now)
        if self._worker.left:
            self._wait_for_its_end(now)
            return
        self._deadline = now + self._settings.timeout + _LATE
        try:
            self._worker.ask(self._question(now))
        except OSError as error:
            self._failed(now, f"no scan can be started: {error.strerror}", "error")

    def _wait_for_its_end(self, now: float) -> None:
        """Of a process that was killed: at once, unless it waits in the kernel."""
        if now < self._worker.gave_up + _ENDS:
            self._schedule.retry(now + _ENDS / 10)
            return
        why = "the last scan waits in the kernel, where nothing ends it: no other is started beside it"
        self._failed(now, why, "error")

    def _question(self, now: float) -> dict[str, Json]:
        return {
            "source": self._source,
            "overlay": _absolute(self._settings.overlay),
            "timeout": self._settings.timeout,
            "pairs": self._settings.metrics_pairs,
            "again": [*self._repeated.again(now)],
            "mapping": _absolute(self._settings.mapping),
            "stale_after": self._settings.stale_after,
            **self._known.question,
        }

    def _hear(self) -> None:
        """Answers of the worker: of the first scan there may be two."""
        try:
            for answer in self._worker.heard():
                if "error" in answer:
                    self._failed(time.monotonic(), str(answer["error"]), "error", give_up=False)
                else:
                    self._took(Seen(**answer))  # type: ignore[arg-type] # our own child wrote it
        except (EOFError, TypeError) as error:
            self._failed(time.monotonic(), f"the scan failed: {error}", "error")

    def _failed(self, now: float, why: str, how: str, *, give_up: bool = True) -> None:
        """Soon it is tried again."""
        if give_up:
            self._worker.give_up()
        self._deadline = None
        self._schedule.retry(now + _RETRY)
        self._known.failed(why, how, now)

    def _took(self, seen: Seen) -> None:
        """What is new is looked at again soon: one reading is none."""
        now = time.monotonic()
        if seen.whole:
            self._deadline = None
            self._repeated.read(seen.low, now)
        self._known.took(seen, now)
        if seen.whole and self._known.undecided:
            self._schedule.retry(now + _CONFIRM)
        if seen.stale:
            self._schedule.retry(now + _RETRY)

    def _every(self) -> float:
        return min(self._settings.rescan, _POLL) if self._polling else self._settings.rescan


def _absolute(path: str) -> str | None:
    """The scanner works in `/`."""
    return os.path.abspath(path) if path else None


_FIXED = (
    "events", "node_condition", "dranet_socket",
    "listen", "tls_certificate", "tls_key", "tls_client_ca", "labels", "nfd_namespace", "nfd_file", "node",
    "kubeconfig", "slice_mode", "slice_vfs", "context", "mapping", "label_keys", "gpu_clique", "domain",
)  # fmt: skip
