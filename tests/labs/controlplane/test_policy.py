"""The admission policy of daemonset/base, and that of the component events: what RBAC grants and they refuse, with
tokens as pods have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.labs.controlplane.cluster import Cluster, Refused

BASE = Path(__file__).parents[3] / "daemonset" / "base"
# Without the settings of its component, which open the condition of a Node.
OF_EVENTS = BASE.parent / "components" / "events" / "policy.yaml"
NODES, SLICES = "/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices"
EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
NODES_POLICY, LABELS_POLICY = "topo-agent-nodes", "topo-agent-labels"
SLICES_POLICY, DEVICES_POLICY = "topo-agent-slices", "topo-agent-devices"
EVENTS_POLICY = "topo-agent-events"
POLICIES = (NODES_POLICY, LABELS_POLICY, SLICES_POLICY, DEVICES_POLICY, EVENTS_POLICY)
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TIME = "2026-05-04T03:02:01Z"
TAINT = {"key": "topo-agent.io/informational", "value": "true", "effect": "NoSchedule"}

# Everything that the policy is about, so that it is not RBAC that refuses.
EVERYTHING = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lab-everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: topo-agent, namespace: topo-agent}]
"""


def one_slice(name: str, **spec: Any) -> dict[str, Any]:
    """Ours of node p1, with something else in its spec; None takes a field away."""
    device = {"name": "pci-0000-1b-00-0", "taints": [TAINT]}
    whole = {
        "driver": "topo-agent.io", "nodeName": "p1", "devices": [device],
        "pool": {"name": "p1", "generation": 1, "resourceSliceCount": 1},
    } | spec  # fmt: skip
    kept = {key: value for key, value in whole.items() if value is not None}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": kept}


def event(name: str = "p1.0123456789abcdef", *, of: str = "p1", **more: Any) -> dict[str, Any]:
    """As the program makes them (daemon/events.py), with something else in it."""
    about = {"apiVersion": "v1", "kind": "Node", "name": of}
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "involvedObject": about, "reason": "GpuNotOnBus", "message": "a finding", "type": "Warning",
        "source": {"component": "topo-agent", "host": of}, "firstTimestamp": TIME, "lastTimestamp": TIME, "count": 1,
    } | more  # fmt: skip


def new_event(name: str = "p1.0123456789abcdef", *, of: str = "p1", by: str = "topo-agent") -> dict[str, Any]:
    """The same object by its other group."""
    return {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": of}, "reason": "GpuNotOnBus", "note": "a finding",
        "type": "Warning", "eventTime": TIME.replace("Z", ".000000Z"), "action": "Check", "reportingController": by,
        "reportingInstance": "p1",
    }  # fmt: skip


class Write(NamedTuple):
    """A request, and the policy with the message that refuses it.

    It is only one policy: of several that refuse, an API server names one, in an order that changes.
    """

    what: str
    method: str
    path: str
    body: Any
    policy: str
    message: str
    kind: str = MERGE


def labels(key: str, text: str | None = "x") -> dict[str, Any]:
    return {"metadata": {"labels": {key: text}}}


