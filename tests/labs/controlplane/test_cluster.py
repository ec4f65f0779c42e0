"""The control plane of the labs itself: it starts, loses parts of itself and gets them back, and leaves nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.agent import wait_for
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.labs.controlplane.programs import VERSION

POD = {"spec": {"containers": [{"name": "only", "image": "localhost/none"}]}}


def processes(folder: Path) -> list[str]:
    """Those that were started with a file in that folder, or for it."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in one.cmdline()) and one.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(one.cmdline()))
    return found


def pod(cluster: Cluster, name: str, account: str = "default") -> str:
    """Its node, once it has one."""
    made = {"metadata": {"name": name}, "spec": {**POD["spec"], "serviceAccountName": account}}
    cluster.api("POST", "/api/v1/namespaces/default/pods", made)
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.wait(lambda: cluster.api("GET", path)["spec"].get("nodeName"), f"node for {name}")
    found: str = cluster.api("GET", path)["spec"]["nodeName"]
    return found


def test_it_is_what_it_says(cluster: Cluster) -> None:
    assert cluster.api("GET", "/version")["gitVersion"] == VERSION
    assert VERSION in cluster.kubectl("version")


def test_a_node_takes_pods(cluster: Cluster) -> None:
    cluster.node("n1", {"example.com/rack": "r1"}, capacity={"cpu": "3"})
    said = cluster.get("node", "n1")
    assert said["metadata"]["labels"]["example.com/rack"] == "r1"
    assert said["status"]["allocatable"] == {"cpu": "3", "memory": "32Gi", "pods": "110"}
    assert pod(cluster, "one") == "n1"


def test_clear_leaves_no_pods_and_nodes(cluster: Cluster) -> None:
    cluster.node("n1")
    cluster.namespace("other")
    assert pod(cluster, "one") == "n1"
    cluster.clear()
    assert not cluster.get("nodes")["items"]
    assert not cluster.get("pods")["items"]
    assert "other" not in cluster.kubectl("get", "namespaces", "-o", "name")


def test_a_token_is_bound(cluster: Cluster) -> None:
    """The API server knows the node of who asks, and refuses the token when what it is bound to is gone."""
    cluster.node("n1")
    pod(cluster, "one")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    tokens = {"pod": cluster.token("default", pod="one"), "node": cluster.token("default", node="n1")}
    for token in tokens.values():
        said = cluster.api("POST", path, review, token=token)["status"]["userInfo"]
        assert said["username"] == "system:serviceaccount:default:default"
        assert said["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    cluster.clear()
    for token in tokens.values():
        with pytest.raises(Refused) as refused:
            # The answer for a token is remembered for ten seconds.
            wait_for(lambda t=token: not cluster.api("POST", path, review, token=t))  # type: ignore[misc]
        assert refused.value.code == 401


def test_requests_are_told_by_user(cluster: Cluster) -> None:
    user = "system:serviceaccount:default:default"
    before = len(cluster.requests(user=user))
    token = cluster.token("default")
    with pytest.raises(Refused) as refused:
        cluster.api("GET", "/api/v1/nodes?limit=7", token=token)
    assert refused.value.code == 403
    wait_for(lambda: len(cluster.requests(user=user)) > before)
    (one,) = cluster.requests(user=user)[before:]
    assert (one.verb, one.uri, one.code) == ("list", "/api/v1/nodes?limit=7", 403)
    cluster.kubectl("get", "nodes")
    wait_for(lambda: any(one.verb == "list" for one in cluster.requests(user="admin", agent="kubectl/")))
    assert not cluster.requests(user="nobody")


def test_it_loses_its_parts_and_gets_them_back(start_cluster: Callable[..., Cluster]) -> None:
    started = time.monotonic()
    cluster = start_cluster()
    print(f"ready after {time.monotonic() - started:.1f} s")
    cluster.node("n1")

    def works() -> None:
        assert pod(cluster, f"pod-{time.monotonic_ns()}") == "n1"

    works()
    cluster.stop_apiserver()
    with pytest.raises(ConnectionRefusedError):
        cluster.api("GET", "/readyz")
    cluster.start_apiserver()
    works()
    cluster.stop_etcd(frozen=True)
    with pytest.raises((Refused, TimeoutError)):
        cluster.writes()
    cluster.start_etcd()
    works()
    cluster.stop_etcd()
    with pytest.raises((Refused, TimeoutError)):
        cluster.writes()
    cluster.start_etcd()
    works()
    cluster.restart_apiserver()
    works()


def test_users_and_admission(start_cluster: Callable[..., Cluster]) -> None:
    """A kubelet's user may write its own node and no other; a plugin that was added is asked."""
    cluster = start_cluster(users={"system:node:n1": ["system:nodes"]}, admission=["AlwaysPullImages"])
    change = {"metadata": {"annotations": {"tried": "yes"}}}
    token = cluster.user_token("system:node:n1")
    for name in ("n1", "n2"):
        cluster.node(name)

    def patch(name: str) -> object:
        return cluster.api("PATCH", f"/api/v1/nodes/{name}", change, kind="application/merge-patch+json", token=token)

    assert patch("n1")
    with pytest.raises(Refused, match="not allowed to modify node"):
        patch("n2")
    pod(cluster, "one")
    assert cluster.get("pod", "one")["spec"]["containers"][0]["imagePullPolicy"] == "Always"


def test_it_does_not_start(start_cluster: Callable[..., Cluster]) -> None:
    """What a program said when it ended is told, and the others are gone."""
    before = psutil.Process().children()
    with pytest.raises(AssertionError, match=r"^kube-apiserver ended: .*unrecognized feature gate: NoSuchGate"):
        start_cluster(gates=["NoSuchGate"])
    assert psutil.Process().children() == before


def test_nothing_is_left(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster()
    assert len(processes(cluster.folder)) == 5  # the guard as well
    cluster.stop_etcd(frozen=True)
    cluster.__exit__(None, None, None)
    assert not processes(cluster.folder)
    assert not cluster.folder.exists()


@pytest.fixture
def command(cluster: Cluster) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """What `make lab-cluster` starts, and the folder of its cluster. `cluster`: what it needs is here."""
    words = [sys.executable, "-m", "tests.labs.controlplane"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            assert said.startswith("export KUBECONFIG=/"), said
            yield process, Path(said.strip().partition("=")[2]).parent
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_command_leaves_nothing(command: tuple[subprocess.Popen[str], Path], number: signal.Signals) -> None:
    """Even if it is killed."""
    process, folder = command
    assert len(processes(folder)) == 5
    process.send_signal(number)
    assert process.wait(30) == (-number if number == signal.SIGKILL else 0)
    wait_for(lambda: not processes(folder) and not folder.exists(), what=lambda: processes(folder))
