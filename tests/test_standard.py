"""The three standard attributes of Kubernetes, against the tables of dra.md sections 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.paper import CPU, DEVICES, NODE, Files, bridge, cpus, function, nodes, place, topology, two_sockets
from tests.test_pci import virtual, vmd
from topo_agent.graph.nodes import Standard
from topo_agent.graph.standard import numa_nodes
from topo_agent.host.paper import Link

NIC = "0000:17:00.0"


def standard(files: Files, address: str = NIC) -> Standard:
    return place(topology(two_sockets() | files), address).standard


def published(root: str | None, numa: int | None = None, address: str = NIC) -> Standard:
    return Standard(pci_bus_id=address, pcie_root=root, numa_node=numa)


def test_a_function_below_a_bridge() -> None:
    files = bridge("0000:16:01.0", under="pci0000:16") | function(NIC, under="pci0000:16/0000:16:01.0", numa_node="1\n")
    assert standard(files) == published("pci0000:16", 1)


def test_a_vf_has_the_root_of_its_pf() -> None:
    assert standard(virtual(), "0000:1d:01.0") == published("pci0000:16", address="0000:1d:01.0")


def test_a_vf_has_its_own_numa_node_and_not_its_pfs() -> None:
    """dra.md, section 7: no fallback from VF to PF."""
    path = "sys/devices/pci0000:16/0000:16:01.0/0000:1d:00.0/numa_node"
    assert standard(virtual() | {path: "1\n"}, "0000:1d:01.0").numa_node is None


def test_a_vmd_child_is_refused() -> None:
    """Five digits. Our own reading still knows its root and node."""
    assert standard(vmd(), "10001:84:00.0") == Standard()
    assert standard(vmd(), "0000:6f:00.5") == published("pci0000:6f", 1, address="0000:6f:00.5")
    ours = place(topology(vmd()), "10001:84:00.0")
    assert (ours.root and ours.root.key, ours.numa_node) == ("pci0000:6f", 1)


def test_a_domain_of_32_bits_is_refused() -> None:
    assert standard(function("10000:00:04.0", under="pci10000:00", numa_node="0\n"), "10000:00:04.0") == Standard()


def test_hyper_v() -> None:
    """dra-driver-nvidia-gpu#575."""
    under = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531334632/pci0001:00"
    files = function("0001:00:00.0", under=under, numa_node="0\n")
    assert standard(files, "0001:00:00.0") == published(None, 0, address="0001:00:00.0")
    ours = place(topology(two_sockets() | files), "0001:00:00.0")
    assert ours.root is not None
    assert ours.root.key == under


def test_a_platform() -> None:
    assert standard(function(NIC, under="platform/soc/pci0000:00")) == published(None)


def test_a_plain_directory() -> None:
    """readlink fails; the numa_node file is read all the same."""
    files: Files = {f"{DEVICES}/{NIC}/class": "0x020000\n", f"{DEVICES}/{NIC}/numa_node": "1\n"}
    assert standard(files) == published(None, 1)


def test_an_absolute_target() -> None:
    files = function(NIC, under="pci0000:16", numa_node="1\n") | {
        f"{DEVICES}/{NIC}": Link(f"/sys/devices/pci0000:16/{NIC}")
    }
    assert standard(files).pcie_root is None


def test_a_trailing_slash_disappears() -> None:
    files = function(NIC, under="pci0000:16") | {f"{DEVICES}/{NIC}": Link(f"../../../devices/pci0000:16/{NIC}/")}
    assert standard(files) == published("pci0000:16")


def test_a_target_of_another_name() -> None:
    """Section 6, step 5: the last component must be the address."""
    files = function("0000:18:00.0", under="pci0000:16") | {
        f"{DEVICES}/{NIC}": Link("../../../devices/pci0000:16/0000:18:00.0")
    }
    assert standard(files) == published(None)


def test_everything_on_one_root_of_a_virtual_machine() -> None:
    """It works and means nothing."""
    assert standard(function("0000:00:05.0", under="pci0000:00"), "0000:00:05.0").pcie_root == "pci0000:00"


@pytest.mark.parametrize(
    ("text", "numa"), [("-1\n", None), ("0\n", 0), ("1\n", 1), ("7\n", 7), ("\n", None), ("x", None), (None, None)]
)
def test_numa_node(text: str | None, numa: int | None) -> None:
    """No upper bound, no check against the nodes that there are, nothing repaired to 0."""
    assert standard(function(NIC, under="pci0000:16", numa_node=text)) == published("pci0000:16", numa)


def test_a_single_node_is_not_published_for_minus_one() -> None:
    """dra.md, section 7: most virtual machines. Ours is assumed, the standard attribute is omitted."""
    one = place(
        topology(
            {"sys/devices/system/cpu/online": "0\n", "sys/devices/system/cpu/cpu0": None}
            | function(NIC, under="pci0000:00")
        ),
        NIC,
    )
    assert (one.numa_node, one.sources) == (0, (("numa_node", "assumed"),))
    assert one.standard.numa_node is None


def box(sockets: Mapping[int, int | None], rows: Mapping[int, str]) -> Files:
    """A machine of nodes, each with one CPU of a socket or with none, and their rows as the kernel prints them."""
    of: dict[int, list[int]] = {}
    lists: dict[int, tuple[int, ...]] = {}
    for node, socket in sockets.items():
        cpu = sum(map(len, lists.values()))
        lists[node] = () if socket is None else (cpu,)
        if socket is not None:
            of.setdefault(socket, []).append(cpu)
    return cpus(of) | nodes(lists) | {f"{NODE}/node{node}/distance": f"{row}\n" for node, row in rows.items()}


