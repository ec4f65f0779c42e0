"""The NUMA node of a function: the chain of pairing.md section 4, its origins, and its reasons for not knowing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.paper import (
    NODE,
    Files,
    bridge,
    cpus,
    fact,
    function,
    inventory,
    machine,
    nodes,
    place,
    topology,
    two_sockets,
)
from topo_agent.diagnostics import Unknown
from topo_agent.graph.build import build
from topo_agent.graph.nodes import Device, Root
from topo_agent.scan import scan

ROOT, PORT, NIC = "pci0000:16", "0000:16:01.0", "0000:17:00.0"


def nic(numa_node: str | None = "-1\n", *, port: str | None = "-1\n", **files: str) -> Files:
    """A NIC below a port."""
    return bridge(PORT, under=ROOT, numa_node=port) | function(
        NIC, under=f"{ROOT}/{PORT}", numa_node=numa_node, files=files
    )


def near(files: Files, *, complete: bool = True) -> Device:
    return place(topology(files, complete=complete), NIC)


def origin(device: Device | Root) -> str | None:
    return dict(device.sources).get("numa_node")


def reason(device: Device | Root) -> Unknown | None:
    return dict(device.unknown).get("numa_node")


@pytest.mark.parametrize("node", [0, 1])
def test_firmware(node: int) -> None:
    found = near(two_sockets() | nic(f"{node}\n", port="-1\n", local_cpulist="4-7\n"))
    assert (found.numa_node, origin(found), reason(found)) == (node, "firmware", None)
    assert found.cpus == frozenset(range(node * 4, node * 4 + 4))


@pytest.mark.parametrize("node", [0, 1])
def test_bridge(node: int) -> None:
    found = near(two_sockets() | nic(port=f"{node}\n", local_cpulist="0-3\n"))
    assert (found.numa_node, origin(found)) == (node, "bridge")


def test_the_nearest_bridge_counts() -> None:
    files = (
        two_sockets()
        | bridge(PORT, under=ROOT, numa_node="0\n")
        | bridge("0000:17:00.0", under=f"{ROOT}/{PORT}", numa_node="1\n")
        | bridge("0000:18:00.0", under=f"{ROOT}/{PORT}/0000:17:00.0")
        | function("0000:19:00.0", under=f"{ROOT}/{PORT}/0000:17:00.0/0000:18:00.0")
    )
    found = place(topology(files), "0000:19:00.0")
    assert (found.numa_node, origin(found)) == (1, "bridge")


def test_a_bridge_tells_nothing_of_what_is_not_below_it() -> None:
    """Neither of a function beside it nor of one on another root."""
    files = (
        two_sockets()
        | nic(port="1\n")
        | function("0000:16:02.0", under=ROOT)
        | bridge("0000:7f:01.0", under="pci0000:7f")
        | function("0000:80:00.0", under="pci0000:7f/0000:7f:01.0")
    )
    found = topology(files)
    assert [place(found, one).numa_node for one in (NIC, "0000:16:02.0", "0000:80:00.0")] == [1, None, None]


@pytest.mark.parametrize("listed", ["4-7\n", "4\n", "5-6\n\0"])
def test_cpulist(listed: str) -> None:
    found = near(two_sockets() | nic(local_cpulist=listed))
    assert (found.numa_node, origin(found)) == (1, "cpulist")


def test_mask_where_there_is_no_list() -> None:
    """Traps 29: hwloc fakepcilocalities and NFD rootfs-1 have no local_cpulist."""
    found = near(two_sockets() | nic(local_cpus="00000000,000000f0\n"))
    assert (found.numa_node, origin(found)) == (1, "cpulist")


def test_host_bridge() -> None:
    files = {f"sys/devices/{ROOT}/pci_bus/0000:16/cpulistaffinity": "4-7\n"}
    found = topology(two_sockets() | nic() | files)
    assert (place(found, NIC).numa_node, origin(place(found, NIC))) == (1, "cpulist")
    (root,) = found.roots or ()
    assert (root.numa_node, origin(root)) == (1, "cpulist")


def test_the_only_node() -> None:
    one = cpus({0: range(4)}) | nodes({0: range(4)}, {0: (10,)})
    found = near(one | nic())
    assert (found.numa_node, origin(found), reason(found)) == (0, "assumed", None)


def test_the_only_node_may_have_another_number() -> None:
    """Traps 12: node 1 is alone online."""
    found = near(cpus({1: range(4)}) | nodes({1: range(4)}) | nic())
    assert (found.numa_node, origin(found)) == (1, "assumed")


def test_minus_one_never_becomes_zero() -> None:
    """Koordinator and HAMi do that."""
    found = near(two_sockets() | nic())
    assert (found.numa_node, found.cpus, origin(found)) == (None, None, None)
    assert reason(found) is Unknown.FIRMWARE_SILENT


def test_all_cpus_say_nothing() -> None:
    """Traps 26: 36 of the R910's 37 functions say -1 and all CPUs."""
    found = near(
        two_sockets() | nic(local_cpulist="0-7\n") | {f"sys/devices/{ROOT}/pci_bus/0000:16/cpulistaffinity": "0-7\n"}
    )
    assert (found.numa_node, reason(found)) == (None, Unknown.FIRMWARE_SILENT)