SELECTOR = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["p1"]}]}]}
WRITES = [
    Write("another node's label", "PATCH", f"{NODES}/p2", labels("topo-agent.io/rack"), NODES_POLICY, "own Node"),
    Write("a taint", "PATCH", f"{NODES}/p1", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
          NODES_POLICY, "not the spec"),
    Write("unschedulable", "PATCH", f"{NODES}/p1", {"spec": {"unschedulable": True}}, NODES_POLICY, "not the spec"),
    Write("its condition", "PATCH", f"{NODES}/p1/status",
          {"status": {"conditions": [{"type": "TopologyDegraded", "status": "True"}]}}, LABELS_POLICY,
          "node-condition", "application/strategic-merge-patch+json"),
    Write("a foreign label", "PATCH", f"{NODES}/p1", labels("example.com/pool"), LABELS_POLICY, "only labels"),
    Write("a foreign label of another value", "PATCH", f"{NODES}/p1", labels("example.com/kept", "b"), LABELS_POLICY,
          "only labels"),
    Write("a foreign label taken away", "PATCH", f"{NODES}/p1", labels("example.com/kept", None), LABELS_POLICY,
          "only labels"),
    Write("a label that begins like ours", "PATCH", f"{NODES}/p1", labels("topo-agent.io.evil/x"), LABELS_POLICY,
          "only labels"),
    Write("a foreign annotation", "PATCH", f"{NODES}/p1", {"metadata": {"annotations": {"example.com/a": "b"}}},
          LABELS_POLICY, "only the own annotations"),
    Write("an annotation of our domain that is none of ours", "PATCH", f"{NODES}/p1",
          {"metadata": {"annotations": {"topo-agent.io/other": "b"}}}, LABELS_POLICY, "only the own annotations"),
    Write("a finalizer", "PATCH", f"{NODES}/p1", {"metadata": {"finalizers": ["example.com/f"]}}, NODES_POLICY,
          "neither finalizers"),
    Write("the end of a node", "DELETE", f"{NODES}/p2", None, NODES_POLICY, "only the own Node"),
    Write("a new node", "POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "p9"}}, NODES_POLICY,
          "only the own Node", "application/json"),
    Write("another driver's slice", "POST", SLICES, one_slice("s1", driver="gpu.nvidia.com"), DEVICES_POLICY,
          "own driver", "application/json"),
    Write("another node's slice", "POST", SLICES, one_slice("s2", nodeName="p2"), SLICES_POLICY, "own node",
          "application/json"),
    Write("another pool", "POST", SLICES,
          one_slice("s3", pool={"name": "p2", "generation": 1, "resourceSliceCount": 1}), SLICES_POLICY,
          "pool is the node", "application/json"),
    Write("a selector", "POST", SLICES, one_slice("s4", nodeName=None, nodeSelector=SELECTOR), SLICES_POLICY,
          "own node", "application/json"),
    Write("all nodes", "POST", SLICES, one_slice("s5", nodeName=None, allNodes=True), SLICES_POLICY, "own node",
          "application/json"),
    Write("a device without a taint", "POST", SLICES, one_slice("s6", devices=[{"name": "a"}]), DEVICES_POLICY,
          "is tainted", "application/json"),
    Write("a device with another effect", "POST", SLICES,
          one_slice("s7", devices=[{"name": "a", "taints": [TAINT | {"effect": "None"}]}]), DEVICES_POLICY,
          "is tainted", "application/json"),
    Write("an Event about another node", "POST", EVENTS, event(of="p2"), EVENTS_POLICY, "own Node", "application/json"),
    Write("an Event about a pod", "POST", EVENTS,
          event(involvedObject={"apiVersion": "v1", "kind": "Pod", "name": "p1", "namespace": "default"}),
          EVENTS_POLICY, "own Node", "application/json"),
    Write("an Event about nothing", "POST", EVENTS, event(involvedObject={}), EVENTS_POLICY, "own Node",
          "application/json"),
    Write("an Event from another node", "POST", EVENTS, event(source={"component": "topo-agent", "host": "p2"}),
          EVENTS_POLICY, "own Node", "application/json"),
    Write("an Event of somebody else", "POST", EVENTS, event(source={"component": "kubelet", "host": "p1"}),
          EVENTS_POLICY, "of topo-agent", "application/json"),
    Write("an Event that somebody else reports", "POST", EVENTS, event(reportingComponent="kubelet"), EVENTS_POLICY,
          "of topo-agent", "application/json"),
    Write("an Event of nobody", "POST", EVENTS, event(source={}), EVENTS_POLICY, "of topo-agent", "application/json"),
    Write("an Event in the way of another node's", "POST", EVENTS, event("p2.0123456789abcdef"), EVENTS_POLICY,
          "name of an Event", "application/json"),
    Write("an Event in the way of a longer name's", "POST", EVENTS, event("p1.other.0123456789abcdef"), EVENTS_POLICY,
          "name of an Event", "application/json"),
    Write("another node's by the other group", "POST", NEW_EVENTS, new_event(of="p2"), EVENTS_POLICY, "own Node",
          "application/json"),
    Write("somebody else's by the other group", "POST", NEW_EVENTS, new_event(by="kubelet"), EVENTS_POLICY,
          "of topo-agent", "application/json"),
    Write("an Event that stands", "PATCH", f"{EVENTS}/p1.stands", {"message": "all is well"}, EVENTS_POLICY, "is made"),
    Write("one that stands by the other group", "PATCH", f"{NEW_EVENTS}/p1.stands", labels("a"), EVENTS_POLICY,
          "is made"),
    Write("the end of an Event", "DELETE", f"{EVENTS}/p1.stands", None, EVENTS_POLICY, "is made"),
]  # fmt: skip
# Of two policies: where one lets the status be written, the other lets the condition be.
CAPACITY = Write("the status", "PATCH", f"{NODES}/p1/status", {"status": {"capacity": {"example.com/gpu": "8"}}},
                 NODES_POLICY, "only the condition TopologyDegraded")  # fmt: skip


