"""Which functions other drivers cover, and covered until lately."""

from __future__ import annotations

import math
from collections.abc import Iterable

from topo_agent.graph.covered import Covered
from topo_agent.views.slices import Candidate

HOLD = 600.0
"""Seconds that a function counts as covered after its driver's slice went."""
LONG = 86400.0
"""The same after a wipe: a driver may be slow to come back, and one that is gone must not count forever."""

_WIPE = 10.0  # seconds that one may take


class Remembered:
    """What others cover, and what they covered and for how long that counts: after a wipe they may only be slow."""

    def __init__(self) -> None:
        self._here: frozenset[str] = frozenset()  # addresses and UUIDs
        self._gone: dict[str, float] = {}  # what is covered no more -> until when it counts as if it were
        self._wiped = -math.inf

    def remember(self, words: Iterable[str], now: float, *, wiped: bool) -> None:
        """What an earlier run saw."""
        for word in set(words) - self._here:
            self._gone.setdefault(word, now + (LONG if wiped else HOLD))

    def wiped(self, now: float) -> None:
        self._wiped = now
        self._gone = {word: max(until, now + LONG) for word, until in self._gone.items()}

    def look(self, found: Covered, now: float) -> None:
        """One after another goes in a wipe: what is there a moment later may be about to."""
        here = found.addresses | found.uids
        until = now + (HOLD if now - self._wiped > _WIPE else LONG)
        self._gone |= dict.fromkeys(self._here - here, until)
        self._gone = {word: until for word, until in self._gone.items() if word not in here and now < until}
        self._here = here

    def due(self) -> float:
        """When the next one is given up, if nobody covers it till then."""
        return min(self._gone.values(), default=math.inf)

    @property
    def words(self) -> frozenset[str]:
        return self._here | self._gone.keys()

    def has(self, one: Candidate) -> bool:
        return not self.words.isdisjoint({one.address, one.uid})
