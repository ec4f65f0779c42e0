"""daemonset/base on a node, as its tests look at it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.labs.node.node import Node
from tests.test_cli import run

BASE = Path(__file__).parents[3] / "daemonset" / "base"
IMAGE = "localhost/topo-agent"
# Of the control plane, as far as a DaemonSet needs them.
CONTROLLERS = (
    "serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
    "resourceclaim-controller", "garbage-collector-controller", "validatingadmissionpolicy-status-controller",
    "daemonset-controller", "namespace-controller", "node-lifecycle-controller",
)  # fmt: skip
SOON = 5.0  # seconds, for what has to be back


class Deployed:
    """The base with the smallest overlay: whose image, and where the host's /sys and /proc are from.

    `node` is the one that is looked at.
    """

    def __init__(self, node: Node, folder: Path, machine: Path, *, of: Path = BASE, **variables: str) -> None:
        self.node, self.cluster, self._folder, self._machine = node, node.cluster, folder, machine
        self._of, self._variables = of, variables
        self.folder_of_the_host: Path | None = None  # in place of the pod's own /run/topo-agent
        folder.mkdir()

    def apply(self, tag: str) -> None:
        sources = {"sys": f"{self._machine}/sys", "cpuinfo": f"{self._machine}/proc/cpuinfo"}
        volumes: list[dict[str, Any]] = [{"name": name, "hostPath": {"path": path}} for name, path in sources.items()]
        if self.folder_of_the_host:  # docs/kubernetes-beside.md, with dranet
            path = {"path": str(self.folder_of_the_host), "type": "Directory"}
            volumes.append({"name": "run", "emptyDir": None, "hostPath": path})
        container: dict[str, Any] = {"name": "topo-agent", "imagePullPolicy": "Never"}
        more = [{"name": name, "value": value} for name, value in self._variables.items()]
        container["env"] = [*self.node.environment(), *more]
        patch = {
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "topo-agent", "namespace": "topo-agent"},
            "spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}},
        }  # fmt: skip
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [os.path.relpath(self._of, self._folder)],
            "images": [{"name": "topo-agent", "newName": IMAGE, "newTag": tag}],
            "patches": [{"patch": yaml.safe_dump(patch)}],
        }  # fmt: skip
        (self._folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        self.cluster.kubectl("apply", "-k", str(self._folder))

    def roll(self, *words: str) -> str:
        """`kubectl rollout WORDS`."""
        return self.cluster.kubectl("rollout", words[0], "-n", "topo-agent", "daemonset/topo-agent", *words[1:])

    def pods(self) -> list[dict[str, Any]]:
        found = self.cluster.get("pods", "", "topo-agent")["items"]
        return [one for one in found if one["spec"].get("nodeName") == self.node.name]

    def ready(self, tag: str = "one") -> dict[str, Any]:
        """The pod of that image, once it is ready and the only one."""

        def so() -> bool:
            return [is_ready(one) and image_of(one).endswith(f":{tag}") for one in self.pods()] == [True]

        self.wait(so, f"ready pod of {tag}", 90.0)
        return self.pods()[0]

    def wait(self, so: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """With the agents' own words where it does not come."""
        try:
            self.node.cluster.wait(so, what, seconds)
        except AssertionError:
            logs = "".join(self.node.logs(one["metadata"]["name"], "topo-agent") for one in self.pods())
            events = self.cluster.kubectl("get", "events", "-n", "topo-agent", check=False)
            raise AssertionError(f"no {what}: {self.labels()}\n{events}\n{logs}") from None

    def kill(self, pod: str) -> None:
        """The agent, with SIGKILL: the host sees the processes of its pods."""
        uid = next(one["metadata"]["uid"] for one in self.pods() if one["metadata"]["name"] == pod)
        killed = 0
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            try:
                ours = uid in path.read_text() and b"topo" in (path.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if ours:
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
        assert killed

    def labels(self) -> dict[str, str]:
        said = self.cluster.api("GET", f"/api/v1/nodes/{self.node.name}")["metadata"]["labels"]
        return {key: text for key, text in said.items() if key.startswith("topo-agent.io/")}

    def slices(self) -> list[dict[str, Any]]:
        found = self.cluster.api("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        of = ("topo-agent.io", self.node.name)
        return [one for one in found if (one["spec"]["driver"], one["spec"].get("nodeName")) == of]

    def devices(self) -> list[dict[str, Any]]:
        """Of the one slice, without the times that the API server adds."""
        (found,) = self.slices()
        return [
            {**one, "taints": [_without_time(taint) for taint in one["taints"]]} for one in found["spec"]["devices"]
        ]

    def wiped(self, restart: Callable[[], object]) -> float:
        """Seconds from the end of the slice, which a kubelet that starts takes away, until it is there again."""
        uid = self.slices()[0]["metadata"]["uid"]
        restart()
        gone = 0.0
        until = time.monotonic() + 120.0
        while time.monotonic() < until:
            found = [one["metadata"]["uid"] for one in self.slices()]
            if not gone and uid not in found:
                gone = time.monotonic()
            if gone and found:
                return time.monotonic() - gone
            time.sleep(0.02)
        raise AssertionError("the slice did not go" if not gone else "the slice did not come back")

    def delete(self) -> None:
        self.cluster.kubectl("delete", "-k", str(self._folder), "--ignore-not-found")
        self.unpublish()

    def unpublish(self) -> None:
        where = ("--node", self.node.name, "--kubeconfig", self.cluster.kubeconfig)
        done = run("kube", "unpublish", *where)
        assert done.returncode == 0, done.stderr
        assert self.labels() == {}
        assert self.slices() == []
        about = self.cluster.api("GET", f"/api/v1/nodes/{self.node.name}")["metadata"]
        assert not [key for key in about.get("annotations", {}) if key.startswith("topo-agent.io/")]
        assert not [one for one in about["managedFields"] if one["manager"].startswith("topo-agent")]


def is_ready(pod: dict[str, Any]) -> bool:
    said = pod["status"].get("conditions", ())
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in said
    )


def image_of(pod: dict[str, Any]) -> str:
    text: str = pod["spec"]["containers"][0]["image"]
    return text


def _without_time(taint: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in taint.items() if key != "timeAdded"}
