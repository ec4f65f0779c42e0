"""What the agent that stays may cost (issue 8, point 8), in processor time and memory: other programs run beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import cost

RESCANS = 800  # `make bench` makes 5,000
SECONDS = 60.0
TRIES = 3  # an event of this machine's devices is a scan, and no idleness


def test_limits(tmp_path: Path) -> None:
    """The idle minute passes while the other agent scans; it begins when the memory of that one is known."""
    found = []
    for figure in figures(tmp_path):
        print(figure)
        found.append(figure)
    assert len(found) == 5
    assert [str(figure) for figure in found if not figure.good] == []


def figures(folder: Path) -> Iterator[cost.Figure]:
    with closing(cost.rescans(folder, RESCANS)) as rescans:
        yield next(rescans)
        with cost.idle(folder / "idle", "--rescan", "1h") as idle:  # none is due within the minute
            yield from rescans
            yield rested(idle)
            yield idle.memory()


def rested(idle: cost.Idle) -> cost.Figure:
    for _ in range(TRIES):
        figure, scans = idle.over(SECONDS)
        if not scans:
            return figure
    pytest.fail("this machine's devices are never at rest")
