"""The real scheduler gives away the devices of described machines by the attributes that topo-agent publishes.

What is near what is in layouts.py, from public sources. Devices are taken in the order of the slice, which is the order
of addresses, so each answer is known to the last device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.labs.controlplane.allocating import (
    DRIVER,
    GATE,
    NEAREST,
    NEAREST_CONSTRAINTS,
    NUMA,
    ROOT,
    Got,
    Lab,
    address,
    first_of,
    request,
    same,
)
from tests.labs.controlplane.cluster import Cluster
from tests.labs.controlplane.layouts import BLUEFIELD, FLAT, RAILS, STORAGE, TRAY_RAILS, Pairs, addresses

SWITCH, NEAREST_SWITCH = f"{DRIVER}/switch", f"{DRIVER}/nearestSwitch"
STANDARD = 'device.attributes["resource.kubernetes.io"]'


@pytest.fixture(scope="module")
def _lab(start_shared_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(start_shared_cluster(gates=[GATE]), tmp_path_factory.mktemp("machines"))


@pytest.fixture(scope="module")
def _alpha_lab(start_shared_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    gates = [GATE, "DRAListTypeAttributes", "DRADerivedAttributes"]
    return Lab(start_shared_cluster(gates=gates), tmp_path_factory.mktemp("machines"))


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """Without machines."""
    yield _lab
    _lab.clear()


@pytest.fixture
def alpha_lab(_alpha_lab: Lab) -> Iterator[Lab]:
    """Lists and derived attributes, too."""
    yield _alpha_lab
    _alpha_lab.clear()


def given(lab: Lab, count: int, *constraints: dict[str, Any], **more: Any) -> list[Got]:
    """One claim after the other, all alike."""
    found = [lab.gets(f"pod-{number}", *constraints, **more) for number in range(count)]
    for number, one in enumerate(found):
        print(f"pod-{number}: {one.node} {' '.join(one.pair)}")
    return found


def pairs(found: list[Got]) -> Pairs:
    return [one.pair for one in found]


def is_at(place: str) -> str:
    """A selector."""
    return f'{STANDARD}.pciBusID == "{place}"'


def take(lab: Lab, nic: str) -> None:
    """Somebody has it."""
    found = lab.gets(f"taken-{nic.translate({58: '-', 46: '-'})}", requests=[request("nic", "nic", is_at(nic))])
    assert address(found.devices["nic"]) == nic


# By root


@pytest.mark.parametrize("machine", RAILS)
def test_each_gpu_gets_the_nic_of_its_root(lab: Lab, machine: str) -> None:
    """Eight times, until no GPU is left. The next claim waits for a pair to come back, and has to take that one."""
    lab.machine("n1", machine)
    found = given(lab, 8, same(ROOT))
    assert pairs(found) == RAILS[machine]
    assert "cannot allocate all claims" in lab.waits("late", same(ROOT))
    lab.drop("pod-5")
    assert lab.got("late").pair == RAILS[machine][5]


def test_two_pairs_of_one_root_are_no_pair(lab: Lab) -> None:
    """There is no root with two GPUs in a DGX H100: a claim for two and a NIC waits, whatever is free."""
    lab.machine("n1", "dgx-h100")
    two = (request("gpu"), request("another", "gpu"), request("nic"))
    lab.waits("two", same(ROOT), requests=two)
    found = lab.gets("apart", same(ROOT, "gpu", "nic"), requests=two)
    assert [address(one) for one in found.devices.values()] == ["0000:1b:00.0", "0000:43:00.0", "0000:18:00.0"]


def test_no_pair_shares_a_root_on_a_tray(lab: Lab) -> None:
    """Of GB200, every GPU and every NIC is on a root of its own."""
    lab.machine("n1", "gb200-nvl72-tray")
    assert "cannot allocate all claims" in lab.waits("never", same(ROOT))


def test_everything_shares_the_root_of_a_flat_machine(lab: Lab) -> None:
    """So the claim gets what comes first, the paravirtual NIC at 03, and not the one that is passed through at 07."""
    lab.machine("n1", "flat-vm")
    assert pairs(given(lab, 2, same(ROOT))) == list(zip(*FLAT, strict=True))
    lab.waits("third", same(ROOT))


def test_a_flat_machine_has_no_numa_node_to_share(lab: Lab) -> None:
    """Firmware says none, and an attribute that is not there matches nothing."""
    lab.machine("n1", "flat-vm")
    assert "cannot allocate all claims" in lab.waits("never", same(NUMA))


# By NUMA node

GPUS, NICS = ([pair[at] for pair in RAILS["dgx-h100"]] for at in (0, 1))
BY_NODE = list(zip(GPUS, [NICS[0], *STORAGE[0], NICS[1], NICS[4], *STORAGE[1], NICS[5]], strict=True))


def test_a_numa_node_is_coarser_than_a_root(lab: Lab) -> None:
    """The storage cards of a DGX H100 are on its nodes as well, and come before most of the rails."""
    lab.machine("n1", "dgx-h100")
    assert pairs(given(lab, 8, same(NUMA))) == BY_NODE


def test_what_is_near_no_gpu_can_be_left_out(lab: Lab) -> None:
    """The storage cards are of NODE to every GPU, and of no GPU in particular."""
    lab.machine("n1", "dgx-h100")
    rail = f'"nearestGpu" in device.attributes["{DRIVER}"]'
    found = given(lab, 8, same(NUMA), requests=(request("gpu"), request("nic", "nic", rail)))
    assert pairs(found) == RAILS["dgx-h100"]


def test_a_tray_pairs_by_numa_node(lab: Lab) -> None:
    lab.machine("n1", "gb200-nvl72-tray")
    found = pairs(given(lab, 4, same(NUMA)))
    assert found == TRAY_RAILS
    lab.waits("fifth", same(NUMA))


# By root, or else by NUMA node


def test_it_falls_back_where_no_root_is_shared(lab: Lab) -> None:
    lab.machine("n1", "gb200-nvl72-tray")
    found = given(lab, 4, *NEAREST_CONSTRAINTS, requests=NEAREST)
    assert [one.chosen for one in found] == ["same-numa"] * 4
    assert pairs(found) == TRAY_RAILS


@pytest.mark.parametrize("machine", RAILS)
def test_it_does_not_where_one_is(lab: Lab, machine: str) -> None:
    lab.machine("n1", machine)
    found = given(lab, 8, *NEAREST_CONSTRAINTS, requests=NEAREST)
    assert [one.chosen for one in found] == ["same-root"] * 8
    assert pairs(found) == RAILS[machine]


def test_it_needs_both_attributes(lab: Lab) -> None:
    """The constraint on the alternative that is not taken still asks the NIC for its attribute. So a NIC without a NUMA
    node is never given, whatever root it shares.
    """
    lab.machine("n1", "flat-vm")
    lab.waits("never", *NEAREST_CONSTRAINTS, requests=NEAREST)
    assert lab.gets("by-root", same(ROOT)).pair == (FLAT[0][0], FLAT[1][0])


def test_the_order_of_requests_counts(lab: Lab) -> None:
    """With the NIC first, its alternatives are tried for one NIC before the next NIC is: a BlueField takes the GPU of
    another root although that one's own NIC is free.
    """
    lab.machine("n1", "xe9680-h200")
    found = given(lab, 6, *NEAREST_CONSTRAINTS, requests=(request("nic"), first_of("gpu", "same-root", "same-numa")))
    assert pairs(found) == [*RAILS["xe9680-h200"][:5], ("0000:bb:00.0", BLUEFIELD[0])]
    assert [one.chosen for one in found] == [*["same-root"] * 5, "same-numa"]


def test_a_node_with_a_root_to_share_comes_first(lab: Lab) -> None:
    """The scheduler prefers the node where the first alternative works."""
    lab.machine("n1", "gb200-nvl72-tray")
    lab.machine("n2", "mi300x")
    lab.machine("n3", "gb200-nvl72-tray")
    found = given(lab, 9, *NEAREST_CONSTRAINTS, requests=NEAREST)
    assert [one.chosen for one in found] == [*["same-root"] * 8, "same-numa"]
    assert [one.node for one in found[:8]] == ["n2"] * 8


# By switch


def test_a_switch_is_finer_than_a_root(lab: Lab) -> None:
    """Each root of this machine has two switches, with a GPU and a NIC each. When the first NIC is gone, its root is
    shared with the NIC of the other switch; its switch is not.
    """
    lab.machine("n1", "vm-vnuma")
    first = ("0000:68:00.0", "0000:67:00.0")
    second = ("0000:6c:00.0", "0000:6b:00.0")
    take(lab, first[1])
    assert lab.gets("by-root", same(ROOT)).pair == (first[0], second[1])
    lab.drop("by-root")
    assert lab.gets("by-switch", same(ROOT), same(SWITCH)).pair == second


@pytest.mark.parametrize("machine", RAILS)
def test_a_switch_is_finer_than_a_numa_node(lab: Lab, machine: str) -> None:
    """The storage cards of a DGX H100 are at no switch."""
    lab.machine("n1", machine)
    assert pairs(given(lab, 8, same(NUMA), same(SWITCH))) == RAILS[machine]


@pytest.mark.parametrize("machine", ["xe9680-h200", "mi300x"])
def test_the_nearest_switch(lab: Lab, machine: str) -> None:
    """Of a MI300X as well, which has a switch inside."""
    lab.machine("n1", machine)
    assert pairs(given(lab, 8, same(NEAREST_SWITCH))) == RAILS[machine]


def test_the_nearest_switch_of_a_dgx_is_not_shared(lab: Lab) -> None:
    """The GPU is behind a second one (PXB)."""
    lab.machine("n1", "dgx-h100")
    lab.waits("never", same(NEAREST_SWITCH))


# What the slice leaves to the cluster


def test_a_node_has_to_say_that_nothing_need_be_prepared(lab: Lab) -> None:
    """Its kubelet declares it; until then nothing is given away there."""
    lab.node("n1", declares=False)
    lab.publish("n1", "mi300x")
    lab.waits("pod", same(ROOT))
    lab.declare("n1")
    assert lab.gets("later", same(ROOT)).pair == RAILS["mi300x"][0]


def test_a_list_needs_its_gate(lab: Lab) -> None:
    """The server drops the list, and refuses an attribute without a value: one line, and no slice."""
    lab.node("n1")
    done = lab.published("n1", "mi300x", "--slice-numa", "list")
    assert done.returncode == 3
    assert "DRAListTypeAttributes" in done.stderr.splitlines()[-1]
    assert not lab.cluster.get("resourceslices")["items"]


# Beside other drivers


@pytest.fixture
def gpus_of_amd() -> list[dict[str, Any]]:
    """As gpu.amd.com publishes them: the root by its standard name, the NUMA node by a name of its own. Those of node 1
    come first here, so that without a constraint the first GPU and the first NIC are of different sockets.
    """
    roots = ["00", "18", "48", "60", "78", "98", "c8", "e0"]
    found = []
    for number in THEIR_ORDER:
        said = {
            "resource.kubernetes.io/pciBusID": {"string": RAILS["mi300x"][number][0]},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{roots[number]}"},
            "numaNode": {"int": number // 4},
            "type": {"string": "amdgpu"},
        }
        found.append({"name": f"gpu-{number}", "attributes": said})
    return found


THEIR_ORDER = (4, 5, 6, 7, 0, 1, 2, 3)
THEIRS = (request("gpu", "gpu.amd.com"), request("nic"))
OUR_NICS = [nic for _, nic in RAILS["mi300x"]]


def vendor(lab: Lab, node: str, devices: list[dict[str, Any]]) -> None:
    """A machine whose GPUs are those of their vendor's driver, and whose NICs are ours."""
    lab.node(node)
    lab.device_class("gpu.amd.com", 'device.driver == "gpu.amd.com"')
    lab.slice(node, "gpu.amd.com", devices)
    lab.publish(node, "mi300x")
    lab.ask("probe", THEIRS)
    assert joined(lab.got("probe")) == (4, OUR_NICS[0])
    lab.drop("probe")


