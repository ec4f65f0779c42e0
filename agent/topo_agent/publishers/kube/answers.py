"""What an API server answers: objects as plain JSON, or trouble."""

from __future__ import annotations

from typing import Literal

from topo_agent.host import Json

Kind = Literal[
    "config", "unreachable", "unauthorized", "forbidden", "not_found", "conflict", "gone", "refused", "busy", "server"
]
Object = dict[str, Json]

MOST = 16 << 20
"""Bytes of an answer, or of one event."""

_SHOWN = 300  # signs of what a server says


class Trouble(Exception):
    """One line: what went wrong, and what to do. `retry_after`: seconds, where the server says them."""

    def __init__(self, kind: Kind, said: str, *, retry_after: float | None = None, answer: Json = None) -> None:
        super().__init__(said)
        self.kind, self.retry_after, self.answer = kind, retry_after, answer


def short(said: object) -> str:
    text = " ".join(str(said).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
