"""What people name that sits on no PCI function: pairing.md section 6, traps 71, 81, 82."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.paper import Files, drive, grown, inventory, netdev, rdma, topology
from topo_agent.graph import virtual
from topo_agent.graph.nodes import Virtual
from topo_agent.graph.topology import Topology
from topo_agent.host.paper import Link

CARD = "pci0000:16/0000:16:01.0/0000:17:00.0"
OTHER = "pci0000:16/0000:16:03.0/0000:18:00.0"
BOX = (
    grown("pci0000:16/16:01.0/17:00.0")
    | grown("pci0000:16/16:03.0/18:00.0")
    | netdev("eth0", CARD)
    | netdev("eth1", OTHER)
)
BOTH = ["pci:0000:17:00.0", "pci:0000:18:00.0"]


def stacked(name: str, kind: str, *lower: str) -> Files:
    files: Files = {f"lower_{one}": Link(f"../{one}") for one in lower}
    return netdev(name, "virtual", files, event=f"DEVTYPE={kind}\n" if kind else "")


def by_name(found: Topology) -> dict[str, Virtual]:
    return {str(one.ref): one for one in found.virtuals}


def lower(found: Topology, name: str) -> list[str]:
    return [str(ref) for ref in by_name(found)[name].lower]


def test_a_bond() -> None:
    found = topology(BOX | stacked("bond0", "bond", "eth0", "eth1"))
    one = by_name(found)["net:bond0"]
    assert (one.kind, one.type, one.names.netdev) == ("virtual_nic", "bond", ("bond0",))
    assert lower(found, "net:bond0") == BOTH


def test_a_vlan_on_a_bond() -> None:
    files = BOX | stacked("bond0", "bond", "eth0", "eth1") | stacked("bond0.100", "vlan", "bond0")
    found = topology(files, documents={"netlink": {"links": [{"name": "bond0.100", "kind": "vlan", "vlan_id": 100}]}})
    assert lower(found, "net:bond0.100") == BOTH
    assert by_name(found)["net:bond0.100"].vlan_id == 100


def test_a_team_is_told_by_netlink_only() -> None:
    files = BOX | stacked("team0", "", "eth0", "eth1")
    found = topology(files, documents={"netlink": {"links": [{"name": "team0", "kind": "team"}]}})
    assert lower(found, "net:team0") == BOTH


@pytest.mark.parametrize(
    ("name", "kind"), [("veth7", ""), ("docker0", "bridge"), ("br0", "bridge"), ("vxlan0", "vxlan")]
)
@pytest.mark.parametrize("below", [(), ("eth0",)])
def test_what_comes_and_goes_with_containers(name: str, kind: str, below: tuple[str, ...]) -> None:
    assert topology(BOX | stacked(name, kind, *below)).virtuals == ()


def test_a_bond_of_nothing() -> None:
    """`modprobe bonding` makes an empty bond0."""
    assert topology(BOX | stacked("bond0", "bond")).virtuals == ()


def test_circles_end() -> None:
    """No kernel makes one; a recording may hold one."""
    files = BOX | stacked("bond0", "bond", "bond1") | stacked("bond1", "bond", "bond0", "eth0")
    assert lower(topology(files), "net:bond0") == BOTH[:1]


class Counted(tuple[str, ...]):
    """Names that count how often somebody walks over them, and stop who never ends."""

    __slots__ = ()
    walks = 0

    def __iter__(self) -> Iterator[str]:
        Counted.walks += 1
        if Counted.walks > 10_000:
            raise RecursionError
        return super().__iter__()


def test_many_layers_are_not_walked_many_times() -> None:
    """Forty bonds, each on the two before it: 2^27 ways down."""
    Counted.walks = 0
    eth = inventory(BOX).netdevs[0]
    bonds = [
        eth._replace(name=f"b{number}", function=None, kind="bond", lower=Counted((f"b{number - 1}", f"b{number - 2}")))
        for number in range(2, 42)
    ]
    first = [eth._replace(name=f"b{number}", function=None, kind="bond", lower=Counted(("eth0",))) for number in (0, 1)]
    found = virtual.read(replace(inventory(BOX), netdevs=(eth, *first, *bonds)))
    assert {str(ref) for one in found for ref in one.lower} == {"pci:0000:17:00.0"}


def test_software_rdma() -> None:
    """Traps 82: rxe on an interface; siw on a bond or on nothing."""
    files = BOX | rdma("rxe0", "virtual", files={"parent": "eth0\n"}) | rdma("scif0", "virtual/mic")
    found = topology(files)
    assert (by_name(found)["rdma:rxe0"].kind, lower(found, "rdma:rxe0")) == ("software_rdma", BOTH[:1])
    assert lower(found, "rdma:scif0") == []  # traps 81
    assert [nic.names.rdma for nic in found.of_kind("nic")] == [(), ()]


def test_software_rdma_on_a_bond() -> None:
    files = BOX | stacked("bond0", "bond", "eth0", "eth1") | rdma("rxe0", "virtual", files={"parent": "bond0\n"})
    assert lower(topology(files), "rdma:rxe0") == BOTH


def test_a_drive_across_a_network() -> None:
    said: Files = {"transport": "tcp\n", "address": "traddr=192.0.2.7,trsvcid=4420\n", "nvme2c2n1/size": "1\n"}
    found = topology(BOX | drive("nvme2", "virtual/nvme-fabrics/ctl", said))
    one = by_name(found)["nvme:nvme2"]
    assert (one.kind, one.type, one.names.nvme_path) == ("remote_nvme", "tcp", ("nvme2c2n1",))
    assert one.nvme is not None
    assert one.nvme.remote == "traddr=192.0.2.7,trsvcid=4420"
    assert found.of_kind("nvme") == ()


def test_nothing_stands_on_a_function_that_is_not_there() -> None:
    """Or the document has an id that leads nowhere."""
    gone = "pci0000:16/0000:16:05.0/0000:99:00.0"
    found = topology(BOX | netdev("eth9", gone) | stacked("bond0", "bond", "eth0", "eth9"))
    assert set(by_name(found)["net:bond0"].lower) <= set(found.nodes)
