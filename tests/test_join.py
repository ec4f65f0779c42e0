"""What several sources say of one function, joined: pairing.md section 6 and traps 71-92."""

from __future__ import annotations

import pytest

from tests.paper import (
    AMD,
    NIC,
    NVIDIA,
    NVME,
    Files,
    answers,
    disk,
    drive,
    function,
    grown,
    inventory,
    machine,
    netdev,
    nvml,
    place,
    rdma,
    topology,
)
from topo_agent.graph.build import build
from topo_agent.graph.nodes import NicPort, PortState
from topo_agent.graph.topology import Topology
from topo_agent.host.paper import Failure, Link, PaperHost
from topo_agent.ids import PciAddress, pci_ref
from topo_agent.scan import scan

CARD = "pci0000:16/0000:16:01.0/0000:17:00.0"
SECOND = "pci0000:16/0000:16:01.0/0000:17:00.1"
BOX = grown("pci0000:16/16:01.0/17:00.0")


def ports(found: Topology, address: str = "0000:17:00.0") -> list[tuple[str | None, str | None, int | None]]:
    """(interface, RDMA device, its port) of every port of a NIC."""
    nic = place(found, address).nic
    assert nic is not None
    return [(port.netdev, port.rdma, port.rdma_port) for port in nic.ports]


def test_an_interface_and_an_rdma_device_are_one_port() -> None:
    found = topology(BOX | netdev("eth0", CARD) | rdma("mlx5_0", CARD))
    assert ports(found) == [("eth0", "mlx5_0", 1)]
    assert dict(found.ports_now)[pci_ref(PciAddress(0, 0x17, 0, 0))] == (PortState(True, 100_000_000_000, 1500),)


@pytest.mark.parametrize("told_by", ["GIDs", "dev_port"])
def test_two_interfaces_on_one_function(told_by: str) -> None:
    """Traps 74: MELLANOX_40GBPS, 0008:01:00.0 with enP8p1s0 and enP8p1s0d1; told by GIDs, else by dev_port."""
    card = "pci0008:00/0008:00:00.0/0008:01:00.0"
    files = grown("pci0008:00/00:00.0/01:00.0") | netdev("enP8p1s0", card, {"dev_port": "0\n"})
    files |= netdev("enP8p1s0d1", card, {"dev_port": "1\n", "address": "02:00:00:00:00:02\n"})
    told: Files = {f"ports/{n}/gid_attrs/ndevs/0": f"enP8p1s0{suffix}\n" for n, suffix in ((1, ""), (2, "d1"))}
    files |= rdma("mlx4_0", card, ports=(1, 2), files=told if told_by == "GIDs" else {})
    found = topology(files)
    assert ports(found, "0008:01:00.0") == [("enP8p1s0", "mlx4_0", 1), ("enP8p1s0d1", "mlx4_0", 2)]
    assert len(found.of_kind("nic")) == 1


def test_two_rdma_ports_without_interfaces() -> None:
    """Traps 76: DGX A100."""
    assert ports(topology(BOX | rdma("mlx5_4", CARD, ports=(1, 2)))) == [(None, "mlx5_4", 1), (None, "mlx5_4", 2)]


