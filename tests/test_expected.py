"""Every leaf that another program said of a recorded machine, compared with what we find on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.expectations import KINDS, leaves, of_kind
from tests.machines import MACHINES, expected, needs_machines
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host.live import LiveHost
from topo_agent.scan import scan

# How many leaves each file has, by key: a leaf that is silently not asked is an error like a wrong answer.
# NV* words are left out where no NVLink data is recorded (dgx-a100: 28).
ASKED = {
    "aws-gb200": 617,  # 588 functions, 6 numa, 3 counts, 4 nearest_nics, 16 shares_switch
    "dell-xe9680-snc2": 437,  # 424 functions, 8 numa, 3 counts, 2 nearest_nics
    "dgx-a100": 244,  # 110 functions, 1 counts, 125 paths, 8 nearest_nics
    "hwloc-128arm": 15,  # 12 numa, 3 counts
    "hwloc-2s-dax-nvme-ib": 297,  # 288 functions, 6 numa, 3 counts
    "hwloc-dgx-gb10": 5,  # 2 numa, 3 counts
    "hwloc-heteromemtiers": 35,  # 32 numa, 3 counts
    "hwloc-offline-cpu0-node0": 5,  # 2 numa, 3 counts
    "hwloc-pci-conflicts": 20,  # 5 functions, 12 numa, 3 counts
    "hwloc-pcidomain32": 12,  # 7 functions, 2 numa, 3 counts
    "hwloc-r910-no-locality": 112,  # 97 functions, 12 numa, 3 counts
    "intel-vmd": 12,  # 12 functions
}

# Where another program's answer is believed to be wrong. Left failing, so that it stays visible.
DISPUTED = {
    (
        "hwloc-r910-no-locality",
        "nic",
    ): "0000:43:00.0 is of class 0c06 (InfiniBand) and carries ib0 and qib0, as the same"
    " file says in os_devices: an adapter that has an interface and an RDMA device is a NIC",
}


@cache
def discovered(root: Path) -> Topology:
    return build(scan(LiveHost(str(root))))


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_agrees_with_the_other_program(name: str, tree: Callable[[str], Path]) -> None:
    topology = discovered(tree(name))
    asked = list(leaves(expected(name), topology))
    wrong = [f"{leaf.path}: {leaf.found!r}, and not {leaf.wanted[0]!r}" for leaf in asked if not leaf.agrees]
    print(f"{name}: agreed/asked {len(asked) - len(wrong)}/{len(asked)}")
    assert not wrong
    assert len(asked) == ASKED[name]


@needs_machines
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MACHINES)
def test_no_more_and_no_fewer(
    name: str, kind: str, tree: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    """An extra GPU or NIC is as wrong as a missing one."""
    if (name, kind) in DISPUTED:
        request.applymarker(pytest.mark.xfail(reason=DISPUTED[name, kind], strict=True))
    topology = discovered(tree(name))
    assert {str(one.address) for one in topology.devices or () if one.kind == kind} == of_kind(expected(name), kind)
