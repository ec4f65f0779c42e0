"""The HTTP server, asked over real sockets: by clients that behave, and by clients that do not."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.client
import os
import re
import resource
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from topo_agent.publishers import addresses, response, tls
from topo_agent.publishers.http import Limits, Page, Server, Tls

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
LONG = b"0123456789abcdef" * 4096
ENOUGH = 10  # seconds in which a client that is not in the way of others has its answer
PAGES = {
    "/": Page(200, HTML, b"<h1>here</h1>" * 100),
    "/short": Page(200, TEXT, b"short\n"),
    "/long": Page(200, TEXT, LONG),
    "/empty": Page(200, TEXT, b""),
    "/broken": Page(503, TEXT, b"not yet\n"),
    "/huge": Page(200, TEXT, b"x" * (32 << 20)),  # more than the kernel keeps for both ends
}


def pages(path: str, accept: str) -> Page | None:
    return Page(200, TEXT, accept.encode()) if path == "/accept" else PAGES.get(path)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


Start = Callable[..., Server]
Told = Callable[[str | None], None]


@pytest.fixture
def start() -> Iterator[Start]:
    """Servers that are stopped again; nothing of them is left."""
    before, threads = descriptors(), threading.active_count()
    servers: list[Server] = []

    def started(
        *listen: str, pages: object = pages, tls: Tls | None = None, told: Told = lambda _: None, **limits: float
    ) -> Server:
        chosen = Limits(**limits)  # type: ignore[arg-type]
        server = Server(listen or ("127.0.0.1:0",), pages, tls=tls, told=told, limits=chosen)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield started
    for server in servers:
        server.stop()
    wait_for(lambda: threading.active_count() == threads)  # one that has done its work still ends
    assert descriptors() == before


def connect(server: Server, which: int = 0) -> socket.socket:
    address = addresses.parse(server.addresses[which])
    if address.path:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(ENOUGH)
        client.connect(address.path)
        return client
    return socket.create_connection((address.host, address.port), ENOUGH)


def said(client: socket.socket) -> bytes:
    """All until the server has no more to say."""
    got = bytearray()
    try:
        while data := client.recv(1 << 16):
            got += data
    except ConnectionResetError:
        got += b"<reset>"
    return bytes(got)


def raw(server: Server, data: bytes, which: int = 0) -> bytes:
    with connect(server, which) as client:
        client.sendall(data)
        return said(client)


def wait_for(so: Callable[[], bool]) -> None:
    until = time.monotonic() + ENOUGH
    while not so():
        assert time.monotonic() < until
        time.sleep(0.01)


Answer = tuple[int, dict[str, str], bytes]


def ask(server: Server, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    address = addresses.parse(server.addresses[0])
    client = http.client.HTTPConnection(address.host, address.port, timeout=ENOUGH)
    try:
        client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = client.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        client.close()


# Pages


def test_pages(start: Start) -> None:
    server = start()
    for path, page in PAGES.items():
        status, headers, body = ask(server, path)
        assert (status, headers["content-type"], body) == page
        assert headers["content-length"] == str(len(body))
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        policy = headers.get("content-security-policy")
        assert policy == ("default-src 'none'; style-src 'unsafe-inline'" if path == "/" else None)
        assert ("etag" in headers) == (status == 200)


def test_what_is_asked_for(start: Start) -> None:
    server = start()
    assert ask(server, "/accept?a=/short", accept="text/x")[2] == b"text/x"
    assert ask(server, "/nosuch")[0] == 404
    assert ask(server, "http://example.com/short")[2] == b"short\n"
    assert raw(server, b"GET http://[::1]:1?x HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert ask(server, "/accept", accept="a")[1]["vary"] == "Accept, Accept-Encoding"


def test_head_is_get_without_a_body(start: Start) -> None:
    server = start()
    for path in [*PAGES, "/nosuch"]:
        for coding in ("identity", "gzip"):
            got, head = (ask(server, path, method, accept_encoding=coding) for method in ("GET", "HEAD"))
            assert head[2] == b""
            assert head[0] == got[0]
            assert {**head[1], "date": ""} == {**got[1], "date": ""}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PRI", "get"])
@pytest.mark.parametrize("body", ["", "x" * 100_000])
def test_other_methods(method: str, body: str, start: Start) -> None:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    got = raw(start(), f"{method} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}\r\n{body}".encode())
    assert got.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nAllow: GET, HEAD\r\n" in got
    assert b"<reset>" not in got


def test_a_page_that_has_not_changed(start: Start) -> None:
    server = start()
    for coding in ("identity", "gzip"):
        _, headers, _ = ask(server, "/long", accept_encoding=coding)
        tag = headers["etag"]
        assert re.fullmatch(r'"[0-9a-f]{32}(-gzip)?"', tag)
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            status, again, body = ask(server, "/long", accept_encoding=coding, if_none_match=known)
            assert (status, body, again["etag"]) == (304, b"", tag)
        assert ask(server, "/short", accept_encoding=coding, if_none_match=tag)[0] == 200
    tags = {ask(server, "/long", accept_encoding=coding)[1]["etag"] for coding in ("identity", "gzip")}
    assert len(tags) == 2, "other bytes have another tag"
    assert ask(server, "/broken", if_none_match="*")[0] == 503


def test_compression(start: Start) -> None:
    server = start()
    _, headers, body = ask(server, "/long", accept_encoding="br, gzip;q=0.5")
    assert headers["content-encoding"] == "gzip"
    assert len(body) < len(LONG) / 10
    assert gzip.decompress(body) == LONG
    assert body[4:8] == bytes(4), "no time of day"
    assert ask(server, "/long", accept_encoding="gzip")[2] == body
    for path, coding in (("/short", "gzip"), ("/long", "identity"), ("/long", "gzip;q=0"), ("/long", "")):
        assert "content-encoding" not in ask(server, path, accept_encoding=coding)[1]


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        ("gzip", True), ("GZIP", True), ("x-gzip", True), ("*", True), ("deflate, gzip;q=1.0", True), ("", False),
        ("gzip;q=0", False), ("gzip; q=0.000", False), ("gzip;q=0, *", False), ("*;q=0", False), ("gzip, *;q=0", True),
        ("gzip;q=0.001", True), ("br", False), ("gzipped", False), (";;,;q=,", False),
    ],
)  # fmt: skip
def test_who_takes_gzip(accepted: str, wanted: bool) -> None:  # noqa: FBT001
    assert response.takes_gzip(accepted) is wanted


@pytest.mark.parametrize("second", [0, 951782399, 1_800_000_000])
def test_dates(second: int) -> None:
    from email.utils import formatdate

    assert response._date(second) == formatdate(second, usegmt=True)


# The protocol


def test_one_connection_many_requests(start: Start) -> None:
    one = b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /short HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = raw(start(), one * 50 + b"\r\n" + last + one)
    assert got.count(b"HTTP/1.1 200 OK\r\n") == got.count(b"\r\n\r\nshort\n") == 51
    assert got.count(b"Connection: keep-alive") == 50


@pytest.mark.parametrize("data", [b"GET /short HTTP/1.0\r\n\r\n", b"GET /short HTTP/1.0\n\n"])
def test_an_old_client(data: bytes, start: Start) -> None:
    got = raw(start(), data)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in got
    assert got.endswith(b"\r\n\r\nshort\n")


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
REFUSED = [
    (b"GET /\r\n\r\n", 400), (b"GET\r\n\r\n", 400), (b"GET  / HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n\r\n", 505), (b"GET / HTTP/1.x\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\n", 400),
    (b"\0" * 20_000, 414), (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414), (b"x" * 200_000, 414),
    (GET + b"A: " + b"x" * 9000 + b"\r\n\r\n", 431), (GET + b"A: " + b"x" * 200_000, 431),
    (GET + b"A: b\r\n" * 101 + b"\r\n", 431), (GET + (b"A: " + b"x" * 8000 + b"\r\n") * 5 + b"\r\n", 431),
    (GET + b"no header\r\n\r\n", 400), (GET + b" a: folded\r\n\r\n", 400), (GET + b"A : b\r\n\r\n", 400),
    (GET + b": b\r\n\r\n", 400), (GET + b"A: \0\r\n\r\n", 400), (GET + b"A: b\rc\r\n\r\n", 400),
    (GET + b"Host: y\r\n\r\n", 400), (GET + b"Content-Length: 5\r\n\r\nhello", 413),
    (GET + b"Content-Length: -1\r\n\r\n", 400), (GET + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_what_is_no_request(data: bytes, status: int, start: Start) -> None:
    """Told why, although more was sent than is read; and then the connection ends."""
    server = start(request=2)
    with connect(server) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        got = said(client)
    assert got.startswith(f"HTTP/1.1 {status} ".encode()), got
    assert b"\r\nConnection: close\r\n" in got
    assert got.count(b"HTTP/1.1 ") == 1
    assert ask(server, "/short")[2] == b"short\n"


def test_as_much_as_is_allowed(start: Start) -> None:
    server = start()
    assert raw(server, GET + b"Connection: close\r\n" + b"A: b\r\n" * 98 + b"\r\n").startswith(b"HTTP/1.1 200 ")
    line = b"A: " + b"x" * 8187 + b"\r\n"
    assert raw(server, GET + b"Connection: close\r\n" + line * 3 + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_page_that_fails_is_told_and_seen(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda about: seen.append(about.exc_type))

    def failing(path: str, _: str) -> Page:
        raise KeyError(path)

    server = start(pages=failing)
    assert [ask(server)[0] for _ in range(3)] == [500] * 3
    server.stop()
    assert seen == [KeyError] * 3


# Slow and hostile clients


def test_half_a_request_is_cut_off(start: Start) -> None:
    """Whether it says nothing, stops in the middle, or sends a byte now and then."""
    server = start(request=0.5, total=2)
    for data in (b"", b"GET", GET, GET + b"A: "):
        assert raw(server, data) == b""
    with connect(server) as client, contextlib.suppress(ConnectionError):
        for _ in range(1000):
            client.sendall(b"x")
            time.sleep(0.01)
        pytest.fail("a byte now and then kept it open")


@pytest.mark.parametrize("piece", [b"\0" * 65536, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n"])
def test_who_never_stops_is_cut_off(piece: bytes, start: Start) -> None:
    server = start(request=1, total=2)
    with connect(server) as client, contextlib.suppress(ConnectionError):
        until = time.monotonic() + ENOUGH
        while time.monotonic() < until:
            client.sendall(piece)
        pytest.fail("it is still being read")


def test_a_connection_has_an_end(start: Start) -> None:
    """Whoever always asks again in time is told to come back, before the end."""
    server = start(request=2, total=4)
    with connect(server) as client:
        got = b""
        while b"Connection: close" not in got:
            client.sendall(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
            got += client.recv(1 << 16)
            time.sleep(0.05)
        assert said(client) == b""


def test_who_reads_nothing_is_cut_off(start: Start) -> None:
    server = start(request=0.3, total=0.6)
    with connect(server) as client:
        client.sendall(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: bool(server._open))
        wait_for(lambda: not server._open)
        assert len(said(client)) < len(PAGES["/huge"].body), "and it was not for being done"


@pytest.mark.parametrize("asked", [b"", b"GET", b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_who_waits_longest_makes_room(asked: bytes, start: Start) -> None:
    server = start(connections=4, request=60, total=60)
    slow = []
    try:
        for _ in range(12):
            slow.append(connect(server))
            slow[-1].sendall(asked)
            assert ask(server, "/short")[2] == b"short\n"
            assert len(server._open) <= 4
    finally:
        for client in slow:
            client.close()


def test_who_makes_a_page_is_not_cut_off(start: Start) -> None:
    go = threading.Event()
    inside = threading.Semaphore(0)

    def waiting(path: str, accept: str) -> Page | None:
        inside.release()
        assert go.wait(ENOUGH)
        return pages(path, accept)

    server = start(pages=waiting, connections=3)
    clients = [connect(server) for _ in range(3)]
    try:
        for client in clients:
            client.sendall(b"GET /short HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert inside.acquire(timeout=ENOUGH)
        assert raw(server, b"") in (b"", b"<reset>"), "it waits for a second"
        go.set()
        assert all(said(client).endswith(b"short\n") for client in clients)
    finally:
        for client in clients:
            client.close()


def test_five_hundred_slow_clients(start: Start) -> None:
    """They send a byte each round and come back when they are cut off; somebody else is answered all the while."""
    server = start()
    clients = [connect(server) for _ in range(500)]
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.05):
            for place, client in enumerate(clients):
                if stop.is_set():
                    return
                try:
                    client.send(b"G")
                except OSError:
                    client.close()
                    clients[place] = connect(server)

    hostile = threading.Thread(target=drip)
    hostile.start()
    try:
        until = time.monotonic() + 3
        answers = 0
        while time.monotonic() < until:
            assert ask(server, "/long")[2] == LONG
            answers += 1
            assert len(server._open) <= Limits().connections
        assert answers > 10
    finally:
        stop.set()
        hostile.join(ENOUGH)
        for client in clients:
            client.close()


def test_no_descriptors(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """accept() fails: the slowest makes room, and the server does not spin."""
    server = start()
    (listener,) = server._listeners
    failures = [OSError(errno.EMFILE, "Too many open files")] * 3

    class Scarce:
        def accept(self) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return listener.socket.accept()

    with connect(server) as idle:
        idle.send(b"G")
        wait_for(lambda: bool(server._open))
        monkeypatch.setattr(server, "_accept", lambda one, real=server._accept: real(one._replace(socket=Scarce())))
        assert ask(server, "/short")[2] == b"short\n"
        assert failures == []
        assert said(idle) == b""


def test_no_threads(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert raw(server, b"") in (b"", b"<reset>")
    assert ask(server, "/short")[2] == b"short\n"


# Begin and end


def test_stop_while_clients_hang(start: Start) -> None:
    go = threading.Event()

    def hanging(path: str, accept: str) -> Page | None:
        if path == "/hang":
            go.wait(60)
        return pages(path, accept)

    server = start(pages=hanging)
    asked = (b"", b"GET /", b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
    clients = [connect(server) for _ in range(20)]
    for place, client in enumerate(clients):
        client.sendall(asked[place % len(asked)])
    assert ask(server, "/short")[0] == 200
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 10  # a client hangs for 60
    server.stop()
    go.set()
    for client in clients:
        said(client)
        client.close()
    wait_for(lambda: not server._open)


def test_it_starts_again(start: Start) -> None:
    server = start()
    server.stop()
    assert server.addresses == []
    server.start()
    assert ask(server, "/short")[0] == 200


def test_an_address_that_is_taken(start: Start, tmp_path: Path) -> None:
    server = start()
    (taken,) = server.addresses
    other = Server([f"unix:{tmp_path}/http", "127.0.0.1:0", taken], pages)
    with pytest.raises(OSError, match=f"cannot listen on {taken}: Address already in use"):
        other.start()
    assert other.addresses == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("address", ["192.0.2.1:1", "no-such-host.invalid:1"])
def test_an_address_that_is_not_ours(address: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {re.escape(address)}: "):
        Server([address], pages).start()


def test_ipv6(start: Start) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    server = start("[::1]:0")
    assert re.fullmatch(r"\[::1\]:[1-9][0-9]*", server.addresses[0])
    assert ask(server, "/short")[2] == b"short\n"


# Unix sockets


def test_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "http"
    before = os.umask(0)
    try:
        server = start("127.0.0.1:0", f"unix:{path}")
    finally:
        os.umask(before)
    assert server.addresses[1] == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert raw(server, b"GET /short HTTP/1.0\r\n\r\n", 1).endswith(b"short\n")
    with pytest.raises(OSError, match=f"unix:{path}: somebody answers"):
        Server([f"unix:{path}"], pages).start()
    assert raw(server, b"GET /short HTTP/1.0\r\n\r\n", 1).endswith(b"short\n")
    server.stop()
    assert not path.exists()


def test_what_a_killed_server_left(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "http"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = start(f"unix:{path}")
    assert raw(server, b"GET /short HTTP/1.0\r\n\r\n").endswith(b"short\n")


def test_what_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("file", "link"):
        with pytest.raises(OSError, match=f"unix:{tmp_path}/{name}: something is there that is no socket"):
            Server([f"unix:{tmp_path}/{name}"], pages).start()
    assert path.read_text() == "mine"


def test_a_socket_of_somebody_else_is_kept(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "http"
    server = start(f"unix:{path}")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        server.stop()
        assert path.exists()


# TLS


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CAs, a certificate of each for clients, one of the first for the server."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl here: it makes the certificates")
    folder = tmp_path_factory.mktemp("papers")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for ca in ("ca", "other-ca"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.crt", "-subj", f"/CN={ca}", folder=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("stranger", "other-ca")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", folder=folder)
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial",
            "-extfile", "names", "-out", f"{name}.crt", folder=folder,
        )  # fmt: skip
    return folder


def securely(server: Server, papers: Path, client: str | None = None, **versions: ssl.TLSVersion) -> bytes:
    context = ssl.create_default_context(cafile=str(papers / "ca.crt"))
    for name, version in versions.items():
        setattr(context, name, version)
    if client:
        context.load_cert_chain(papers / f"{client}.crt", papers / f"{client}.key")
    with connect(server) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        secure.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return said(secure)


def tls_of(papers: Path, ca: str = "") -> Tls:
    return Tls(str(papers / "server.crt"), str(papers / "server.key"), str(papers / ca) if ca else "")


def test_tls(start: Start, papers: Path) -> None:
    server = start(tls=tls_of(papers))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        got = securely(server, papers, minimum_version=version, maximum_version=version)
        assert got.endswith(LONG), "and a proper end, or there would be an SSLEOFError"
    assert raw(server, GET + b"\r\n")[:5] != b"HTTP/"


def test_client_certificates(start: Start, papers: Path) -> None:
    server = start(tls=tls_of(papers, "ca.crt"))
    assert securely(server, papers, "client").endswith(LONG)
    for client in (None, "stranger"):
        with contextlib.suppress(OSError):  # an alert, or the connection is reset
            assert securely(server, papers, client) == b"<reset>"
    assert securely(server, papers, "client").endswith(LONG)


@pytest.fixture
def rotated(papers: Path, tmp_path: Path) -> Tls:
    """Files as a Kubernetes secret is mounted: links through `..data`, which is replaced at once."""
    (tmp_path / "0").mkdir()
    for name, source in (("tls.crt", "server.crt"), ("tls.key", "server.key"), ("ca.crt", "ca.crt")):
        shutil.copy(papers / source, tmp_path / "0" / name)
        (tmp_path / name).symlink_to(f"..data/{name}")
    (tmp_path / "..data").symlink_to("0")
    return Tls(*(str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")))


def presented(server: Server, papers: Path) -> str:
    """The CN of the certificate with which it introduces itself."""
    context = ssl.create_default_context(cafile=str(papers / "ca.crt"))
    context.load_cert_chain(papers / "client.crt", papers / "client.key")
    with connect(server) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        found: Any = secure.getpeercert()
        return str(dict(one[0] for one in found["subject"])["commonName"])


def test_certificates_of_a_secret_that_is_rotated(start: Start, papers: Path, rotated: Tls, tmp_path: Path) -> None:
    heard: list[str | None] = []
    server = start(tls=rotated, told=heard.append)
    assert presented(server, papers) == "server"
    fresh = tmp_path / "1"
    shutil.copytree(tmp_path / "0", fresh)
    for kind in ("crt", "key"):
        shutil.copy(papers / f"client.{kind}", fresh / f"tls.{kind}")
    (tmp_path / "..new").symlink_to("1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert presented(server, papers) == presented(server, papers) == "client"
    assert heard == [None]


def test_certificates_that_are_written_one_by_one(start: Start, papers: Path, rotated: Tls) -> None:
    """The new certificate with the old key is none: the last pair serves until both are there. Likewise a file that
    has gone.
    """
    heard: list[str | None] = []
    server = start(tls=rotated, told=heard.append)
    shutil.copy(papers / "client.crt", rotated.certificate)
    os.utime(rotated.certificate, (1, 1))  # a clock may be coarser than a test
    assert presented(server, papers) == presented(server, papers) == "server"
    os.utime(rotated.certificate, (0, 0))
    Path(rotated.key).unlink()
    assert presented(server, papers) == presented(server, papers) == "server"
    shutil.copy(papers / "client.key", rotated.key)
    assert presented(server, papers) == "client"
    assert len(heard) == 3
    assert rotated.certificate in str(heard[0])
    assert rotated.key in str(heard[1])
    assert heard[2] is None


def test_certificates_whose_right_comes_late(start: Start, papers: Path, rotated: Tls) -> None:
    """Copied, and made readable then: neither content nor time changes with that. Root may read everything, so what is
    in the way here is a limit of descriptors, which passes as well.
    """
    heard: list[str | None] = []
    found = tls.Certificates(rotated, heard.append)
    before = found.context()
    os.utime(rotated.certificate, (0, 0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert found.context() is found.context() is before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found.context() is not before
    assert heard == [f"{rotated.certificate}: cannot be used for TLS: Too many open files", None]


def test_another_ca_of_clients(start: Start, papers: Path, rotated: Tls) -> None:
    server = start(tls=rotated)
    assert securely(server, papers, "client").endswith(LONG)
    shutil.copy(papers / "other-ca.crt", rotated.client_ca)
    assert securely(server, papers, "stranger").endswith(LONG)
    with contextlib.suppress(OSError):  # an alert, or the connection is reset
        assert securely(server, papers, "client") == b"<reset>"


def test_a_handshake_has_a_deadline_and_makes_room(start: Start, papers: Path) -> None:
    server = start(tls=tls_of(papers), request=0.5)
    assert raw(server, b"\x16\x03\x01") == b""
    crowded = start(tls=tls_of(papers), connections=3, request=60, total=60)
    idle = [connect(crowded) for _ in range(9)]
    try:
        assert securely(crowded, papers).endswith(LONG)
    finally:
        for client in idle:
            client.close()


def test_a_unix_socket_has_no_tls(start: Start, papers: Path, tmp_path: Path) -> None:
    server = start(f"unix:{tmp_path}/http", tls=tls_of(papers))
    assert raw(server, b"GET /short HTTP/1.0\r\n\r\n").endswith(b"short\n")


def test_certificates_that_are_none(papers: Path, tmp_path: Path) -> None:
    certificate, key = str(papers / "server.crt"), str(papers / "server.key")
    (tmp_path / "junk").write_text("junk")
    openssl("ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(tmp_path / "locked"), folder=papers)
    for wrong in (
        Tls(str(tmp_path / "missing"), key), Tls(certificate, str(tmp_path / "junk")),
        Tls(certificate, str(papers / "client.key")), Tls(certificate, str(tmp_path / "locked")),
        Tls(certificate, key, str(tmp_path / "junk")),
    ):  # fmt: skip
        with pytest.raises(OSError, match=r"/\S+.*: cannot be used for TLS: \S"):
            Server(["127.0.0.1:0"], pages, tls=wrong).start()
