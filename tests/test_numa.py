"""NUMA nodes of small machines: sparse ids, CPU-less memory, and firmware that contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.paper import CPU, NODE, Files, cpus, inventory, machine, nodes, topology, two_sockets
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Inventory, NumaNode
from topo_agent.graph.nodes import Memory
from topo_agent.host.paper import Link
from topo_agent.ids import NumaId, PciAddress
from topo_agent.scan import scan
from topo_agent.views.document import document


def node(found: Inventory, number: int) -> NumaNode:
    (one,) = (one for one in found.numa or () if one.id == number)
    return one


def ids(found: Inventory) -> list[int] | None:
    return None if found.numa is None else [one.id for one in found.numa]


def memory(files: Files, number: int) -> Memory:
    one = topology(files).memory(NumaId(number))
    assert one is not None
    return one


def codes(found: Inventory) -> set[str]:
    return {one.code for one in found.diagnostics}


def test_distances_by_id_on_sparse_ids() -> None:
    """Traps 2: hwloc 48amd64-4pa2n6c-sparse. The i-th column is the i-th online node."""
    online = [0, 1, 2, 33, 34, 45, 72, 73]
    files = nodes({one: range(place * 6, place * 6 + 6) for place, one in enumerate(online)})
    files |= {f"{NODE}/online": "0-2,33-34,45,72-73\n", f"{NODE}/node2/distance": "16 22 10 16 16 16 16 16\n"}
    found = inventory(cpus({0: range(48)}) | files)
    assert ids(found) == online
    assert dict(node(found, 2).distances or ()) == {0: 16, 1: 22, 2: 10, 33: 16, 34: 16, 45: 16, 72: 16, 73: 16}


def power9() -> Files:
    """Traps 3: two CPU nodes 0 and 8, and the memory of six V100 as nodes 250-255."""
    files = cpus({0: range(4), 8: range(4, 8)}) | nodes(
        {0: range(4), 8: range(4, 8)} | dict.fromkeys(range(250, 256), ())
    )
    rows = {
        0: "10 40" + " 80" * 6,
        8: "40 10" + " 80" * 6,
        250: "80 80 10" + " 80" * 5,
        255: "80 80" + " 80" * 5 + " 10",
    }
    return (
        files
        | {f"{NODE}/online": "0,8,250-255\n", f"{NODE}/node255/cpulist": "\n"}
        | {f"{NODE}/node{one}/distance": f"{row}\n" for one, row in rows.items()}
    )


def test_power9() -> None:
    found = inventory(power9())
    assert ids(found) == [0, 8, 250, 251, 252, 253, 254, 255]
    assert dict(node(found, 8).distances or ())[NumaId(8)] == 10
    assert dict(node(found, 0).distances or ())[NumaId(8)] == 40
    assert node(found, 255).cpus == frozenset()
    assert memory(power9(), 255).near_cpus == frozenset(range(8))  # 80 from both


def test_gpu_memory_is_named_by_the_driver() -> None:
    """Traps 4: the padding, and another file beside it."""
    status = "Node:      250\nStatus:    online\nAddress:   0x40000000000\n"
    files = power9() | {
        "proc/driver/nvidia/gpus/0035:05:00.0/numa_status": status,
        "proc/driver/nvidia/gpus/0035:05:00.0/information": "Model: V100\n",
        "proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "Node:      -1\nStatus:    offline\n",
        "proc/driver/nvidia/gpus/rubbish/numa_status": "Node: 251\n",
    }
    found = inventory(files)
    assert node(found, 250).gpu == PciAddress.parse("0035:05:00.0")
    assert node(found, 251).gpu is None
    assert memory(files, 250).kind == "gpu"
    assert memory(files, 0).gpu is None


@pytest.mark.parametrize("text", ["0-3\n\0", "0-3\0", "0-3"])
def test_nul_at_the_end(text: str) -> None:
    """Traps 1: hwloc 40intel64-2g2n4c+pcilocality and nine more."""
    files = two_sockets() | {
        f"{NODE}/node0/cpulist": text,
        f"{NODE}/online": "0-1\n\0",
        f"{NODE}/node0/distance": "10 21\n\0",
    }
    found = inventory(files)
    assert node(found, 0).cpus == frozenset({0, 1, 2, 3})
    assert node(found, 0).distances == ((0, 10), (1, 21))


def test_a_row_that_starts_with_a_space() -> None:
    """Traps 14: drivers/base/node.c where the first online node is not 0."""
    files = cpus({0: range(8)}) | nodes({1: range(4), 3: range(4, 8)}) | {f"{NODE}/node3/distance": " 21 10\n"}
    assert node(inventory(files), 3).distances == ((1, 21), (3, 10))


def test_more_columns_than_online_nodes() -> None:
    """Traps 12: hwloc offline-cpu0-node0, `21 10` with node 1 alone online. Which column is whose cannot be told."""
    files = cpus({1: [1, 3, 5]}, offline=[0, 2, 4])
    files |= {f"{NODE}/online": "1\n", f"{NODE}/node1/cpulist": "1,3,5,7,9\n", f"{NODE}/node1/distance": "21 10\n"}
    found = inventory(files)
    assert ids(found) == [1]
    assert node(found, 1).cpus == frozenset({1, 3, 5})  # 7 and 9 are not online
    assert node(found, 1).distances is None
    assert ("distances", Unknown.CONTRADICTS) in node(found, 1).unknown
    assert "distance_columns" in codes(found)


def test_overlapping_nodes() -> None:
    """Traps 11: hwloc 8em64t-2s2ca2c-buggynuma, eight nodes with the mask `ff` each: no node's CPUs are believed."""
    files = cpus({0: range(8)}) | nodes(dict.fromkeys(range(8), range(8)))
    for one in range(8):
        del files[f"{NODE}/node{one}/cpulist"]
        files[f"{NODE}/node{one}/cpumap"] = "ff\n"
    found = inventory(files)
    assert [one.cpus for one in found.numa or ()] == [None] * 8
    assert all(("cpus", Unknown.CONTRADICTS) in one.unknown for one in found.numa or ())
    assert "numa_overlap" in codes(found)


