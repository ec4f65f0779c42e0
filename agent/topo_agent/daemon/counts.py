"""The metrics of the agent itself, as plain data like those of the machine (domain of names: topo_agent_, topo_)."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from topo_agent import __version__
from topo_agent.host import Json
from topo_agent.host.usage import usage
from topo_agent.views.changes import KINDS

Family = dict[str, Json]


class Counts:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.scans: Counter[str] = Counter()  # ok, error, given_up
        self.changes: Counter[str] = Counter()
        self.events = 0
        self.generation = 0
        self.last_change: float | None = None  # seconds since the epoch
        self.last_success: float | None = None
        self.cost: dict[str, float] = {}
        self.stale = False
        self.files_failed = 0

    def families(self) -> list[Family]:
        now = usage()
        results: list[Json] = [[{"result": name}, self.scans[name]] for name in ("ok", "error", "given_up")]
        changes: list[Json] = [[{"kind": kind}, self.changes[kind]] for kind in KINDS]
        built: dict[str, Json] = {"version": __version__, "python": platform.python_version()}
        return [
            _family("topo_agent_build", "info", "", "Version of the agent and of Python.", [[built, 1]]),
            _gauge("topo_generation", "", "Rises with every change of the structure since the start.", self.generation),
            _family("topo_changes", "counter", "", "Changes of the structure, by kind.", changes),
            _gauge("topo_last_change_timestamp_seconds", "seconds", "When the structure changed last.",
                   self.last_change),
            _family("topo_agent_scans", "counter", "", "Scans, by how they ended.", results),
            _counter("topo_agent_events", "", "Events of the kernel that were heard.", self.events),
            _gauge("topo_agent_scan_duration_seconds", "seconds", "How long the last scan took, views included.",
                   self.cost.get("seconds")),
            _gauge("topo_agent_scan_cpu_seconds", "seconds", "Processor time of the last scan.",
                   self.cost.get("cpu_seconds")),
            _gauge("topo_agent_last_success_timestamp_seconds", "seconds", "When a scan succeeded last, with drivers.",
                   self.last_success),
            _gauge("topo_agent_stale", "", "1 while older facts are offered: no scan succeeds, or a driver is silent.",
                   int(self.stale)),
            _counter("topo_agent_file_errors", "", "Files of the state directory that could not be written.",
                     self.files_failed),
            _counter("topo_agent_cpu_seconds", "seconds", "Processor time of the agent and of ended children.",
                     now.cpu_seconds),
            _gauge("topo_agent_memory_bytes", "bytes", "Proportional set size of the agent and its children.",
                   now.memory_bytes),
            _gauge("topo_agent_open_descriptors", "", "Open file descriptors of the agent.", now.descriptors),
            _gauge("topo_agent_threads", "", "Threads of the agent.", now.threads),
        ]  # fmt: skip


def together(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Families of one name made one."""
    found: dict[str, Family] = {}
    for family in (one for part in parts for one in part):
        first = found.setdefault(str(family["name"]), {**family, "samples": []})
        first["samples"] = [*cast("list[Json]", first["samples"]), *cast("list[Json]", family["samples"])]
    return list(found.values())


def tried(sink: str, results: Mapping[str, int]) -> list[Family]:
    """How often something was published there, by how it ended."""
    done: list[Json] = [[{"sink": sink, "result": result}, count] for result, count in results.items()]
    return [_family("topo_agent_publish", "counter", "", "Attempts to publish, by where and how they ended.", done)]


def published(sink: str, results: Mapping[str, int], labels: Iterable[tuple[str, str, str, str]]) -> list[Family]:
    """What a publisher of labels did, and what it stands for: (key, value, state, source) of each."""
    said: list[Json] = [
        [{"key": key, "value": value, "state": state, "source": source}, 1] for key, value, state, source in labels
    ]
    return [
        *tried(sink, results),
        _family("topo_label", "info", "", "Labels that stand: published, or suspect while nobody is sure.", said),
    ]


def sliced(results: Mapping[str, int], cut: Mapping[str, int], held: str | None) -> list[Family]:
    """What the publisher of slices did, and what did not fit."""
    lost: list[Json] = [[{"what": what}, count] for what, count in cut.items()]
    return [
        *tried("resource_slice", results),
        _family("topo_slice_cut", "gauge", "", "What did not fit into the ResourceSlice and was cut.", lost),
        _gauge("topo_slice_held", "", "1 while the ResourceSlice is held back, 0 otherwise.", int(held is not None)),
    ]


def _family(name: str, kind: str, unit: str, help_: str, samples: list[Json]) -> Family:
    return {"name": name, "kind": kind, "unit": unit, "help": help_, "samples": samples}


def _gauge(name: str, unit: str, help_: str, value: float | None) -> Family:
    """Absent where it is not known."""
    return _family(name, "gauge", unit, help_, [] if value is None else [[{}, value]])


def _counter(name: str, unit: str, help_: str, value: float) -> Family:
    return _family(name, "counter", unit, help_, [[{}, value]])
