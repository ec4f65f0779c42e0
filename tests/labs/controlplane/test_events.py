"""Findings told to the cluster: an Event for each error, and a condition of the Node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import fixtures
from tests.agent import Agent
from tests.labs.controlplane.cluster import Cluster

RIGHT, WRONG = "roots: {}\n", 'roots: {"pci0000:15": 1}\n'  # firmware of the DGX H100 says 0: overlay_contradicts


def events(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("events")["items"]
    return [one for one in found if one["source"].get("component") == "topo-agent"]


def condition(cluster: Cluster) -> str | None:
    said = cluster.get("node", "h1")["status"]["conditions"]
    return next((one["status"] for one in said if one["type"] == "TopologyDegraded"), None)


def test_an_error_is_told_once(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("h1")
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(RIGHT)
    arguments = (
        "--from", str(fixtures.tree("dgx-h100", tmp_path)), "--overlay", str(overlay), "--state-dir", "",
        "--rescan", "1", "--node", "h1", "--events", "--node-condition", "--kubeconfig", cluster.kubeconfig,
    )  # fmt: skip
    agent = Agent(tmp_path / "http", *arguments)
    try:
        agent.ready()
        cluster.wait(lambda: condition(cluster) == "False", "condition")
        assert events(cluster) == []
        overlay.write_text(WRONG)
        cluster.wait(lambda: condition(cluster) == "True", "condition of an error")
        (one,) = events(cluster)
        assert (one["reason"], one["type"]) == ("OverlayContradicts", "Warning")
        assert one["involvedObject"]["kind"] == "Node"
        assert one["involvedObject"]["uid"] == cluster.get("node", "h1")["metadata"]["uid"]
        assert "pci0000:15" in one["message"]
        written = len(cluster.requests(agent="topo-agent"))
        scans = agent.scans()
        cluster.wait(lambda: agent.scans() > scans + 3, "scans")
        assert len(cluster.requests(agent="topo-agent")) == written
        overlay.write_text(RIGHT)
        cluster.wait(lambda: condition(cluster) == "False", "end of the condition")
    finally:
        agent.stop()
    overlay.write_text(WRONG)
    agent = Agent(tmp_path / "http", *arguments)
    try:
        agent.ready()
        cluster.wait(lambda: condition(cluster) == "True", "condition of an error")
        assert len(events(cluster)) == 1  # its name is made of what it tells
        others = [one["type"] for one in cluster.get("node", "h1")["status"]["conditions"]]
        assert sorted(others) == ["Ready", "TopologyDegraded"]
    finally:
        agent.stop()
