"""When the kernel last said something of a device that the agent looks at. Runs in guests, beside the agent.

Only what Python itself has: an independent witness.
"""

from __future__ import annotations

import socket
import threading
import time

SEEN = ("pci", "net", "nvme", "infiniband", "drm", "accel")
_EVENTS = 15  # NETLINK_KOBJECT_UEVENT


class Uevents:
    """From now on."""

    def __init__(self) -> None:
        self.last = 0.0
        """Of the monotonic clock."""
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _EVENTS)
        self._kernel.bind((0, 1))
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            words = self._kernel.recv(1 << 16).split(b"\0")
            if any(word.decode("utf-8", "replace") == f"SUBSYSTEM={name}" for word in words for name in SEEN):
                self.last = time.monotonic()
