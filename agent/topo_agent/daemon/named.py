"""What a node is called in a mapping: its name, and the systemUUID that its Node says."""

from __future__ import annotations

import os


class Named:
    """Written by the thread that asks, read by the loop, which it wakes: with the systemUUID a mapping says more."""

    def __init__(self, name: str, uuid: str | None = None) -> None:
        """`uuid`: None until it has been asked for; "" where there is none, or nobody to ask."""
        self.name, self.uuid = name, uuid
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.uuid) if self.uuid else (self.name,)

    @property
    def unnamed(self) -> bool:
        """Is the systemUUID still to be learned?"""
        return self.uuid is None

    def learn(self, uuid: str) -> None:
        """Once."""
        if self.uuid is None:
            self.uuid = uuid
            os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        return self._event

    def heard(self) -> list[str]:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        return ["systemUUID"]
