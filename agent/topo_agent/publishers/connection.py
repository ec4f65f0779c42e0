"""One client: its requests and our answers, each part of it with a deadline."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from topo_agent.publishers import request as requests
from topo_agent.publishers import response as responses
from topo_agent.publishers import tls
from topo_agent.publishers.request import Refused, Request
from topo_agent.publishers.response import METHODS, Page

if TYPE_CHECKING:
    import ssl

Pages = Callable[[str, str], Page | None]
"""A path without its query, and the header Accept -> the page there; None is 404."""

Calls = Callable[[str, bytes], Page | None]
"""A path and the body that was posted there -> the answer; None is 404."""

BODY = 4096
"""Bytes of a body that is posted."""

READING, ANSWERING, WRITING = range(3)
"""What a connection does."""

_FIRST = 16 << 10  # bytes of a page that go with the head, in one packet if they fit
_REST = 256 << 10  # bytes that are still read of a request that was refused
_LINGER = 1.0  # seconds, the same


class Limits(NamedTuple):
    """What clients get. Times are in seconds; a request that comes piecemeal has no more than one that does not."""

    connections: int = 64
    request: float = 10.0  # until a request is complete, from the connection's begin or the last answer; TLS included
    total: float = 30.0  # of a connection


class Cut(Exception):
    """The server has ended this connection."""


class Connection:
    """Served by a thread of its own. Whoever reads or changes what it does holds `lock`."""

    def __init__(
        self,
        accepted: socket.socket,
        pages: Pages,
        limits: Limits,
        context: ssl.SSLContext | None,
        lock: threading.Condition,
        calls: Calls | None = None,
    ) -> None:
        self._calls = calls
        self._socket = accepted
        self._pages = pages
        self._limits = limits
        self._context = context
        self._lock = lock
        self._end = time.monotonic() + limits.total
        self._until = self._end
        self._does = READING
        self._since = time.monotonic()
        self._is_cut = False
        self._encrypted = False

    @property
    def is_cut(self) -> bool:
        """Its thread is about to end."""
        return self._is_cut

    @property
    def may_be_cut(self) -> bool:
        """Not twice, and not while it makes a page: that takes no longer for a slow client."""
        return self._does != ANSWERING and not self._is_cut

    @property
    def since(self) -> float:
        """When it began what it does: the first has kept its thread waiting longest."""
        return self._since

    def cut(self) -> None:
        """End it from another thread: whatever its own waits for returns at once."""
        self._is_cut = True
        with contextlib.suppress(OSError):
            # The method of SSLSocket would take TLS away from under the thread.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptor back; only its own thread does, or who never started one."""
        if self._encrypted and not self._is_cut:
            tls.say_goodbye(self._socket)
        self._socket.close()

    def serve(self) -> None:
        """All requests, one after another. OSError and Cut where it ends before its time."""
        self._now(READING)
        if self._context is not None:
            self._encrypt(self._context)
        with io.BufferedReader(_Stream(self)) as lines:
            while self._serve_one(lines):
                self._now(READING)

    def _serve_one(self, lines: requests.Lines) -> bool:
        """May the client ask again?"""
        try:
            request = requests.read(lines, BODY if self._calls else 0)
        except Refused as error:
            self._now(WRITING)
            self._write(*responses.refusal(error.status))
            self._linger()
            return False
        if request is None:
            return False
        self._now(ANSWERING)
        # What keeps a connection has all the time of another request.
        keep = request.keep and time.monotonic() + self._limits.request <= self._end
        try:
            page = self._page(request)
        except Exception:
            self._now(WRITING)
            self._write(*responses.refusal(500))
            raise
        answer = responses.response(page, request, keep=keep)
        self._now(WRITING)
        self._write(*answer)
        return keep

    def _page(self, request: Request) -> Page:
        if request.method == "POST" and self._calls is not None:
            return self._calls(request.path, request.body) or responses.plain(404)
        if request.method not in METHODS:
            return responses.plain(405)
        return self._pages(request.path, request.headers.get("accept", "")) or responses.plain(404)

    def _now(self, does: int) -> None:
        with self._lock:
            if self._is_cut:
                raise Cut
            if self._does == ANSWERING:
                self._lock.notify_all()  # from now on it may be cut off
            self._does = does
            self._since = time.monotonic()
            self._until = min(self._end, self._since + self._limits.request) if does == READING else self._end

    def _encrypt(self, context: ssl.SSLContext) -> None:
        with self._lock:
            if self._is_cut:
                raise Cut
            self._socket = tls.wrapped(context, self._socket)
        self._wait_at_most()
        tls.shake_hands(self._socket)
        self._encrypted = True

    def _wait_at_most(self) -> None:
        """The next call of the socket ends at the deadline."""
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        self._socket.settimeout(rest)

    def read_into(self, buffer: memoryview) -> int:
        """What has come, for _Stream."""
        self._wait_at_most()
        return self._socket.recv_into(buffer)

    def _write(self, head: bytes, body: bytes) -> None:
        """Without a copy of the body, which many may be reading slowly."""
        self._send(memoryview(head + body[:_FIRST]))
        self._send(memoryview(body)[_FIRST:])

    def _send(self, rest: memoryview) -> None:
        """Not sendall(): TLS would give each of its pieces the whole time."""
        while rest:
            self._wait_at_most()
            rest = rest[self._socket.send(rest[: 64 << 10]) :]

    def _linger(self) -> None:
        """Read on a little: closing with unread data resets the connection, and the client would not see why."""
        if self._context is None:
            self._socket.shutdown(socket.SHUT_WR)
        self._until = min(self._end, time.monotonic() + _LINGER)
        buffer = memoryview(bytearray(4096))
        rest = _REST
        while rest > 0 and (got := self.read_into(buffer)):
            rest -= got


class _Stream(io.RawIOBase):
    """What the client sends."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._connection.read_into(memoryview(buffer))
