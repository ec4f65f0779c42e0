"""The real scheduler places pods by labels of racks and of NVLink cliques."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.labs.controlplane.cluster import Cluster

RACK, CLIQUE = "topo-agent.io/rack", "topo-agent.io/nvlink-clique"
FABRIC = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
DOMAINS: Mapping[str, Mapping[str, str]] = {
    RACK: {"n1": "r1", "n2": "r2", "n3": "r1", "n4": "r2"},
    CLIQUE: {"n1": f"{FABRIC}.1", "n2": f"{FABRIC}.2", "n3": f"{FABRIC}.1", "n4": f"{FABRIC}.2"},
}
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


def labelled(cluster: Cluster, nodes: Mapping[str, Mapping[str, str]]) -> None:
    for name, labels in nodes.items():
        cluster.kubectl("label", "node", name, *(f"{key}={value}" for key, value in labels.items()))


def domains(cluster: Cluster, key: str) -> None:
    """Four nodes, each with room for two pods, two in each domain."""
    for name in DOMAINS[key]:
        cluster.node(name, capacity={"cpu": "4"})
    labelled(cluster, {name: {key: value} for name, value in DOMAINS[key].items()})


def gang(cluster: Cluster, name: str, size: int, key: str | None) -> None:
    constraints = {"schedulingConstraints": {"topology": [{"key": key}]}} if key else {}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}, **constraints},
    }
    made = [group, *(pod(f"{name}-{number}", name) for number in range(size))]
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))


def pod(name: str, group: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"group": group}},
        "spec": {
            "containers": [CONTAINER],
            "schedulingGroup": {"podGroupName": group},
        },
    }


CONTAINER = {"name": "only", "image": "localhost/none", "resources": {"requests": {"cpu": "2"}}}


def placed(cluster: Cluster, size: int, **labels: str) -> Counter[str]:
    """How many pods each node has, once all have one."""
    asked = ",".join(f"{key}={value}" for key, value in labels.items())
    path = f"/api/v1/namespaces/default/pods?labelSelector={asked}"

    def found() -> list[str]:
        return [node for one in cluster.api("GET", path)["items"] if (node := one["spec"].get("nodeName"))]

    cluster.wait(lambda: len(found()) == size, f"place for {asked}", 30.0)
    return Counter(found())


def condition(cluster: Cluster, name: str) -> dict[str, str]:
    said = cluster.api("GET", f"{GROUPS}/{name}").get("status", {}).get("conditions", [])
    return next((one for one in said if one["type"] == "PodGroupInitiallyScheduled"), {})


@pytest.fixture(autouse=True)
def without_groups(cluster: Cluster) -> None:
    assert not cluster.api("GET", GROUPS)["items"]


def test_a_gang_without_a_topology_is_spread(cluster: Cluster) -> None:
    """What the next test would see if the labels had no effect."""
    domains(cluster, RACK)
    gang(cluster, "free", 4, None)
    assert placed(cluster, 4, group="free") == dict.fromkeys(DOMAINS[RACK], 1)


@pytest.mark.parametrize("key", DOMAINS)
def test_a_gang_is_in_one_domain(cluster: Cluster, key: str) -> None:
    """Four pods fill it; the next gang finds the other."""
    domains(cluster, key)
    seen = set()
    for name in ("first", "second"):
        gang(cluster, name, 4, key)
        nodes = placed(cluster, 4, group=name)
        assert set(nodes.values()) == {2}
        (domain,) = {DOMAINS[key][node] for node in nodes}
        seen.add(domain)
        cluster.wait(lambda name=name: condition(cluster, name).get("status") == "True", f"condition of {name}")  # type: ignore[misc]
    assert seen == {*DOMAINS[key].values()}


@pytest.mark.parametrize("key", DOMAINS)
def test_a_gang_too_big_for_each_domain_waits(cluster: Cluster, key: str) -> None:
    """The four nodes have room for eight pods. With another node in a domain five have room there."""
    domains(cluster, key)
    gang(cluster, "big", 5, key)
    cluster.wait(lambda: condition(cluster, "big").get("status") == "False", "condition of big")
    said = condition(cluster, "big")
    assert said["reason"] == "Unschedulable"
    assert not placed(cluster, 0, group="big")
    print(said["message"])
    cluster.node("n5", {key: DOMAINS[key]["n1"]}, capacity={"cpu": "4"})
    nodes = placed(cluster, 5, group="big")
    assert {*nodes} == {"n1", "n3", "n5"}


def test_a_node_without_the_label_is_in_no_domain(cluster: Cluster) -> None:
    domains(cluster, RACK)
    cluster.kubectl("label", "node", "n1", f"{RACK}-")
    gang(cluster, "one", 4, RACK)
    assert {*placed(cluster, 4, group="one")} == {"n2", "n4"}


def test_a_deployment_is_spread_over_racks(cluster: Cluster) -> None:
    """Three of the four nodes are in one rack: spread over nodes it would have most of the pods."""
    racks = {"n1": "r1", "n2": "r1", "n3": "r1", "n4": "r2"}
    for name in racks:
        cluster.node(name)
    labelled(cluster, {name: {RACK: rack} for name, rack in racks.items()})
    spread = {
        "maxSkew": 1,
        "topologyKey": RACK,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 6,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [CONTAINER], "topologySpreadConstraints": [spread]},
            },
        },
    }
    cluster.apply(json.dumps(made))
    nodes = placed(cluster, 6, app="web")
    assert nodes["n4"] == 3
    assert sum(nodes[node] for node in ("n1", "n2", "n3")) == 3
