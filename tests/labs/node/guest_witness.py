"""Runs in a guest that is a node: starts what the node consists of, and says what it sees there, over HTTP.

Only what Python itself has, and uevents.py. `witness.py FOLDER`: programs, settings and about.json are in FOLDER.
"""

from __future__ import annotations

import contextlib
import glob
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from tests.labs.uevents import Uevents

NODE = sys.argv[1]
AGENT = "http://127.0.0.1:19738"
_ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": NODE, "TMPDIR": f"{NODE}/tmp"}  # noqa: S108 its own

with open(f"{NODE}/about.json", encoding="utf-8") as _file:
    ABOUT = json.load(_file)
CONTAINERD = [f"{NODE}/bin/containerd", f"--config={NODE}/containerd.toml"]
CTR = [f"{NODE}/bin/ctr", f"--address={NODE}/containerd.sock", "-n", "k8s.io"]
KUBELET = [
    f"{NODE}/bin/kubelet", f"--config={NODE}/kubelet.yaml", f"--kubeconfig={NODE}/kubeconfig",
    f"--root-dir={NODE}/kubelet", f"--cert-dir={NODE}/certs", f"--hostname-override={ABOUT['name']}",
]  # fmt: skip

uevents = Uevents()
running: dict[str, subprocess.Popen[bytes]] = {}
restarting = threading.Event()


def forward() -> None:
    """The API server is on 127.0.0.1 here, too, where its certificate is for."""
    with socket.create_server(("127.0.0.1", ABOUT["apiserver"]), backlog=64) as server:
        while True:
            ours, _ = server.accept()
            try:
                theirs = socket.create_connection(("10.0.2.2", ABOUT["apiserver"]), 10.0)
            except OSError:
                ours.close()
                continue
            theirs.settimeout(None)
            for source, target in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=copy, args=(source, target), daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def start(name: str, command: list[str]) -> None:
    with open(f"{NODE}/{name}.log", "ab") as log:
        running[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=NODE, env=_ENVIRONMENT
        )


def images() -> None:
    """Each under the name that pods give it, too."""
    while subprocess.run([*CTR, "version"], capture_output=True, check=False).returncode:
        time.sleep(0.2)
    for archive, own, name in ABOUT["images"]:
        subprocess.run([*CTR, "images", "import", archive], stdout=subprocess.DEVNULL, check=True)
        if name != own:
            subprocess.run([*CTR, "images", "tag", "--force", own, name], stdout=subprocess.DEVNULL, check=True)
        os.unlink(archive)


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        try:
            body, status = said(self.path.strip("/")), 200
        except Exception as error:  # noqa: BLE001 whatever it is, the lab is told
            body, status = repr(error), 500
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """The console is for what goes wrong."""


def said(path: str) -> str:
    what, _, rest = path.partition("/")
    if what == "age":
        return str(time.monotonic() - uevents.last)
    if what == "pci":
        return "\n".join(sorted(os.listdir("/sys/bus/pci/devices")))
    if what == "metrics":
        with urllib.request.urlopen(f"{AGENT}/metrics", timeout=10) as answer:  # noqa: S310 our own address
            return str(answer.read().decode())
    if what == "dump":
        command = [sys.executable, "-m", "topo_agent", "dump", "-f", rest, "--node", ABOUT["name"]]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    if what == "kubelet":
        restarting.set()
        running["kubelet"].terminate()
        running["kubelet"].wait(30)
        start("kubelet", KUBELET)
        restarting.clear()
        return ""
    if what == "log":
        return read(f"{NODE}/{rest}.log")
    if what == "pods":
        return "".join(read(path) for path in sorted(glob.glob(f"{NODE}/logs/{rest}_*/*/*.log")))
    raise ValueError(path)


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def main() -> None:
    threading.Thread(target=forward, daemon=True).start()
    server = http.server.ThreadingHTTPServer(("", 8080), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    start("containerd", CONTAINERD)
    images()
    start("kubelet", KUBELET)
    print(f"witness: kubelet started after {time.monotonic():.0f} s", flush=True)
    while all(one.poll() is None or restarting.is_set() for one in [*running.values()]):
        time.sleep(0.5)
    ended = [name for name, one in running.items() if one.poll() is not None]
    sys.exit("".join(f"{name} ended: {read(f'{NODE}/{name}.log')[-2000:]}" for name in ended))


main()
