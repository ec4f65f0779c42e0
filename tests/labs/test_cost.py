"""What the agent that stays may cost (issue 8, point 8), in processor time and memory: other programs run beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cost

RESCANS = 1000  # `make bench` makes 5,000
SECONDS = 60.0
TRIES = 3  # an event of this machine's devices is a scan, and no idleness


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cost.Idle]:
    """Begun before the rescans: the minute passes meanwhile. No scan is due within the hour."""
    with cost.idle(tmp_path_factory.mktemp("idle"), "--rescan", "1h") as agent:
        yield agent


def test_rescans(idle: cost.Idle, tmp_path: Path) -> None:
    figures = []
    for figure in cost.rescans(tmp_path, RESCANS):
        print(figure)
        figures.append(figure)
    assert len(figures) == 3
    assert [str(figure) for figure in figures if not figure.good] == []


def test_idleness(idle: cost.Idle) -> None:
    for _ in range(TRIES):
        figure, scans = idle.over(SECONDS)
        print(figure)
        if not scans:
            break
    else:
        pytest.fail("this machine's devices are never at rest")
    held = idle.memory()
    print(held)
    assert [str(one) for one in (figure, held) if not one.good] == []
