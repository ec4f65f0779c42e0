"""The agent that publishes labels in the cluster of the labs, and what the API server knows of that."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from tests import fixtures
from tests.agent import Agent
from tests.labs.controlplane.cluster import Cluster, Refused, Request
from tests.test_cli import run
from topo_agent.cli import cli

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

NODE = "n1"
MACHINE = "gb200-nvl72-tray"
ANNOTATION = "topo-agent.io/labels"
BASE = Path(__file__).parents[3] / "daemonset/base"
# What takes seconds for good reasons, in less. A copied machine is looked at every minute: not here.
QUICK = """\
from topo_agent.daemon import keeper, loop, schedule
keeper._JITTER, keeper._FIRST, keeper._LAST = 0.0, 0.2, 1.0
loop._CONFIRM, loop._POLL, schedule.SETTLE = 0.1, 3600.0, 0.05
"""
# As it is, but for the looks at a machine that cannot change.
PLAIN = "from topo_agent.daemon import loop; loop._POLL = 3600.0"


class Publishing:
    """One machine, a mapping, and agents that publish its labels on the Node n1; all are gone afterwards."""

    def __init__(self, cluster: Cluster, box: Path, folder: Path) -> None:
        self.cluster, self.box, self.folder = cluster, box, folder
        self.mapping = folder / "nodes.csv"
        self.rack("r1")
        self.started: list[Agent] = []
        self._since = 0
        self.mark()

    def rack(self, name: str) -> None:
        self.mapping.write_text(f"node,rack,block\n{NODE},{name},b1\n", encoding="utf-8")

    @property
    def machine(self) -> list[str]:
        return ["--from", str(self.box), "--node", NODE, "--mapping", str(self.mapping)]

    def start(self, *words: str, kubeconfig: str = "", around: str = QUICK, named: bool = True) -> Agent:
        where = ["--kubeconfig", kubeconfig or self.cluster.kubeconfig] if named else []
        chosen = words if "--labels" in words else ("--labels", "node", *words)
        one = Agent(self.folder / f"http-{len(self.started)}", *self.machine, *where, *chosen, around=around)
        self.started.append(one)
        return one.ready()

    def published(self, **more: Any) -> Agent:
        """One whose labels are there."""
        one = self.start(**more)
        self.wait_for_said(one)
        return one

    def wait_for_said(self, one: Agent) -> None:
        expected = self.said()
        one.wait_for(lambda: self.labels() == expected)

    def said(self, *words: str) -> dict[str, str]:
        """What `dump` says that the labels are."""
        return _lines(run("dump", "-f", "labels", *self.machine, *words).stdout)

    def publish(self, *words: str, kubeconfig: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Once, by its command."""
        where = ["--kubeconfig", kubeconfig or self.cluster.kubeconfig]
        return run("kube", "publish", *self.machine, *where, *words, env=environment)

    def labels(self, domain: str = "topo-agent.io") -> dict[str, str]:
        return {key: text for key, text in self.all().items() if key.startswith(f"{domain}/")}

    def all(self) -> dict[str, str]:
        found: dict[str, str] = self.node()["metadata"].get("labels", {})
        return found

    def node(self) -> dict[str, Any]:
        """{} as its metadata where it is not there, or no answer comes."""
        try:
            found: dict[str, Any] = self.cluster.api("GET", f"/api/v1/nodes/{NODE}", within=5.0)
        except (Refused, OSError, http.client.HTTPException):
            return {"metadata": {}}
        return found

    # What was asked of the API server

    def mark(self) -> None:
        """Requests are counted from now on."""
        self._since = self.cluster.now()

    def requests(self, user: str | None = None) -> list[Request]:
        return self.cluster.requests(user=user, agent="topo-agent", since=self._since)

    def verbs(self) -> Counter[str]:
        return Counter(one.verb for one in self.requests())

    def wrote(self, agent: Agent, count: int) -> bool:
        """So many, and no more: a change is seen a moment before it is in the audit log."""
        agent.wait_for(lambda: self.writes() >= count)
        return self.writes() == count

    def writes(self) -> int:
        """Those that were carried out."""
        return sum(one.verb not in {"get", "list", "watch"} and 200 <= one.code < 300 for one in self.requests())


def open_publishing(cluster: Cluster, folder: Path, common: Path) -> contextlib.AbstractContextManager[Publishing]:
    @contextlib.contextmanager
    def opened() -> Iterator[Publishing]:
        one = Publishing(cluster, fixtures.tree(MACHINE, common), folder)
        try:
            yield one
        finally:
            for agent in one.started:
                agent.kill()

    return opened()


def _lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def quickly(cluster: Cluster, folder: Path, *words: str) -> dict[str, str]:
    """`dump -f labels` or `kube publish`, in this process: a start of the program takes longer than its work."""
    output = folder / "labels.txt"
    done = CliRunner().invoke(cli, [*words, "-o", str(output), "-q"], env={"KUBECONFIG": cluster.kubeconfig})
    assert done.exit_code == 0, done.output
    return _lines(output.read_text(encoding="utf-8"))


def tray(folder: Path, cluster: str, clique: int) -> Path:
    """The described tray as a part of that NVLink cluster and clique: a recording."""
    import yaml

    said = yaml.safe_load((fixtures.FOLDER / MACHINE / "machine.yaml").read_text(encoding="utf-8"))
    said["nvidia"]["fabric"] |= {"uuid": cluster, "clique": clique}
    described, recording = folder / "machine.yaml", folder / f"{cluster}.{clique}.topo"
    described.write_text(yaml.safe_dump(said), encoding="utf-8")
    done = CliRunner().invoke(cli, ["synth", str(described), "-o", str(recording)])
    assert done.exit_code == 0, done.output
    return recording


class Witness:
    """Watches the Node n1 all the while: `with Witness(cluster) as seen:`, `seen.labels` are those of each event."""

    def __init__(self, cluster: Cluster) -> None:
        self.labels: list[Mapping[str, str]] = []
        where = urllib.parse.urlsplit(cluster.server)
        trusted = ssl.create_default_context(cafile=cluster.ca)
        self._client = http.client.HTTPSConnection("127.0.0.1", where.port, context=trusted)
        self._headers = {"Authorization": f"Bearer {cluster.user_token('admin')}"}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        # From the Node of now on: without a version it begins with whatever the API server has in its cache.
        path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{NODE}"
        self._client.request("GET", path, headers=self._headers)
        said = json.load(self._client.getresponse())
        self.labels += [one["metadata"].get("labels", {}) for one in said["items"]]
        path += f"&watch=1&resourceVersion={said['metadata']['resourceVersion']}"
        self._client.request("GET", path, headers=self._headers)
        self._socket = self._client.sock
        self._answer = self._client.getresponse()
        assert self._answer.status == 200
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._answer.close()
        self._client.close()
        self._socket.close()

    def _watch(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            for line in self._answer:
                self.labels.append(json.loads(line)["object"]["metadata"].get("labels", {}))

    @property
    def watches(self) -> bool:
        return self._thread.is_alive()

    def always(self, expected: Mapping[str, str]) -> bool:
        """Were they there at first and in every event? It has to watch still."""
        return self.watches and all(expected.items() <= one.items() for one in self.labels)


def idle_seconds() -> float:
    return 60.0 if os.environ.get("CI") else 10.0
