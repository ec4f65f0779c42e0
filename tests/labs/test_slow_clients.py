"""500 clients that neither ask nor read as they should, for a minute: scans go on, and who asks is answered."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fixtures
from tests.agent import Agent
from tests.labs.exporters import free_port

CLIENTS, SECONDS = 500, 60.0  # issue 8, point 3
ENOUGH = 10.0  # seconds for a client that asks properly
EVERY = 5.0  # seconds between two scans


class Slow:
    """Half of them say a request a byte at a time, the others read no answer; whoever is cut off comes again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._clients: list[socket.socket | None] = [None] * CLIENTS
        self.opened = 0
        self._thread = threading.Thread(target=self._run)

    @contextlib.contextmanager
    def at_it(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()
        for one in self._clients:
            if one is not None:
                one.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for number, one in enumerate(self._clients):
                if self._over.is_set():
                    return
                if one is None:
                    self._clients[number] = self._fresh(number)
                elif not self._dripped(one, number):
                    one.close()
                    self._clients[number] = None
            self._over.wait(0.2)

    def _fresh(self, number: int) -> socket.socket | None:
        client = socket.socket()
        client.settimeout(0.5)
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", self._port))
            client.setblocking(False)
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X: " if number % 2 else b"\r\n"))
        except OSError:
            client.close()
            return None
        self.opened += 1
        return client

    def _dripped(self, client: socket.socket, number: int) -> bool:
        """Is it still connected?"""
        try:
            if number % 2:
                client.send(b"x")
            else:
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    box = fixtures.tree("dgx-h100", tmp_path)
    agent = Agent(
        tmp_path / "http", "--from", str(box), "--state-dir", str(tmp_path / "state"), "--rescan", "1h",
        listen=f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    try:
        yield agent.ready()
    finally:
        agent.kill()


def test_slow_clients(agent: Agent) -> None:
    listening = next(line for line in agent.log if "listening: 127.0.0.1:" in line)
    port = int(listening.rpartition(":")[2])
    slowest = 0.0
    begun, before, sent = time.monotonic(), agent.scans(), 0
    clients = Slow(port)
    with clients.at_it():
        while time.monotonic() < begun + SECONDS:
            due = begun + EVERY * (sent + 1)
            agent.send(signal.SIGHUP)
            sent += 1
            _wait_for_scans(agent, port, before + sent)
            while time.monotonic() < due:
                asked = time.monotonic()
                assert _got(port, "/topology.json").startswith(b"HTTP/1.1 200 ")
                slowest = max(slowest, time.monotonic() - asked)
                time.sleep(0.5)
    opened = clients.opened
    agent.wait_for(lambda: agent.metrics()["topo_agent_threads"] <= 8)
    print(
        f"{opened} connections of {CLIENTS} slow clients in {SECONDS:g} s: {sent} scans, slowest page {slowest:.2f} s"
    )
    assert opened >= CLIENTS
    assert agent.scans() >= before + sent
    assert agent.scans("given_up") == agent.scans("error") == 0
    assert slowest <= ENOUGH


def _got(port: int, path: str) -> bytes:
    """Asked once more where the connection comes to nothing: the kernel's queue of new ones may be full."""
    with contextlib.suppress(ConnectionError):
        if answer := _get(port, path):
            return answer
    return _get(port, path)


def _get(port: int, path: str) -> bytes:
    """Over TCP, as the slow ones are."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 3 * ENOUGH)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        got = bytearray()
        while data := client.recv(1 << 16):
            got += data
        return bytes(got)


def _scans(port: int) -> float:
    line = next(line for line in _get(port, "/metrics").splitlines() if b'scans_total{result="ok"}' in line)
    return float(line.rpartition(b" ")[2])


def _wait_for_scans(agent: Agent, port: int, scans: float) -> None:
    agent.wait_for(lambda: _scans(port) >= scans)
