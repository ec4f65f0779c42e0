"""What the agent offers: the last good look at the machine, how old it is, and the pages made from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from topo_agent.graph.fabric import Standing
from topo_agent.host import Json
from topo_agent.publishers.http import Page
from topo_agent.publishers.metrics import exposition
from topo_agent.views.page import page

Families = Callable[[], Iterable[Json]]

_LATE = 30.0  # seconds: a loop that is later than it said hangs


DeviceData = tuple[str, str | None, str, dict[str, Json]]
"""A candidate of a ResourceSlice (views.slices.Candidate) as JSON has it."""


class Seen(NamedTuple):
    """One answer of the scanner."""

    whole: bool  # the drivers were asked, too
    digest: str
    topology: str
    findings: str
    problems: int
    matrix: str
    tree: str
    status: str
    families: list[Json]
    low: list[str]  # links below their maximum in this reading
    labels: dict[str, tuple[Standing, str | None, str, str]]  # readings by name, as JSON has them
    devices: list[DeviceData]
    cost: dict[str, Any]  # counts.Cost
    silent: str = ""  # why a driver that is here did not answer
    stale: float = 0.0  # seconds since it gave its last answers, where these are among what is told here

    def same_structure(self, other: Seen | None) -> bool:
        """Notes are none of it: that an interface is down comes and goes."""
        return other is not None and self.digest == other.digest


class Offer:
    """Written by the loop, read by the threads of the server: each reading takes one reference to what is whole."""

    def __init__(self, own: Families, clock: Callable[[], float], findings: Callable[[], list[Json]] = list) -> None:
        """`own` are the metrics of the agent itself, `findings` what it found besides those of the machine."""
        self._own, self._clock, self._findings = own, clock, findings
        self.seen: Seen | None = None
        self.stale_since: float | None = None
        self.turns_by = clock()  # the loop turns again, at the latest
        self.why = "the first scan is not done"

    def pages(self, path: str, accept: str) -> Page | None:
        """Every page; a document that is not known any more is status 503 with the reason."""
        if path == "/healthz":
            turning = self._clock() < self.turns_by + _LATE
            return _plain(200 if turning else 503, "ok" if turning else "the loop does not turn")
        if path == "/readyz":
            return _plain(200, "ok") if self.seen else _plain(503, self.why)
        if path == "/metrics":
            seen = self.seen
            body, kind = exposition([*(seen.families if seen else ()), *self._own()], accept)
            return Page(200, kind, body)
        return self._of_machine(path)

    def _of_machine(self, path: str) -> Page | None:
        seen = self.seen
        if path not in ("/", "/topology.json", "/matrix.txt", "/findings.json"):
            return None
        if seen is None:
            return _plain(503, self.why)
        found = _with(seen.findings, self._findings()) if path in ("/", "/findings.json") else ""
        if path == "/findings.json":
            return Page(200, "application/json", found.encode())
        if path == "/":
            findings = "\n".join(_sentences(found))
            text = page("topo-agent", tree=seen.tree, matrix=seen.matrix, findings=findings, note=self._note())
            return Page(200, "text/html; charset=utf-8", text.encode())
        if path == "/matrix.txt":
            return Page(200, "text/plain; charset=utf-8", seen.matrix.encode())
        return Page(200, "application/json", seen.topology.encode())

    def _note(self) -> str:
        since = self.stale_since
        return "" if since is None else f"stale for {self._clock() - since:.0f} s: {self.why}"


def _plain(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


def _with(findings: str, more: list[Json]) -> str:
    return json.dumps([*json.loads(findings), *more], indent=2, ensure_ascii=False) + "\n" if more else findings


def _sentences(findings: str) -> list[str]:
    """The findings that are worth mending, a line each."""
    worth = [one for one in json.loads(findings) if one["severity"] != "info"]
    return [f"{one['severity']}: {one['code']}: {' '.join(one['subjects'])}: {one['evidence']}" for one in worth]