def joined(found: Got) -> tuple[int, str]:
    """(number of the vendor's GPU, address of our NIC)."""
    return int(found.devices["gpu"].removeprefix("gpu-")), address(found.devices["nic"])


def test_a_gpu_of_its_vendor_and_a_nic_of_ours(lab: Lab, gpus_of_amd: list[dict[str, Any]]) -> None:
    """The standard root is the same word with both; what the other driver has is not in our slice."""
    vendor(lab, "n1", gpus_of_amd)
    lab.waits("ours", requests=[request("gpu")])
    for number in THEIR_ORDER:
        assert joined(lab.gets(f"pod-{number}", same(ROOT), requests=THEIRS)) == (number, OUR_NICS[number])


def test_a_bare_attribute_is_of_one_driver(lab: Lab, gpus_of_amd: list[dict[str, Any]]) -> None:
    """Their `numaNode` is not the standard one: with ours it matches nothing."""
    vendor(lab, "n1", gpus_of_amd)
    lab.waits("never", same(NUMA), requests=THEIRS)


def derived(kind: str, expression: str, *selectors: str) -> dict[str, Any]:
    name = "gpu" if kind == "gpu.amd.com" else kind
    return request(name, kind, *selectors, derivedAttributes=[{"name": DERIVED, "expression": expression}])


