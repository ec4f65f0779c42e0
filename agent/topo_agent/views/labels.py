"""The labels of a node -> a line each, as `kubectl label` takes them, and why some are missing."""

from __future__ import annotations

from collections.abc import Mapping

from topo_agent.graph import labels as values
from topo_agent.graph.fabric import Reading
from topo_agent.views.text import clean


def labels(readings: Mapping[str, Reading], keys: Mapping[str, str]) -> str:
    """`topo-agent.io/rack=rack-07`, in order; `keys` is key of a label -> name of its reading."""
    said = ((key, readings[name].raw) for key, name in sorted(keys.items()) if name in readings)
    return "".join(f"{key}={values.value(raw)}\n" for key, raw in said if raw is not None)


def missing(readings: Mapping[str, Reading], keys: Mapping[str, str]) -> list[str]:
    """`topo-agent.io/rack: unknown: no line of nodes.csv names this node`."""
    words = {"none": "none", "unsure": "unknown"}
    found = ((key, readings[name]) for key, name in sorted(keys.items()) if name in readings)
    return [
        f"{key}: {words[one.standing]}: {clean(one.reason)}" for key, one in found if one.standing in words
    ]  # fmt: skip
