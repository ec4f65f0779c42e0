"""docs/kubernetes*.md, typed on a cluster. No kubelet runs the pods here: tests/labs/node does."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.aside import Aside
from tests.labs.controlplane import definitions
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.test_cli import environment
from tests.test_docs import blocks

ROOT = Path(__file__).parents[3]
DAEMONSET = ROOT / "daemonset"
PODS = "/api/v1/namespaces/topo-agent/pods"
MERGE = "application/merge-patch+json"
# What the operators of other programs bring, and say of a node.
OTHERS = f"{definitions.RUNTIME_CLASS}---\n{definitions.NFD_NAMESPACE}"
MARKED = {
    "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/amd-gpu": "true",
}  # fmt: skip


class Kubelet(Aside):
    """Says that pods of the agents are ready, and lets them end: what rollouts and deletions wait for."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(every=0.1)
        self._cluster = cluster
        self.images: set[str] = set()

    def step(self) -> None:
        with contextlib.suppress(Refused, OSError, http.client.HTTPException):  # it changed meanwhile; asked again
            for pod in self._cluster.api("GET", PODS)["items"]:
                self._look(pod)

    def _look(self, pod: dict[str, Any]) -> None:
        path = f"{PODS}/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            self._cluster.api("DELETE", path, {"gracePeriodSeconds": 0})
        elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
            self.images.add(pod["spec"]["containers"][0]["image"])
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self._cluster.api("PATCH", f"{path}/status", {"status": ready}, kind=MERGE)


class Desk:
    """Where a reader types: kubectl and topo-agent on PATH, and the folder daemonset/."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        (programs / "topo-agent").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topo_agent "$@"\n')
        (programs / "topo-agent").chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._variables = environment(PATH=path, KUBECONFIG=cluster.kubeconfig, HOME=str(folder))
        (folder / "daemonset").symlink_to(DAEMONSET)
        self._folder = folder

    def type(self, text: str, where: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", text], cwd=self._folder, env=self._variables, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
        return done.stdout

    def page(self, name: str) -> list[str]:
        """Every block, and what each printed."""
        found = [block for block in blocks(ROOT / "docs" / name) if block.tag == "sh cluster"]
        return [self.type(block.text, f"{name}:{block.line}") for block in found]


@pytest.fixture(scope="module")
def bare(start_shared_cluster: Callable[..., Cluster]) -> Cluster:
    """Not that of other tests: kinds are defined here, and their end would leave watches that never come back."""
    return start_shared_cluster()


@pytest.fixture(scope="module")
def unknown(bare: Cluster) -> str:
    """What applying an overlay says before its kinds are defined."""
    text = bare.kubectl("apply", "-k", str(DAEMONSET / "overlays/kueue"), check=False)
    bare.kubectl("delete", "-k", str(DAEMONSET / "base"))
    return text


@pytest.fixture
def others(bare: Cluster, unknown: str) -> Iterator[Cluster]:
    """A cluster where the programs are that the overlays are for, as far as objects of ours need them."""
    assert unknown
    bare.node("n1", MARKED)
    definitions.define(bare)
    bare.apply(OTHERS)
    # As one who has not asked before: kubectl keeps for minutes which kinds there are.
    shutil.rmtree(bare.folder / ".kube", ignore_errors=True)
    yield bare
    for folder in (DAEMONSET / "overlays").iterdir():
        bare.kubectl("delete", "-k", str(folder), "--ignore-not-found", "--wait=false", check=False)
    bare.clear()


def ours(cluster: Cluster) -> list[str]:
    """All objects of all kinds that are called as we are, and Nodes on which something is ours."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    # Events tell what was, for an hour.
    kept = [kind for kind in kinds if kind not in ("events", "events.events.k8s.io")]
    found = json.loads(cluster.kubectl("get", ",".join(kept), "-A", "-o", "json", "--show-managed-fields"))["items"]
    names = [f"{one['kind']} {one['metadata']['name']}" for one in found if "topo-agent" in one["metadata"]["name"]]
    nodes = [one for one in found if one["kind"] == "Node"]
    assert nodes
    owned = [one for node in nodes for one in node["metadata"]["managedFields"]]
    return names + [one["manager"] for one in owned if one["manager"].startswith("topo-agent")]


