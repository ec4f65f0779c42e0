"""RDMA devices as drivers/infiniband/core/sysfs.c shows them, and traps 76-85, 92."""

from __future__ import annotations

import pytest

from tests.paper import Files, grown, inventory, netdev, place, rdma, topology
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Inventory, RdmaDevice, RdmaPortState
from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import PciAddress
from topo_agent.sources.rdma import guid, rate

CARD = "pci0000:16/0000:16:01.0/0000:17:00.0"
BOX = grown("pci0000:16/16:01.0/17:00.0")
HERE = PciAddress(0, 0x17, 0, 0)


def only(files: Files) -> RdmaDevice:
    (found,) = inventory(files).rdma
    return found


def notes(found: Inventory) -> list[str]:
    return [str(one) for one in found.diagnostics if "/infiniband/" in one.subject or one.subject == "rdma"]


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ("400 Gb/sec (4X NDR)", 400_000_000_000),  # traps 79: gpud H100, without newline
        ("25 Gb/sec (1X EDR)\n", 25_000_000_000),
        ("2.5 Gb/sec (1X SDR)\n", 2_500_000_000),
        ("800 Gb/sec (4X XDR)\n", 800_000_000_000),
    ],
)
def test_rate(said: str, bits: int) -> None:
    assert rate(said) == bits


@pytest.mark.parametrize("said", ["", "Gb/sec", "-1 Gb/sec", "1e3 Gb/sec", "400", "٤ Gb/sec", "9" * 400 + " Gb/sec"])
def test_no_rate(said: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        rate(said)


def test_guid() -> None:
    assert guid("0C42:a103:00ff:0001\n") == "0c42:a103:00ff:0001"
    assert guid("0000:0000:0000:0000\n") is None
    for garbage in ("", "0c42a10300ff0001", "0c42:a103:00ff", "zzzz:0000:0000:0000"):
        with pytest.raises(ValueError, match="GUID"):
            guid(garbage)


@pytest.mark.parametrize("name", ["mlx5_0", "rocep177s0f0", "roceP2p1s0f0", "rdmap39s0", "mlx5_bond_0"])
def test_the_function_comes_from_the_path(name: str) -> None:
    """Traps 77, 78: names count in decimal, or not at all."""
    assert only(BOX | rdma(name, CARD)).function == HERE


def test_gaps_and_more_than_ten() -> None:
    """Traps 78: gpud H100 has mlx5_0,1,4…9 and mlx5_bond_0."""
    names = ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_9", "mlx5_10", "mlx5_bond_0"]
    files = dict(BOX)
    for name in names:
        files |= rdma(name, CARD)
    assert {device.name for device in inventory(files).rdma} == set(names)


def test_two_ports() -> None:
    """Traps 76: DGX A100, one function with two ports."""
    found = inventory(BOX | rdma("mlx5_4", CARD, ports=(1, 2), layer="InfiniBand"))
    assert [(port.number, port.link_layer) for port in found.rdma[0].ports] == [(1, "InfiniBand"), (2, "InfiniBand")]
    state = RdmaPortState("ACTIVE", 400_000_000_000)
    assert found.rdma_now == (("mlx5_4", 1, state), ("mlx5_4", 2, state))


def test_ports_are_counted_and_not_sorted_as_text() -> None:
    found = only(BOX | rdma("mlx5_0", CARD, ports=range(1, 12)))
    assert [port.number for port in found.ports] == list(range(1, 12))


def test_software_devices_have_no_function() -> None:
    """Traps 81, 82: scif0 of hwloc 32em64t, and rxe on an interface."""
    files = BOX | netdev("eth0", CARD) | rdma("scif0", "virtual/mic")
    files |= rdma("rxe0", "virtual", files={"parent": "eth0\n"})
    found = {device.name: (device.function, device.parent) for device in inventory(files).rdma}
    assert found == {"scif0": (None, None), "rxe0": (None, "eth0")}


def test_software_below_a_pci_function() -> None:
    """rxe_verbs.c up to 5.11: `dev->dev.parent = rxe_dma_device(rxe)`, the interface's PCI function; only rxe has
    `parent` (rxe_verbs.c parent_show). Traps 82: list as software."""
    assert only(BOX | netdev("eth0", CARD) | rdma("rxe0", CARD, files={"parent": "eth0\n"})).function is None


def test_interfaces_of_a_port_by_its_gids() -> None:
    ndevs = "ports/1/gid_attrs/ndevs"
    found = only(BOX | rdma("mlx5_0", CARD, files={f"{ndevs}/0": "eth0\n", f"{ndevs}/1": "eth0\n"}))
    assert found.ports[0].netdevs == ("eth0",)


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
def test_empty_gids_are_ordinary(layer: str) -> None:
    """infiniband/core/sysfs.c `_show_port_gid_attr`: "-EINVAL is returned for user space compatibility reasons" for
    every empty entry of the 256, and `print_ndev` gives the same for a GID without interface: all of InfiniBand."""
    ndevs = "ports/1/gid_attrs/ndevs"
    empty: Files = {f"{ndevs}/{index}": Failure(22) for index in range(2, 256)}
    used: Files = {f"{ndevs}/{index}": "eth0\n" if layer == "Ethernet" else Failure(22) for index in range(2)}
    found = inventory(BOX | rdma("mlx5_0", CARD, layer=layer, files=used | empty))
    assert notes(found) == []


def test_half_bound() -> None:
    """Issue 4, point 4: a device without ports, and one whose class link leads nowhere."""
    files = BOX | netdev("eth0", CARD) | rdma("mlx5_0", CARD, ports=())
    found = inventory(files | {"sys/class/infiniband/mlx5_1": Link("../../devices/" + CARD + "/infiniband/mlx5_1")})
    assert next(device for device in found.rdma if device.name == "mlx5_0").ports == ()
    assert len(notes(found)) <= 1
    assert found.netdevs == inventory(files).netdevs


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("node_guid", "nonsense\n"),
        ("node_guid", Failure(5)),
        ("sys_image_guid", "(efault)"),
        ("fw_ver", Failure(5)),
        ("ports/1/link_layer", Failure(5)),
        ("ports/1/state", "ACTIVE\n"),
        ("ports/1/rate", "Unknown\n"),
    ],
)
def test_one_bad_field_is_one_note(field: str, said: str | Failure) -> None:
    found = inventory(BOX | rdma("mlx5_0", CARD, files={field: said}))
    assert [device.name for device in found.rdma] == ["mlx5_0"]
    assert len(notes(found)) == 1


@pytest.mark.parametrize("said", [Failure(5), "rubbish\n", ""])
def test_a_guid_that_fails_leaves_the_card_unknown(said: Entry) -> None:
    card = place(topology(BOX | rdma("mlx5_0", CARD, files={"node_guid": said})), "0000:17:00.0")
    assert (card.uid, dict(card.unknown)["uid"]) == (None, Unknown.UNREADABLE)
    named = topology(BOX | rdma("mlx5_0", CARD, files={"node_guid": said}) | netdev("eth0", CARD))
    assert "uid" not in dict(place(named, "0000:17:00.0").unknown)  # its interface tells who it is


def test_a_class_link_that_is_none_is_one_note() -> None:
    found = inventory(BOX | rdma("mlx5_0", CARD) | {"sys/class/infiniband/mlx5_1": "rubbish\n"})
    assert [(one.level.value, one.subject) for one in found.diagnostics] == [("lost", "sys/class/infiniband/mlx5_1")]