def test_nodes_that_do_not_overlap_are_not_concerned() -> None:
    """One CPU is in nodes 2 and 3: which of the two is right is unknown, nodes 0 and 1 say nothing of it."""
    files = cpus({0: range(8)}) | nodes({0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [5, 6, 7]})
    found = inventory(files)
    assert [one.cpus for one in found.numa or ()] == [{0, 1}, {2, 3}, None, None]
    assert "nodes 2, 3 are unknown" in next(d.message for d in found.diagnostics if d.code == "numa_overlap")


def test_mask_where_there_is_no_list() -> None:
    """Traps 8: hwloc 128ia64-17n4s2c, `online` absent, node 16 with an all-zero cpumap."""
    files = cpus({0: range(4)}) | {
        f"{NODE}/node0/cpumap": "00000000,00000003\n",
        f"{NODE}/node1/cpumap": "00000000,0000000c\n",
        f"{NODE}/node16/cpumap": "00000000," * 99 + "00000000\n",
    }
    found = inventory(files)
    assert ids(found) == [0, 1, 16]
    assert [one.cpus for one in found.numa or ()] == [{0, 1}, {2, 3}, frozenset()]


def test_no_node_directory() -> None:
    """Traps 10: hwloc 20s390, 2arm-2c, 2ps3. One node is assumed, and said to be."""
    found = inventory(cpus({0: range(4)}))
    assert found.numa is None
    (one,) = topology(cpus({0: range(4)})).memories or ()
    assert (str(one.ref), one.cpus, one.sources) == ("numa:0", frozenset({0, 1, 2, 3}), (("id", "assumed"),))


def test_neither_nodes_nor_cpus() -> None:
    assert topology({"sys/bus/pci/devices": None}).memories is None


def test_memory_and_cpus_are_two_facts() -> None:
    """Traps 7: hwloc fakememinitiators has nodes without memory and nodes without CPUs."""
    files = cpus({0: range(4)}) | nodes({0: range(4), 1: []})
    files[f"{NODE}/node0/meminfo"] = "Node 0 MemTotal:              0 kB\n"
    found = inventory(files)
    assert (node(found, 0).memory_bytes, node(found, 1).memory_bytes) == (0, 64 * 2**30)
    assert (node(found, 0).cpus, node(found, 1).cpus) == (frozenset({0, 1, 2, 3}), frozenset())


def pmem() -> Files:
    """Traps 6: containers/nri-plugins sample2; node 4 is PMEM. Only node 0's row was recorded: the rest mirror it."""
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes(
        {0: [0, 1], 1: [4, 5], 2: [2, 3], 3: [6, 7], 4: [], 5: [], 6: [], 7: []}
    )
    rows = {0: "10 21 11 21 17 28 28 28", 4: "17 28 28 28 10 28 28 28"}
    return files | {f"{NODE}/node{one}/distance": f"{row}\n" for one, row in rows.items()}


def test_near_cpus_by_slit() -> None:
    assert memory(pmem(), 4).cpus == frozenset()
    assert memory(pmem(), 4).near_cpus == frozenset({0, 1})  # 17 to node 0; 28 to all others with CPUs
    assert memory(pmem(), 0).near_cpus is None  # does not apply


def test_near_cpus_by_initiators_first() -> None:
    """Documentation/admin-guide/mm/numaperf.rst: access1 counts the nodes with CPUs; it outranks the SLIT."""
    files = pmem() | {f"{NODE}/node4/access1/initiators/node3": Link("../../node3")}
    files |= {f"{NODE}/node4/access0/initiators/node2": Link("../../node2")}
    assert memory(files, 4).near_cpus == frozenset({6, 7})