DERIVED = "derived/numaNode"
OF_AMD, OF_OURS = 'device.attributes["gpu.amd.com"].numaNode', f"{STANDARD}.numaNode"


def test_derived_attributes_join_theirs_with_ours(alpha_lab: Lab, gpus_of_amd: list[dict[str, Any]]) -> None:
    vendor(alpha_lab, "n1", gpus_of_amd)
    asked = (derived("gpu.amd.com", OF_AMD), derived("nic", OF_OURS))
    found = [joined(alpha_lab.gets(f"pod-{at}", same(DERIVED), requests=asked)) for at in range(8)]
    assert found == [(number, OUR_NICS[number]) for number in THEIR_ORDER]


def test_what_is_not_known_has_to_be_asked_for(alpha_lab: Lab) -> None:
    """A node whose firmware names no NUMA node ends the search on all nodes, unless a selector passes over it first."""
    alpha_lab.machine("n1", "flat-vm")
    alpha_lab.machine("n2", "mi300x")
    careless = [derived(kind, OF_OURS) for kind in ("gpu", "nic")]
    assert "no such key: numaNode" in alpha_lab.waits("careless", same(DERIVED), requests=careless)
    has = '"numaNode" in device.attributes["resource.kubernetes.io"]'
    careful = [derived(kind, OF_OURS, has) for kind in ("gpu", "nic")]
    assert alpha_lab.gets("careful", same(DERIVED), requests=careful).pair == RAILS["mi300x"][0]


