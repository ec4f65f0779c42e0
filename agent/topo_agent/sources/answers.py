"""One answer of the NVML document -> its value, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping

from topo_agent.diagnostics import Unknown, UnknownFields
from topo_agent.host import Json

Answers = dict[str, Json]

_ERRORS = {"NOT_SUPPORTED": Unknown.NOT_SUPPORTED, "FUNCTION_NOT_FOUND": Unknown.NOT_SUPPORTED,
           "NO_PERMISSION": Unknown.NOT_PERMITTED, "TIMEOUT": Unknown.TIMEOUT}  # fmt: skip


def number(said: Json) -> int | None:
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < 1 << 63 else None


def text(said: Json) -> str | None:
    return said if isinstance(said, str) and said else None


def refusal(said: Json) -> Unknown | None:
    """`{"error": "NO_PERMISSION"}` -> not_permitted; None for what is no object."""
    return _ERRORS.get(str(said.get("error")), Unknown.DRIVER_ERROR) if isinstance(said, dict) else None


def refusals(one: Answers, fields: Mapping[str, str]) -> UnknownFields:
    """Which of these were refused, and how; `fields` is the key of an answer -> what our document calls it."""
    codes = ((field, refusal(one.get(key))) for key, field in fields.items())
    return tuple(sorted((field, code) for field, code in codes if code is not None))
