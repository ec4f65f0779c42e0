"""The three standard attributes of Kubernetes, against the tables of dra.md sections 6 and 7."""

from __future__ import annotations

import pytest

from tests.paper import DEVICES, Files, bridge, function, place, topology, two_sockets
from tests.test_pci import virtual, vmd
from topo_agent.graph.nodes import Standard
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
