"""The bench of the daemon is a judge: status 1 where a figure is above its limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import bench_daemon, cost


class _Idle:
    def __init__(self, *, good: bool) -> None:
        self._good = good

    def over(self, seconds: float) -> tuple[cost.Figure, float]:
        return cost.Figure(f"idle for {seconds:g} s", "0.05%", self._good), 0.0

    def memory(self) -> cost.Figure:
        return cost.Figure("memory", "64 MiB", good=True)


@pytest.mark.parametrize(("rescans", "idle", "status"), [(True, True, 0), (False, True, 1), (True, False, 1)])
def test_status(
    rescans: bool,  # noqa: FBT001 a parameter of the test
    idle: bool,  # noqa: FBT001
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def idles(_: Path) -> Iterator[_Idle]:
        yield _Idle(good=idle)

    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # the bench sets it: as it was again afterwards
    monkeypatch.setattr(sys, "argv", ["bench", "--rescans", "300", "--idle", "60"])
    monkeypatch.setattr(cost, "rescans", lambda _, count: [cost.Figure(f"{count} rescans", "1 MiB", rescans)])
    monkeypatch.setattr(cost, "idle", idles)
    with pytest.raises(SystemExit) as ended:
        bench_daemon.main()
    assert ended.value.code == status
    assert capsys.readouterr().out.splitlines() == [
        f"300 rescans (at most 1 MiB: {'ok' if rescans else 'ABOVE'})",
        f"idle for 60 s (at most 0.05%: {'ok' if idle else 'ABOVE'})",
        "memory (at most 64 MiB: ok)",
    ]
