"""daemonset/overlays and components on an API server: taken as they are, and each grants what its agent uses.

No kubelet runs the pods here; the agent is a process that has the variables and the token of one.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fixtures
from tests.agent import Agent
from tests.labs.controlplane import definitions
from tests.labs.controlplane.cluster import Cluster, Refused, Request
from tests.labs.controlplane.publishing import QUICK
from tests.labs.controlplane.test_policy import APPLY, EVERYTHING, Write, refusal
from tests.labs.controlplane.test_slices import device, published
from tests.test_cli import run
from topo_agent.views.slices import candidates

DAEMONSET = Path(__file__).parents[3] / "daemonset"
BASE = DAEMONSET / "base"
OVERLAYS = sorted(path.name for path in (DAEMONSET / "overlays").iterdir())
TOGETHER = ("nvidia", "kueue", "prometheus", "events")
NODE, OTHER, MACHINE = "n1", "n2", "dgx-h100"
ACCOUNT = "system:serviceaccount:topo-agent:topo-agent"
# What the operators of the vendors say of a node, for overlays that go by it.
MARKS = {"nvidia": {"nvidia.com/gpu.present": "true"}, "amd": {"feature.node.kubernetes.io/amd-gpu": "true"}}
NODES_PATH = "/api/v1/nodes"
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/node-feature-discovery/nodefeatures"

Right = tuple[str, str, str]  # verb, resource, namespace

NODES = {(verb, "nodes", "") for verb in ("get", "watch", "patch")}
DRA = {(verb, "resourceslices.resource.k8s.io", "") for verb in ("list", "watch", "create", "update", "delete")}
DRA |= {(verb, "deviceclasses.resource.k8s.io", "") for verb in ("list", "watch")}
NFD = {(verb, "nodefeatures.nfd.k8s-sigs.io", "node-feature-discovery") for verb in ("get", "watch", "create", "patch")}
EVENTS: set[Right] = {("patch", "nodes/status", ""), ("create", "events", "default")}
RIGHTS: dict[str, set[Right]] = {
    **dict.fromkeys(("base", "amd", "kueue", "nvidia", "prometheus"), NODES | DRA),
    "events": NODES | DRA | EVENTS,
    "labels-only": NODES,
    "nfd": {("get", "nodes", "")} | DRA | NFD,
}


@pytest.fixture(scope="module")
def _bare(start_shared_cluster: Callable[..., Cluster]) -> Cluster:
    found = start_shared_cluster()
    found.keep_parameters()
    return found


@pytest.fixture(scope="module")
def _equipped(_bare: Cluster) -> Cluster:
    """With what the overlays expect of others."""
    definitions.define(_bare)
    _bare.apply(definitions.RUNTIME_CLASS)
    return _bare


@pytest.fixture
def bare(_bare: Cluster) -> Iterator[Cluster]:
    """A node for all overlays, and one for some."""
    _bare.node(NODE, {"kubernetes.io/os": "linux", **MARKS["nvidia"], **MARKS["amd"]})
    _bare.node(OTHER, {"kubernetes.io/os": "linux"})
    yield _bare
    # Of others in the cluster there is nothing that a label could mean.
    for kind in ("clusterroles", "clusterrolebindings", "roles -n default", "rolebindings -n default"):
        names = _bare.kubectl("get", *kind.split(), "-o", "name").split()
        ours = [name for name in names if "/topo-agent" in name or name.endswith("/lab-everything")]
        if ours:
            _bare.kubectl("delete", *ours, *kind.split()[1:])
    _bare.clear()


@pytest.fixture
def there(_equipped: Cluster, bare: Cluster) -> Cluster:
    bare.namespace("node-feature-discovery")
    return bare


def of_components(folder: Path, *names: str) -> Path:
    """A kustomization of one's own, as docs/kubernetes.md has it."""
    said = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [os.path.relpath(BASE, folder)],
        "components": [os.path.relpath(DAEMONSET / "components" / name, folder) for name in names],
    }  # fmt: skip
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
    return folder


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.api("GET", "/api/v1/namespaces/topo-agent/pods")["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def on(cluster: Cluster) -> set[str]:
    return {one["spec"].get("nodeName", "") for one in pods(cluster)}


def granted(cluster: Cluster, namespace: str) -> set[Right]:
    """What the account may do there, beyond what every account may: as the API server itself lists it."""

    def rules(account: str) -> set[Right]:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        cluster.wait(
            lambda: cluster.api("GET", f"/api/v1/namespaces/topo-agent/serviceaccounts/{account}"), f"account {account}"
        )
        token = cluster.token(account, "topo-agent")
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        said = cluster.api("POST", path, review | {"spec": {"namespace": namespace}}, token=token)["status"]
        assert not said["incomplete"]
        return {
            (verb, f"{resource}.{group}" if group else resource, "")
            for one in said["resourceRules"]
            for verb in one["verbs"]
            for group in one["apiGroups"]
            for resource in one["resources"]
        }

    return rules("topo-agent") - rules("default")


def all_granted(cluster: Cluster) -> set[Right]:
    """Of every namespace; what is granted in all of them is said without one."""
    everywhere = granted(cluster, "kube-public")
    found = set(everywhere)
    for one in cluster.api("GET", "/api/v1/namespaces")["items"]:
        name = one["metadata"]["name"]
        found |= {(verb, what, name) for verb, what, _ in granted(cluster, name) - everywhere}
    return found


def told(cluster: Cluster) -> str:
    """What the DaemonSet controller could not do."""
    found = cluster.get("events", namespace="topo-agent")["items"]
    return "\n".join(one["message"] for one in found if one["reason"] == "FailedCreate")


def test_what_others_did_not_bring(bare: Cluster) -> None:
    """No RuntimeClass: the pods are refused. No such kind of object, or no namespace: the rest is applied.

    The first of this file: what is defined stays.
    """
    bare.kubectl("apply", "-k", str(DAEMONSET / "overlays/nvidia"))
    bare.wait(lambda: 'RuntimeClass "nvidia" not found' in told(bare), "refusal")
    for name, said in (
        ("kueue", 'no matches for kind "Topology" in version "kueue.x-k8s.io/v1beta2"'),
        ("prometheus", 'no matches for kind "PodMonitor" in version "monitoring.coreos.com/v1"'),
        ("nfd", 'namespaces "node-feature-discovery" not found'),
    ):
        assert said in bare.kubectl("apply", "-k", str(DAEMONSET / "overlays" / name), check=False)
    settings = bare.get("configmap", "topo-agent", "topo-agent")
    assert settings["data"]["slice-mode"] == "inventory"


# Taken, admitted, granted


def test_every_overlay(there: Cluster) -> None:
    """One after another, over the one before: nothing stays behind of it."""
    there.kubectl("apply", "-k", str(BASE))
    assert all_granted(there) == NODES | DRA
    for name in OVERLAYS:
        folder = str(DAEMONSET / "overlays" / name)
        there.kubectl("apply", "-k", folder)
        there.kubectl("diff", "-k", folder)  # nothing is left to change
        expected = {NODE} if name in MARKS else {NODE, OTHER}
        generation = there.get("daemonset", "topo-agent", "topo-agent")["metadata"]["generation"]
        assert whole(there, expected, generation), name
        # Of the overlay before there may be a right more: kubectl deletes no object that is not named any more.
        assert all_granted(there) - NFD == RIGHTS[name] - NFD, name
        assert all_granted(there) >= RIGHTS[name], name
        if name == "nfd":
            there.kubectl("delete", "-n", "node-feature-discovery", "role/topo-agent", "rolebinding/topo-agent")
    assert told(there) == ""
    print(f"{len(OVERLAYS)}/{len(OVERLAYS)} overlays applied, their pods admitted and bound")


def whole(cluster: Cluster, nodes: set[str], generation: int) -> bool:
    """A pod of that generation on each of the nodes and on no other. Old ones are ended, as a kubelet would."""

    def so() -> bool:
        for one in cluster.api("GET", "/api/v1/namespaces/topo-agent/pods")["items"]:
            about = one["metadata"]
            if about["labels"].get("pod-template-generation") != str(generation) or "deletionTimestamp" in about:
                cluster.api("DELETE", f"/api/v1/namespaces/topo-agent/pods/{about['name']}", {"gracePeriodSeconds": 0})
        return on(cluster) == nodes and all(
            one["metadata"]["labels"]["pod-template-generation"] == str(generation) for one in pods(cluster)
        )

    cluster.wait(so, f"pods on {', '.join(sorted(nodes))}")
    return True


def test_components_together(there: Cluster, tmp_path: Path) -> None:
    there.kubectl("apply", "-k", str(of_components(tmp_path, *TOGETHER)))
    there.wait(lambda: on(there) == {NODE}, "pod on its node")
    assert all_granted(there) == NODES | DRA | EVENTS
    (pod,) = pods(there)
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    names = {one["name"] for one in pod["spec"]["containers"][0]["env"]}
    assert {"NVIDIA_VISIBLE_DEVICES", "TOPO_AGENT_TLS_CLIENT_CA", "TOPO_AGENT_NODE"} <= names
    assert there.get("configmap", "topo-agent", "topo-agent")["data"]["node-condition"] == "true"


def test_what_can_i(there: Cluster) -> None:
    """As an administrator would ask."""
    there.kubectl("apply", "-k", str(DAEMONSET / "overlays/nfd"))
    nfd = ("-n", "node-feature-discovery")
    for words, may in (
        (("get", "nodes"), True), (("patch", "nodes"), False), (("patch", "nodes/status"), False),
        (("list", "nodes"), False), (("create", "resourceslices"), True), (("list", "pods", "-A"), False),
        (("get", "secrets", "-A"), False), (("create", "nodefeatures", *nfd), True),
        (("create", "nodefeatures"), False), (("list", "nodefeatures", *nfd), False),
        (("deletecollection", "nodefeatures", *nfd), False), (("create", "events"), False),
    ):  # fmt: skip
        said = there.kubectl("auth", "can-i", *words, f"--as={ACCOUNT}", check=False)
        assert said.startswith("yes" if may else "no"), (words, said)


# What stands in the way, in the words of the page on troubleshooting


def test_a_namespace_of_another_level(there: Cluster) -> None:
    """hostNetwork with its port and probes, and hostPath, are what the level privileged is for, and nothing else."""
    there.kubectl("apply", "-k", str(DAEMONSET / "overlays/prometheus"))
    there.wait(lambda: on(there) == {NODE, OTHER}, "pods")
    level = "pod-security.kubernetes.io/enforce"
    there.kubectl("label", "namespace", "topo-agent", "--overwrite", f"{level}=baseline")
    there.kubectl("delete", "pods", "-n", "topo-agent", "--all", "--force", "--grace-period=0")
    there.wait(lambda: "violates PodSecurity" in told(there), "refusal")
    (said,) = {line.partition('": ')[2] for line in told(there).splitlines()}
    refused = {one.strip().partition(" (")[0] for one in re.split(r"\), ", said)}
    assert refused == {"host namespaces", "hostPath volumes", "hostPort", "probe or lifecycle host"}, said


# The policy of the overlay nfd


def feature(name: str = NODE, *, of: str = NODE, **spec: Any) -> dict[str, Any]:
    about = {"name": f"topo-agent-{name}", "labels": {"nfd.node.kubernetes.io/node-name": of}}
    said = {"labels": {"topo-agent.io/rack": "r1"}} | spec
    return {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": about, "spec": said}


OWN, ASKED = "topo-agent-nodefeatures", "topo-agent-features"


def made(what: str, body: dict[str, Any], policy: str, message: str) -> Write:
    return Write(what, "POST", FEATURES, body, policy, message, "application/json")


REFUSED = [
    made("another node's", feature(OTHER, of=OTHER), OWN, "of the own node"),
    made("another node's by its label", feature(of=OTHER), OWN, "of the own node"),
    made("another name", feature("other"), OWN, "of the own node"),
    made("a foreign label", feature(labels={"example.com/pool": "x"}), ASKED, "only for labels"),
    made("a label that begins like ours", feature(labels={"topo-agent.io.evil/x": "x"}), ASKED, "only for labels"),
    made("features", feature(features={"flags": {"a.b": {"elements": {"c": {}}}}}), ASKED, "has no features"),
    Write("by an apply", "PATCH", f"{FEATURES}/topo-agent-{OTHER}", feature(OTHER, of=OTHER), OWN, "of the own node",
          APPLY),
    Write("the end of another node's", "DELETE", f"{FEATURES}/topo-agent-{OTHER}", None, OWN, "of the own node"),
]  # fmt: skip


def test_features_of_another_node(there: Cluster) -> None:
    there.kubectl("apply", "-k", str(DAEMONSET / "overlays/nfd"))
    there.apply(EVERYTHING)  # so that it is not RBAC that refuses
    there.api("POST", FEATURES, feature(OTHER, of=OTHER))
    token = there.token("topo-agent", "topo-agent", node=NODE)
    for policy in (OWN, ASKED):
        first = next(one for one in REFUSED if one.policy == policy)
        there.wait(lambda one=first: one.policy in refusal(there, one, token), f"{policy} in force")  # type: ignore[misc]
    for write in REFUSED:
        said = refusal(there, write, token)
        assert f"ValidatingAdmissionPolicy '{write.policy}'" in said, (write.what, said)
        assert write.message in said, (write.what, said)
    right = made("its own", feature(), "", "")
    assert refusal(there, right, token) == ""
    assert OWN in refusal(there, right, there.token("topo-agent", "topo-agent"))  # bound to no node
    for write in REFUSED:
        assert "denied" not in refusal(there, write, ""), write.what  # others are not concerned
    more = {"data": {"label-keys": "example.com/pool=rack"}}
    there.api("PATCH", "/api/v1/namespaces/topo-agent/configmaps/topo-agent", more, kind="application/merge-patch+json")
    foreign = next(one for one in REFUSED if one.what == "a foreign label")
    there.wait(lambda: refusal(there, foreign, token) == "", "policy with its new parameters")
    print(f"{len(REFUSED)}/{len(REFUSED)} refused by the policy")


# What is granted is what is used


def variables(cluster: Cluster, pod: dict[str, Any]) -> dict[str, str]:
    """Of its container, as a kubelet makes them."""
    settings = cluster.get("configmap", "topo-agent", "topo-agent")["data"]
    found = {}
    for one in pod["spec"]["containers"][0]["env"]:
        source = one.get("valueFrom", {})
        if "configMapKeyRef" in source:
            found[one["name"]] = settings[source["configMapKeyRef"]["key"]]
        else:
            found[one["name"]] = one.get("value") or pod["spec"]["nodeName"]
    return found


VERBS = {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}


def used(requests: list[Request]) -> set[Right]:
    """What the requests needed. To make an object by an apply is to create it, too."""
    found = set()
    for one in requests:
        path = urllib.parse.urlsplit(one.uri).path
        match = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/([^/]+))?/([a-z]+)(?:/[^/]+)?(/status)?", path)
        if match and one.verb in VERBS:
            group, namespace, resource, part = (word or "" for word in match.groups())
            what = f"{resource}{part}.{group}" if group else f"{resource}{part}"
            found.add((one.verb, what, namespace))
            if one.verb == "patch" and one.code == 201:
                found.add(("create", what, namespace))
    return found


class Lived:
    """An agent with the variables of its pod and a token of it, on a described machine: what it did, and its rights."""

    def __init__(self, cluster: Cluster, folder: Path, box: Path, *, called: str = NODE) -> None:
        """`called`: what the mapping calls the node."""
        self.cluster, self.mapping, self.called = cluster, folder / "nodes.csv", called
        self.rack("r1")
        overlay = folder / "overlay.yaml"
        overlay.write_text('roots: {"pci0000:15": 1}\n', encoding="utf-8")  # the firmware says 0: an error is told
        cluster.wait(lambda: NODE in on(cluster), "pod")
        pod = next(one for one in pods(cluster) if one["spec"].get("nodeName") == NODE)
        token = cluster.token("topo-agent", "topo-agent", pod=pod["metadata"]["name"])
        self.environment = variables(cluster, pod) | {
            "TOPO_AGENT_MAPPING": str(self.mapping), "TOPO_AGENT_OVERLAY": str(overlay), "TOPO_AGENT_STATE_DIR": "",
            "TOPO_AGENT_KUBECONFIG": cluster.kubeconfig_for(token, "topo-agent"), "TOPO_AGENT_LOG_FORMAT": "text",
        }  # fmt: skip
        self.by = self.environment["TOPO_AGENT_LABELS"]
        self.slicing = self.environment["TOPO_AGENT_SLICE_MODE"] != "off"
        self._since = cluster.now()
        around = f"import os; os.environ |= {self.environment!r}\n{QUICK}"
        self.agent = Agent(folder / "http", "--from", str(box), around=around)

    def rack(self, name: str) -> None:
        self.mapping.write_text(f"node,rack\n{self.called},{name}\n", encoding="utf-8")

    def slices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.api("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        return found

    def racks(self) -> set[str]:
        """What all that it publishes says."""
        said = {one["attributes"]["rack"]["string"] for whole in self.slices() for one in whole["spec"]["devices"]}
        path, part = (
            (f"{FEATURES}/topo-agent-{NODE}", "spec") if self.by == "nfd" else (f"{NODES_PATH}/{NODE}", "metadata")
        )
        try:
            asked = self.cluster.api("GET", path)[part]["labels"]
        except Refused:  # not made yet
            return set()
        return said | {asked.get("topo-agent.io/rack", "")} if bool(said) == self.slicing else set()

    def live(self) -> None:
        agent = self.agent.ready()
        agent.wait_for(lambda: self.racks() == {"r1"})
        self.rack("r2")
        agent.wait_for(lambda: self.racks() == {"r2"})
        if self.slicing:
            self.cluster.apply(OPEN_CLASS)
            agent.wait_for(lambda: not self.slices())
            self.cluster.kubectl("delete", "deviceclass", "open")
            agent.wait_for(self.slices)
        if self.environment["TOPO_AGENT_EVENTS"] == "true":
            agent.wait_for(lambda: any(one["source"].get("component") == "topo-agent" for one in events(self.cluster)))
            agent.wait_for(lambda: "TopologyDegraded" in conditions(self.cluster))
        agent.stop()

    def requests(self) -> list[Request]:
        return self.cluster.requests(user=ACCOUNT, agent="topo-agent", since=self._since)


OPEN_CLASS = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: open}\nspec: {}\n"


@pytest.mark.parametrize("name", ["base", "labels-only", "nfd", "events"])
def test_every_right_is_used(there: Cluster, name: str, tmp_path: Path, common: Path) -> None:
    """Nothing is refused, and all that is granted is needed. Then everything is taken back."""
    there.kubectl("apply", "-k", str(of_components(tmp_path, *([] if name == "base" else [name]))))
    lived = Lived(there, tmp_path, fixtures.tree(MACHINE, common))
    try:
        lived.live()
    finally:
        lived.agent.kill()
    assert [one for one in lived.requests() if one.code == 403] == []
    rights = all_granted(there)
    assert used(lived.requests()) == rights == RIGHTS[name]
    words = ("--node", NODE, "--kubeconfig", there.kubeconfig)
    done = run("kube", "unpublish", *words, env={"TOPO_AGENT_LABELS": lived.by})
    assert done.returncode == 0, done.stderr
    assert nothing_is_left(there)
    print(f"{name}: {len(rights)} rights granted, and all of them used")


# The account of the overlay nfd cannot write the Node: what outlives a boot all the same


def lives(cluster: Cluster, folder: Path, box: Path, called: str = NODE) -> Iterator[Lived]:
    """Two, one after the other."""
    for number in ("first", "second"):
        (folder / number).mkdir()
        lived = Lived(cluster, folder / number, box, called=called)
        try:
            yield lived
        finally:
            lived.agent.kill()
        assert [one for one in lived.requests() if one.code == 403] == []


def test_a_rack_by_system_uuid(there: Cluster, tmp_path: Path, common: Path) -> None:
    """Without slices, too: a NodeFeature does not say the UUID. The second life has nothing to write."""
    there.kubectl("apply", "-k", str(of_components(tmp_path, "labels-only", "nfd")))
    uuid = "4c4c4544-0051-3010-8054-b4c04f565831"
    names = "machineID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion"
    info = dict.fromkeys(names.split(), "") | {"systemUUID": uuid, "operatingSystem": "linux", "architecture": "arm64"}
    patch = {"status": {"nodeInfo": info}}
    there.api("PATCH", f"{NODES_PATH}/{NODE}/status", patch, kind="application/merge-patch+json")
    stands = 'topo_label_info{key="topo-agent.io/rack",source="mapping",state="published",value="r1"}'
    writes = []
    for lived in lives(there, tmp_path, fixtures.tree(MACHINE, common), uuid):
        agent = lived.agent.ready()
        agent.wait_for(lambda: lived.racks() == {"r1"} and stands in agent.metrics())  # noqa: B023 at once
        for _ in range(2):  # readings that could take it back
            agent.rescan()
        assert lived.racks() == {"r1"}
        writes.append(sum(one.verb == "patch" for one in lived.requests()))
    assert writes[0] >= 1
    assert writes[1] == 0


def test_what_others_covered(there: Cluster, tmp_path: Path, common: Path) -> None:
    """It is kept at the NodeFeature."""
    there.kubectl("apply", "-k", str(of_components(tmp_path, "nfd")))
    machine = candidates(fixtures.topology(MACHINE))
    nics = {one.name for one in machine if one.attributes["kind"] == "nic"}
    rest = {one.name for one in machine} - nics
    published(there, "dra.net", *(device(name) for name in sorted(nics)), node=NODE)

    def ours(lived: Lived) -> set[str]:
        found = (one["spec"] for one in lived.slices() if one["spec"]["driver"] == "topo-agent.io")
        return {one["name"] for spec in found for one in spec["devices"]}

    def annotations() -> dict[str, str]:
        try:
            found: dict[str, str] = there.api("GET", f"{FEATURES}/topo-agent-{NODE}")["metadata"].get("annotations", {})
        except Refused:
            return {}
        return found

    for lived in lives(there, tmp_path, fixtures.tree(MACHINE, common)):
        agent = lived.agent.ready()
        agent.wait_for(lambda: ours(lived))  # noqa: B023 at once
        assert ours(lived) == rest
        agent.wait_for(lambda: "topo-agent.io/covered" in annotations())
        lived.agent.kill()
        there.api("DELETE", "/apis/resource.k8s.io/v1/resourceslices")  # as a kubelet does at its start
    assert "annotations" not in there.api("GET", f"{NODES_PATH}/{NODE}")["metadata"]
    words = ("--node", NODE, "--kubeconfig", there.kubeconfig)
    assert run("kube", "unpublish", *words, env={"TOPO_AGENT_LABELS": "nfd"}).returncode == 0
    assert nothing_is_left(there)


def events(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("events")["items"]
    return found


def conditions(cluster: Cluster) -> set[str]:
    return {one["type"] for one in cluster.get("node", NODE)["status"]["conditions"]}


def nothing_is_left(cluster: Cluster) -> bool:
    """Of what the agent published: on the Node, and as objects."""
    node = cluster.api("GET", f"/api/v1/nodes/{NODE}")
    assert not [one for one in node["metadata"]["managedFields"] if one["manager"].startswith("topo-agent")]
    assert "topo-agent" not in json.dumps({key: node["metadata"].get(key) for key in ("labels", "annotations")})
    assert conditions(cluster) == {"Ready"}
    assert not cluster.api("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    return not cluster.api("GET", FEATURES)["items"]
