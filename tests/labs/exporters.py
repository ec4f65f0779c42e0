"""node_exporter, Debian's and a current one that Go builds from its module, and Prometheus that scrapes them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.labs.apt import CannotStart

VERSION = "v1.12.1"
_MODULE = f"github.com/prometheus/node_exporter@{VERSION}"
_BUILD_SECONDS = 900
_ENOUGH = 60.0

Series = tuple[dict[str, str], float]


def installed(name: str) -> str:
    """Of Debian's package of that name."""
    found = shutil.which(name)
    if not found:
        raise CannotStart(f"no {name} here; Debian has a package of that name")
    return found


def current() -> str:
    """node_exporter of VERSION, kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(cache, "topo-agent-labs", f"node_exporter-{VERSION}")
    program = folder / "node_exporter"
    if program.exists():
        return str(program)
    if not shutil.which("go"):
        raise CannotStart(f"no go here, and no node_exporter {VERSION} in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        command = ["go", "install", _MODULE]
        environment = os.environ | {"GOBIN": fresh, "CGO_ENABLED": "0", "GOFLAGS": "-p=2"}
        try:
            done = subprocess.run(
                command, env=environment, cwd=fresh, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise CannotStart(f"{' '.join(command)} took more than {_BUILD_SECONDS} s") from None
        if done.returncode:
            raise CannotStart(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        folder.mkdir(exist_ok=True)
        os.replace(Path(fresh, "node_exporter"), program)
    return str(program)


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ones: each is held until the last is known."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Prometheus:
    """On `port`; scrapes each second what `targets` names, each job a port; `instance` has none (docs/metrics.md)."""

    def __init__(self, folder: Path, port: int, targets: Mapping[str, int]) -> None:
        self._folder, self._port = folder, port
        self._program = installed("prometheus")
        jobs = [
            {
                "job_name": job,
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                "relabel_configs": [{"source_labels": ["__address__"], "regex": "(.*):.*", "target_label": "instance"}],
            }
            for job, port in targets.items()
        ]
        said = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")

    @contextlib.contextmanager
    def running(self) -> Iterator[Prometheus]:
        command = [
            self._program, f"--config.file={self._folder}/prometheus.yaml",
            f"--web.listen-address=127.0.0.1:{self._port}", f"--storage.tsdb.path={self._folder}/series",
        ]  # fmt: skip
        with running(command, self._folder / "prometheus.log"):
            yield self

    def ask(self, expression: str) -> list[Series]:
        """The samples of now; AssertionError with its words where it refuses."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/query?{query}", timeout=_ENOUGH) as answer:
            said: dict[str, Any] = json.load(answer)
        assert said["status"] == "success", said
        return [(one["metric"], float(one["value"][1])) for one in said["data"]["result"]]

    def waited_for(self, expression: str, so: Callable[[list[Series]], object] = bool) -> list[Series]:
        """The samples, once they are so."""
        until = time.monotonic() + _ENOUGH
        found: list[Series] = []
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                found = self.ask(expression)
                if so(found):
                    return found
            time.sleep(0.2)
        log = (self._folder / "prometheus.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"{expression}: {found}\n{log}")
