"""daemonset/base on two real nodes: this machine, and a guest with two sockets whose NIC is unplugged and plugged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.labs.conftest import entered
from tests.labs.node.deployed import CONTROLLERS, IMAGE, SOON, Deployed
from tests.labs.node.guest_node import NIC, GuestNode
from tests.labs.node.node import NodeOf

NAMES = ("d1", "g1")
USERS = {f"system:node:{name}": ["system:nodes"] for name in NAMES}


@pytest.fixture(scope="module")
def here(start_node: Callable[..., NodeOf], agent_image: Path) -> NodeOf:
    found = start_node("d1", controllers=CONTROLLERS, users=USERS)
    found.load(agent_image, f"{IMAGE}:one")
    return found


@pytest.fixture(scope="module")
def guest(here: NodeOf, agent_image: Path) -> Iterator[GuestNode]:
    with entered(lambda: GuestNode(here.cluster, "g1", {f"{IMAGE}:one": agent_image})) as found:
        yield found


@pytest.fixture(scope="module")
def deployed(here: NodeOf, guest: GuestNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """On both nodes, with no look at a machine but for events; it is asked about the guest."""
    folder = tmp_path_factory.mktemp("overlay")
    found = Deployed(guest, folder / "two", Path("/"), TOPO_AGENT_RESCAN="1h", TOPO_AGENT_LOG_FORMAT="text")
    found.apply("one")
    found.ready()
    yield found
    found.delete()
    Deployed(here, folder / "one", Path("/")).unpublish()


def labels(guest: GuestNode) -> dict[str, str]:
    return dict(line.split("=", 1) for line in guest.ask("dump/labels").splitlines())


def test_both_nodes_are_ready(guest: GuestNode) -> None:
    print(f"the guest was a ready node {guest.took:.0f} s after its start")
    print(guest.cluster.kubectl("get", "nodes", "-o", "wide"))
    assert sorted(one["metadata"]["name"] for one in guest.cluster.get("nodes")["items"]) == sorted(NAMES)


def test_labels_and_slice_are_those_of_dump(deployed: Deployed, guest: GuestNode) -> None:
    expected = labels(guest)
    assert expected["topo-agent.io/nic-count"] == "3"  # what QEMU was told
    deployed.wait(lambda: deployed.labels() == expected, f"labels {expected}")
    deployed.wait(deployed.slices, "slice")
    devices = deployed.devices()
    assert devices == yaml.safe_load(guest.ask("dump/slices"))["spec"]["devices"]
    # Of both sockets, as QEMU was told.
    where = {one["attributes"]["resource.kubernetes.io/pciBusID"]["string"]: one["attributes"] for one in devices}
    assert where[NIC]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:10"}
    assert where[NIC]["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert where["0000:21:00.0"]["resource.kubernetes.io/numaNode"] == {"int": 1}
    print(deployed.cluster.kubectl("get", "nodes", "--show-labels"))
    print(deployed.cluster.kubectl("get", "resourceslices"))


def test_a_nic_is_unplugged_and_plugged(deployed: Deployed, guest: GuestNode) -> None:
    """Slice, labels and metrics follow within five seconds of the last uevent, by the guest's clock."""
    before = labels(guest)

    def latencies(nics: str) -> Mapping[str, float]:
        plugged = nics == before["topo-agent.io/nic-count"]
        follows: dict[str, Callable[[], bool]] = {
            "slice": lambda: [NIC in addresses(one) for one in deployed.slices()] == [plugged],
            "labels": lambda: deployed.labels()["topo-agent.io/nic-count"] == nics,
            "metrics": lambda: (f'pci_bus_id="{NIC}"' in guest.ask("metrics")) == plugged,
        }
        found: dict[str, float] = {}
        until = time.monotonic() + 60.0
        while len(found) < len(follows) and time.monotonic() < until:
            for name, so in follows.items():
                # A question to the guest costs it time, so that one is the last.
                asked = name not in found and (name != "metrics" or len(found) == len(follows) - 1)
                if asked and so():
                    found[name] = guest.since_event()
            time.sleep(0.1)
        assert len(found) == len(follows), f"{found}\n{guest.logs('topo-agent', 'topo-agent')[-2000:]}"
        return found

    guest.unplug()
    gone = latencies("2")
    guest.plug()
    guest.wait(lambda: NIC in guest.ask("pci"), "NIC that is back")
    back = latencies("3")
    for what, found in (("unplugged", gone), ("plugged", back)):
        print(f"{what}:", ", ".join(f"{name} after {seconds:.1f} s" for name, seconds in sorted(found.items())))
    assert max(*gone.values(), *back.values()) <= SOON
    assert labels(guest) == before
    deployed.wait(lambda: deployed.labels() == before, f"labels {before}")


def addresses(found: Mapping[str, dict[str, list[dict[str, dict[str, dict[str, str]]]]]]) -> set[str]:
    attributes = (one["attributes"] for one in found["spec"]["devices"])
    return {one["resource.kubernetes.io/pciBusID"]["string"] for one in attributes}


def test_the_kubelet_of_the_guest_is_started_anew(deployed: Deployed, guest: GuestNode) -> None:
    """It deletes every slice of its node, and ours is back soon."""
    took = deployed.wiped(lambda: guest.ask("kubelet/restart"))
    print(f"the slice is back {took:.2f} s after the kubelet took it away")
    assert took <= SOON
