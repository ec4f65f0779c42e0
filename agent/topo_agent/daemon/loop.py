"""Waits for a change, scans, publishes what differs, until it is told to stop. One thread, and it never blocks.

What may hang (sysfs, a driver) runs in a worker that is given up after its time; what may be slow (clients) runs in
the threads of the server. Times are of the monotonic clock.
"""

from __future__ import annotations

import json
import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import Counts
from topo_agent.daemon.log import Log
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.offer import DeviceData, Offer, Seen
from topo_agent.daemon.repeated import Repeated
from topo_agent.daemon.schedule import Schedule
from topo_agent.daemon.worker import Worker
from topo_agent.daemon.written import Written
from topo_agent.graph.fabric import Reading
from topo_agent.host import Json
from topo_agent.settings import Settings
from topo_agent.views.changes import changes

_LATE = 10.0  # seconds that a scan has besides the drivers' own time
_POLL = 60.0  # seconds between two scans where the kernel tells nothing
_RETRY = 15.0  # seconds after a scan that failed
_CONFIRM = 1.5  # seconds after which a reading that is new is confirmed: labels follow within five
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Waker(Protocol):
    """A socket that says that something happened."""

    def fileno(self) -> int: ...

    def heard(self) -> list[str]: ...


class Publisher(Protocol):
    """Takes what labels should say; none of it waits for a cluster."""

    @property
    def names(self) -> tuple[str, ...]:
        """What this node may be called in a mapping."""
        ...

    @property
    def undecided(self) -> bool:
        """Would another scan soon decide something?"""
        ...

    def read(self, readings: Mapping[str, Reading], now: float) -> None: ...

    def families(self) -> list[dict[str, Json]]:
        """Its own metrics; from another thread."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Slices(Protocol):
    """Takes the devices that a ResourceSlice should have; none of it waits for a cluster."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def undecided(self) -> bool: ...

    def read(self, devices: Iterable[DeviceData], readings: Mapping[str, Reading], now: float) -> None: ...


