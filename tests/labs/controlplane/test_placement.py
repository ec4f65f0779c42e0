"""The real scheduler places pods by the labels of racks and of NVLink cliques that the program publishes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.labs.controlplane.cluster import Cluster
from tests.labs.controlplane.publishing import quickly, tray

RACK, CLIQUE = "topo-agent.io/rack", "topo-agent.io/nvlink-clique"
FABRICS = ("7b968a6d-c8aa-45e1-9e07-e1e51be99c31", "9c6f5af3-53bf-49b5-a436-b66766c413c3")
NUMBER = 17044  # of the clique in both: two racks may well have the same
DOMAINS: Mapping[str, Mapping[str, str]] = {
    RACK: {"n1": "r1", "n2": "r2", "n3": "r1", "n4": "r2"},
    CLIQUE: {f"n{number}": f"{FABRICS[(number - 1) % 2]}.{NUMBER}" for number in (1, 2, 3, 4)},
}
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


class Published(NamedTuple):
    """Nodes that are GB200 trays, with the labels that the program finds for them."""

    cluster: Cluster
    folder: Path

    def nodes(self, nodes: Mapping[str, Mapping[str, str]]) -> None:
        """Each has the labels that are said, and the rest of what its tray has. A rack is in the mapping."""
        mapping = self.folder / "nodes.csv"
        lines = (f"{name},{said[RACK]}" for name, said in nodes.items() if RACK in said)
        mapping.write_text("\n".join(("node,rack", *lines)), encoding="utf-8")
        for name, said in nodes.items():
            fabric, _, clique = said.get(CLIQUE, f"{FABRICS[0]}.{NUMBER}").partition(".")
            box = self.folder / f"{fabric}.{clique}.topo"
            if not box.exists():
                box = tray(self.folder, fabric, int(clique))
            words = ["--from", str(box), "--node", name, "--mapping", str(mapping)]
            found = quickly(self.cluster, self.folder, "kube", "publish", *words)
            assert said.items() <= found.items()

    def domains(self, key: str) -> None:
        """Four nodes, each with room for two pods, two in each domain."""
        for name in DOMAINS[key]:
            self.cluster.node(name, capacity={"cpu": "4"})
        self.nodes({name: {key: value} for name, value in DOMAINS[key].items()})


@pytest.fixture
def published(cluster: Cluster, tmp_path: Path) -> Published:
    return Published(cluster, tmp_path)


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


def test_a_gang_without_a_topology_is_spread(cluster: Cluster, published: Published) -> None:
    """What the next test would see if the labels had no effect."""
    published.domains(RACK)
    gang(cluster, "free", 4, None)
    assert placed(cluster, 4, group="free") == dict.fromkeys(DOMAINS[RACK], 1)


@pytest.mark.parametrize("key", DOMAINS)
def test_a_gang_is_in_one_domain(cluster: Cluster, published: Published, key: str) -> None:
    """Four pods fill it; the next gang finds the other."""
    published.domains(key)
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
def test_a_gang_too_big_for_each_domain_waits(cluster: Cluster, published: Published, key: str) -> None:
    """The four nodes have room for eight pods. With another node in a domain five have room there."""
    published.domains(key)
    gang(cluster, "big", 5, key)
    cluster.wait(lambda: condition(cluster, "big").get("status") == "False", "condition of big")
    said = condition(cluster, "big")
    assert said["reason"] == "Unschedulable"
    assert not placed(cluster, 0, group="big")
    print(said["message"])
    cluster.node("n5", capacity={"cpu": "4"})
    published.nodes({"n5": {key: DOMAINS[key]["n1"]}})
    nodes = placed(cluster, 5, group="big")
    assert {*nodes} == {"n1", "n3", "n5"}


def test_a_node_without_the_label_is_in_no_domain(cluster: Cluster, published: Published) -> None:
    published.domains(RACK)
    published.nodes({"n1": {}})  # no line of the mapping names it any more
    gang(cluster, "one", 4, RACK)
    assert {*placed(cluster, 4, group="one")} == {"n2", "n4"}


def test_a_deployment_is_spread_over_racks(cluster: Cluster, published: Published) -> None:
    """Three of the four nodes are in one rack: spread over nodes it would have most of the pods."""
    racks = {"n1": "r1", "n2": "r1", "n3": "r1", "n4": "r2"}
    for name in racks:
        cluster.node(name)
    published.nodes({name: {RACK: rack} for name, rack in racks.items()})
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