@pytest.fixture(scope="module")
def fenced(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with daemonset/base and the policy of Events, two nodes, and an account that RBAC allows everything."""
    cluster: Cluster = request.getfixturevalue("_cluster")
    for name in ("p1", "p2"):
        cluster.node(name, {"example.com/kept": "a"})
    cluster.api("POST", EVENTS, event("p1.stands"))
    cluster.kubectl("apply", "-k", str(BASE))
    cluster.kubectl("apply", "-f", str(OF_EVENTS))
    cluster.apply(EVERYTHING)
    token = cluster.token("topo-agent", "topo-agent", node="p1")
    for policy in POLICIES:
        first = next(write for write in WRITES if write.policy == policy)
        cluster.wait(lambda write=first: write.policy in refusal(cluster, write, token), f"{policy} in force")  # type: ignore[misc]
    yield cluster
    cluster.kubectl("delete", "-k", str(BASE), "--wait=false", "--ignore-not-found")
    cluster.kubectl("delete", "clusterrolebinding", "lab-everything")
    cluster.api("DELETE", EVENTS)
    cluster.clear()


def refusal(cluster: Cluster, write: Write, token: str) -> str:
    """Why it is refused; "" where it is not. As a trial: nothing is changed."""
    where = f"{write.path}?dryRun=All" + ("&fieldManager=topo-agent" if write.kind == APPLY else "")
    try:
        cluster.api(write.method, where, write.body, kind=write.kind, token=token)
    except Refused as error:
        return str(error)
    return ""


def test_each_is_refused_by_the_policy(fenced: Cluster) -> None:
    token = fenced.token("topo-agent", "topo-agent", node="p1")
    for write in WRITES:
        said = refusal(fenced, write, token)
        assert f"ValidatingAdmissionPolicy '{write.policy}'" in said, (write.what, said)
        assert write.message in said, (write.what, said)
    said = refusal(fenced, CAPACITY, token)
    either = ((CAPACITY.policy, CAPACITY.message), (LABELS_POLICY, "node-condition"))
    assert any(f"ValidatingAdmissionPolicy '{policy}'" in said and why in said for policy, why in either), said
    print(f"{len(WRITES) + 1}/{len(WRITES) + 1} refused by the policy")


def test_a_token_that_is_bound_to_no_node(fenced: Cluster) -> None:
    token = fenced.token("topo-agent", "topo-agent")
    ours = Write("ours", "PATCH", f"{NODES}/p1", labels("topo-agent.io/rack"), NODES_POLICY, "not bound")
    for write in (
        ours,
        Write("", "POST", SLICES, one_slice("s"), SLICES_POLICY, "not bound", "application/json"),
        Write("", "POST", EVENTS, event(), EVENTS_POLICY, "not bound", "application/json"),
        Write("", "POST", NEW_EVENTS, new_event(), EVENTS_POLICY, "not bound", "application/json"),
    ):
        said = refusal(fenced, write, token)
        assert f"'{write.policy}'" in said
        assert write.message in said


def test_what_is_right_passes(fenced: Cluster) -> None:
    token = fenced.token("topo-agent", "topo-agent", node="p1")
    annotations = {"topo-agent.io/labels": "{}", "topo-agent.io/covered": "0000:1b:00.0"}
    said = {"metadata": {"labels": {"topo-agent.io/rack": "r"}, "annotations": annotations}}
    assert refusal(fenced, Write("", "PATCH", f"{NODES}/p1", said, "", ""), token) == ""
    fenced.api("POST", SLICES, one_slice("p1-topo-agent.io"), token=token)
    fenced.api("DELETE", f"{SLICES}/p1-topo-agent.io", token=token)
    fenced.api("POST", EVENTS, event(), token=token)
    fenced.api("DELETE", f"{EVENTS}/{event()['metadata']['name']}")
    assert refusal(fenced, Write("", "POST", NEW_EVENTS, new_event("p1.0"), "", "", "application/json"), token) == ""


def test_others_are_not_concerned(fenced: Cluster) -> None:
    for write in (*WRITES[:2], *(one for one in WRITES if one.policy == EVENTS_POLICY)):
        assert refusal(fenced, write, "") == "", write.what


KEYS = {"topology.kubernetes.io/rack": "r", "example.com/c": "c"}
CONDITION = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "p1"},
    "status": {"conditions": [{"type": "TopologyDegraded", "status": "True"}]},
}  # fmt: skip
UNTAINTED = one_slice("s", devices=[{"name": "a"}])


@pytest.mark.parametrize(
    ("setting", "write"),
    [
        (
            {"label-keys": "topology.kubernetes.io/rack=rack, example.com/c=nvlink-clique"},
            Write("", "PATCH", f"{NODES}/p1", {"metadata": {"labels": KEYS}}, "", ""),
        ),
        (
            {"gpu-clique": "true"},
            Write("", "PATCH", f"{NODES}/p1", {"metadata": {"labels": {"nvidia.com/gpu.clique": "c"}}}, "", ""),
        ),
        ({"slice-mode": "allocatable"}, Write("", "POST", SLICES, UNTAINTED, "", "", "application/json")),
        ({"node-condition": "true"}, Write("", "PATCH", f"{NODES}/p1/status", CONDITION, "", "", APPLY)),
    ],
)
def test_settings_open_what_they_name(fenced: Cluster, setting: dict[str, str], write: Write) -> None:
    token = fenced.token("topo-agent", "topo-agent", node="p1")
    path = "/api/v1/namespaces/topo-agent/configmaps/topo-agent"
    before = fenced.get("configmap", "topo-agent", "topo-agent")["data"]
    assert "denied" in refusal(fenced, write, token)
    fenced.api("PATCH", path, {"data": setting}, kind=MERGE)
    try:
        fenced.wait(lambda: refusal(fenced, write, token) == "", "policy with its new parameters")
        if "node-condition" in setting:
            said = refusal(fenced, CAPACITY, token)
            assert f"'{CAPACITY.policy}'" in said
            assert CAPACITY.message in said
    finally:
        fenced.api("PATCH", path, {"data": before}, kind=MERGE)
    fenced.wait(lambda: "denied" in refusal(fenced, write, token), "policy with its old parameters")


def test_without_settings_nobody_else_is_refused(fenced: Cluster) -> None:
    """A policy that denies where its parameters are missing denies everybody: kubelets could not write their status."""
    token = fenced.token("topo-agent", "topo-agent", node="p1")
    settings = fenced.get("configmap", "topo-agent", "topo-agent")
    fenced.kubectl("delete", "configmap", "-n", "topo-agent", "topo-agent")
    try:
        foreign = next(write for write in WRITES if write.what == "a foreign label")
        fenced.wait(lambda: refusal(fenced, foreign, token) == "", "end of the parameters")
        for write in (*WRITES, CAPACITY):
            if write is CAPACITY or write.policy in (LABELS_POLICY, DEVICES_POLICY):
                assert refusal(fenced, write, "") == "", write.what
            if write.policy not in (LABELS_POLICY, DEVICES_POLICY):
                assert f"'{write.policy}'" in refusal(fenced, write, token), write.what
    finally:
        kept = {"metadata": {"name": "topo-agent", "namespace": "topo-agent"}, "data": settings["data"]}
        fenced.api("POST", "/api/v1/namespaces/topo-agent/configmaps", kept)
    fenced.wait(lambda: "denied" in refusal(fenced, foreign, token), "policy with its parameters")


def test_it_is_the_policy_that_refuses(fenced: Cluster) -> None:
    """Without its bindings everything passes: RBAC grants it."""
    token = fenced.token("topo-agent", "topo-agent", node="p1")
    for policy in POLICIES:
        fenced.kubectl("delete", "validatingadmissionpolicybinding", policy)
    for policy in POLICIES:
        first = next(write for write in WRITES if write.policy == policy)
        fenced.wait(lambda write=first: refusal(fenced, write, token) == "", "end of the policy")  # type: ignore[misc]
    for write in (*WRITES, CAPACITY):
        assert refusal(fenced, write, token) == "", write.what
