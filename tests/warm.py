"""The program started many times: each run is forked off a process that has imported what commands import.

A run is a process of its own like any other, with its streams, environment, directory and status. It lacks only the
start of Python and the imports, which are nine tenths of the time of a short run. All runs of one process have one
seed of `hash`, and the locale and switches with which Python started: who tests these takes a start of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 120
_one_at_a_time = threading.Lock()
_started: list[socket.socket] = []


def run(arguments: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`topo-agent …`, nothing on stdin; killed after two minutes."""
    with _one_at_a_time, ThreadPoolExecutor(2) as pool:
        if not _started:
            _started.append(_start(environment))
        server = _started[0]
        streams = os.open(os.devnull, os.O_RDONLY), *os.pipe(), *os.pipe()
        said = json.dumps({"arguments": [*arguments], "environment": environment, "cwd": os.getcwd()}).encode()
        socket.send_fds(server, [len(said).to_bytes(4, "big")], [streams[0], streams[2], streams[4]])
        server.sendall(said)
        for descriptor in (streams[0], streams[2], streams[4]):
            os.close(descriptor)
        late = threading.Timer(SECONDS, os.kill, (_number(server), signal.SIGKILL))
        late.start()
        out, err = pool.map(_all, (streams[1], streams[3]))
        status = os.waitstatus_to_exitcode(_number(server))
        late.cancel()
    return subprocess.CompletedProcess([*arguments], status, out, err)


def _all(descriptor: int) -> str:
    with open(descriptor) as file:  # as subprocess decodes
        return file.read()


def _start(environment: dict[str, str]) -> socket.socket:
    """The process from which runs are forked, as this end of the line to it; it ends with us."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(theirs.fileno())], pass_fds=[theirs.fileno()],
        env=environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,  # a pipe, so that Python buffers as it does in a run
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    return ours


def _number(line: socket.socket) -> int:
    return int.from_bytes(_exactly(line, 4), "big")


def _exactly(line: socket.socket, size: int) -> bytes:
    data = line.recv(size, socket.MSG_WAITALL)
    assert len(data) == size, "the process from which runs are forked has ended"
    return data


# The process from which runs are forked


def _serve(line: socket.socket) -> bool:
    """True in each run, set up as the program; False once nobody asks any more."""
    while True:
        size, streams, _, _ = socket.recv_fds(line, 4, 3)
        if not size:
            return False
        said = json.loads(_exactly(line, int.from_bytes(size, "big")))
        pid = os.fork()
        if not pid:
            line.close()
            _become(said, streams)
            return True
        for descriptor in streams:
            os.close(descriptor)
        line.sendall(pid.to_bytes(4, "big"))
        line.sendall(os.waitpid(pid, 0)[1].to_bytes(4, "big"))


def _become(said: dict[str, Any], streams: list[int]) -> None:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(said["environment"])
    os.chdir(said["cwd"])
    sys.argv[1:] = said["arguments"]


def _import() -> None:
    """What commands import; what costs much more than they do stays behind its door."""
    for package in ("commands", "graph", "readers", "settings", "sources", "synthesis", "views"):
        found = import_module(f"topo_agent.{package}")
        for below in pkgutil.iter_modules(found.__path__, f"{found.__name__}."):
            import_module(below.name)
    for module in ("scan", "daemon.start", "host.archive", "host.live", "host.recording", "host.unpack"):
        import_module(f"topo_agent.{module}")


if __name__ == "__main__":
    from topo_agent.cli import main

    _import()
    gc.collect()
    gc.freeze()  # or every run copies the memory of all that was imported, to look for cycles as it ends
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        main()
