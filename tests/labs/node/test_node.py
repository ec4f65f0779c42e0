"""A real node: it gets ready, runs pods as the agent's are run, and nothing of it stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.labs.controlplane.cluster import Cluster
from tests.labs.node import kubelet
from tests.labs.node.node import NodeOf
from topo_agent import __version__

SOON = 90.0  # seconds until a node is ready
SAME = ("packages", "numa", "roots", "devices", "paths")
AGENT = "localhost/topo-agent:test"


@pytest.fixture(scope="module")
def node(start_node: Callable[..., NodeOf]) -> NodeOf:
    return start_node("n1")


def pod(name: str, image: str, *arguments: str, **more: Any) -> dict[str, Any]:
    """As the agent's DaemonSet runs it: without any right, on the network of the host."""
    container = {
        "name": "only",
        "image": image,
        "imagePullPolicy": "Never",
        "args": [*arguments],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "sys", "mountPath": "/sys", "readOnly": True}],
    }
    spec = {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "sys", "hostPath": {"path": "/sys", "type": "Directory"}}],
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def make(node: NodeOf, made: dict[str, Any]) -> str:
    node.cluster.api("POST", "/api/v1/namespaces/default/pods", made)
    return str(made["metadata"]["name"])


def test_it_is_ready_soon(node: NodeOf) -> None:
    print(f"ready after {node.took:.1f} s")
    assert node.took < SOON
    said = node.cluster.get("node", "n1")["status"]["nodeInfo"]
    assert said["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_pod_runs_and_ends(node: NodeOf) -> None:
    name = make(node, pod("quiet", kubelet.PAUSE))
    node.wait_pod(name)
    node.cluster.kubectl("delete", "pod", name)
    assert name not in node.cluster.kubectl("get", "pods", "-o", "name")


def test_a_pod_with_a_network_of_its_own(node: NodeOf) -> None:
    name = make(node, pod("alone", kubelet.PAUSE, hostNetwork=False))
    node.wait_pod(name)


def test_the_agent_says_its_version(node: NodeOf, agent_image: Path) -> None:
    node.load(agent_image, AGENT)
    name = make(node, pod("version", AGENT, "--version"))
    node.wait_pod(name, "Succeeded")
    assert node.logs(name) == f"topo-agent {__version__}\n"


def test_the_agent_sees_the_machine(node: NodeOf, agent_image: Path) -> None:
    """What it sees from inside is what anybody sees here."""
    node.load(agent_image, AGENT)
    name = make(node, pod("dump", AGENT, "dump", "-f", "json"))
    node.wait_pod(name, "Succeeded")
    inside = json.loads(node.logs(name))
    command = [sys.executable, "-m", "topo_agent", "dump", "-f", "json"]
    outside = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert inside["source"]["scope"] == "container"
    assert not inside["source"]["privileged"]
    assert {key: inside[key] for key in SAME} == {key: outside[key] for key in SAME}


RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: labels}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, watch, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: labels}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: labels}
subjects:
- {kind: ServiceAccount, name: default, namespace: default}
"""


def test_the_agent_publishes_as_its_pod(node: NodeOf, agent_image: Path) -> None:
    """By the account that the kubelet gives it, with what is left of the Kubernetes library in the image."""
    node.load(agent_image, AGENT)
    node.cluster.apply(RIGHTS)
    made = pod("publish", AGENT, "kube", "publish", "--node", "n1")
    made["spec"]["containers"][0]["env"] = node.environment()
    node.wait_pod(make(node, made), "Succeeded")
    labels = node.cluster.get("node", "n1")["metadata"]["labels"]
    assert any(key.startswith("topo-agent.io/") for key in labels), labels


def slices(cluster: Cluster) -> list[str]:
    found = cluster.api("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    return sorted(one["metadata"]["name"] for one in found)


def resource_slice(driver: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu0"}],
        },
    }


def test_a_restarted_kubelet_takes_slices_away(node: NodeOf) -> None:
    """Of its node and of any driver, since it knows of none: whoever publishes there has to notice and write again."""
    path = "/apis/resource.k8s.io/v1/resourceslices"
    for driver, of in (("gpu.example.com", "n1"), ("topo-agent.io", "n1"), ("gpu.example.com", "n2")):
        node.cluster.api("POST", path, resource_slice(driver, of))
    assert len(slices(node.cluster)) == 3
    name = make(node, pod("lasting", kubelet.PAUSE))
    before = node.wait_pod(name)["status"]["containerStatuses"][0]["containerID"]
    started = time.monotonic()
    node.restart_kubelet()
    node.wait(lambda: slices(node.cluster) == ["n2-gpu.example.com"], "end of the slices of the node")
    print(f"slices were gone {time.monotonic() - started:.1f} s after the kubelet was stopped")
    assert node.wait_pod(name)["status"]["containerStatuses"][0]["containerID"] == before
    node.cluster.api("DELETE", f"{path}/n2-gpu.example.com")
