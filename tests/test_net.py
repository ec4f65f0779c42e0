"""Interfaces as the kernel shows them: net/core/net-sysfs.c and traps 71-75, 90, 91."""

from __future__ import annotations

import pytest

from tests.paper import Files, function, grown, inventory, machine, netdev, place, topology
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Inventory, Netdev, NetdevState
from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import PciAddress
from topo_agent.scan import scan

CARD = "pci0000:16/0000:16:01.0/0000:17:00.0"
BOX = grown("pci0000:16/16:01.0/17:00.0")


def one(files: Files, name: str) -> Netdev:
    (found,) = (netdev for netdev in inventory(files).netdevs if netdev.name == name)
    return found


def now(files: Files, name: str) -> NetdevState:
    return dict(inventory(files).netdevs_now)[name]


def notes(found: Inventory) -> list[str]:
    return [str(one) for one in found.diagnostics if "/net/" in one.subject or one.subject == "net"]


def test_names_that_are_no_interfaces() -> None:
    """Traps 71: node_exporter's fixtures, `bonding_masters` is a file; and the loopback is no wiring."""
    files = BOX | netdev("eth0", CARD) | netdev("lo", "virtual", {"type": "772\n"})
    files |= netdev("dummy_loop", "virtual", {"type": "772\n"})
    assert [netdev.name for netdev in inventory(BOX | netdev("lo", "virtual", {"type": None})).netdevs] == []
    found = inventory(files | {"sys/class/net/bonding_masters": "bond0 dmz int\n"})
    assert [netdev.name for netdev in found.netdevs] == ["eth0"]
    assert notes(found) == []


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ("100000\n", 100_000_000_000),
        ("2500\n", 2_500_000_000),
        ("-1\n", None),  # traps 72: bond0, virtio ens3
        ("0\n", None),
        ("Unknown\n", None),
        ("١٢\n", None),  # traps 24: int() takes Arabic digits
        ("1_000\n", None),
    ],
)
def test_speed(said: str, bits: int | None) -> None:
    assert now(BOX | netdev("eth0", CARD, {"speed": said}), "eth0").bits_per_second == bits


def test_a_link_that_is_down() -> None:
    """Traps 72: net-sysfs.c answers EINVAL to `speed` of an interface without carrier."""
    down: Files = {"carrier": "0\n", "operstate": "down\n", "speed": Failure(22)}
    files = BOX | netdev("eth0", CARD, down)
    assert now(files, "eth0") == NetdevState("down", False, None, 1500)
    assert notes(inventory(files)) == []


def test_an_interface_that_is_not_set_up() -> None:
    """carrier_show answers EINVAL while the interface is administratively down, and so does `speed`: one note."""
    down: Files = {"carrier": Failure(22), "operstate": "down\n", "speed": Failure(22)}
    found = inventory(BOX | netdev("eth0", CARD, down))
    assert dict(found.netdevs_now)["eth0"] == NetdevState("down", None, None, 1500)
    assert len(notes(found)) <= 1


def test_a_speed_that_fails_while_the_link_is_up() -> None:
    found = inventory(BOX | netdev("eth0", CARD, {"speed": Failure(22)}))
    assert dict(found.netdevs_now)["eth0"] == NetdevState("up", True, None, 1500)
    assert len(notes(found)) == 1
    assert found.netdevs == inventory(BOX | netdev("eth0", CARD)).netdevs


def test_below_a_virtio_child() -> None:
    """Traps 73: hwloc 2pa-pcidomain32bits, 0000:00:03.0/virtio0/net/ens3."""
    files = function("0000:00:03.0", under="pci0000:00", vendor="0x1af4", device="0x1000")
    files |= netdev("ens3", "pci0000:00/0000:00:03.0/virtio0")
    assert one(files, "ens3").function == PciAddress(0, 0, 3, 0)


def test_the_function_comes_from_the_path_and_not_from_the_name() -> None:
    """Traps 75: the domain of enP1p1s0f0 stands in its path; here the name lies."""
    files = grown("pci0009:00/00:00.0/01:00.0") | netdev("enP1p1s0f0", "pci0009:00/0009:00:00.0/0009:01:00.0")
    assert one(files, "enP1p1s0f0").function == PciAddress(9, 1, 0, 0)


def test_a_class_directory_that_is_a_copy() -> None:
    """hwloc-gather-topology of old: class/net/eth0 is a directory with a `device` link."""
    files: Files = BOX | {
        "sys/class/net/eth0/uevent": "INTERFACE=eth0\n",
        "sys/class/net/eth0/device": Link("../../../devices/" + CARD),
    }
    assert one(files, "eth0").function == PciAddress(0, 0x17, 0, 0)