def test_an_initiator_without_cpus_says_nothing() -> None:
    """access0 may name a generic initiator (Documentation/admin-guide/mm/numaperf.rst): ask the SLIT then."""
    files = pmem() | {f"{NODE}/node4/access0/initiators/node5": Link("../../node5")}
    assert memory(files, 4).near_cpus == frozenset({0, 1})


def test_near_cpus_unknown_without_distances() -> None:
    files = {path: entry for path, entry in pmem().items() if not path.endswith("/distance")}
    assert memory(files, 4).near_cpus is None


def test_offline_cpus_in_a_node() -> None:
    """Traps 12."""
    files = cpus({0: [0, 1], 1: [4, 5]}, offline=[2, 3]) | nodes({0: range(4), 1: range(4, 8)})
    assert [one.cpus for one in inventory(files).numa or ()] == [frozenset({0, 1}), frozenset({4, 5})]


def test_other_names_beside_the_nodes() -> None:
    files = two_sockets() | {
        f"{NODE}/power": None,
        f"{NODE}/has_cpu": "0-1\n",
        f"{NODE}/node": None,
        f"{NODE}/nodes": None,
    }
    assert ids(inventory(files)) == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "node١",
        "node01",
    ],
)
def test_names_that_no_kernel_gives(name: str) -> None:
    """Traps 24."""
    files = two_sockets() | {f"{NODE}/{name}": None}
    del files[f"{NODE}/online"]
    assert ids(inventory(files)) == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "meminfo",
        "distance",
        "cpulist",
    ],
)
@pytest.mark.parametrize("error", ["EIO", "EACCES"])
def test_a_file_that_fails_costs_one_field(name: str, error: str) -> None:
    path = f"{NODE}/node0/{name}"
    found = scan(machine(two_sockets()).failing(path, error))
    field = {"cpulist": "cpus", "meminfo": "memory_bytes", "distance": "distances"}[name]
    assert getattr(node(found, 0), field) is None
    assert node(found, 1) == node(inventory(two_sockets()), 1)
    assert path in {one.subject for one in found.diagnostics}
    reason = Unknown.UNREADABLE if error == "EIO" else Unknown.NOT_PERMITTED
    assert dict(node(found, 0).unknown)[field] is reason


@pytest.mark.parametrize(
    "directory",
    [
        f"{NODE}/node0/hugepages",
        f"{NODE}/node0/access0/initiators",
        "sys/bus/dax/devices",
        "proc/driver/nvidia/gpus",
    ],
)
def test_a_directory_that_fails_costs_what_it_tells(directory: str) -> None:
    """As user nobody or in a container: nodes, CPUs and memory have nothing to do with it."""
    files = two_sockets() | {directory: None}
    found = scan(machine(files).failing(directory, "EACCES"))
    assert found.numa is not None
    assert [(one.cpus, one.memory_bytes) for one in found.numa] == [
        (one.cpus, one.memory_bytes) for one in inventory(two_sockets()).numa or ()
    ]


def test_where_memory_without_cpus_came_from() -> None:
    """A DAX device that the kmem driver handed over is told by its parent: an NVDIMM bus, or CXL (ACPI0017)."""
    files = cpus({0: range(4)}) | nodes({0: range(4), 2: [], 3: []})
    paths = {
        2: "LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0/dax0.0/dax0.0",
        3: "platform/ACPI0017:00/root0/decoder0.0/region1/dax_region1/dax1.0",
    }
    for target, path in paths.items():
        name = path.rpartition("/")[2]
        files |= {f"sys/bus/dax/devices/{name}": Link(f"../../../devices/{path}")}
        files |= {f"sys/devices/{path}/target_node": f"{target}\n"}
        files |= {
            f"sys/devices/{path}/driver": Link("/".join([".."] * (path.count("/") + 2)) + "/bus/dax/drivers/kmem")
        }
    assert [one.kind for one in topology(files).memories or ()] == [None, "nvm", "cxl"]


def test_hugepages_are_state() -> None:
    """contract.md, section 3: a setting of this boot changes no structure."""
    pages: Files = {f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "16\n"}
    without, found = topology(two_sockets()), topology(two_sockets() | pages)
    said: Any = document(found)
    assert said["state"]["numa:0"]["hugepages"] == {str(2 << 20): 16}
    assert found.memories == without.memories
    assert said["digest"] == document(without)["digest"]


def test_nothing_online_is_not_zero_cpus_of_a_node() -> None:
    """Without any CPU directory nobody can say which CPUs are online: the list of the node stands."""
    files = nodes({0: range(4), 1: range(4, 8)})
    assert [one.cpus for one in inventory(files).numa or ()] == [frozenset(range(4)), frozenset(range(4, 8))]
    assert not any(path.startswith(CPU) for path in files)
