"""Fields of the JSON document: those that apply, what was not answered and why, and where a value is from."""

from __future__ import annotations

from collections.abc import Mapping

from topo_agent.diagnostics import UnknownFields
from topo_agent.graph.nodes import Origin
from topo_agent.host import Json


def present(fields: Mapping[str, Json]) -> dict[str, Json]:
    """What applies: None does not."""
    return {key: value for key, value in fields.items() if value is not None}


def with_unknown(said: dict[str, Json], unknown: UnknownFields) -> dict[str, Json]:
    """null for what was asked and not answered, and the reasons."""
    if not unknown:
        return said
    return said | {field: None for field, _ in unknown if field not in said} | {"unknown": unknown_of(unknown)}


def why(sources: tuple[tuple[str, Origin], ...], unknown: UnknownFields) -> dict[str, Json]:
    said = {"sources": sources_of(sources), "unknown": unknown_of(unknown)}
    return present(said)


def sources_of(sources: tuple[tuple[str, Origin], ...]) -> dict[str, Json] | None:
    return {**dict(sources)} or None


def unknown_of(unknown: UnknownFields) -> dict[str, Json] | None:
    return {field: reason.value for field, reason in unknown} or None


def hexadecimal(value: int | None, digits: int) -> str | None:
    return None if value is None else f"0x{value:0{digits}x}"