def test_addresses() -> None:
    assert one(BOX | netdev("eth0", CARD, {"address": "00:00:00:00:00:00\n"}), "eth0").address is None
    assert one(BOX | netdev("eth0", CARD, {"address": "0C:42:A1:00:00:01\n"}), "eth0").address == "0c:42:a1:00:00:01"


def test_attributes_that_no_driver_answers_leave_no_note() -> None:
    """phys_switch_id and phys_port_name answer EOPNOTSUPP on nearly every interface (net-sysfs.c)."""
    found = inventory(BOX | netdev("eth0", CARD, {"phys_switch_id": Failure(95), "phys_port_name": Failure(95)}))
    assert notes(found) == []
    assert found.netdevs[0].switch_id is None


def test_a_dangling_link_is_no_interface() -> None:
    """The interface went to a pod's namespace, or its driver is half bound: the class link leads nowhere."""
    found = inventory(BOX | netdev("eth0", CARD) | {"sys/class/net/eth1": Link("../../devices/" + CARD + "/net/eth1")})
    assert [netdev.name for netdev in found.netdevs] == ["eth0"]
    assert len(notes(found)) <= 1


def test_what_an_interface_stands_on() -> None:
    files = BOX | netdev("eth0", CARD)
    files |= netdev("bond0", "virtual", {"lower_eth0": Link("../../../" + CARD + "/net/eth0")}, event="DEVTYPE=bond\n")
    found = one(files, "bond0")
    assert (found.function, found.kind, found.lower) == (None, "bond", ("eth0",))


GARBAGE = [None, True, -1, 10**400, 1.5, "", "x" * 70000, [], [None], {}, {"error": "NOT_SUPPORTED"}]


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: repr(said)[:20])
def test_netlink_that_says_anything(said: object) -> None:
    """A recording may hold anything in its documents: what does not fit is not believed, and nothing fails."""
    files = BOX | netdev("eth0", CARD) | netdev("bond0", "virtual", {"lower_eth0": Link("x")}, event="DEVTYPE=bond\n")
    without = inventory(files).netdevs
    documents: list[object] = [said, {"links": said}, {"links": [said]}, {"links": [{"name": said}]}]
    documents += [{"links": [{"name": "bond0", key: said}]} for key in ("vlan_id", "altnames", "kind")]
    for document in documents:
        found = scan(machine(files, documents={"netlink": document}))  # type: ignore[dict-item]
        assert [netdev.name for netdev in found.netdevs] == [netdev.name for netdev in without]
        assert not [one for one in found.diagnostics if one.code == "source_failed"]


@pytest.mark.parametrize("said", [-1, True, 4096, 10**400], ids=["negative", "true", "4096", "enormous"])
def test_a_vlan_id_has_twelve_bits(said: int) -> None:
    """IEEE 802.1Q."""
    files = BOX | netdev("eth0", CARD) | netdev("v", "virtual", {"lower_eth0": Link("x")}, event="DEVTYPE=vlan\n")
    found = inventory(files, documents={"netlink": {"links": [{"name": "v", "vlan_id": said}]}})
    assert [netdev.vlan_id for netdev in found.netdevs if netdev.name == "v"] == [None]


@pytest.mark.parametrize("entry", ["", "rubbish\n", None, Failure(5), Link("eth1"), Link("../../../../../x")])
def test_a_class_link_that_is_none_is_one_note(entry: Entry) -> None:
    found = inventory(BOX | netdev("eth0", CARD) | {"sys/class/net/eth1": entry})
    assert [netdev.name for netdev in found.netdevs] == ["eth0"]
    assert [(one.level.value, one.subject) for one in found.diagnostics] == [("lost", "sys/class/net/eth1")]


@pytest.mark.parametrize("said", [Failure(5), "rubbish\n", "", "02:00:00:00:00:0\n", "0x02\n"])
def test_an_address_that_fails_leaves_the_card_unknown(said: Entry) -> None:
    """net-sysfs.c address_show prints pairs of digits with colons."""
    card = place(topology(BOX | netdev("eth0", CARD, {"address": said})), "0000:17:00.0")
    assert (card.uid, dict(card.unknown)["uid"]) == (None, Unknown.UNREADABLE)


def test_an_interface_that_has_no_address_is_ordinary() -> None:
    """addr_len is 0 for a tunnel: address_show prints the newline alone. And IPoIB has 20 bytes."""
    found = inventory(BOX | netdev("eth0", CARD, {"address": "\n"}))
    assert (found.netdevs[0].address, found.netdevs[0].unknown, notes(found)) == (None, (), [])
    long = ":".join(["0a"] * 20)
    assert one(BOX | netdev("ib0", CARD, {"address": f"{long}\n"}), "ib0").address == long
