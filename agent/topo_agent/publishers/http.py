"""Pages over HTTP, to any number of clients, of which none can keep the others waiting."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from topo_agent.publishers import addresses, sockets
from topo_agent.publishers.connection import Calls, Connection, Cut, Limits, Pages
from topo_agent.publishers.response import Page
from topo_agent.publishers.tls import Certificates, Tls

__all__ = ["Limits", "Page", "Pages", "Server", "Tls"]

_PATIENCE = 1.0  # seconds that a new connection waits for a thread; one that was cut off ends within a millisecond
_SHORT_OF = 0.1  # seconds to wait where there is no descriptor or no memory for another connection


class Server:
    """Offers pages on some addresses until it is stopped.

    Each connection has a thread, and there are `limits.connections` of them at most. One more cuts off the one that
    has kept its thread waiting longest, for the rest of a request or for the client to read. So a client that asks at
    once is answered, however many hold connections open. Where every thread makes a page just then, the new connection
    waits for one, and is closed after a second.

    `pages`, and `calls` where something may be posted, are called by several threads at a time; they should answer at
    once. TLS is for TCP only: a Unix socket is guarded by the mode of its file, 0660. New certificates in the same
    files are used as soon as they are good, and `told` hears of them: None, or what is wrong.
    """

    def __init__(
        self,
        listen: Sequence[str],
        pages: Pages,
        *,
        tls: Tls | None = None,
        told: Callable[[str | None], None] = lambda _: None,
        limits: Limits | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._listen = [addresses.parse(one) for one in listen]
        self._pages, self._calls = pages, calls
        self._tls, self._told = tls, told
        self._certificates: Certificates | None = None
        self._limits = limits or Limits()
        self._listeners: list[sockets.Listener] = []
        self._changed = threading.Condition()
        self._open: dict[Connection, threading.Thread] = {}
        self._stopping = threading.Event()
        self._wake = -1
        self._thread: threading.Thread | None = None

    @property
    def addresses(self) -> list[str]:
        """What it is bound to, with the ports that 0 became."""
        return [str(one.address) for one in self._listeners]

    def start(self) -> None:
        """Listen on all addresses, or on none: OSError with the address or the file that is in the way."""
        self._certificates = Certificates(self._tls, self._told) if self._tls else None
        self._stopping.clear()
        try:
            for one in self._listen:
                self._listeners.append(sockets.listen(one))
            woken, self._wake = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._close_listeners()
            raise
        self._thread = threading.Thread(target=self._accept_all, args=(woken,), name="http", daemon=True)
        self._thread.start()

    def stop(self, within: float = 1.5) -> None:
        """Close everything, within so many seconds. A thread that still makes a page then is left to end by itself."""
        if self._thread is None:
            return
        until = time.monotonic() + within
        with self._changed:  # the one that waits for a thread to end sees it at once
            self._stopping.set()
            self._changed.notify_all()
        os.close(self._wake)
        self._thread.join(within / 2)
        self._thread = None
        self._close_listeners()
        with self._changed:
            for connection in self._open:
                connection.cut()
            self._changed.wait_for(lambda: not self._open, until - time.monotonic())

    def _close_listeners(self) -> None:
        for one in self._listeners:
            one.close()
        self._listeners = []

    def _accept_all(self, woken: int) -> None:
        """The thread that takes connections. It waits for no client."""
        with selectors.DefaultSelector() as ready:
            ready.register(woken, selectors.EVENT_READ)
            for one in self._listeners:
                ready.register(one.socket, selectors.EVENT_READ, one)
            while not self._stopping.is_set():
                for key, _ in ready.select():
                    if key.data is not None and not self._stopping.is_set():
                        self._accept(key.data)
        os.close(woken)

    def _accept(self, listener: sockets.Listener) -> None:
        try:
            accepted, _ = listener.socket.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError:  # EMFILE, ENFILE, ENOBUFS, ENOMEM: accept(2)
            with self._changed:
                self._cut_slowest()
            self._stopping.wait(_SHORT_OF)
            return
        context = self._certificates.context() if self._certificates and not listener.address.path else None
        connection = Connection(accepted, self._pages, self._limits, context, self._changed, self._calls)
        if not self._begin(connection):
            connection.close()

    def _begin(self, connection: Connection) -> bool:
        """Give it a thread, where there is one to be had."""
        with self._changed:
            if not self._room():
                return False
            thread = threading.Thread(target=self._serve, args=(connection,), name="http client", daemon=True)
            self._open[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads
            with self._changed:
                del self._open[connection]
            return False
        return True

    def _room(self) -> bool:
        """Is there a thread to be had, now or after somebody was cut off?"""
        until = time.monotonic() + _PATIENCE
        while len(self._open) >= self._limits.connections:
            rest = until - time.monotonic()
            if rest <= 0 or self._stopping.is_set():
                return False
            if not any(one.is_cut for one in self._open):
                self._cut_slowest()
            self._changed.wait(rest)
        return not self._stopping.is_set()

    def _cut_slowest(self) -> None:
        slowest = min((one for one in self._open if one.may_be_cut), key=lambda one: one.since, default=None)
        if slowest is not None:
            slowest.cut()

    def _serve(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(OSError, Cut):  # the client has gone, was too slow, or had to make room
                connection.serve()
        finally:
            connection.close()
            with self._changed:
                del self._open[connection]
                self._changed.notify_all()