def test_efa_has_no_interface() -> None:
    """Traps 41, 83: an RDMA device alone is a NIC."""
    efa = {"class_": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"}
    found = topology(grown("pci0000:16/16:01.0/17:00.0", efa) | rdma("rdmap23s0", CARD))
    assert ports(found) == [(None, "rdmap23s0", 1)]
    assert place(found, "0000:17:00.0").names.netdev == ()


def test_a_nic_without_driver() -> None:
    """Traps 84: hwloc 32intel64, 0207 without any infiniband directory."""
    found = topology(grown("pci0000:16/16:01.0/17:00.0", {**NIC, "class_": "0x020700"}))
    assert [str(nic.address) for nic in found.of_kind("nic")] == ["0000:17:00.0"]
    assert ports(found) == []


def test_an_adapter_of_class_0c06() -> None:
    """hwloc R910: qib0 and ib0 on a function of class 0c06 (InfiniBand, serial bus)."""
    qib = {"class_": "0x0c0600", "vendor": "0x1077", "device": "0x7322"}
    files = grown("pci0000:16/16:01.0/17:00.0", qib)
    assert place(topology(files), "0000:17:00.0").kind == "other"
    assert place(topology(files | rdma("qib0", CARD, layer="InfiniBand")), "0000:17:00.0").kind == "nic"
    assert place(topology(files | netdev("ib0", CARD, {"type": "32\n"})), "0000:17:00.0").kind == "nic"


def test_an_accelerator_with_ports_of_its_own() -> None:
    """Gaudi: the habanalabs drivers hang interfaces and an RDMA device below the accelerator. It stays a GPU."""
    gaudi = {"class_": "0x120000", "vendor": "0x1da3", "device": "0x1060"}
    files = grown("pci0000:16/16:01.0/17:00.0", gaudi) | netdev("ens1", CARD) | rdma("hbl_0", CARD)
    found = place(topology(files), "0000:17:00.0")
    assert (found.kind, found.names.netdev, found.names.rdma) == ("gpu", ("ens1",), ("hbl_0",))


@pytest.mark.parametrize("vendor", ["0x1a03", "0x102b"], ids=["ASPEED", "Matrox"])
def test_a_display_of_the_management_processor(vendor: str) -> None:
    """Traps 49: it has a drm driver and card0, and is no GPU."""
    files = function("0000:03:00.0", under="pci0000:00", class_="0x030000", vendor=vendor, device="0x2000")
    files |= {"sys/class/drm/card0": Link("../../devices/pci0000:00/0000:03:00.0/drm/card0")}
    assert topology(files).of_kind("gpu") == ()


def test_below_a_virtio_child() -> None:
    """Traps 73."""
    files = function("0000:00:03.0", under="pci0000:00", vendor="0x1af4", device="0x1000")
    files |= netdev("ens3", "pci0000:00/0000:00:03.0/virtio0")
    assert place(topology(files), "0000:00:03.0").names.netdev == ("ens3",)


def boards(found: Topology) -> dict[str, str | None]:
    return {str(nic.address): nic.board for nic in found.of_kind("nic")}


def test_functions_of_one_device_are_one_board() -> None:
    found = topology(BOX | grown("pci0000:16/16:01.0/17:00.1") | grown("pci0000:16/16:03.0/18:00.0"))
    assert boards(found) == {"0000:17:00.0": "0000:17:00", "0000:17:00.1": "0000:17:00", "0000:18:00.0": "0000:18:00"}


GUID = "0c42:a103:00ff:0001"


def multi_host(*without_driver: str) -> Files:
    """Traps 80: POWER9 sierra, one card as 0003:01:00.0/1 and 0033:01:00.0/1."""
    files = Files()
    for domain in ("0003", "0033"):
        for number in (0, 1):
            address = f"{domain}:01:00.{number}"
            files |= grown(f"pci{domain}:00/00:00.0/01:00.{number}")
            if address not in without_driver:
                under = f"pci{domain}:00/{domain}:00:00.0/{address}"
                files |= rdma(f"mlx5_{int(domain) + number}", under, board=GUID)
    return files


def test_one_card_in_two_domains() -> None:
    assert set(boards(topology(multi_host())).values()) == {"0003:01:00"}


@pytest.mark.parametrize(
    "silent",
    [
        "0003:01:00.0",
        "0003:01:00.1",
        "0033:01:00.0",
        "0033:01:00.1",
    ],
)
def test_one_function_of_the_card_has_no_driver(silent: str) -> None:
    """One function is given to a guest (vfio-pci): its card is the same card."""
    assert len(set(boards(topology(multi_host(silent))).values())) == 1


def test_cards_that_tell_no_guid() -> None:
    files = Files()
    for bus in ("17", "18"):
        files |= grown(f"pci0000:16/16:01.0/{bus}:00.0")
        files |= rdma(f"m{bus}", f"pci0000:16/0000:16:01.0/0000:{bus}:00.0", board="0000:0000:0000:0000")
    assert len(set(boards(topology(files)).values())) == 2


def representors(*names: tuple[str, str]) -> Files:
    """mlx5 in switchdev mode: the uplink `p0` and its representors are all below the PF."""
    files = BOX | rdma("mlx5_0", CARD, files={"node_guid": None})
    said: Files = {"phys_switch_id": "0c42a1\n", "phys_port_name": "p0\n"}
    files |= netdev("enp23s0np0", CARD, said)
    for number, (name, port) in enumerate(names):
        said = {
            "phys_switch_id": "0c42a1\n",
            "phys_port_name": f"{port}\n",
            "address": f"02:00:00:00:01:{number:02x}\n",
        }
        files |= netdev(name, CARD, said)
    return files


@pytest.mark.parametrize(
    "port",
    [
        "pf0vf0",
        "c1pf0vf3",
        "pf0sf88",
        "pf0",
        "c1pf0",
    ],
)
def test_representors_are_no_ports(port: str) -> None:
    """net/devlink/port.c: PCI_PF is pf%u, PCI_VF pf%uvf%u, PCI_SF pf%usf%u, each with c%u before it on a DPU; a
    physical port is p%u or p%us%u."""
    assert ports(topology(representors(("eth7", port)))) == [("enp23s0np0", "mlx5_0", 1)]


@pytest.mark.parametrize("port", ["p0", "p1s2"])
def test_physical_ports_are_ports(port: str) -> None:
    assert ports(topology(BOX | netdev("eth0", CARD, {"phys_port_name": f"{port}\n"}))) == [("eth0", None, None)]


def test_a_representor_does_not_tell_who_a_card_is() -> None:
    """enp23s0_0 sorts before enp23s0np0, and its address is made up at every start of the driver."""
    assert place(topology(representors(("enp23s0_0", "pf0vf0"))), "0000:17:00.0").uid == "02:00:00:00:00:01"


def bonded() -> Files:
    """Two ports of one card in a bond, which gives both its own address (bonding.rst)."""
    files = BOX | grown("pci0000:16/16:01.0/17:00.1") | netdev("ens1f0np0", CARD) | netdev("ens1f1np1", SECOND)
    lower: Files = {"lower_ens1f0np0": Link("x"), "lower_ens1f1np1": Link("x")}
    return files | netdev("bond0", "virtual", lower, event="DEVTYPE=bond\n")


def test_slaves_of_a_bond_share_an_address() -> None:
    found = topology(bonded())
    assert [nic.uid for nic in found.of_kind("nic")] == [None, None]
    assert [ports(found, address) for address in ("0000:17:00.0", "0000:17:00.1")] == [
        [("ens1f0np0", None, None)],
        [("ens1f1np1", None, None)],
    ]


def test_the_rdma_device_of_a_bond() -> None:
    """pairing.md, section 6: mlx5_bond_0 shows PF0 only; its GIDs belong to bond0. It is the port of ens1f0np0."""
    found = topology(bonded() | rdma("mlx5_bond_0", CARD, files={"ports/1/gid_attrs/ndevs/0": "bond0\n"}))
    assert ports(found) == [("ens1f0np0", "mlx5_bond_0", 1)]


def test_gids_of_a_vlan_beside_its_interface() -> None:
    told: Files = {"ports/1/gid_attrs/ndevs/0": "eth0\n", "ports/1/gid_attrs/ndevs/1": "eth0.100\n"}
    assert ports(topology(BOX | netdev("eth0", CARD) | rdma("mlx5_0", CARD, files=told))) == [("eth0", "mlx5_0", 1)]


def test_a_driver_that_names_an_absent_function() -> None:
    """One note for each function, whatever is said of it; nothing else changes."""
    gone = "pci0000:16/0000:16:01.0/0000:99:00.0"
    files = BOX | netdev("eth0", CARD)
    strange = netdev("eth9", gone) | rdma("mlx5_9", gone) | drive("nvme9", gone)
    found = topology(files | strange, documents=nvml(answers("0000:99:00.0", 0)))
    assert [one.code for one in found.diagnostics if "99:00.0" in one.subject] == ["not_on_the_bus"]
    assert found.devices == topology(files).devices


def test_a_disk_on_an_absent_function() -> None:
    found = topology(BOX | disk("vda", "pci0000:16/0000:16:01.0/0000:99:00.0/virtio1/block"))
    assert [one.code for one in found.diagnostics] == ["not_on_the_bus"]


def test_names_of_drives() -> None:
    """Traps 86: the disk, and the hidden path apart."""
    slot = "pci0000:16/0000:16:03.0/0000:18:00.0/nvme"
    files = grown("pci0000:16/16:03.0/18:00.0", NVME) | drive("nvme0", slot, {"nvme0c0n1/size": "1\n"})
    files |= disk("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0")
    names = place(topology(files), "0000:18:00.0").names
    assert (names.nvme, names.nvme_path) == (("nvme0", "nvme0n1"), ("nvme0c0n1",))


def test_names_of_drives_on_old_kernels() -> None:
    files = grown("pci0000:16/16:03.0/18:00.0", NVME) | disk("nvme0n1", "pci0000:16/0000:16:03.0/0000:18:00.0")
    assert place(topology(files), "0000:18:00.0").names.nvme == ("nvme0", "nvme0n1")


def test_virtual_functions_have_interfaces_or_none() -> None:
    """pairing.md, section 6: `physfn` tells the PF; a VF without interface is a VF all the same."""
    files = BOX | netdev("eth0", CARD)
    for number, with_net in ((2, True), (3, False)):
        under = f"pci0000:16/0000:16:01.0/0000:17:00.{number}"
        files |= grown(f"pci0000:16/16:01.0/17:00.{number}", files={"physfn": Link("../0000:17:00.0")})
        files |= netdev("eth0v0", under) if with_net else {}
    found = topology(files)
    assert [nic.names.netdev for nic in found.of_kind("nic")] == [("eth0",), ("eth0v0",), ()]
    assert {str(nic.physfn) for nic in found.of_kind("nic")[1:]} == {"pci:0000:17:00.0"}


def test_an_interface_that_moved_to_a_pod() -> None:
    """Traps 91: the function is still there."""
    assert [str(nic.address) for nic in topology(BOX).of_kind("nic")] == ["0000:17:00.0"]


@pytest.mark.parametrize(("device", "dpu"), [("0xa2dc", True), ("0xa2d6", True), ("0x1021", False)])
def test_dpu(device: str, *, dpu: bool) -> None:
    nic = place(topology(grown("pci0000:16/16:01.0/17:00.0", {**NIC, "device": device})), "0000:17:00.0").nic
    assert nic is not None
    assert nic.dpu == dpu


def test_a_port_without_names() -> None:
    found = topology(BOX | rdma("mlx5_0", CARD, ports=()) | netdev("eth0", CARD))
    nic = place(found, "0000:17:00.0").nic
    assert nic is not None
    assert nic.ports == (NicPort("eth0", "mlx5_0", None, None, "02:00:00:00:00:01"),)


WHOLE = (
    BOX
    | netdev("eth0", CARD)
    | rdma("mlx5_0", CARD)
    | grown("pci0000:16/16:03.0/18:00.0", NVME)
    | drive("nvme0", "pci0000:16/0000:16:03.0/0000:18:00.0/nvme")
    | disk("nvme0n1", "pci0000:16/0000:16:03.0/0000:18:00.0/nvme/nvme0")
    | grown("pci0000:16/16:05.0/19:00.0", AMD)
    | grown("pci0000:16/16:07.0/1a:00.0", NVIDIA)
)


class Unplugged(PaperHost):
    """A machine that lists a directory, and whose files there answer ENODEV (kernfs: the device is gone)."""

    gone = ""

    def text(self, path: str, most: int = 64 * 1024) -> str:
        if f"{path}/".startswith(f"{self.gone}/"):
            raise OSError(19, "No such device", path)
        return super().text(path, most)


@pytest.mark.parametrize(
    ("gone", "mine"),
    [
        (f"{CARD}/net/eth0", "0000:17:00.0"),
        (f"{CARD}/infiniband/mlx5_0", "0000:17:00.0"),
        (CARD, "0000:17:00.0"),
        ("pci0000:16/0000:16:03.0/0000:18:00.0/nvme/nvme0", "0000:18:00.0"),
        ("pci0000:16/0000:16:03.0/0000:18:00.0", "0000:18:00.0"),
        ("pci0000:16/0000:16:05.0/0000:19:00.0", "0000:19:00.0"),
    ],
)
def test_a_device_that_vanishes_between_list_and_read(gone: str, mine: str) -> None:
    """Issue 4, point 4: one note at most, and everything else is equal."""
    host = Unplugged(WHOLE, source=machine({}).source)
    host.gone = f"sys/devices/{gone}"
    found, whole = build(scan(host)), topology(WHOLE)
    assert len(set(found.diagnostics) - set(whole.diagnostics)) <= 1
    assert [one for one in found.devices or () if str(one.address) != mine] == [
        one for one in whole.devices or () if str(one.address) != mine
    ]


@pytest.mark.parametrize(
    "fault",
    [
        {f"sys/devices/{CARD}/net/eth0/speed": Failure(22)},
        {f"sys/devices/{CARD}/net/eth0/carrier": Failure(22)},
        {"sys/class/net/eth9": Link(f"../../devices/{CARD}/net/eth9")},
        {"sys/class/infiniband/mlx5_9": Link(f"../../devices/{CARD}/infiniband/mlx5_9")},
        {"sys/class/nvme/nvme9": Link("../../devices/pci0000:16/0000:16:03.0/0000:18:00.0/nvme/nvme9")},
        {"sys/class/drm/card9": Link("../../devices/pci0000:16/0000:16:07.0/0000:1a:00.0/drm/card9")},
    ],
    ids=lambda fault: next(iter(fault)).rpartition("/")[2],
)
def test_one_fault_is_one_note(fault: Files) -> None:
    """Issue 4, point 4: a speed that answers EINVAL, a driver half bound."""
    found, whole = topology(WHOLE | fault), topology(WHOLE)
    assert len(set(found.diagnostics) - set(whole.diagnostics)) <= 1
    assert [(one.ref, one.kind, one.numa_node, one.parent) for one in found.devices or ()] == [
        (one.ref, one.kind, one.numa_node, one.parent) for one in whole.devices or ()
    ]


@pytest.mark.parametrize(("folder", "name"), [("infiniband", "mlx5_9"), ("nvme", "nvme9")])
def test_a_class_link_that_leads_nowhere_is_no_device(folder: str, name: str) -> None:
    """As net.py has it: the driver let go of the function between the two steps of unbinding."""
    files = WHOLE | {f"sys/class/{folder}/{name}": Link(f"../../devices/{CARD}/{folder}/{name}")}
    assert topology(files).devices == topology(WHOLE).devices


def test_whole_inventory_has_no_notes() -> None:
    """Or the tests above compare with noise."""
    assert inventory(WHOLE).diagnostics == ()