@pytest.mark.parametrize("listed", ["\n", "100-200\n"])
def test_no_cpus_say_nothing(listed: str) -> None:
    found = near(two_sockets() | nic(local_cpulist=listed))
    assert (found.numa_node, reason(found)) == (None, Unknown.FIRMWARE_SILENT)


def test_all_online_cpus_say_nothing() -> None:
    """Half of the machine is offline: the list of a silent function names exactly what is left."""
    files = cpus({0: [0, 1], 1: [4, 5]}, offline=[2, 3, 6, 7]) | nodes({0: range(4), 1: range(4, 8)})
    found = near(files | nic(local_cpulist="0-1,4-5\n"))
    assert found.numa_node is None


def test_cpus_across_nodes_contradict() -> None:
    """Traps 28: hwloc pci-conflicts, `0xf` over nodes that each have a CPU of it."""
    files = cpus({0: range(8)}) | nodes({0: [0, 2, 4, 6], 1: [1, 3, 5, 7]})
    found = near(files | nic(local_cpus="0xf\n"))
    assert (found.numa_node, reason(found)) == (None, Unknown.CONTRADICTS)


def test_list_and_mask_that_differ_contradict() -> None:
    """Neither is believed: the node is unknown, whatever either would say alone."""
    found = near(two_sockets() | nic(local_cpulist="0-3\n", local_cpus="f0\n"))
    assert (found.numa_node, reason(found)) == (None, Unknown.CONTRADICTS)
    assert "local_cpus_disputed" in {
        one.code for one in topology(two_sockets() | nic(local_cpulist="0-3\n", local_cpus="f0\n")).diagnostics
    }


def test_whole_nodes_are_near_without_a_node() -> None:
    """A list of two whole nodes of four: near CPUs are known, no one node is."""
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes({0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]})
    found = near(files | nic(local_cpulist="0-3\n"))
    assert (found.numa_node, found.cpus) == (None, frozenset({0, 1, 2, 3}))


@pytest.mark.parametrize("node", ["2\n", "64\n", "99999999999999999999\n"])
def test_a_node_that_is_not_there(node: str) -> None:
    found = topology(two_sockets() | nic(node))
    assert (place(found, NIC).numa_node, reason(place(found, NIC))) == (None, Unknown.CONTRADICTS)
    assert "numa_node_absent" in {one.code for one in found.diagnostics}


def test_a_node_that_is_not_there_and_a_bridge_that_knows() -> None:
    found = near(two_sockets() | nic("5\n", port="1\n"))
    assert (found.numa_node, origin(found), reason(found)) == (1, "bridge", None)


def hbm(slit: Mapping[int, Iterable[int]]) -> Files:
    """Two sockets and two nodes of memory without CPUs."""
    rows = {node: [*row] for node, row in slit.items()}
    return cpus({0: range(4), 1: range(4, 8)}) | nodes({0: range(4), 1: range(4, 8), 2: [], 3: []}, rows)


def test_a_node_without_cpus_stands_for_the_nearest() -> None:
    """Traps 5 and pairing.md, section 4: HBM and CXL; the file itself still says 3."""
    files = hbm({2: (13, 24, 10, 30), 3: (24, 13, 30, 10)}) | nic("3\n")
    found = near(files)
    assert (found.numa_node, origin(found)) == (1, "firmware")
    assert fact(inventory(files), NIC).numa_node == 3
    assert found.standard.numa_node == 3


def test_a_node_without_cpus_as_near_to_both() -> None:
    found = near(hbm({3: (20, 20, 30, 10)}) | nic("3\n"))
    assert found.numa_node is None
    assert reason(found) is not None


@pytest.mark.parametrize("packages", [{0: range(4)}, {0: range(2), 1: range(2, 4)}])
def test_a_node_without_cpus_beside_the_only_one_with_cpus(packages: dict[int, range]) -> None:
    """A CXL or GPU memory node of a machine with one CPU node: that one is the nearest, and all its CPUs are."""
    files = cpus(packages) | nodes({0: range(4), 1: []}, {0: (10, 20), 1: (20, 10)}) | nic("1\n")
    found = near(files)
    assert (found.numa_node, found.cpus) == (0, frozenset({0, 1, 2, 3}))


@pytest.mark.parametrize(("error", "code"), [("EIO", Unknown.UNREADABLE), ("EACCES", Unknown.NOT_PERMITTED)])
def test_why_a_file_did_not_answer(error: str, code: Unknown) -> None:
    path = f"sys/devices/{ROOT}/{PORT}/{NIC}/numa_node"
    found = place(build(scan(machine(two_sockets() | nic()).failing(path, error))), NIC)
    assert (found.numa_node, reason(found)) == (None, code)


@pytest.mark.parametrize(("complete", "code"), [(True, Unknown.NOT_SUPPORTED), (False, Unknown.NOT_RECORDED)])
def test_why_a_file_is_not_there(*, complete: bool, code: Unknown) -> None:
    """A kernel without NUMA has no such file (drivers/pci/pci-sysfs.c, CONFIG_NUMA); a copy may have left it out."""
    assert reason(near(two_sockets() | nic(None, port=None), complete=complete)) is code


