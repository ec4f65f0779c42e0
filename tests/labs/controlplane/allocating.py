"""Machines in a lab cluster whose devices are given away: `topo-agent kube publish --slices --slice-mode allocatable`
puts their ResourceSlice there, the real scheduler allocates from it.

No kubelet runs the pods: a claim that is allocated and a pod that has a node is all that there is to see.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests import fixtures
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.test_cli import run
from topo_agent.host import recording

GATE = "DRAOptionalNodeOperations"
DRIVER = "topo-agent.io"
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
_API = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_API}/namespaces/default/resourceclaims"
_PODS = "/api/v1/namespaces/default/pods"


class Got(NamedTuple):
    """What a claim was given: its node, and for each request (`gpu`, or `gpu/same-root`) the device."""

    node: str
    devices: dict[str, str]

    @property
    def pair(self) -> tuple[str, str]:
        """Addresses of the GPU and of the NIC, whichever of several subrequests it was."""
        found = {request.partition("/")[0]: device for request, device in self.devices.items()}
        return address(found["gpu"]), address(found["nic"])

    @property
    def chosen(self) -> str:
        """The subrequest of the GPU: `same-root`."""
        return next(one.partition("/")[2] for one in self.devices if one.startswith("gpu/"))


def address(device: str) -> str:
    """`"pci-0000-3b-00-0"` -> `"0000:3b:00.0"`"""
    domain, bus, place, function = device.removeprefix("pci-").split("-")
    return f"{domain}:{bus}:{place}.{function}"


def same(attribute: str, *requests: str) -> dict[str, Any]:
    """A constraint: all devices of the claim, or those of the requests, share the value."""
    return {"matchAttribute": attribute, **({"requests": [*requests]} if requests else {})}


def request(name: str, kind: str = "", *selectors: str, **more: Any) -> dict[str, Any]:
    """One device of the class, which is called as the request if nothing else is said."""
    return {"name": name, "exactly": _wanted(kind or name, selectors) | more}


def first_of(name: str, *alternatives: str, kind: str = "", selectors: Sequence[str] = ()) -> dict[str, Any]:
    """One device, for the first of the alternatives that works."""
    return {"name": name, "firstAvailable": [{"name": one, **_wanted(kind or name, selectors)} for one in alternatives]}


def _wanted(kind: str, selectors: Sequence[str]) -> dict[str, Any]:
    said = [{"cel": {"expression": one}} for one in selectors]
    return {"deviceClassName": kind, **({"selectors": said} if said else {})}


PAIR = (request("gpu"), request("nic"))
# The GPU comes first: subrequests are tried for each choice of what stands before them.
NEAREST = (first_of("gpu", "same-root", "same-numa"), request("nic"))
NEAREST_CONSTRAINTS = (same(ROOT, "nic", "gpu/same-root"), same(NUMA, "nic", "gpu/same-numa"))


class Lab:
    """A cluster with the classes `gpu` and `nic`; `folder` takes the recordings of the machines."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        for kind in ("gpu", "nic"):
            self.device_class(kind, f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{kind}"')

    def device_class(self, name: str, expression: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        try:
            self.cluster.api("POST", f"{_API}/deviceclasses", body)
        except Refused as error:
            if error.code != 409:  # an earlier test made it
                raise

    def node(self, name: str, *, declares: bool = True) -> None:
        """`declares`: its kubelet says that it can leave out what drivers do. Else it is given nothing of ours."""
        self.cluster.node(name)
        if declares:
            self.declare(name)

    def declare(self, node: str) -> None:
        said = {"status": {"declaredFeatures": [GATE]}}
        self.cluster.api("PATCH", f"/api/v1/nodes/{node}/status", said, kind="application/merge-patch+json")

    def machine(self, node: str, fixture: str, *options: str) -> None:
        """A node that is this machine, as its agent publishes it; the scheduler has seen the slice."""
        self.node(node)
        self.publish(node, fixture, *options)
        self.known(node)

    def known(self, node: str) -> None:
        """The scheduler gives away what is there: from here on a claim that waits says something."""
        name = f"probe-{node}"
        self.ask(name, [request("gpu")], node=node)
        self.got(name)
        self.drop(name)

    def published(self, node: str, fixture: str, *options: str) -> subprocess.CompletedProcess[str]:
        return run(
            "kube", "publish", "--slices", "--slice-mode", "allocatable", "--node", node, "--from",
            self.recorded(fixture), "--kubeconfig", self.cluster.kubeconfig, *options,
        )  # fmt: skip

    def publish(self, node: str, fixture: str, *options: str) -> None:
        done = self.published(node, fixture, *options)
        assert done.returncode == 0, done.stderr
        assert f"ResourceSlice {node}-{DRIVER}" in done.stderr, done.stderr

    def recorded(self, fixture: str) -> str:
        path = self._folder / f"{fixture}.topo"
        if not path.exists():
            path.write_text(recording.write(fixtures.host(fixture), keep_names=True), encoding="utf-8")
        return str(path)

    def slice(self, node: str, driver: str, devices: Sequence[Mapping[str, Any]]) -> None:
        """What the driver of a vendor would publish."""
        spec = {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [*devices],
            "skipNodeOperations": ["*"],
        }
        # Owned by the node, so that it goes with it.
        found = self.cluster.api("GET", f"/api/v1/nodes/{node}")["metadata"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["uid"], "controller": True}
        made = {"metadata": {"name": f"{node}-{driver}", "ownerReferences": [owner]}, "spec": spec}
        self.cluster.api("POST", f"{_API}/resourceslices", made)

    def ask(
        self,
        name: str,
        requests: Sequence[Mapping[str, Any]] = PAIR,
        constraints: Sequence[Mapping[str, Any]] = (),
        *,
        node: str = "",
    ) -> None:
        """A claim, and a pod that needs it, on any node or on that one."""
        devices = {"requests": [*requests], "constraints": [*constraints]}
        self.cluster.api("POST", _CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}})
        container = {"name": "only", "image": "localhost/none", "resources": {"claims": [{"name": "devices"}]}}
        spec: dict[str, Any] = {
            "containers": [container],
            "resourceClaims": [{"name": "devices", "resourceClaimName": name}],
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.cluster.api("POST", _PODS, {"metadata": {"name": name}, "spec": spec})

    def got(self, name: str) -> Got:
        """Once the pod has a node."""
        path = f"{_PODS}/{name}"
        self.cluster.wait(lambda: self.cluster.api("GET", path)["spec"].get("nodeName"), f"node of {name}")
        found = _got(self.cluster.api("GET", f"{_CLAIMS}/{name}"))
        assert found is not None
        assert self.cluster.api("GET", path)["spec"]["nodeName"] == found.node
        return found

    def gets(self, name: str, *constraints: Mapping[str, Any], requests: Sequence[Mapping[str, Any]] = PAIR) -> Got:
        """Ask, and wait for it: what the next one is given depends on this one."""
        self.ask(name, requests, constraints)
        return self.got(name)

    def waits(self, name: str, *constraints: Mapping[str, Any], requests: Sequence[Mapping[str, Any]] = PAIR) -> str:
        """Ask, and get nothing: why the scheduler says so."""
        self.ask(name, requests, constraints)
        return self.waiting(name)

    def waiting(self, name: str) -> str:
        def condition() -> dict[str, Any]:
            return _scheduled(self.cluster.api("GET", f"{_PODS}/{name}"))

        self.cluster.wait(lambda: condition().get("reason") in _NOWHERE, f"answer to {name}")
        assert _got(self.cluster.api("GET", f"{_CLAIMS}/{name}")) is None
        message: str = condition()["message"]
        return message

    def everything(self) -> dict[str, Got]:
        """Every claim that was given something."""
        found = {one["metadata"]["name"]: _got(one) for one in self.cluster.api("GET", _CLAIMS)["items"]}
        return {name: one for name, one in found.items() if one is not None}

    def answered(self) -> set[str]:
        """Pods that have a node, or that the scheduler has found none for. After an error it tries again."""
        pods = self.cluster.api("GET", _PODS)["items"]
        return {
            one["metadata"]["name"]
            for one in pods
            if one["spec"].get("nodeName") or _scheduled(one).get("reason") == "Unschedulable"
        }

    def drop(self, name: str) -> None:
        """The pod has ended, and what it held is free."""
        self._empty(lambda one: one["metadata"]["name"] == name)

    def drop_all(self) -> None:
        """Pods and claims; the machines stay."""
        self._empty(lambda _: True)

    def _empty(self, which: Callable[[dict[str, Any]], bool]) -> None:
        def rest(path: str) -> list[str]:
            return [one["metadata"]["name"] for one in self.cluster.api("GET", path)["items"] if which(one)]

        for path in (_PODS, _CLAIMS):
            for name in rest(path):
                self.cluster.api("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
        for path in (_PODS, _CLAIMS):
            self.cluster.wait(lambda path=path: not rest(path), f"end of {path}")  # type: ignore[misc]

    def clear(self) -> None:
        """No machines either."""
        self.cluster.clear()
        path = f"{_API}/resourceslices"
        # They are owned by nodes that are gone.
        self.cluster.wait(lambda: not self.cluster.api("GET", path)["items"], "end of the slices")


# One that waits for good may do so for an error: of a selector.
_NOWHERE = {"Unschedulable", "SchedulerError"}


def _scheduled(pod: Mapping[str, Any]) -> dict[str, Any]:
    said = pod["status"].get("conditions", [])
    return next((one for one in said if one["type"] == "PodScheduled"), {})


def _got(claim: Mapping[str, Any]) -> Got | None:
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        return None
    results = allocation["devices"]["results"]
    (node,) = {one["pool"] for one in results}
    return Got(node, {one["request"]: one["device"] for one in results})
