"""What is published of a node, and when it changes: readings over time -> values that stand still.

A value is published once readings agree on it, kept while nobody is sure, and taken back only when it is certain that
it is not so any more. What was published is the memory of the next run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topo_agent.graph import labels
from topo_agent.graph.fabric import Reading

AGREE = 2
"""Readings in a row that say the same before it counts."""


_WRITTEN = ("label", "file")
"""Sources of a fact of which only its label is left: `raw` is what was written."""


class Fact(NamedTuple):
    """One published value: as its source said it, and since when (RFC 3339)."""

    raw: str
    source: str
    since: str

    @property
    def label(self) -> str:
        """As the value of a label. One that was written already is not written another way."""
        return self.raw if self.source in _WRITTEN and labels.legal(self.raw) else labels.value(self.raw)


class _Candidate(NamedTuple):
    raw: str | None  # None: that there is no value
    times: int


class Held:
    """The published facts of one node, by the name of their reading."""

    def __init__(self, agree: int = AGREE) -> None:
        self._agree = agree
        self._published: dict[str, Fact] = {}
        self._candidates: dict[str, _Candidate] = {}
        self._unsure: dict[str, tuple[float, str]] = {}

    @property
    def published(self) -> Mapping[str, Fact]:
        return dict(sorted(self._published.items()))

    @property
    def undecided(self) -> bool:
        """Is there something that another reading would decide?"""
        return bool(self._candidates)

    def remember(self, facts: Mapping[str, Fact]) -> None:
        """What an earlier run published. What this one knows by now is newer, but "since" stays where it agrees."""
        for name, fact in facts.items():
            mine = self._published.get(name)
            if mine is None or mine.raw == fact.raw:
                self._published[name] = fact

    def read(self, readings: Mapping[str, Reading], now: float, time: str) -> None:
        """Take one reading of each. `now` is of the monotonic clock, `time` what "since" will say (RFC 3339)."""
        for name, reading in readings.items():
            if reading.standing == "unsure":
                self._doubt(name, reading.reason, now)
                continue
            self._unsure.pop(name, None)
            self._decide(name, reading, time)

    def failed(self, why: str, now: float) -> None:
        """Nothing could be read: nobody is sure of anything, and nothing is taken back for that."""
        for name in self._published.keys() | self._candidates.keys() | self._unsure.keys():
            self._doubt(name, why, now)

    def doubted(self, now: float, hold: float) -> Iterable[tuple[str, str]]:
        """(name, why) of what is published and has not been confirmed for longer than `hold` seconds."""
        unsure = ((name, *self._unsure[name]) for name in sorted(self._unsure.keys() & self._published.keys()))
        return [(name, why) for name, since, why in unsure if now - since > hold]

    def standing(self, keys: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
        """(key, value, "published" or "suspect", source) of every label that stands."""
        found = ((key, name, self._published[name]) for key, name in sorted(keys.items()) if name in self._published)
        return [
            (key, fact.label, "suspect" if name in self._unsure else "published", fact.source)
            for key, name, fact in found
        ]

    def _doubt(self, name: str, why: str, now: float) -> None:
        self._candidates.pop(name, None)
        since, _ = self._unsure.get(name, (now, ""))
        self._unsure[name] = (since, why)

    def _decide(self, name: str, reading: Reading, time: str) -> None:
        mine = self._published.get(name)
        if mine and reading.raw and mine.source in _WRITTEN and labels.value(reading.raw) == mine.label:
            mine = self._published[name] = mine._replace(raw=reading.raw, source=reading.source)
        if reading.raw == (mine.raw if mine else None):
            self._candidates.pop(name, None)
            return
        before = self._candidates.get(name)
        times = before.times + 1 if before is not None and before.raw == reading.raw else 1
        if times < self._agree:
            self._candidates[name] = _Candidate(reading.raw, times)
            return
        self._candidates.pop(name, None)
        if reading.raw is None:
            del self._published[name]
        else:
            self._published[name] = Fact(reading.raw, reading.source, time)