@pytest.mark.parametrize("text", ["", "(efault)\n", "1_0\n", "0x1\n", "١\n"])
def test_a_garbled_file(text: str) -> None:
    """Traps 24, 25."""
    found = near(two_sockets() | nic(text))
    assert (found.numa_node, reason(found)) == (None, Unknown.UNREADABLE)


def test_one_silent_function_among_others() -> None:
    """Traps 27: 93 of 137 functions say -1; the others are believed."""
    files = (
        two_sockets()
        | function("0000:17:00.0", under="pci0000:16", numa_node="1\n")
        | function("0000:7f:00.0", under="pci0000:7f")
    )
    found = topology(files)
    assert [place(found, one).numa_node for one in ("0000:17:00.0", "0000:7f:00.0")] == [1, None]
    assert {root.name: root.numa_node for root in found.roots or ()} == {"pci0000:16": 1, "pci0000:7f": None}


def test_a_root_whose_functions_disagree() -> None:
    files = (
        two_sockets()
        | function("0000:16:00.0", under=ROOT, numa_node="0\n")
        | function("0000:16:02.0", under=ROOT, numa_node="1\n")
    )
    found = topology(files)
    (root,) = found.roots or ()
    assert (root.numa_node, reason(root)) == (None, Unknown.CONTRADICTS)
    assert [place(found, one).numa_node for one in ("0000:16:00.0", "0000:16:02.0")] == [0, 1]
    assert "root_numa_disputed" in {one.code for one in found.diagnostics}


def test_a_root_of_which_nobody_tells() -> None:
    (root,) = topology(two_sockets() | nic()).roots or ()
    assert (root.numa_node, reason(root)) == (None, Unknown.FIRMWARE_SILENT)


def test_roots_are_not_dealt_out_in_order() -> None:
    """Traps 20: Perlmutter, EPYC 7763 NPS4."""
    told = {"00": 3, "40": 2, "80": 1, "c0": 0}
    files = cpus({0: range(8)}) | nodes({node: [node * 2, node * 2 + 1] for node in range(4)})
    for bus, node in told.items():
        files |= bridge(f"0000:{bus}:01.1", under=f"pci0000:{bus}", numa_node=f"{node}\n")
    assert {root.name[-2:]: root.numa_node for root in topology(files).roots or ()} == told


def test_overlapping_nodes_tell_no_cpus() -> None:
    """Traps 11: CPUs of no node are believed, so no list of CPUs can name a node."""
    files = cpus({0: range(8)}) | nodes({0: range(8), 1: range(8)})
    found = near(files | nic(local_cpulist="0-3\n"))
    assert (found.numa_node, reason(found)) == (None, Unknown.CONTRADICTS)


def rows_of(count: int, packages: int, near_: int, far: int) -> dict[int, list[int]]:
    each = count // packages
    return {a: [10 if a == b else near_ if a // each == b // each else far for b in range(count)] for a in range(count)}


@pytest.mark.parametrize(
    ("count", "node", "siblings"),
    [(8, 6, (6, 4, 5, 7)), (8, 0, (0, 1, 2, 3))],
)
def test_siblings_of_one_package(count: int, node: int, siblings: tuple[int, ...]) -> None:
    """The examples of dra.md, section 7: NPS4, N first, the rest in order."""
    files = cpus({0: range(8), 1: range(8, 16)}) | nodes(
        {one: [one * 2, one * 2 + 1] for one in range(count)}, rows_of(count, 2, 12, 32)
    )
    assert near(files | nic(f"{node}\n")).numa_nodes == siblings


def test_siblings_of_nobody() -> None:
    """Two sockets at 21: the nearest other node is the other socket's."""
    assert near(two_sockets() | nic("0\n")).numa_nodes == (0,)


def test_siblings_without_a_slit() -> None:
    files = cpus({0: range(8)}) | nodes({0: range(4), 1: range(4, 8)})
    assert near(files | nic("1\n")).numa_nodes == (1,)


def test_memory_without_cpus_is_no_sibling() -> None:
    """Traps 8: 17-node ia64, node 16 (14) is nearer than any node with CPUs. Ours ignores it; upstream says [0,16]."""
    of = {0: [0], 1: [1], 2: [2], 3: [3], 16: []}
    files = cpus({0: range(4)}) | nodes(of, {0: (10, 17, 17, 17, 14)})
    assert near(files | nic("0\n")).numa_nodes == (0, 1, 2, 3)


def test_siblings_by_id_and_not_by_column() -> None:
    """dra.md, section 7: POWER7, online 0-1,4-5; upstream says [4,2] for node 4, which does not exist."""
    of = {0: [0], 1: [1], 4: [4], 5: [5]}
    files = cpus({0: [0, 1], 1: [4, 5]}) | nodes(of, {4: (40, 40, 10, 20)}) | {f"{NODE}/online": "0-1,4-5\n"}
    assert near(files | nic("4\n")).numa_nodes == (4, 5)