class Loop:
    """`offer` and `counts` are read by others meanwhile; everything else is the loop's own."""

    def __init__(
        self,
        settings: Settings,
        *,
        source: str | None,
        log: Log,
        offer: Offer,
        counts: Counts,
        wakers: list[Waker],
        polling: bool,
        labels: Publisher | None,
        slices: Slices | None,
        findings: Callable[[str], None],
        reload: Callable[[], Settings],
        notify: Notify,
    ) -> None:
        self._settings, self._source, self._log = settings, source, log
        self._offer, self._counts, self._wakers = offer, counts, wakers
        self._polling, self._labels, self._slices, self._findings = polling, labels, slices, findings
        self._reload, self._notify = reload, notify
        self._schedule = Schedule(self._every(), time.monotonic())
        self._repeated = Repeated()
        self._worker = Worker()
        self._deadline: float | None = None  # of the scan that runs
        self._good = time.monotonic()  # when a scan succeeded last
        self._failing: float | None = None  # since when none does
        self._told: Seen | None = None  # the last whole answer, also of a machine that is unknown by now
        self._written = Written(settings, log, counts)
        self._signalled: set[int] = set()  # and not looked at yet
        self._stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT; SIGHUP reads the settings anew."""
        self._written.forget()
        with ExitStack() as left:
            select = left.enter_context(selectors.DefaultSelector())
            signals = left.enter_context(_signals(self._signalled))
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
        if now >= self._stale_at():
            self._forget()
        if self._notify.watchdog is not None:
            self._notify.say("WATCHDOG=1")

    def _wait(self, now: float) -> float:
        """Seconds until something is due. A turn in between is dear: each brings the program back into the caches."""
        due = self._schedule.due() if self._deadline is None else self._deadline
        fed = math.inf if self._notify.watchdog is None else now + self._notify.watchdog / 2
        return max(min(due, self._stale_at(), fed) - now, 0.0)

    def _stale_at(self) -> float:
        """When the last good facts are too old to be kept."""
        if self._failing is None or self._offer.seen is None:
            return math.inf
        return self._failing + self._settings.stale_after

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
        self._written.go_by(settings)
        self._log.form = settings.log_format
        now = time.monotonic()
        self._schedule.again(self._every(), now)
        self._schedule.woken(now)
        self._log.note("settings", "read anew")

    # Scans

    def _scan(self, now: float) -> None:
        question: dict[str, Json] = {
            "source": self._source,
            "overlay": self._settings.overlay or None,
            "timeout": self._settings.timeout,
            "pairs": self._settings.metrics_pairs,
            "again": [*self._repeated.again(now)],
            "mapping": self._settings.mapping or None,
            "names": [*dict.fromkeys(name for one in (self._labels, self._slices) if one for name in one.names)],
            "labels": self._labels is not None or self._slices is not None,
            "slices": self._settings.slice_numa if self._slices or self._settings.dranet_socket else "",
            "first": self._offer.seen is None,
        }
        self._schedule.scanning(now)
        self._deadline = now + self._settings.timeout + _LATE
        try:
            self._worker.ask(question)
        except OSError as error:
            self._failed(now, f"no scan can be started: {error.strerror}", "error")

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
        """The last good facts stay, marked stale; soon it is tried again."""
        if give_up:
            self._worker.give_up()
        self._deadline = None
        self._counts.stale = self._offer.seen is not None
        self._offer.why = why
        if self._failing is None:
            self._failing, self._offer.stale_since = now, self._good
        self._counts.scans[how] += 1
        self._schedule.retry(now + _RETRY)
        self._log.once("scan", why)

    def _forget(self) -> None:
        """Nothing is known any more: an old fact is no fact."""
        self._log.trouble("stale", f"unknown since {self._settings.stale_after:g} s: {self._offer.why}")
        self._written.machine(None, changed=True)
        self._written.metrics(None)
        self._counts.stale = False
        self._offer.seen = None

    def _took(self, seen: Seen) -> None:
        before, now = self._offer.seen, time.monotonic()
        if seen.whole:
            self._deadline = None
            self._good, self._counts.last_success = now, time.time()
            self._counts.cost = seen.cost
            self._repeated.read(seen.low, now)
            self._label(seen, now)
        self._offer.seen, self._offer.stale_since, self._failing = seen, None, None
        self._counts.stale = False
        self._notify.say("READY=1", f"STATUS={_status(seen)}")
        self._written.metrics(seen.families)
        # What a driver adds to the first look is in the file, and no change of the machine.
        changed = before is None or not before.whole or not seen.same_structure(before)
        self._written.machine(seen.topology, changed=changed)
        if before is None:
            self._log.note("topology", _status(seen), digest=seen.digest)
        if seen.whole:
            if self._told is not None and not seen.same_structure(self._told):
                self._tell(self._told, seen)
            self._told = seen
            # Last: who sees these sees what the scan brought.
            self._counts.scans["ok"] += 1
            self._log.well("scan", "scans succeed again")

    def _label(self, seen: Seen, now: float) -> None:
        """What is new is looked at again soon: one reading is none."""
        readings = {name: Reading(*reading) for name, reading in seen.labels.items()}
        if self._labels is not None:
            self._labels.read(readings, now)
        if self._slices is not None:
            self._slices.read(seen.devices, readings, now)
        self._findings(seen.findings)
        if any(one is not None and one.undecided for one in (self._labels, self._slices)):
            self._schedule.retry(now + _CONFIRM)

    def _tell(self, before: Seen, seen: Seen) -> None:
        found = changes(json.loads(before.topology), json.loads(seen.topology))
        entries: list[dict[str, Json]] = []
        for change in found:
            self._counts.changes[change.kind] += 1
            entries.append({"time": logs.now(), "kind": change.kind, "what": change.sentence})
        if found:
            self._counts.generation += 1
            self._counts.last_change = time.time()
            self._written.changes(entries)
        for change in found:
            self._log.note("topology", change.sentence, kind=change.kind, digest=seen.digest)

    def _every(self) -> float:
        return min(self._settings.rescan, _POLL) if self._polling else self._settings.rescan


_FIXED = (
    "events", "node_condition", "dranet_socket",
    "listen", "tls_certificate", "tls_key", "tls_client_ca", "labels", "nfd_namespace", "nfd_file", "node",
    "kubeconfig", "slice_mode", "slice_vfs", "context", "mapping", "label_keys", "gpu_clique", "domain",
)  # fmt: skip


def _status(seen: Seen) -> str:
    """One line that tells the story."""
    problems = f"; {seen.problems} {'finding' if seen.problems == 1 else 'findings'}" if seen.problems else ""
    return seen.status + problems


@contextmanager
def _signals(come: set[int]) -> Iterator[socket.socket]:
    """Those that have come, and a socket that is readable then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        old = {number: signal.signal(number, lambda number, _: come.add(number)) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in old.items():
                signal.signal(number, handler)
