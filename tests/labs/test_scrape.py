"""A real Prometheus scrapes the running agent and real node_exporters, and joins what they say of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.agent import Agent
from tests.labs.apt import CannotStart
from tests.labs.exporters import Prometheus, current, free_ports, installed, running

# As in docs/metrics.md, for interfaces in place of RDMA ports.
BY_NETDEV = """\
node_network_up{job="debian"}
  * on (instance, device) group_left (pci_bus_id, numa_node)
  label_replace(topo_nic_info{netdev!=""}, "device", "$1", "netdev", "(.*)")"""
BY_ADDRESS = """\
node_pcidevice_info
  * on (instance, segment, bus, device, function) group_left (pci_bus_id, netdev)
  topo_pci_alias_info"""


class Lab(NamedTuple):
    prometheus: Prometheus
    topology: dict[str, Any]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("scrape")
    jobs = ("topo-agent", "debian", "current")
    *of_jobs, own = free_ports(len(jobs) + 1)
    ports = dict(zip(jobs, of_jobs, strict=True))
    try:
        exporters = {"debian": [installed("prometheus-node-exporter")], "current": [current(), "--collector.pcidevice"]}
        prometheus = Prometheus(folder, own, ports)
    except CannotStart as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with ExitStack() as stack:
        for job, command in exporters.items():
            listen = f"--web.listen-address=127.0.0.1:{ports[job]}"
            stack.enter_context(running([*command, listen], folder / f"{job}.log"))
        agent = Agent(folder / "http", "--state-dir", str(folder / "state"), listen=f"127.0.0.1:{ports['topo-agent']}")
        stack.callback(agent.kill)
        topology = agent.ready().topology()
        yield Lab(stack.enter_context(prometheus.running()), topology)


def nics(lab: Lab) -> dict[str, str]:
    """Addresses of NICs by the name of their interface."""
    return {
        name: one["address"]
        for one in lab.topology["devices"]
        if one["kind"] == "nic" and "physfn" not in one
        for name in one.get("names", {}).get("netdev", ())[:1]
    }


def test_every_target_is_up(lab: Lab) -> None:
    up = lab.prometheus.waited_for("up == 1", lambda found: len(found) == 3)
    assert {labels["instance"] for labels, _ in up} == {"127.0.0.1"}
    ((_, ready),) = lab.prometheus.waited_for('topo_agent_scans_total{result="ok"} >= 1')
    assert ready >= 1


def test_interfaces_are_joined(lab: Lab) -> None:
    """Debian's node_exporter: by the name of the interface."""
    if not nics(lab):
        pytest.skip("no NIC with an interface here")
    found = lab.prometheus.waited_for(BY_NETDEV)
    assert {labels["device"]: labels["pci_bus_id"] for labels, _ in found} == nics(lab)
    print(f"joined by interface: {nics(lab)}")


def test_pci_functions_are_joined(lab: Lab) -> None:
    """A current node_exporter: by the PCI address."""
    if not nics(lab):
        pytest.skip("no NIC with an interface here")
    found = lab.prometheus.waited_for(BY_ADDRESS)
    joined = {labels["netdev"]: labels["pci_bus_id"] for labels, _ in found if labels["netdev"]}
    assert joined == nics(lab)
    for labels, _ in found:
        parts = f"{labels['segment']}:{labels['bus']}:{labels['device']}.{labels['function']}"
        assert parts == labels["pci_bus_id"]
    print(f"joined by address: {sorted(labels['pci_bus_id'] for labels, _ in found)}")
