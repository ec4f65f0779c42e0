"""The graph: who hangs below whom, what is structure, and links that lead in circles."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.paper import DEVICES, Files, bridge, cpus, function, nodes, place, topology, two_sockets
from tests.test_pci import LINK, vmd
from topo_agent.graph.topology import Topology
from topo_agent.host.paper import Link
from topo_agent.ids import NumaId, PciAddress, Ref, pci_ref
from topo_agent.views.tree import tree


def refs(found: Topology) -> set[str]:
    return set(map(str, found.nodes))


def test_nodes_by_name() -> None:
    """contract.md, section 4: ids are places."""
    assert refs(topology(vmd())) == {
        *("pkg:0", "pkg:1", "numa:0", "numa:1", "root:pci0000:6f"),
        *("pci:0000:6f:00.5", "pci:10001:80:07.0", "pci:10001:84:00.0"),
    }


def test_up_and_down_agree() -> None:
    found = topology(vmd())
    for ref in found.nodes:
        above = found.parent(ref)
        assert above is None or ref in found.children(above)
        assert all(found.parent(child) == ref for child in found.children(ref))
        assert all(ref in found.ancestors(one) for one in found.below(ref))
    assert [str(one) for one in found.below(Ref("root", "pci0000:6f"))] == [
        "pci:0000:6f:00.5", "pci:10001:80:07.0", "pci:10001:84:00.0",
    ]  # fmt: skip


def test_memory_hangs_below_its_package() -> None:
    found = topology(two_sockets())
    assert [str(found.parent(Ref("numa", str(node)))) for node in (0, 1)] == ["pkg:0", "pkg:1"]


def test_memory_across_packages_hangs_below_none() -> None:
    """Node interleaving, or NUMA turned off in firmware."""
    found = topology(cpus({0: range(4), 1: range(4, 8)}) | nodes({0: range(8)}))
    assert found.parent(Ref("numa", "0")) is None
    assert "NUMA 0" in tree(found)


def test_memory_without_cpus_hangs_below_the_package_of_the_nearest() -> None:
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes({0: range(4), 1: range(4, 8), 2: []}, {2: (24, 13, 10)})
    assert str(topology(files).parent(Ref("numa", "2"))) == "pkg:1"


def test_what_is_not_there() -> None:
    found = topology({})
    assert (found.devices, found.roots, found.packages, found.memories, found.cores) == (None,) * 5
    assert found.device(None) is None
    assert found.device(pci_ref(PciAddress(0, 0, 0, 0))) is None
    assert found.memory(None) is None
    assert found.memory(NumaId(0)) is None
    assert list(found.ancestors(Ref("pci", "x"))) == []


def test_a_link_that_trains_down_changes_no_structure() -> None:
    """contract.md, section 3."""
    busy, idle = (
        topology(function("0000:17:00.0", under="pci0000:16", files=LINK | {"current_link_speed": speed}))
        for speed in ("32.0 GT/s PCIe\n", "2.5 GT/s PCIe\n")
    )
    assert busy == idle
    assert busy.links_now != idle.links_now
    other = topology(function("0000:17:00.0", under="pci0000:16", files=LINK | {"max_link_width": "8\n"}))
    assert busy != other


def test_a_move_to_another_slot_changes_the_structure() -> None:
    assert topology(function("0000:17:00.0", under="pci0000:16")) != topology(
        function("0000:17:00.0", under="pci0000:15")
    )


def test_cores_are_unknown_where_one_cpu_does_not_tell() -> None:
    files = {path: entry for path, entry in two_sockets().items() if "cpu3/topology/thread_siblings" not in path}
    found = topology(files)
    assert found.cores is None
    assert [one.cores is None for one in found.packages or ()] == [True, False]


def circle(own: dict[str, str]) -> Files:
    """Links as no kernel writes them, and as a hostile recording may."""
    files = two_sockets() | bridge("0000:16:01.0", under="pci0000:16")
    for address, path in own.items():
        files |= function(address, under="pci0000:16") | {
            f"{DEVICES}/{address}": Link(f"../../../devices/{path}/{address}")
        }
    return files


A, B = "0000:17:00.0", "0000:18:00.0"
CIRCLES = [
    {A: f"pci0000:16/{A}"},
    {A: f"pci0000:16/0000:16:01.0/{A}/{A}"},
    {A: f"pci0000:16/{B}", B: f"pci0000:16/{A}"},
]


@pytest.mark.parametrize("own", CIRCLES)
def test_links_in_circles_end(own: dict[str, str]) -> None:
    """Recordings are untrusted: loops end."""
    found = topology(circle(own))
    for address in own:
        assert len(list(islice(found.ancestors(place(found, address).ref), 100))) < 100


@pytest.mark.parametrize("own", CIRCLES)
def test_links_in_circles_hide_no_device(own: dict[str, str]) -> None:
    text = tree(topology(circle(own)))
    assert all(address.removeprefix("0000:") in text for address in own)
