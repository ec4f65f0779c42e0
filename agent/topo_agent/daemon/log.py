"""The log: one line for each thing that happened, as text or JSON, on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Literal, TextIO

from topo_agent.host import Json

Level = Literal["info", "warning"]

# systemd reads these in front of a line as its priority (sd-daemon(3)).
_PRIORITY: dict[Level, str] = {"info": "<6>", "warning": "<4>"}


def now() -> str:
    """`2026-05-04T03:02:01Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Log:
    """Says the same sentence of one subject once, until another one takes its place."""

    def __init__(
        self, form: str = "text", *, out: TextIO | None = None, journal: bool = False, clock: Callable[[], str] = now
    ) -> None:
        self.form, self._out, self._journal, self._clock = form, out or sys.stderr, journal, clock
        self._last: dict[str, str] = {}

    def note(self, event: str, sentence: str, **more: Json) -> None:
        self._say("info", event, sentence, more)

    def trouble(self, event: str, sentence: str) -> None:
        self._say("warning", event, sentence, {})

    def once(self, event: str, sentence: str, *, because: str = "") -> None:
        """A warning, unless it is what was said of this event last. Another reason for the same is no news."""
        if self._last.get(event) != sentence:
            self._last[event] = sentence
            self._say("warning", event, f"{sentence} ({because})" if because else sentence, {})

    def well(self, event: str, sentence: str) -> None:
        """What was warned of is over."""
        if self._last.pop(event, None) is not None:
            self._say("info", event, sentence, {})

    def _say(self, level: Level, event: str, sentence: str, more: dict[str, Json]) -> None:
        text = " ".join(sentence.split())
        if self.form == "json":
            line = json.dumps({"time": self._clock(), "level": level, "event": event, "message": text, **more})
        else:
            line = f"{_PRIORITY[level] if self._journal else ''}{event}: {text}"
        with contextlib.suppress(OSError, ValueError):  # nobody hears: no reason to stop
            self._out.write(line + "\n")
            self._out.flush()
