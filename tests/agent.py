"""The agent that stays, in a process of its own, with its log and its pages."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.test_cli import PROGRAM, environment

ENOUGH = 30.0  # seconds for what takes one on a machine that does nothing else


def wait_for(so: Callable[[], object], seconds: float = ENOUGH, *, what: Callable[[], object] = lambda: "") -> None:
    """Until it is so; `what` is shown where it never is. A question that is cut off is asked again: clocks may jump."""
    until = time.monotonic() + seconds
    while not _is(so):
        assert time.monotonic() < until, what()
        time.sleep(0.02)


def _is(so: Callable[[], object]) -> bool:
    try:
        return bool(so())
    except (ConnectionError, http.client.IncompleteRead):
        return False


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class _Client(http.client.HTTPConnection):
    """Over a Unix socket."""

    def __init__(self, path: str, within: float) -> None:
        super().__init__("localhost", timeout=within)
        self._path, self._within = path, within

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._within)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class Agent:
    """`topo-agent run …`, asked over a Unix socket; `around` is Python that is run in its process before it begins."""

    def __init__(self, place: Path, *arguments: str, listen: str = "", around: str = "") -> None:
        """`place` is where its socket is made; `listen`: another address."""
        begin = f"{around}\nfrom topo_agent.cli import main\nmain()"
        program = [sys.executable, "-c", begin] if around else PROGRAM
        self.place = place
        where = f"unix:{place},{listen}" if listen else f"unix:{place}"
        self._process = subprocess.Popen(
            [*program, "run", "--listen", where, *arguments], env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> Agent:
        self.wait_for_line("listening: ")
        self.wait_for(lambda: self.get("/readyz").status == 200)
        return self

    def wait_for(self, so: Callable[[], object], seconds: float = ENOUGH) -> None:
        """Until it is so; the log is shown where it never is, and where the agent has ended."""

        def yet() -> object:
            assert self.running, self.log[-30:]
            return so()

        wait_for(yet, seconds, what=lambda: "\n".join(self.log[-30:]))

    def wait_for_line(self, text: str, after: int = 0) -> None:
        self.wait_for(lambda: self.lines(text, after))

    def lines(self, text: str, after: int = 0) -> list[str]:
        """Of the log, from the line `after` on."""
        return [line for line in self.log[after:] if text in line]

    def get(self, path: str, within: float = ENOUGH, **headers: str) -> Answer:
        client = _Client(str(self.place), within)
        try:
            client.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = client.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read().decode())
        finally:
            client.close()

    def topology(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/topology.json").body)
        return found

    def metrics(self) -> dict[str, float]:
        """`{'topo_agent_scans_total{result="ok"}': 3.0, …}`"""
        lines = (line.rpartition(" ") for line in self.get("/metrics").body.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def scans(self, result: str = "ok") -> float:
        return self.metrics()[f'topo_agent_scans_total{{result="{result}"}}']

    def rescan(self) -> None:
        """SIGHUP, and the scan after it."""
        before = self.scans()
        self.send(signal.SIGHUP)
        self.wait_for(lambda: self.scans() > before)

    def scanner(self) -> int:
        """The process that scans."""
        (found,) = children(self.pid)
        return found

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Its status, and the seconds that it took."""
        started = time.monotonic()
        if self.running:
            self.send(number)
        self._process.wait(ENOUGH)
        took = time.monotonic() - started
        return self.ended(), took

    def kill(self) -> None:
        """Whatever state it is in, its children too."""
        for pid in (*children(self.pid), self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.ended()

    def ended(self) -> int:
        """Its status, once it and its log have ended."""
        status = self._process.wait(ENOUGH)
        self._reader.join(ENOUGH)
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()
        return status


def children(pid: int) -> list[int]:
    """Those that have not been waited for, dead ones included."""
    try:
        return [one.pid for one in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def state(pid: int) -> str:
    """R, S, D, T, Z…; "" of a process that is gone."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return said.rpartition(")")[2].split()[0]
