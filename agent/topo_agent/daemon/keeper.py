"""A thread that keeps something at the API server as it should be: sessions, watches, trouble. The loop never waits.

A session reads what is there, writes what differs, and then only watches. Trouble ends it; it is told once, and another
one begins later, each time later still.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Literal

from topo_agent.daemon.log import Log
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import Client
from topo_agent.publishers.kube.watching import Watch

LASTING = 10.0
"""Seconds after which a connection was a good one."""

_JITTER = 5.0  # seconds at the start: the agents of a whole cluster start together
_END = 0.5  # seconds that the thread has to end
_FIRST, _LAST = 1.0, 300.0  # seconds between two tries
_QUIET = 600.0  # seconds without a dispute, after which the next one is the first again
# Seconds before ours is written again, the longer the more often it is taken; a kubelet may well be started twice.
_PATIENCE = (0.2, 1.0, 2.0, 4.0, 15.0, 60.0, 300.0)
_SECONDS = (3600, 7200)  # that a watch is asked for: agents must not come back all at once

Event = Literal["changed", "stop"] | tuple[Watch, Object | Trouble | None]
"""What the thread waits for; of a watch an event, what broke it off, or None where the server ended it."""


class Backoff:
    """How long to wait before the next try: twice as long each time, with jitter, or as long as the server says."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance, self._next = chance, _FIRST

    def after(self, said: float | None) -> float:
        waited, self._next = self._next, min(self._next * 2, _LAST)
        return max(said or 0.0, waited * (0.5 + self._chance() / 2))

    def well(self) -> None:
        self._next = _FIRST


class Disputes:
    """Somebody takes away what is ours: written again soon, and later and later while he goes on."""

    def __init__(self) -> None:
        self._times, self._last = 0, float("-inf")

    def patience(self, now: float) -> float:
        if now - self._last > _QUIET:
            self._times = 0
        self._last = now
        waited = _PATIENCE[min(self._times, len(_PATIENCE) - 1)]
        self._times += 1
        return waited


class Keeper:
    """What each of them has in common; `session` is what it does."""

    def __init__(self, subject: str, connect: Callable[[], Client], log: Log) -> None:
        self.subject, self._connect, self.log = subject, connect, log
        self.stopping = False
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=subject, daemon=True)
        self._watches: set[Watch] = set()  # that are open

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is removed: what stands is true until somebody knows better."""
        self.stopping = True
        self._events.put("stop")
        self._thread.join(_END)

    def changed(self) -> None:
        """What should be is another thing than before."""
        self._events.put("changed")

    def session(self, client: Client) -> None:
        """From one reading on, until something has to be read again. Trouble where it breaks off."""
        raise NotImplementedError

    def watch(self, client: Client, path: str, *, field: str, version: str, accept: str) -> Watch:
        seconds = random.randint(*_SECONDS)  # noqa: S311 no secret
        watch = client.watch(path, field=field, version=version, seconds=seconds, accept=accept)
        self._watches.add(watch)
        threading.Thread(target=self._hear, args=(watch,), name="watch", daemon=True).start()
        return watch

    def event(self, until: float | None) -> Event | None:
        """The next one; None where none comes until then, on the monotonic clock."""
        try:
            return self._events.get(timeout=None if until is None else max(until - time.monotonic(), 0.0))
        except queue.Empty:
            return None

    def _hear(self, watch: Watch) -> None:
        try:
            for event in watch.events():
                self._events.put((watch, event))
        except Trouble as error:
            self._events.put((watch, error))
        else:
            self._events.put((watch, None))
        watch.close()
        self._watches.discard(watch)

    def _run(self) -> None:
        backoff, client = Backoff(), None
        self._wait(random.uniform(0, _JITTER))  # noqa: S311 no secret
        while not self.stopping:
            began, said = time.monotonic(), None
            try:
                client = client or self._connect()
                self.session(client)
            except Trouble as error:
                if error.kind in ("config", "unauthorized", "unreachable"):
                    client = None  # another token, CA or server may be in the files by now
                self.log.once(self.subject, str(error))
                said = error.retry_after
            except Exception as error:  # noqa: BLE001 the thread must outlive whatever an answer holds
                self.log.once(self.subject, f"{type(error).__name__}: {error}")
            for watch in tuple(self._watches):
                watch.close()
            if time.monotonic() - began > LASTING:
                backoff.well()
            self._wait(backoff.after(said))

    def _wait(self, seconds: float) -> None:
        """Until then, or until it is stopped; what else comes is seen by the next session."""
        until = time.monotonic() + seconds
        while not self.stopping and self.event(until) is not None:
            pass
