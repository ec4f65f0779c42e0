"""Every leaf that another program said of a recorded machine, compared with what we find on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.expectations import leaves
from tests.machines import MACHINES, expected, needs_machines
from topo_agent.graph.build import build
from topo_agent.host.live import LiveHost
from topo_agent.scan import scan

# How many leaves each file has: a leaf that is silently not asked is an error like a wrong answer.
# Counted from the files: functions × (pcie_root, numa_node, kind, sriov_parent), numa × its keys, counts.
ASKED = {
    "aws-gb200": 568,  # 559 of functions, 6 of numa, 3 counts
    "dell-xe9680-snc2": 424,  # 413 of functions, 8 of numa, 3 counts
    "dgx-a100": 93,  # 93 of functions
    "hwloc-128arm": 15,  # 12 of numa, 3 counts
    "hwloc-2s-dax-nvme-ib": 293,  # 284 of functions, 6 of numa, 3 counts
    "hwloc-dgx-gb10": 5,  # 2 of numa, 3 counts
    "hwloc-heteromemtiers": 35,  # 32 of numa, 3 counts
    "hwloc-offline-cpu0-node0": 5,  # 2 of numa, 3 counts
    "hwloc-pci-conflicts": 20,  # 5 of functions, 12 of numa, 3 counts
    "hwloc-pcidomain32": 10,  # 5 of functions, 2 of numa, 3 counts
    "hwloc-r910-no-locality": 107,  # 92 of functions, 12 of numa, 3 counts
    "intel-vmd": 9,  # 9 of functions
}


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_agrees_with_the_other_program(name: str, tree: Callable[[str], Path]) -> None:
    topology = build(scan(LiveHost(str(tree(name)))))
    asked = list(leaves(expected(name), topology))
    wrong = [f"{leaf.path}: {leaf.found!r}, and not {leaf.wanted[0]!r}" for leaf in asked if not leaf.agrees]
    print(f"{name}: agreed/asked {len(asked) - len(wrong)}/{len(asked)}")
    assert not wrong
    assert len(asked) == ASKED[name]
