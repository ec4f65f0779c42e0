"""Shapes and the machines of each -> text, or plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topo_agent.host import Json
from topo_agent.views.table import table

COLUMNS = ("shape", "count", "files")


def as_text(found: Mapping[str, Sequence[str]]) -> str:
    """A line for each shape, the largest group first; equal ones in the order in which they were found."""
    return table([{"shape": shape, "count": len(files), "files": " ".join(files)} for shape, files in _ordered(found)],
                 COLUMNS)  # fmt: skip


def as_data(found: Mapping[str, Sequence[str]]) -> Json:
    return [{"shape": shape, "count": len(files), "files": [*files]} for shape, files in _ordered(found)]


def one_as_data(shape: str) -> Json:
    return {"shape": shape}


def _ordered(found: Mapping[str, Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    return sorted(found.items(), key=lambda group: -len(group[1]))
