"""Words to systemd (sd_notify(3)); nothing where nobody listens."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notify:
    """READY, STATUS and WATCHDOG. The loop itself says them: a loop that hangs is a watchdog that starves."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(microseconds) / 1e6 if microseconds.isascii() and microseconds.isdigit() and mine else None
        """Seconds within which it has to hear from us; None where it does not watch."""

    def say(self, *words: str) -> None:
        """`say("READY=1", "STATUS=8 GPUs")`; a line has no newline in it."""
        if not self._address:
            return
        text = "\n".join(word.replace("\n", " ") for word in words)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode(), self._address)
