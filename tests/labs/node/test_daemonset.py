"""daemonset/base on a real node: Ready as nobody, true labels and a true slice, that stand while things go wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket as socket_
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fixtures
from tests.labs.aside import Aside
from tests.labs.controlplane import definitions
from tests.labs.node.deployed import BASE, CONTROLLERS, IMAGE, SOON, Deployed
from tests.labs.node.node import NodeOf
from tests.test_cli import run
from tests.test_docs import blocks

OVERLAYS = BASE.parent / "overlays"
PAGE = BASE.parents[1] / "docs/kubernetes-beside.md"
DRANET = {"TOPO_AGENT_DRANET_SOCKET": "/run/topo-agent/dranet"}
USER = 65532  # of the pod


@pytest.fixture(scope="module")
def node(start_node: Callable[..., NodeOf], agent_image: Path) -> NodeOf:
    found = start_node("d1", controllers=CONTROLLERS)
    for tag in ("one", "two"):
        found.load(agent_image, f"{IMAGE}:{tag}")
    return found


class Witness(Aside):
    """Looks all the time: were labels or the slice away, or the slice there twice?"""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__(every=0.05)
        self._deployed = deployed
        self.fewest, self.slices = len(deployed.labels()), set[int]()
        self.looks = 0

    def step(self) -> None:
        self.fewest = min(self.fewest, len(self._deployed.labels()))
        self.slices.add(len(self._deployed.slices()))
        self.looks += 1


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The described DGX H100, as far as the manifest mounts it: /sys, and /proc/cpuinfo."""
    folder = tmp_path_factory.mktemp("dgx")
    box, found = fixtures.tree("dgx-h100", folder), folder / "mounted"
    shutil.copytree(box / "sys", found / "sys", symlinks=True)
    (found / "sys/fs/cgroup").mkdir(parents=True)  # where the runtime mounts the container's own
    (found / "proc").mkdir()
    shutil.copy(box / "proc/cpuinfo", found / "proc/cpuinfo")
    for path in (folder, found):
        path.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def deployed(node: NodeOf, machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    found = Deployed(node, tmp_path_factory.mktemp("overlay") / "dgx", machine)
    found.apply("one")
    found.ready()
    yield found
    found.delete()


def said(machine: Path, *words: str) -> str:
    done = run("dump", "--from", str(machine), "--node", "d1", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_labels_and_slice_are_those_of_dump(deployed: Deployed, machine: Path) -> None:
    expected = dict(line.split("=", 1) for line in said(machine, "-f", "labels").splitlines())
    assert len(expected) >= 5
    deployed.wait(lambda: deployed.labels() == expected, f"labels {expected}")
    slice_ = yaml.safe_load(said(machine, "-f", "slices"))
    deployed.wait(lambda: len(deployed.slices()) == 1, "slice")
    devices = deployed.devices()
    assert devices == slice_["spec"]["devices"]
    kinds = [one["attributes"]["kind"]["string"] for one in devices]
    assert (kinds.count("gpu"), kinds.count("nic")) == (8, 12)  # a DGX H100: layouts.md
    print(deployed.cluster.kubectl("get", "node", "d1", "--show-labels"))
    print(deployed.cluster.kubectl("get", "resourceslices"))


def test_the_kubelet_is_started_anew(deployed: Deployed, node: NodeOf) -> None:
    """It deletes every slice of its node: dra.md, section 4."""
    node.stop_kubelet()
    took = deployed.wiped(node.start_kubelet)
    print(f"the slice is back {took:.2f} s after the kubelet took it away")
    assert took < SOON


def test_nothing_is_missed_while_pods_come_and_go(deployed: Deployed) -> None:
    before = deployed.labels()
    with Witness(deployed) as seen:
        (pod,) = deployed.pods()
        deployed.cluster.kubectl("delete", "pod", "-n", "topo-agent", pod["metadata"]["name"])
        deployed.ready()
        deployed.apply("two")
        started = deployed.ready("two")["metadata"]["name"]
        deployed.kill(started)
        deployed.node.wait(lambda: restarts(deployed) > 0, "container that was started anew")
        deployed.ready("two")
        began = time.monotonic()
        assert "rolled back" in deployed.roll("undo")
        deployed.roll("status", "--timeout=60s")
        deployed.ready("one")
        took = time.monotonic() - began
    assert seen.fewest == len(before)
    assert seen.slices == {1}
    assert deployed.labels() == before
    print(f"labels and one slice in each of {seen.looks} looks; the rollback took {took:.1f} s")


def restarts(deployed: Deployed) -> int:
    return sum(one["restartCount"] for pod in deployed.pods() for one in pod["status"].get("containerStatuses", ()))


def test_metrics_for_clients_with_a_certificate(node: NodeOf, machine: Path, tmp_path: Path) -> None:
    """The overlay prometheus with certificates as docs/kubernetes-beside.md makes them, and a folder for dranet."""
    certificates, socket = tmp_path / "certificates", tmp_path / "run"
    for folder in (certificates, socket):
        folder.mkdir()
    os.chown(socket, USER, USER)
    for path in (tmp_path, *tmp_path.parents[:2]):  # the pod's user goes through them
        path.chmod(0o755)
    found = Deployed(node, tmp_path / "overlay", machine, of=OVERLAYS / "prometheus", **DRANET)
    (block,) = (one for one in blocks(PAGE) if "openssl req" in one.text)
    made, secrets = block.text.split("kubectl", 1)
    subprocess.run(["sh", "-ec", made], cwd=certificates, check=True, capture_output=True)
    definitions.define(node.cluster)
    found.folder_of_the_host = socket
    try:
        node.cluster.kubectl("apply", "-f", str(BASE / "namespace.yaml"))
        script = "".join(f"kubectl{words}" for words in secrets.split("kubectl") if "create secret" in words)
        environment = {**os.environ, "KUBECONFIG": node.cluster.kubeconfig}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        subprocess.run(["sh", "-ec", script], cwd=certificates, env=environment, check=True, capture_output=True)
        found.apply("one")
        found.roll("status", "--timeout=90s")  # the pod of before has the same image, and may still be there
        pod = found.ready()
        outside = next(iter(addresses() - {"127.0.0.1"}))
        ours = certificates / "prometheus"
        # Ready says only that the port is open.
        found.wait(lambda: "topo_gpu_info" in scrape(outside, certificates, ours), "metrics of the machine")
        with_one = scrape(outside, certificates, ours)
        for certificate in (None, stranger(tmp_path)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                scrape(outside, certificates, certificate)
        with pytest.raises((http.client.HTTPException, OSError)):
            urllib.request.urlopen(f"http://{outside}:19738/metrics", timeout=10.0)
        assert ask(socket / "dranet") == {"cloudProvider": True, "profileProvider": False}
        logs = node.logs(pod["metadata"]["name"], "topo-agent")
        assert "Traceback" not in logs
        assert restarts(found) == 0  # probes without a certificate pass
        print(f"{outside}: {len(with_one.splitlines())} lines of metrics with a certificate, none without one")
    finally:
        found.delete()
        node.cluster.kubectl("delete", "-f", str(definitions.KINDS))


def addresses() -> set[str]:
    """Of this host, which the pod shares."""
    done = subprocess.run(["ip", "-4", "-o", "addr"], check=True, capture_output=True, text=True)
    return {line.split()[3].partition("/")[0] for line in done.stdout.splitlines()}


def scrape(address: str, certificates: Path, who: Path | None) -> str:
    """As Prometheus does it: the agent's certificate has to be for `topo-agent`, whatever the address."""
    context = ssl.create_default_context(cafile=certificates / "ca.crt")
    if who:
        context.load_cert_chain(f"{who}.crt", f"{who}.key")
    with (
        socket_.create_connection((address, 19738), 10.0) as plain,
        context.wrap_socket(plain, server_hostname="topo-agent") as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: topo-agent\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        return answer.read().decode()


def stranger(folder: Path) -> Path:
    """One whose certificate nobody signed but himself."""
    words = ("-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", "/CN=prometheus")
    where = ("-keyout", "other.key", "-out", "other.crt")
    subprocess.run(["openssl", "req", "-x509", *words, *where], cwd=folder, check=True, capture_output=True)
    return folder / "other"


def ask(path: Path) -> Any:
    """The webhook, as dranet asks whether anybody is there."""
    client = http.client.HTTPConnection("localhost", timeout=10.0)
    client.sock = socket_.socket(socket_.AF_UNIX)
    client.sock.connect(str(path))
    with contextlib.closing(client):
        client.request("GET", "/health")
        return json.load(client.getresponse())


def test_this_machine(node: NodeOf, tmp_path: Path) -> None:
    """The true host's /sys, events of its kernel, and no look in between."""
    found = Deployed(node, tmp_path / "host", Path("/"), TOPO_AGENT_RESCAN="1h", TOPO_AGENT_LOG_FORMAT="text")
    found.apply("one")
    try:
        found.ready()
        expected = dict(line.split("=", 1) for line in run("dump", "-f", "labels", "--node", "d1").stdout.splitlines())
        found.wait(lambda: found.labels() == expected, f"labels {expected}")
        time.sleep(7.0)  # its readings are confirmed, and nothing is due
        subprocess.run(["ip", "link", "del", "topolab1"], check=False, capture_output=True)  # of a run that was killed
        ip("link", "add", "topolab0", "type", "veth", "peer", "name", "topolab1")
        try:
            quiet(scans)
            before, events = scans(), metric("topo_agent_events_total")
            ip("link", "set", "topolab0", "name", "topolab2")
            began = time.monotonic()
            found.wait(lambda: scans() > before, "scan", SOON)
            took = time.monotonic() - began
            print(f"a renamed interface was looked at after {took:.2f} s")
            assert metric("topo_agent_events_total") > events
        finally:
            ip("link", "del", "topolab1")
    finally:
        found.delete()


def metric(name: str) -> float:
    """Of the agent, on the loopback interface of this host."""
    with urllib.request.urlopen("http://127.0.0.1:19738/metrics", timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def scans() -> float:
    return metric('topo_agent_scans_total{result="ok"}')


def quiet(count: Callable[[], float], seconds: float = 3.0) -> None:
    """Until nothing has been counted for so long."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.2)
        now = count()
        if now != last:
            last, since = now, time.monotonic()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
