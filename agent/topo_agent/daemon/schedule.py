"""When to scan: at once, after a burst of events, and every so often. Times are of the monotonic clock."""

from __future__ import annotations

SETTLE = 0.5
"""Seconds of quiet that end a burst."""

LONGEST = 5.0
"""Seconds after which a burst that does not end is looked at all the same."""


class Schedule:
    """One burst is one scan. A clock that is set moves nothing, for it is not asked."""

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        self._next = now
        self._first: float | None = None
        self._last = now

    def woken(self, now: float) -> None:
        """Something happened."""
        if self._first is None:
            self._first = now
        self._last = now

    def due(self) -> float:
        """When the next scan begins."""
        if self._first is None:
            return self._next
        return min(self._next, self._last + SETTLE, self._first + LONGEST)

    def scanning(self, now: float) -> None:
        """A scan begins: what happened before is in it."""
        self._first = None
        self._next = now + self._every

    def retry(self, when: float) -> None:
        """After a scan that failed."""
        self._next = min(self._next, when)

    def again(self, every: float, now: float) -> None:
        """Another interval, from now on."""
        self._every = every
        self._next = min(self._next, now + every)