# NUMA nodes as a list


def test_a_list_of_one_is_the_scalar(alpha_lab: Lab) -> None:
    """A socket of a DGX H100 is one node."""
    alpha_lab.machine("n1", "dgx-h100", "--slice-numa", "list")
    assert pairs(given(alpha_lab, 8, same(NUMA))) == BY_NODE


def test_a_list_reaches_as_far_as_the_socket(alpha_lab: Lab) -> None:
    """A DGX A100 has four nodes in a socket. The GPU at 07 and the NICs at 0c and 12 are on node 3. In the same socket
    are those of node 1, 4b and 54, and of node 0, 61; all others are in the other one.
    """
    alpha_lab.machine("n1", "dgx-a100")
    for nic in addresses("0c 12"):
        take(alpha_lab, nic)
    asked = (request("gpu", "gpu", is_at("0000:07:00.0")), request("nic"))
    alpha_lab.waits("pod", same(NUMA), requests=asked)
    alpha_lab.publish("n1", "dgx-a100", "--slice-numa", "list")
    assert alpha_lab.got("pod").pair == ("0000:07:00.0", "0000:4b:00.0")
    alpha_lab.drop("pod")
    for nic in addresses("4b 54 61.0 61.1"):
        take(alpha_lab, nic)
    alpha_lab.waits("none-left", same(NUMA), requests=asked)
