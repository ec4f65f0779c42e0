"""What the metrics of the agent itself say, as plain data like those of the machine."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple, cast

from topo_agent import __version__
from topo_agent.daemon.own import Family, family, single
from topo_agent.host import Json
from topo_agent.host.usage import usage
from topo_agent.views.changes import KINDS

_LEVELS = ("conflict", "degraded", "lost")  # a note cost nothing


class Cost(NamedTuple):
    """What the last whole scan took, and whom it heard, as the scanner says it."""

    cpu_seconds: float | None = None
    files: int | None = None
    seconds: Mapping[str, float] = {}
    up: Mapping[str, bool] = {}
    notes: Iterable[tuple[str, str, int]] = ()


class Counts:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.scans: Counter[str] = Counter()  # ok, error, given_up
        self.changes: Counter[str] = Counter()
        self.events = 0
        self.generation = 0
        self.last_change: float | None = None  # seconds since the epoch
        self.stale = False
        self.files_failed = 0
        self._cost = Cost()
        self._heard: dict[str, float] = {}  # seconds since the epoch, of sources that are there
        self._fails = False

    def scanned(self, cost: Cost, now: float) -> None:
        """A whole scan; a source that is not there any more is forgotten."""
        heard = {source: now if up else self._heard.get(source) for source, up in cost.up.items()}
        self._heard = {source: at for source, at in heard.items() if at is not None}
        self._cost, self._fails = cost, False

    def failed(self, how: str) -> None:
        """A scan that ended as error or given_up: nobody knows which source is to blame."""
        self.scans[how] += 1
        self._fails = True

    def families(self) -> list[Family]:
        now, cost = usage(), self._cost
        return [
            family("topo_agent_build", [({"version": __version__, "python": platform.python_version()}, 1)]),
            single("topo_generation", self.generation),
            family("topo_changes", [({"kind": kind}, self.changes[kind]) for kind in KINDS]),
            single("topo_last_change_timestamp_seconds", self.last_change),
            family("topo_agent_scans", [({"result": one}, self.scans[one]) for one in ("ok", "error", "given_up")]),
            single("topo_agent_events", self.events),
            family("topo_agent_scan_duration_seconds", [({"phase": one}, took) for one, took in cost.seconds.items()]),
            single("topo_agent_scan_cpu_seconds", cost.cpu_seconds),
            single("topo_agent_scan_files_read", cost.files),
            *self._sources(),
            single("topo_agent_stale", int(self.stale)),
            single("topo_agent_file_errors", self.files_failed),
            single("topo_agent_cpu_seconds", now.cpu_seconds),
            single("topo_agent_memory_bytes", now.memory_bytes),
            single("topo_agent_open_descriptors", now.descriptors),
            single("topo_agent_threads", now.threads),
        ]

    def _sources(self) -> list[Family]:
        up = {} if self._fails else self._cost.up
        notes = [one for one in self._cost.notes if one[1] in _LEVELS]
        return [
            family("topo_agent_source_up", [({"source": one}, int(good)) for one, good in up.items()]),
            family(
                "topo_agent_last_success_timestamp_seconds", [({"source": one}, at) for one, at in self._heard.items()]
            ),
            family(
                "topo_agent_diagnostics",
                [({"source": source, "level": level}, count) for source, level, count in notes],
            ),
        ]


def together(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Families of one name made one."""
    found: dict[str, Family] = {}
    for one in (one for part in parts for one in part):
        first = found.setdefault(str(one["name"]), {**one, "samples": []})
        first["samples"] = [*cast("list[Json]", first["samples"]), *cast("list[Json]", one["samples"])]
    return list(found.values())


def tried(sink: str, results: Mapping[str, int]) -> list[Family]:
    """How often something was published there, by how it ended."""
    return [
        family("topo_agent_publish", [({"sink": sink, "result": result}, count) for result, count in results.items()])
    ]


def published(
    sink: str,
    results: Mapping[str, int],
    labels: Iterable[tuple[str, str, str, str]],
    there: Mapping[str, str],
    foreign: Container[str] = (),
) -> list[Family]:
    """What a publisher of labels did, and what it stands for: (key, value, state, source) of each.

    `there` is what was found or written last where it publishes, `foreign` the keys that somebody else owns, with
    another value.
    """
    said = []
    for key, value, sure, source in labels:
        state = "foreign" if key in foreign else sure if there.get(key) == value else "pending"
        said.append(({"key": key, "value": value, "state": state, "source": source}, 1.0))
    return [*tried(sink, results), family("topo_label", said)]


def sliced(results: Mapping[str, int], cut: Mapping[str, int], held: str | None) -> list[Family]:
    """What the publisher of slices did, and what did not fit."""
    return [
        *tried("resource_slice", results),
        family("topo_slice_cut", [({"what": what}, count) for what, count in cut.items()]),
        single("topo_slice_held", int(held is not None)),
    ]
