"""Links that are below their maximum again and again: one reading is information, several are a warning."""

from __future__ import annotations

from collections.abc import Iterable

APART = 60.0
"""Seconds between two readings that count as two: an idle device trains its link down and up within less."""


class Repeated:
    """Since when each has been low, without a reading in between that was not."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def read(self, low: Iterable[str], now: float) -> None:
        """`low`: "link_width:pci:0000:41:00.0", as `check --ignore` names them."""
        self._since = {one: self._since.get(one, now) for one in low}

    def again(self, now: float) -> list[str]:
        """Those of which a reading now is one of several."""
        return sorted(one for one, since in self._since.items() if now - since >= APART)
