"""The signals that the agent takes, as a socket to wait for."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def caught(come: set[int]) -> Iterator[socket.socket]:
    """Those that have come, and a socket that is readable then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        old = {number: signal.signal(number, lambda number, _: come.add(number)) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in old.items():
                signal.signal(number, handler)