def test_install_upgrade_rollback_removal(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("n1", MARKED)
    with Kubelet(cluster) as kubelet:
        typed = Desk(cluster, tmp_path).page("kubernetes.md")
    assert len(typed) == 6
    assert kubelet.images == {"topo-agent", "topo-agent:1", "topo-agent:2"}
    upgrade = typed[-2].splitlines()
    assert upgrade.count('daemon set "topo-agent" successfully rolled out') == 2
    assert "daemonset.apps/topo-agent rolled back" in upgrade
    assert ours(cluster) == []


def test_beside_other_programs(others: Cluster, tmp_path: Path) -> None:
    with Kubelet(others):
        desk = Desk(others, tmp_path)
        desk.type("kubectl apply -k daemonset/base", "install")
        assert len(desk.page("kubernetes-beside.md")) == 5
    topology = others.get("topology", "topo-agent")["spec"]["levels"]
    assert [one["nodeLabel"] for one in topology][-1] == "kubernetes.io/hostname"
    flavor = others.get("resourceflavor", "eight-gpus")["spec"]
    assert flavor["topologyName"] == "topo-agent"
    for name in ("topo-agent-tls", "topo-agent-client"):
        assert set(others.get("secret", name, "topo-agent")["data"]) == {"tls.crt", "tls.key", "ca.crt"}


def test_a_node_feature_is_taken_back(others: Cluster, tmp_path: Path) -> None:
    """As the last line of kubernetes.md has it."""
    others.kubectl("apply", "-k", str(DAEMONSET / "overlays/nfd"))
    path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/node-feature-discovery/nodefeatures"
    about = {"name": "topo-agent-n1", "labels": {"nfd.node.kubernetes.io/node-name": "n1"}}
    said = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": about, "spec": {}}
    others.api("POST", path, said)
    Desk(others, tmp_path).type("TOPO_AGENT_LABELS=nfd topo-agent kube unpublish --node n1", "removal")
    assert others.api("GET", path)["items"] == []


def test_what_is_amiss(others: Cluster, unknown: str, tmp_path: Path) -> None:
    """What Kubernetes says of it, in the words of the page."""
    page = (ROOT / "docs/kubernetes-troubleshooting.md").read_text(encoding="utf-8")
    desk = Desk(others, tmp_path)

    def told() -> str:
        return desk.type("kubectl -n topo-agent get events --field-selector type=Warning", "events")

    def said(words: str, text: str) -> bool:
        assert f"`{words}`" in page, words
        return words in text

    others.kubectl("delete", "runtimeclass", "nvidia")
    others.kubectl("apply", "-k", str(DAEMONSET / "overlays/nvidia"))
    assert len(desk.page("kubernetes-troubleshooting.md")) == 1
    others.wait(lambda: said('RuntimeClass "nvidia" not found', told()), "refusal")
    others.apply(OTHERS)
    others.kubectl("apply", "-k", str(DAEMONSET / "base"))
    level = "pod-security.kubernetes.io/enforce"
    others.kubectl("label", "namespace", "topo-agent", "--overwrite", f"{level}=baseline")
    assert f"`{level}: privileged`" in page
    others.kubectl("delete", "pods", "-n", "topo-agent", "--all", "--force", "--grace-period=0")
    others.wait(lambda: said("violates PodSecurity", told()), "refusal")
    others.kubectl("delete", "namespace", "node-feature-discovery")
    text = others.kubectl("apply", "-k", str(DAEMONSET / "overlays/nfd"), check=False)
    assert said('namespaces "node-feature-discovery" not found', text)
    assert said("no matches for kind", unknown)
    others.kubectl("delete", "clusterrolebinding", "topo-agent")
    token = others.token("topo-agent", "topo-agent", node="n1")

    def refusal() -> str:
        try:
            others.api("PATCH", "/api/v1/nodes/n1", {}, kind=MERGE, token=token)
        except Refused as error:
            return str(error)
        return ""

    others.wait(lambda: said('cannot patch resource "nodes"', refusal()), "refusal")