def ending(text: str, path: str) -> Files:
    """A file that ends as old kernels print lists."""
    return {path: f"{text}\n\0"}


def without(files: Files, folder: str) -> Files:
    return {path: entry for path, entry in files.items() if not path.startswith(f"{folder}/")}


NPS4 = dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1)
POWER9 = {0: 0, 8: 8} | dict.fromkeys(range(250, 256))
POWER7 = {0: 0, 1: 0, 4: 1, 5: 1, 8: 2, 9: 2, 12: 3, 13: 3}
AMD = {0: 0, 1: 0, 2: 1, 33: 1, 34: 2, 45: 2, 72: 3, 73: 3}
IA64 = dict.fromkeys(range(16), 0) | {16: None}
PMEM = {0: 0, 1: 1} | dict.fromkeys(range(2, 8))
SNC = {0: 0, 1: 0, 2: 1, 3: 1}
SAME = {0: "10 12 12 12"}  # one distance to both sockets, so that only the sockets tell

LISTS: dict[str, tuple[Files, dict[int, list[int]]]] = {
    # dra.md, section 7; the rows that it does not print are made to fit. tests/labs/test_upstream.py asks upstream.
    "four nodes to a socket": (
        box(NPS4, {0: "10 12 12 12 32 32 32 32", 6: "32 32 32 32 12 12 10 12"}),
        {0: [0, 1, 2, 3], 6: [6, 4, 5, 7]},
    ),
    "two sockets": (two_sockets(), {0: [0], 1: [1]}),
    "POWER9: no node 1, and column 1 is node 8": (
        box(POWER9, {0: "10 40 80 80 80 80 80 80", 8: "40 10 80 80 80 80 80 80"}),
        {0: [0, 1], 8: [8], 255: [255]},
    ),
    "POWER7: column 2 is node 4 itself": (
        box(POWER7, {4: "40 40 10 20 40 40 40 40", 8: "40 40 40 40 10 20 40 40"}),
        {4: [4, 2], 8: [8]},
    ),
    "AMD with gaps: columns 4 and 6 are no nodes": (
        box(AMD, {0: "10 16 16 22 16 22 16 22", 2: "16 22 10 16 16 16 16 16", 33: "22 16 16 10 16 22 16 22"}),
        {0: [0, 1, 4, 6], 2: [2, 3, 4, 5, 6, 7], 33: [33]},
    ),
    "ia64: the nearest has no CPUs": (box(IA64, {0: "10 17 17 17" + " 20" * 12 + " 14"}), {0: [0, 16]}),
    "memory without CPUs": (
        box(PMEM, {0: "10 21 11 21 17 28 28 28", 4: "17 28 28 28 10 28 28 28"}),
        {0: [0, 2], 4: [4, 0]},
    ),
    "one distance for all": (box(dict.fromkeys(range(8), 0), {0: "10" + " 10" * 7}), {0: [*range(8)]}),
    "one distance for all, and two sockets": (box(NPS4, {0: "10" + " 10" * 7}), {0: [0, 1, 2, 3]}),
    "one node": (box({0: 0}, {0: "10"}), {0: [0]}),
    "no row": (box(SNC, {}), {0: [0], 3: [3]}),
    "no such node": (box(SNC, SAME), {9: [9]}),
    "an empty row": (box(SNC, {0: ""}), {0: [0]}),
    "a row that is no numbers": (box(SNC, {0: "10 12 x 32"}), {0: [0]}),
    "a NUL after the row": (box(SNC, SAME) | ending("10 12 12 12", f"{NODE}/node0/distance"), {0: [0]}),
    "a space before the row": (box(SNC, {0: " 10 12 32 32"}), {0: [0, 1]}),
    "rows too short": (box(SNC, dict.fromkeys(range(4), "10 12")), {0: [0, 1], 1: [1, 0], 2: [2]}),
    "a NUL after the list of a neighbour": (
        box(SNC, SAME) | ending("2", f"{NODE}/node2/cpulist"),
        {0: [0, 1, 2]},
    ),
    "a NUL after the own list": (box(SNC, SAME) | ending("0", f"{NODE}/node0/cpulist"), {0: [0, 1, 2, 3]}),
    "a NUL after a package": (
        box(SNC, SAME) | ending("1", f"{CPU}/cpu3/topology/physical_package_id"),
        {0: [0, 1, 3]},
    ),
    "the CPU of a neighbour is offline": (without(box(SNC, SAME), f"{CPU}/cpu2/topology"), {0: [0, 1, 2]}),
    "sockets without a number": (box({0: -1, 1: -1, 2: -1, 3: 0}, SAME), {0: [0, 1, 2]}),
}


@pytest.mark.parametrize("name", LISTS)
def test_list(name: str) -> None:
    files, expected = LISTS[name]
    known = topology(files).standard_nodes
    assert {node: [*numa_nodes(node, known)] for node in expected} == expected


def test_list_without_numa() -> None:
    assert numa_nodes(0, topology(cpus({0: range(4)})).standard_nodes) == (0,)


def test_list_takes_every_file_by_itself() -> None:
    """Node 2 is not online: the graph has neither it nor the distances, whose number is another."""
    found = topology(box(SNC, SAME) | {f"{NODE}/online": "0-1,3\n", f"{CPU}/cpu2/topology/physical_package_id": "0\n"})
    assert [(one.id, one.distances) for one in found.memories or ()] == [(0, None), (1, None), (3, None)]
    assert numa_nodes(0, found.standard_nodes) == (0, 1, 2)
