"""A fleet of three kinds of machines: how many pairs of a GPU and a NIC are near each other, with what topo-agent
publishes and without it.

Six machines by default. With TOPO_AGENT_LONG=1 there are sixty, 280 GPUs in all.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.labs.controlplane.allocating import GATE, NEAREST, NEAREST_CONSTRAINTS, PAIR, Got, Lab, request
from tests.labs.controlplane.cluster import Cluster
from tests.labs.controlplane.layouts import BLUEFIELD, FLAT, RAILS, TRAY, TRAY_NICS

EACH = 20 if os.environ.get("TOPO_AGENT_LONG") else 2
ENOUGH = 600.0  # seconds for all pods of the long one


class Kind(NamedTuple):
    """How a machine is wired: which devices have a root, and which a NUMA node, in common."""

    gpus: int
    roots: list[set[str]]
    nodes: list[set[str]]

    def word(self, found: Got) -> str:
        """What the pair has in common."""
        pair = {*found.pair}
        if any(pair <= one for one in self.roots):
            return "root"
        return "node" if any(pair <= one for one in self.nodes) else "nothing"


def _xe9680() -> Kind:
    rails = RAILS["xe9680-h200"]
    roots = [{*rail} for rail in rails]
    roots[4] |= {*BLUEFIELD}
    return Kind(8, roots, [set[str]().union(*roots[:4]), set[str]().union(*roots[4:])])


KINDS: Mapping[str, Kind] = {
    "xe9680-h200": _xe9680(),
    "gb200-nvl72-tray": Kind(4, [], [{*TRAY[side], *TRAY_NICS[side]} for side in (0, 1)]),
    "flat-vm": Kind(2, [{*FLAT[0], *FLAT[1]}], []),
}
NODES = {f"n{number + 1:02}": name for number, name in enumerate(name for name in KINDS for _ in range(EACH))}


@pytest.fixture(scope="module")
def _fleet(start_shared_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(start_shared_cluster(gates=[GATE]), tmp_path_factory.mktemp("machines"))
    started = time.monotonic()
    for name in KINDS:
        lab.recorded(name)
    for node in NODES:
        lab.node(node)
    with ThreadPoolExecutor(2) as pool:  # most of it is a process of its own
        list(pool.map(lambda one: lab.publish(*one), NODES.items()))
    lab.known(next(reversed(NODES)))
    print(f"{len(NODES)} machines published after {time.monotonic() - started:.0f} s")
    return lab


@pytest.fixture
def fleet(_fleet: Lab) -> Iterator[Lab]:
    """All of its machines, and nothing given away."""
    yield _fleet
    _fleet.drop_all()


def test_every_pair_is_as_near_as_its_machine_allows(fleet: Lab) -> None:
    """With a root in common or else a NUMA node, for as many claims as there are GPUs. A flat machine says no NUMA
    node: nothing there is given to such a claim.
    """
    assert all_of(fleet, with_attributes=True) == {
        "xe9680-h200": {"root": 8 * EACH},
        "gb200-nvl72-tray": {"node": 4 * EACH},
        "flat-vm": {},
        "none": {"waiting": 2 * EACH},
    }


def test_without_attributes_it_is_luck(fleet: Lab) -> None:
    """Two requests that know nothing of each other take what comes first. GPUs and NICs are in the same order here, so
    the first pairs of a machine fit. The functions of a BlueField shift the others.
    """
    assert all_of(fleet, with_attributes=False) == {
        "xe9680-h200": {"root": 5 * EACH, "node": 3 * EACH},
        "gb200-nvl72-tray": {"node": 2 * EACH, "nothing": 2 * EACH},
        "flat-vm": {"root": 2 * EACH},
        "none": {},
    }


def test_after_a_pod_with_a_gpu_and_no_nic(fleet: Lab) -> None:
    """One on each machine, before all others."""
    alone(fleet)
    assert all_of(fleet, with_attributes=True) == {
        "xe9680-h200": {"root": 7 * EACH},
        "gb200-nvl72-tray": {"node": 3 * EACH},
        "flat-vm": {},
        "none": {"waiting": EACH},
    }


def test_without_attributes_that_pod_shifts_all_pairs(fleet: Lab) -> None:
    alone(fleet)
    assert all_of(fleet, with_attributes=False) == {
        "xe9680-h200": {"node": 6 * EACH, "nothing": EACH},
        "gb200-nvl72-tray": {"node": EACH, "nothing": 2 * EACH},
        "flat-vm": {"root": EACH},
        "none": {},
    }


def alone(lab: Lab) -> None:
    for node in NODES:
        lab.ask(f"alone-{node}", [request("gpu")], node=node)
    for node in NODES:
        assert lab.got(f"alone-{node}").node == node


def all_of(lab: Lab, *, with_attributes: bool) -> dict[str, Counter[str]]:
    """A claim for each GPU that is left; machine -> what the two devices of a claim have in common."""
    started = time.monotonic()
    count = sum(KINDS[name].gpus for name in NODES.values()) - len(lab.everything())
    requests, constraints = (NEAREST, NEAREST_CONSTRAINTS) if with_attributes else (PAIR, ())
    asked = {f"pair-{number}" for number in range(count)}
    for name in asked:
        lab.ask(name, requests, constraints)
    lab.cluster.wait(lambda: asked <= lab.answered(), f"answers to {count} pods", ENOUGH)
    given = {name: one for name, one in lab.everything().items() if name in asked}
    found: dict[str, Counter[str]] = {name: Counter() for name in (*KINDS, "none")}
    for one in given.values():
        name = NODES[one.node]
        found[name][KINDS[name].word(one)] += 1
    if len(given) < count:
        found["none"]["waiting"] = count - len(given)
    took = time.monotonic() - started
    print(f"{count} claims, {'with' if with_attributes else 'without'} attributes, {took:.0f} s:")
    for name, words in found.items():
        print(f"  {name}: {dict(words)}")
    return found
