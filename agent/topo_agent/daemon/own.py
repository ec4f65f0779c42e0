"""The metrics of the agent itself: names, units, labels. docs/metrics.md is made from OWN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from topo_agent.host import Json

Family = dict[str, Json]
Sample = tuple[dict[str, str], float]


class Metric(NamedTuple):
    """As views.metrics.Family names one: without `_info` and `_total`, and with its unit at the end."""

    name: str
    kind: Literal["info", "gauge", "counter"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()


OWN: tuple[Metric, ...] = (
    Metric("topo_agent_build", "info", "", "Version of the agent and of Python.", ("version", "python")),
    Metric("topo_generation", "gauge", "", "Rises with every change of the structure since the start."),
    Metric("topo_changes", "counter", "", "Changes of the structure, by kind.", ("kind",)),
    Metric("topo_last_change_timestamp_seconds", "gauge", "seconds", "When the structure changed last."),
    Metric("topo_agent_scans", "counter", "", "Scans, by how they ended: ok, error, given_up.", ("result",)),
    Metric("topo_agent_events", "counter", "", "Events of the kernel that were heard."),
    Metric(
        "topo_agent_scan_duration_seconds",
        "gauge",
        "seconds",
        "How long the last scan took, by phase: the sources, nvml and netlink apart from them, and views, the rest.",
        ("phase",),
    ),
    Metric("topo_agent_scan_cpu_seconds", "gauge", "seconds", "Processor time of the last scan."),
    Metric("topo_agent_scan_files_read", "gauge", "", "Files of /sys and /proc that the last scan opened."),
    Metric(
        "topo_agent_source_up",
        "gauge",
        "",
        "1 if the last scan heard a source, 0 if it is there and told nothing. Absent where there is none of it, "
        "and while scans fail.",
        ("source",),
    ),
    Metric(
        "topo_agent_last_success_timestamp_seconds",
        "gauge",
        "seconds",
        "When a source that is there was heard last.",
        ("source",),
    ),
    Metric(
        "topo_agent_diagnostics",
        "gauge",
        "",
        "Notes of the last scan by source and level: conflict, degraded (a field is unknown), lost (a device, or the "
        "whole source). What has none is absent.",
        ("source", "level"),
    ),
    Metric("topo_agent_stale", "gauge", "", "1 while older facts are offered: no scan succeeds or a driver is silent."),
    Metric("topo_agent_file_errors", "counter", "", "Files of the state directory that could not be written."),
    Metric("topo_agent_cpu_seconds", "counter", "seconds", "Processor time of the agent and of ended children."),
    Metric("topo_agent_memory_bytes", "gauge", "bytes", "Proportional set size of the agent and its children."),
    Metric("topo_agent_open_descriptors", "gauge", "", "Open file descriptors of the agent."),
    Metric("topo_agent_threads", "gauge", "", "Threads of the agent."),
    Metric(
        "topo_agent_publish", "counter", "", "Attempts to publish, by where and how they ended.", ("sink", "result")
    ),
    Metric(
        "topo_label",
        "info",
        "",
        "Labels of ours and their state: published, suspect while it stands and nobody is sure, pending until it is "
        "there, foreign where somebody else says otherwise.",
        ("key", "value", "state", "source"),
    ),
    Metric("topo_slice_cut", "gauge", "", "What did not fit into the ResourceSlice and was cut.", ("what",)),
    Metric("topo_slice_held", "gauge", "", "1 while the ResourceSlice is held back, 0 otherwise."),
)

_BY_NAME = {one.name: one for one in OWN}


def family(name: str, samples: Iterable[Sample]) -> Family:
    one = _BY_NAME[name]
    said: list[Json] = [[{label: labels[label] for label in one.labels}, number] for labels, number in samples]
    return {"name": name, "kind": one.kind, "unit": one.unit, "help": one.help, "samples": said}


def single(name: str, value: float | None) -> Family:
    """Absent where it is not known."""
    return family(name, [] if value is None else [({}, value)])
