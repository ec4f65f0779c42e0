"""A proxy between a client and the API server, that breaks the requests it is told to break.

It speaks HTTP/1.1 over TLS, with a certificate of its own. What it is not told to break goes through as it is, a watch
event by event; connections that are to be another protocol (exec, port-forward) do not.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.labs.controlplane.programs import tool

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_SECONDS = 60.0  # for all but a watch
_LOOK = 0.05  # seconds after which a connection is asked whether a fault has come or the client has gone
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
# Headers that are for one connection, and not for both.
_OF_A_CONNECTION = {
    "connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """An error that the API server did not send. With `after`, it has done what it was asked for all the same.

    `said`: another answer than a Status.
    """

    status: int
    retry_after: int | None = None
    after: bool = False
    said: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Silence:
    """Never answers, and keeps the connection. With `after`, the API server has done what it was asked for."""

    after: bool = False


@dataclass(frozen=True)
class Cut:
    """The connection ends after that part of the answer, 0: before it; the API server has done what it was asked for.

    A watch ends in the middle of its first event.
    """

    part: float = 0.5


@dataclass(frozen=True)
class Hang:
    """A watch, and one that goes on already: from now on no event comes, and the connection stays."""


@dataclass(frozen=True)
class HalfClosed:
    """A watch, and one that goes on already: the proxy says that it sends no more, and still listens."""


Fault = Answer | Silence | Cut | Hang | HalfClosed


@dataclass(eq=False)
class Rule:
    """Which requests a fault is for."""

    fault: Fault
    method: str  # "": any
    path: str  # how path and query start
    watch: bool | None  # None: either
    times: int | None  # None: always
    hits: int = 0
    at: float = 0.0  # of the last hit, by the monotonic clock
    lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, method: str, target: str, *, goes_on: bool = False) -> bool:
        """`goes_on`: a watch that has begun to answer. Counts as a hit."""
        watch = _is_watch(target)
        if self.method not in {"", method} or not target.startswith(self.path) or self.watch not in {None, watch}:
            return False
        if isinstance(self.fault, Hang | HalfClosed) != goes_on:
            return False
        with self.lock:
            if self.times is not None and self.hits >= self.times:
                return False
            self.at = time.monotonic()
            self.hits += 1
            return True


def _is_watch(target: str) -> bool:
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)
    return asked.get("watch", [""])[-1].lower() in {"1", "true"}


class Proxy:
    """`with Proxy(cluster.server, cluster.ca, folder) as proxy:` is ready; clients need `proxy.server`, `proxy.ca`.

    `forwarded` counts what the API server answered, by method, path without query, and status.
    """

    def __init__(self, server: str, ca: Path, folder: Path) -> None:
        self._behind = urllib.parse.urlsplit(server)
        self._trusted = ssl.create_default_context(cafile=ca)
        self.ca = folder / "proxy.crt"
        key = folder / "proxy.key"
        command = [
            tool("openssl", "Debian has a package of that name"), "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=proxy", "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-keyout", str(key), "-out", str(self.ca),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.ca, key)
        self._context.set_alpn_protocols(["http/1.1"])
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.over = threading.Event()
        self.forwarded: Counter[tuple[str, str, int]] = Counter()
        self._server = _Server(self)
        self.server = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SECONDS)
        self.drop()

    def drop(self) -> None:
        """Every connection ends now."""
        with self._lock:
            found = list(self._open)
        for one in found:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def breaking(
        self, fault: Fault, *, method: str = "", path: str = "/", watch: bool | None = None, times: int | None = None
    ) -> Iterator[Rule]:
        """The next `times` requests, or all, whose path and query start so; `rule.hits` says how many there were.

        Of several rules for a request the first is taken. What a rule has taken stays broken.
        """
        rule = Rule(fault, method, path, watch, times)
        with self._lock:
            self._rules.append(rule)
        try:
            yield rule
        finally:
            with self._lock:
                self._rules.remove(rule)

    def count(self, *, method: str = "", path: str = "/", status: int | None = None) -> int:
        """Of `forwarded`, by how the path starts."""
        with self._lock:
            return sum(
                number
                for (a_method, a_path, a_status), number in self.forwarded.items()
                if method in {"", a_method} and a_path.startswith(path) and status in {None, a_status}
            )

    # For the threads of its connections

    def fault(self, method: str, target: str, *, goes_on: bool = False) -> Fault | None:
        with self._lock:
            rules = list(self._rules)
        return next((one.fault for one in rules if one.takes(method, target, goes_on=goes_on)), None)

    def asked(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes | None) -> Behind:
        """Sends it to the API server; its answer, of which only the head has been read."""
        host, port = self._behind.hostname or "", self._behind.port
        client = http.client.HTTPSConnection(host, port, context=self._trusted, timeout=_SECONDS)
        try:
            client.connect()
            connection: socket.socket = client.sock  # it forgets it where the answer is the last
            client.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers:
                client.putheader(name, value)
            if body is not None:
                client.putheader("Content-Length", str(len(body)))
            client.endheaders(body)
            answer = client.getresponse()
        except BaseException:
            client.close()
            raise
        with self._lock:
            self.forwarded[method, urllib.parse.urlsplit(target).path, answer.status] += 1
        return Behind(client, connection, answer)

    def wrapped(self, connection: socket.socket) -> socket.socket:
        connection.settimeout(_SECONDS)
        found = self._context.wrap_socket(connection, server_side=True)
        with self._lock:
            self._open.add(found)
        return found

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)


class Behind(NamedTuple):
    client: http.client.HTTPSConnection
    connection: socket.socket
    answer: http.client.HTTPResponse


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a thread that keeps silent may take its time to notice

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news, and a fault makes many go."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits until the client has confirmed the head
    server: _Server

    def setup(self) -> None:
        # Not where connections are accepted: a client that is slow with its part would hold up the others.
        self.request = self.server.proxy.wrapped(self.request)
        super().setup()

    def finish(self) -> None:
        self.server.proxy.closed(self.request)
        with contextlib.suppress(OSError):
            super().finish()
        with contextlib.suppress(OSError):
            self.request.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in http.server
        """Nothing: `forwarded` counts."""

    def __getattr__(self, name: str) -> Any:
        """`do_GET` and its like: no method is another to a proxy."""
        if name.startswith("do_"):
            return self._any
        raise AttributeError(name)

    def _any(self) -> None:
        body = self._body()
        fault = self.server.proxy.fault(self.command, self.path)
        if isinstance(fault, Answer | Silence) and not fault.after:
            self._refuse(fault)
            return
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION]
        try:
            behind = self.server.proxy.asked(self.command, self.path, headers, body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # nobody behind: as near as a proxy comes to a refused connection
            return
        with contextlib.closing(behind.client):
            if _is_watch(self.path) and behind.answer.status == 200:
                self._watch(behind, fault)
            else:
                self._whole(behind.answer, fault)

    def _body(self) -> bytes | None:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            length = self.headers.get("Content-Length")
            return None if length is None else self.rfile.read(int(length))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return found

    def _refuse(self, fault: Answer | Silence) -> None:
        if isinstance(fault, Silence):
            self._silent()
            return
        reason = _REASONS.get(fault.status, "Unknown")
        said = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "broken by the proxy",
            "reason": reason,
            "code": fault.status,
        }
        body = json.dumps(fault.said or said).encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if fault.retry_after is not None:
            self.send_header("Retry-After", str(fault.retry_after))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)

    def _whole(self, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        body = answer.read()
        if isinstance(fault, Answer | Silence):
            self._refuse(fault)
            return
        part = fault.part if isinstance(fault, Cut) else None
        self.close_connection = part is not None or self.close_connection
        if part == 0:
            return
        self._head(answer)
        if self.command == "HEAD":
            self.send_header("Content-Length", answer.getheader("Content-Length", "0"))
        elif answer.status not in {204, 304}:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if part is None else body[: int(len(body) * part)])

    def _watch(self, behind: Behind, fault: Fault | None) -> None:
        if isinstance(fault, Answer | Silence):
            self._refuse(fault)
            return
        if isinstance(fault, Cut) and fault.part == 0:
            self.close_connection = True
            return
        self._head(behind.answer)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in self._pieces(behind):
            if isinstance(fault, Cut):
                if piece:
                    # More is announced than comes.
                    self.wfile.write(b"%x\r\n%b" % (len(piece), piece[: int(len(piece) * fault.part)]))
                    break
            elif piece:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            broken = self.server.proxy.fault(self.command, self.path, goes_on=True)
            if broken:
                if isinstance(broken, HalfClosed):
                    self.connection.shutdown(socket.SHUT_WR)
                self._silent()
                break
            if self.server.proxy.over.is_set() or self._gone():
                break
        else:
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True

    def _pieces(self, behind: Behind) -> Iterator[bytes]:
        """What comes, as it comes; nothing, again and again, while nothing does. Ends as the answer does."""
        behind.connection.settimeout(None)  # a watch may be silent for long
        found: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

        def read() -> None:
            try:
                while piece := behind.answer.read1(1 << 16):
                    found.put(piece)
                found.put(b"")
            except (OSError, ValueError, http.client.HTTPException) as error:
                found.put(error)

        # A thread: a read of http.client's that was given a time and used it up cannot be tried again.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while True:
                try:
                    piece = found.get(timeout=_LOOK)
                except queue.Empty:
                    yield b""
                    continue
                if isinstance(piece, Exception):
                    raise piece
                if not piece:
                    return
                yield piece
        finally:
            with contextlib.suppress(OSError):
                behind.connection.shutdown(socket.SHUT_RDWR)
            reader.join(_SECONDS)

    def _silent(self) -> None:
        """Until the client goes, or the proxy."""
        while not self.server.proxy.over.wait(_LOOK) and not self._gone():
            pass
        self.close_connection = True

    def _gone(self) -> bool:
        """The client has closed its end: until it has its answer it says nothing else."""
        asked = select.poll()
        asked.register(self.connection, select.POLLIN)
        return bool(asked.poll(0))
