"""What goes on beside a test."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_ENOUGH = 60.0


class Aside(ABC):
    """`with …:` its step is done again and again, in a thread, until the end; an error in one fails the test there."""

    def __init__(self, every: float) -> None:
        self._every, self._stop = every, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert kind or self._thread.is_alive()  # it has seen all of it
        self._stop.set()
        self._thread.join(_ENOUGH)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.step()

    @abstractmethod
    def step(self) -> None:
        """Once."""
