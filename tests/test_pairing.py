"""Which NIC for which GPU: published pairs (layouts.md) and the rule of pairing.md §10, on described machines."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import machines
from tests.machines import needs_machines
from tests.paper import (
    AMD,
    NIC,
    NVIDIA,
    NVME,
    Files,
    cpus,
    drive,
    grown,
    netdev,
    nodes,
    place,
    put,
    rdma,
    routed,
    spelled,
    topology,
    two_sockets,
)
from topo_agent import discover
from topo_agent.graph.applied import Resolved
from topo_agent.graph.build import build
from topo_agent.graph.pairing import Choice, pairs
from topo_agent.graph.topology import Topology
from topo_agent.host import Source
from topo_agent.host.paper import Link, PaperHost
from topo_agent.ids import PciAddress, Ref, pci_ref
from topo_agent.scan import scan
from topo_agent.synthesis.build import from_file
from topo_agent.views.pairs import as_data, as_environment, as_table

OUR_MACHINES = Path(__file__).parents[1] / "fixtures"

BLUEFIELD = {**NIC, "device": "0xa2dc"}
CASSINI = {**NIC, "vendor": "0x17db", "device": "0x0501"}
THOR = {**NIC, "vendor": "0x14e4", "device": "0x1760"}
EFA = {**NIC, "vendor": "0x1d0f", "device": "0xefa2"}
DOWN = {"ports/1/state": "1: DOWN\n", "ports/1/phys_state": "3: Disabled\n"}


def short(functions: Iterable[Ref]) -> list[str]:
    """`pci:0000:18:00.0` -> `18`, and another function `29:00.1` -> `29.1`."""
    found = []
    for one in functions:
        domain, bus, rest = one.key.split(":")
        slot, _, function = rest.partition(".")
        number = "" if rest == "00.0" else f".{function}" if slot == "00" else f":{rest}"
        found.append((f"{domain}:" if domain != "0000" else "") + bus + number)
    return found


def nearest(found: Topology) -> dict[str, list[str]]:
    """GPU -> the functions of all cards of its best rank, sorted."""
    return {
        short([one.gpu])[0]: sorted(short(ref for card in one.local for ref in card.card.functions))
        for one in pairs(found)
    }


def chosen(found: Topology) -> dict[str, list[str]]:
    return {
        short([one.gpu])[0]: short(ref for card in one.chosen for ref in card.card.functions) for one in pairs(found)
    }


def words(found: Topology) -> set[str]:
    """The classes of everybody's best cards."""
    return {card.path.class_ for one in pairs(found) for card in one.local}


def choice(found: Topology, bus: str) -> Choice:
    (one,) = (one for one in pairs(found) if short([one.gpu]) == [bus])
    return one


def published(gpus: str, nics: str) -> dict[str, list[str]]:
    """Two lists of layouts.md; position i of both is the pair."""
    mine, yours = gpus.replace("/", " ").split(), nics.replace("/", " ").split()
    assert len(mine) == len(yours)
    return {gpu: [nic] for gpu, nic in zip(mine, yours, strict=True)}


def hexadecimal(number: int) -> str:
    return f"{number:02x}"


# --- the machines of layouts.md, each with its own list of pairs ---------------------------------------------

DGX_H100 = ("1b 43 52 61 / 9d c3 d1 df", "18 40 4f 5e / 9a c0 ce dc")


def dgx_h100(names: Iterable[str] = ()) -> Files:
    """Section 1: the NIC at the first switch, the GPU behind a second one; two cards for storage on other roots."""
    called = iter(names or [f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11, 1, 2, 7, 8)])
    files = two_sockets()
    for index, bus in enumerate(int(one, 16) for one in DGX_H100[1].replace("/", " ").split()):
        root, up, down, nic, second, port, gpu = map(hexadecimal, range(bus - 3, bus + 4))
        top, node, name = f"pci0000:{root}/{root}:01.0/{up}:00.0", index // 4, next(called)
        files |= put(f"{top}/{down}:00.0/{nic}:00.0", node=node, verbs=name, interface=f"i{name}")
        files |= put(f"{top}/{down}:01.0/{second}:00.0/{port}:00.0/{gpu}:00.0", NVIDIA, node=node)
    for root, card, node in (("28", "29", 0), ("a9", "aa", 1)):
        for function in (0, 1):
            name = next(called)
            path = f"pci0000:{root}/{root}:01.0/{card}:00.{function}"
            files |= put(path, node=node, verbs=name, interface=f"i{name}")
    return files


HGX = ("18 2a 3a 5d / 9a ab ba db", "19 29 3b 5c / 9b aa bb da")


def leaf(files: Files, first: int, members: Iterable[tuple[int, dict[str, str], str | None]], node: int) -> Files:
    """One switch with everything right below its ports; the root port is two buses before the first member."""
    root, up, down = (hexadecimal(first - below) for below in (3, 2, 1))
    for port, (bus, what, name) in enumerate(members):
        path = f"pci0000:{root}/{root}:01.0/{up}:00.0/{down}:{port:02x}.0/{bus:02x}:00.0"
        files |= put(path, what, node=node, verbs=name)
    return files


def hgx() -> Files:
    """Section 1, HGX H100/H200 with 2×48 cores: GPU and NIC below one switch; a ninth NIC at a root port."""
    files = two_sockets()
    for index, (gpu, (nic,)) in enumerate(published(*HGX).items()):
        a, b = int(gpu, 16), int(nic, 16)
        leaf(files, min(a, b), [(a, NVIDIA, None), (b, NIC, f"mlx5_{index}")], index // 4)
    return files | put("pci0000:52/52:01.0/53:00.0", node=0, verbs="mlx5_8")


XE9680 = ("1b 3d 4e 5f / 9f bd cd dd", "1a 3c 4d 5e / 9c bc cc dc")  # buses of the GPUs are ours


def xe9680() -> Files:
    """Section 1: the BlueField 9d is PIX to GPU 4 too, and north-south by its role only."""
    files = two_sockets()
    for index, (gpu, (nic,)) in enumerate(published(*XE9680).items()):
        members: list[tuple[int, dict[str, str], str | None]] = [
            (int(gpu, 16), NVIDIA, None), (int(nic, 16), NIC, f"rocep{int(nic, 16)}s0f0"),
        ]  # fmt: skip
        if nic == "9c":
            members += [(0x9D, BLUEFIELD, "rocep157s0f0")]
        leaf(files, int(nic, 16), members, index // 4)
    return files


MI300X = ("05 2b 5b 65 / 7d a5 d5 e7", "09 23 53 69 / 8f 9c cd f1")
INSIDE = ({"vendor": "0x1022", "device": "0x1500"}, {"vendor": "0x1002", "device": "0x1501"})


def amd_box(rows: Iterable[tuple[str, str, str, str, str, str]], first: int = 4) -> Files:
    """(root, switch bus, port and GPU's bus, port and NIC's bus, name): the GPU behind two bridges of its own."""
    files = two_sockets()
    for index, (root, gport, gpu, nport, nic, name) in enumerate(rows):
        number = int(root, 16)
        up, down = hexadecimal(number + 1), hexadecimal(number + 2)
        outer, inner = hexadecimal(int(gpu, 16) - 2), hexadecimal(int(gpu, 16) - 1)
        top = f"pci0000:{root}/{root}:01.1/{up}:00.0"
        files |= put(
            f"{top}/{down}:{gport}/{outer}:00.0/{inner}:00.0/{gpu}:00.0", AMD, node=index // first,
            ports={f"{outer}:00.0": INSIDE[0], f"{inner}:00.0": INSIDE[1]},
        )  # fmt: skip
        files |= put(f"{top}/{down}:{nport}/{nic}:00.0", THOR, node=index // first, verbs=name, layer="Ethernet")
    return files


def mi300x() -> Files:
    """Section 6, AMD's example box."""
    gports = ["00.0", "04.0", "04.0", "00.0", "00.0", "03.0", "03.0", "02.0"]
    nports = ["01.0", "03.0", "03.0", "01.0", "05.0", "01.0", "02.0", "04.0"]
    roots = ["00", "18", "48", "60", "78", "98", "c8", "e0"]
    buses = published(*MI300X).items()
    return amd_box(
        (root, gport, gpu, nport, nic, f"bnxt_re{index}")
        for index, (root, gport, nport, (gpu, (nic,))) in enumerate(zip(roots, gports, nports, buses, strict=True))
    )


MI325X = ("05 15 65 75 / 85 95 e5 f5", "06 16 66 76 / 86 96 e6 f6")
MI325X_NAMES = (1, 3, 2, 0, 5, 8, 7, 4)


def mi325x() -> Files:
    """Section 6, Supermicro AS-8126GS: names out of order, a ninth NIC c1 and a ConnectX-6 31.0/.1 on other roots."""
    rows = [
        (hexadecimal(int(gpu, 16) - 5), "00.0", gpu, "01.0", nic, f"bnxt_re{name}")
        for (gpu, (nic,)), name in zip(published(*MI325X).items(), MI325X_NAMES, strict=True)
    ]
    files = amd_box(rows) | put("pci0000:c0/c0:01.1/c1:00.0", THOR, node=1, verbs="bnxt_re6", layer="Ethernet")
    for function in (0, 1):
        files |= put(f"pci0000:30/30:01.1/31:00.{function}", node=0, verbs=f"mlx5_{function}")
    return files


def mi300x_ib() -> Files:
    """Section 6, MI300X with Intel and InfiniBand: the GPU behind a second ConnectX switch, PXB after collapsing."""
    files = two_sockets()
    for index, (gpu, (nic,)) in enumerate(published(*MI300X_IB).items()):
        g = int(gpu, 16)
        root = hexadecimal(g - 9)
        u5, d6, u8, d9, outer, inner = (hexadecimal(g - below) for below in (7, 6, 4, 3, 2, 1))
        top, switch = f"pci0000:{root}/{root}:01.0/{u5}:00.0", {"vendor": "0x15b3", "device": "0x1979"}
        ports = {f"{one}:00.0": switch for one in (u5, d6, u8, d9)} | {
            f"{outer}:00.0": INSIDE[0], f"{inner}:00.0": INSIDE[1],
        }  # fmt: skip
        path = f"{top}/{d6}:01.0/{u8}:00.0/{d9}:00.0/{outer}:00.0/{inner}:00.0/{gpu}:00.0"
        files |= put(path, AMD, node=index // 4, ports=ports)
        files |= put(f"{top}/{d6}:00.0/{nic}:00.0", node=index // 4, verbs=f"mlx5_{index}", ports=ports)
    return files


MI300X_IB = ("0c 15 1e 69 / 9f af bf df", "07 10 19 64 / 9a aa ba da")

MI250X = {  # node, even GCD, odd GCD, NIC: section 6
    "3": ("c0:07.1/c1", "c4:07.1/c6", "c4:01.1/c5"),
    "1": ("c8:07.1/c9", "cc:07.1/ce", "cc:01.1/cd"),
    "0": ("d0:07.1/d1", "d4:07.1/d6", "d4:01.1/d5"),
    "2": ("d8:07.1/d9", "dc:07.1/de", "dc:01.1/dd"),
}


def mi250x() -> Files:
    members = {node: range(node * 16, node * 16 + 16) for node in range(4)}
    files = cpus({0: range(64)}) | nodes(members, {node: [10 if other == node else 12 for other in range(4)]
                                                   for node in range(4)})  # fmt: skip
    for node, (even, odd, nic) in MI250X.items():
        for path, what in ((even, {**AMD, "class_": "0x038000"}), (odd, {**AMD, "class_": "0x038000"}), (nic, CASSINI)):
            files |= put(f"pci0000:{path[:2]}/{path}:00.0", what, node=int(node))
    return files


def gcp() -> Files:
    """Section 3, a4-highgpu: two GPUs and two NICs below each switch."""
    files = two_sockets()
    for group, (first, node) in enumerate(((0x8F, 0), (0x96, 0), (0xC4, 1), (0xCB, 1))):
        members: list[tuple[int, dict[str, str], str | None]] = [(first, NVIDIA, None), (first + 1, NVIDIA, None)]
        members += [(first + 2 + one, NIC, f"mlx5_{group * 2 + one}") for one in (0, 1)]
        leaf(files, first, members, node)
    return files


def p4d() -> Files:
    """Section 2: no switches; two GPUs and one EFA on each of four roots: PHB."""
    files = two_sockets()
    for index, root in enumerate(("10", "20", "90", "a0")):
        for slot, what, name in (("1b", EFA, f"rdmap{index}"), ("1c", NVIDIA, None), ("1d", NVIDIA, None)):
            files |= put(f"pci0000:{root}/{root}:{slot}.0", what, node=index // 2, verbs=name)
    return files


ONE_TO_ONE: dict[str, tuple[Callable[[], Files], tuple[str, str], str]] = {
    "DGX H100": (dgx_h100, DGX_H100, "PXB"),
    "HGX H200": (hgx, HGX, "PIX"),
    "XE9680 H200": (xe9680, XE9680, "PIX"),
    "MI300X": (mi300x, MI300X, "PIX"),
    "MI325X": (mi325x, MI325X, "PIX"),
    "MI300X IB": (mi300x_ib, MI300X_IB, "PXB"),
}


@pytest.mark.parametrize("name", ONE_TO_ONE)
def test_published_pairs(name: str) -> None:
    box, lists, word = ONE_TO_ONE[name]
    found = topology(box(), documents=routed())
    assert chosen(found) == nearest(found) == published(*lists)
    assert words(found) == {word}
    assert {one.confidence for one in pairs(found)} == {"high"}
    assert not any(one.shared or one.missing for one in pairs(found))


FIXTURES = {"dgx-h100": (DGX_H100, "PXB"), "mi300x": (MI300X, "PIX")}


@pytest.mark.parametrize("name", FIXTURES)
def test_published_pairs_of_the_fixtures(name: str) -> None:
    """The same lists, on machines that somebody else described."""
    lists, word = FIXTURES[name]
    found = build(scan(from_file(str(OUR_MACHINES / name / "machine.yaml"))))
    assert chosen(found) == nearest(found) == published(*lists)
    assert words(found) == {word}


def test_the_flat_virtual_machine_of_the_fixtures() -> None:
    found = build(scan(from_file(str(OUR_MACHINES / "flat-vm" / "machine.yaml"))))
    assert [(one.confidence, one.shared, len(one.chosen)) for one in pairs(found)] == [("low", True, 1)] * 2


def test_names_out_of_order() -> None:
    """AS-8126GS: the third GPU has bnxt_re2, the fourth bnxt_re0. By index every one would be wrong."""
    found = topology(mi325x())
    names = [place(found, str(one.chosen[0].card.ref.key)).names.rdma[0] for one in pairs(found)]
    assert names == [f"bnxt_re{number}" for number in MI325X_NAMES]


def test_mi250x() -> None:
    """The odd GCD shares its host bridge with the NIC, the even one only its node."""
    found = topology(mi250x(), documents=routed())
    want: dict[str, list[str]] = {}
    for even, odd, nic in MI250X.values():
        want |= {even[-2:]: [nic[-2:]], odd[-2:]: [nic[-2:]]}
    assert nearest(found) == chosen(found) == want
    for even, odd, _ in MI250X.values():
        assert [choice(found, gcd[-2:]).local[0].path.class_ for gcd in (even, odd)] == ["NODE", "PHB"]
    assert {one.confidence for one in pairs(found)} == {"medium"}


def test_gcp_ties() -> None:
    """A tie is a set; one to one within it is a convention, and a test accepts each."""
    found = topology(gcp())
    said, picked = nearest(found), chosen(found)
    for first in (0x8F, 0x96, 0xC4, 0xCB):
        gpus, nics = ([hexadecimal(first + one) for one in some] for some in ((0, 1), (2, 3)))
        assert [said[gpu] for gpu in gpus] == [nics, nics]
        assert sorted(picked[gpu] for gpu in gpus) == [[nic] for nic in nics]
    assert words(found) == {"PIX"}
    assert not any(one.shared for one in pairs(found))


def test_p4d_shares() -> None:
    found = topology(p4d())
    for one in pairs(found):
        assert one.shared
        assert one.confidence == "medium"
        assert one.local == one.chosen
        assert one.chosen[0].card.ref.key[5:] == f"{one.gpu.key[5:7]}:1b.0"
    assert words(found) == {"PHB"}


def test_dgx_a100() -> None:
    """nccl#1505: each GPU PXB to both NICs of its root; every NIC is one GPU's."""
    from tests.test_matrix import dgx_a100

    found = topology(dgx_a100())
    said, picked = nearest(found), chosen(found)
    for gpus, nics in (("07 0f", "0c 12"), ("47 4e", "4b 54"), ("87 90", "8d 94"), ("b7 bd", "ba cc")):
        assert [said[gpu] for gpu in gpus.split()] == [nics.split()] * 2
        assert sorted(picked[gpu] for gpu in gpus.split()) == [[nic] for nic in nics.split()]
    assert words(found) == {"PXB"}


@needs_machines
@pytest.mark.parametrize("name", ["aws-gb200", "dell-xe9680-snc2", "dgx-a100"])
def test_nearest_nics_of_recorded_machines(name: str, tree: Callable[[str], Path]) -> None:
    """expected.json: physical NICs with the best path."""
    wanted = machines.expected(name)["nearest_nics"]
    found = {one.gpu.key: one for one in pairs(discover(str(tree(name))))}
    said = {gpu: sorted(ref.key for card in found[gpu].local for ref in card.card.functions) for gpu in wanted}
    assert said == {gpu: sorted(nics) for gpu, nics in wanted.items()}


# --- roles ---------------------------------------------------------------------------------------------------


def pair_of(*more: Files) -> Files:
    """One GPU and one NIC below one switch, on a machine of two sockets."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, NIC, "mlx5_0")], 0)
    for one in more:
        files |= one
    return files


def test_a_bluefield_beside_a_connectx_is_left_out() -> None:
    (four,) = (one for one in pairs(topology(xe9680())) if short([one.gpu]) == ["9f"])
    assert [(short(card.functions), card.role) for card in four.left_out] == [(["9d"], "dpu")]


def test_a_bluefield_alone_is_used() -> None:
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, BLUEFIELD, "mlx5_0")], 0)
    assert chosen(topology(files)) == {"18": ["19"]}


def test_a_bluefield_beside_a_plain_ethernet_card_is_used() -> None:
    """Only RDMA cards that are no DPU put a DPU aside."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, BLUEFIELD, "mlx5_0"), (0x1A, NIC, None)], 0)
    assert chosen(topology(files)) == {"18": ["19"]}


def test_no_nic() -> None:
    (one,) = pairs(topology(leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0)))
    assert one.local == one.chosen == one.ranking == ()
    assert one.left_out == ()
    assert "no card" in one.reason


def test_only_the_nic_of_the_default_route() -> None:
    """Never shown as nothing: the card and its role are said."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0)
    files |= put("pci0000:30/30:01.0/31:00.0", node=0, verbs="mlx5_0", interface="eno1")
    (one,) = pairs(topology(files, documents=routed("eno1")))
    assert one.chosen == ()
    assert [(short(card.functions), card.role) for card in one.left_out] == [(["31"], "default_route")]
    assert "default_route" in one.reason
    assert chosen(topology(files, documents=routed("eno2"))) == {"18": ["31"]}


def test_the_default_route_through_a_bond() -> None:
    path = "pci0000:30/30:01.0/31:00.0"
    files = pair_of(put(path, verbs="mlx5_1", interface="eno1"))
    bond = "sys/devices/virtual/net/bond0"
    files |= {f"{bond}/uevent": "DEVTYPE=bond\nINTERFACE=bond0\n", f"{bond}/type": "1\n",
              f"{bond}/lower_eno1": Link(f"../../../{spelled(path)}/net/eno1"),
              "sys/class/net/bond0": Link("../../devices/virtual/net/bond0")}  # fmt: skip
    (one,) = pairs(topology(files, documents=routed("bond0")))
    assert [card.role for card in one.left_out] == ["default_route"]


def test_default_route_beats_a_nearer_path() -> None:
    """Role first: the NIC below the GPU's switch carries the default route, so the far one is the answer."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, NIC, "mlx5_0")], 0)
    files |= netdev("eno1", spelled("pci0000:15/15:01.0/16:00.0/17:01.0/19:00.0"))
    files |= put("pci0000:30/30:01.0/31:00.0", node=1, verbs="mlx5_1")
    found = topology(files, documents=routed("eno1"))
    assert chosen(found) == {"18": ["31"]}
    assert choice(found, "18").confidence == "low"  # SYS


def test_unknown_default_route_is_said() -> None:
    assert any("default route" in one for one in pairs(topology(pair_of()))[0].missing)


def test_operator_roles_win() -> None:
    found = topology(gcp())
    ref = pci_ref(PciAddress.parse("0000:91:00.0"))
    said = pairs(found, Resolved(roles={ref: "storage"}))
    assert {short([one.gpu])[0]: short(card.card.ref for card in one.chosen) for one in said[:2]} == {
        "8f": ["92"], "90": ["92"],
    }  # fmt: skip
    assert [(short(card.functions), card.role, card.reason) for card in said[0].left_out] == [
        (["91"], "storage", "operator")
    ]


def test_an_operator_makes_a_dpu_a_compute_card() -> None:
    found = topology(xe9680())
    said = pairs(found, Resolved(roles={pci_ref(PciAddress.parse("0000:9d:00.0")): "compute"}))
    (four,) = (one for one in said if short([one.gpu]) == ["9f"])
    assert short(card.card.ref for card in four.local) == ["9c", "9d"]


def test_an_operator_makes_an_ethernet_card_a_compute_card() -> None:
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, NIC, None)], 0)
    found = topology(files | put("pci0000:30/30:01.0/31:00.0", node=0, verbs="mlx5_0"))
    (one,) = pairs(found, Resolved(roles={pci_ref(PciAddress.parse("0000:19:00.0")): "compute"}))
    assert short(card.card.ref for card in one.chosen) == ["19"]


def test_a_nic_without_rdma_beside_those_with_it() -> None:
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, NIC, None)], 0)
    files |= put("pci0000:30/30:01.0/31:00.0", node=0, verbs="mlx5_0")
    found = topology(files)
    assert chosen(found) == {"18": ["31"]}
    assert [card.role for card in choice(found, "18").left_out] == ["ethernet"]


@pytest.mark.xfail(strict=True, reason="cards._role: only the VPD tells a NIC that manages NVLink, and it is not read")
def test_nics_that_manage_nvlink() -> None:
    """layouts.md §2, p6-b200: U67 has EFA 71 72, CX-7 IB 73 74 (NVLink management), GPU 75 76, all below one switch."""
    members: list[tuple[int, dict[str, str], str | None]] = [
        (0x71, EFA, "rdmap113s0"), (0x72, EFA, "rdmap114s0"), (0x75, NVIDIA, None), (0x76, NVIDIA, None),
    ]  # fmt: skip
    files = leaf(two_sockets(), 0x71, members, 0)
    managing = {**NIC, "class_": "0x020700"}
    for port, bus in ((0x10, "73"), (0x11, "74")):
        files |= put(f"pci0000:6e/6e:01.0/6f:00.0/70:{port:02x}.0/{bus}:00.0", managing, verbs=f"ibp{bus}")
    found = topology(files)
    assert nearest(found) == {"75": ["71", "72"], "76": ["71", "72"]}


# --- cards ---------------------------------------------------------------------------------------------------


def test_oci_dual_ports() -> None:
    """§1, OCI H100.8: NIC 0c.0 and 0c.1 are one card, PXB from GPU 0f."""
    top = "pci0000:07/07:01.0/08:00.0"
    files = two_sockets() | put(f"{top}/09:00.0/0a:00.0/0b:00.0/0c:00.0", verbs="mlx5_0", board="0200:0000:0000:0001")
    files |= put(f"{top}/09:00.0/0a:00.0/0b:00.0/0c:00.1", verbs="mlx5_1", board="0200:0000:0000:0001")
    files |= put(f"{top}/09:01.0/0d:00.0/0e:00.0/0f:00.0", NVIDIA)
    (one,) = pairs(topology(files))
    assert [short(card.card.functions) for card in one.chosen] == [["0c", "0c.1"]]
    assert one.chosen[0].path.class_ == "PXB"


def test_a_bond_of_two_ports() -> None:
    """nccl#856: mlx5_bond_0 is a device of the first function only; both ports are one card."""
    files = pair_of()
    files |= put("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.0", verbs="mlx5_bond_0", interface="a0")
    files |= put("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.1", interface="a1")
    found = topology(files)
    assert [short(card.card.functions) for card in pairs(found)[0].local] == [["19"], ["1a", "1a.1"]]
    assert "mlx5_bond_0:1" in as_environment(found, pairs(found))


def test_two_ib_ports_on_one_function() -> None:
    path = "pci0000:15/15:01.0/16:00.0/17:01.0/19:00.0"
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0) | put(path)
    files |= rdma("mlx4_0", spelled(path), ports=(1, 2), layer="InfiniBand")
    found = topology(files)
    assert chosen(found) == {"18": ["19"]}
    assert "UCX_NET_DEVICES=mlx4_0:1,mlx4_0:2" in as_environment(found, pairs(found))


def test_no_guid_joins_nothing() -> None:
    """EFA has an all-zero sys_image_guid: cards must not merge by it."""
    top = "pci0000:15/15:01.0/16:00.0"
    files = two_sockets() | put(f"{top}/17:00.0/18:00.0", NVIDIA)
    for port in (1, 2):
        path = f"{top}/17:0{port}.0/{0x18 + port:02x}:00.0"
        files |= put(path, EFA, verbs=f"rdmap{port}", board="0000:0000:0000:0000")
    assert [len(one.card.functions) for one in pairs(topology(files))[0].local] == [1, 1]


def test_one_card_in_two_domains() -> None:
    """Traps 80: multi-host on POWER9, 0003:01:00.0 and 0033:01:00.0 are one cable; each GPU has it at its socket."""
    files = two_sockets()
    for domain, node, name in (("0003", 0, "mlx5_0"), ("0033", 1, "mlx5_1")):
        files |= put(f"pci{domain}:00/00:00.0/01:00.0", node=node, verbs=name, board="0200:0000:0000:0009")
        files |= put(f"pci{domain[:3]}4:00/00:00.0/01:00.0", NVIDIA, node=node)
    found = topology(files)
    assert [one.chosen[0].path.class_ for one in pairs(found)] == ["NODE", "NODE"]
    assert [len(one.ranking) for one in pairs(found)] == [1, 1]


def test_the_near_function_of_a_card_on_two_sockets() -> None:
    """Socket Direct exists so that each socket uses its own function."""
    files = two_sockets()
    for domain, node, name in (("0003", 0, "mlx5_0"), ("0033", 1, "mlx5_1")):
        files |= put(f"pci{domain}:00/00:00.0/01:00.0", node=node, verbs=name, board="0200:0000:0000:0009")
        files |= put(f"pci{domain[:3]}4:00/00:00.0/01:00.0", NVIDIA, node=node)
    found = topology(files)
    text = as_environment(found, pairs(found))
    assert [variables(text, rank)["UCX_NET_DEVICES"] for rank in (0, 1)] == ["mlx5_0:1", "mlx5_1:1"]
    rows = as_table(found, pairs(found), 200).splitlines()[1:3]
    assert [[word for word in row.split() if word.startswith("mlx5")] for row in rows] == [["mlx5_0"], ["mlx5_1"]]
    chosen_functions = [one["chosen"] for one in as_data(pairs(found)) if isinstance(one, dict)]
    assert chosen_functions == [["pci:0003:01:00.0"], ["pci:0033:01:00.0"]]


# Traps 54 (dra-driver-nvidia-gpu#1123), pairing.md §6: a GPU and the DMA function behind a ConnectX-8's switch, the
# NIC itself on a root of the processor.
CONNECTX_SWITCH = {"16:00.0": {"vendor": "0x15b3", "device": "0x1979"}}
DMA = {"class_": "0x080100", "vendor": "0x15b3", "device": "0x2100"}


def data_direct() -> Topology:
    top = "pci0000:15/15:01.0/16:00.0"
    files = put(f"{top}/17:00.0/18:00.0", NVIDIA, ports=CONNECTX_SWITCH)
    files |= put(f"{top}/17:01.0/19:00.0", DMA, ports=CONNECTX_SWITCH)
    files |= put("pci0002:00/00:00.0/01:00.0", verbs="mlx5_0") | put("pci0000:40/40:01.0/41:00.0", NVIDIA)
    return topology(two_sockets() | files)


def test_a_data_direct_function_belongs_to_nobody_until_somebody_says_so() -> None:
    near, far = pairs(data_direct())
    assert (near.chosen[0].path.class_, near.confidence) == ("NODE", "medium")
    assert "the NIC of Data Direct function 0000:19:00.0: an overlay that names it would rank it first" in near.missing
    assert not any("Data Direct" in one for one in far.missing)


def test_the_data_goes_through_data_direct() -> None:
    nic, engine = (pci_ref(PciAddress.parse(one)) for one in ("0002:01:00.0", "0000:19:00.0"))
    near, far = pairs(data_direct(), Resolved(data_direct={nic: engine}))
    assert (near.chosen[0].path.class_, near.confidence) == ("PIX", "low")
    assert near.reason == "through Data Direct 0000:19:00.0: common switch 0000:16:00.0"
    assert near.chosen[0].nearest == (nic,)
    assert far.chosen[0].path.class_ == "NODE"
    assert not any("Data Direct" in one for one in (*near.missing, *far.missing))


def test_virtual_functions_are_never_chosen() -> None:
    """Traps 52: VFs stand right beside their PF, and would be as near."""
    files = pair_of()
    under = "pci0000:15/15:01.0/16:00.0/17:01.0"
    for number in range(1, 6):
        files |= put(f"{under}/19:00.{number}", files={"physfn": Link("../0000:19:00.0")}, verbs=f"mlx5_{number}")
    found = topology(files)
    assert place(found, "0000:19:00.3").physfn is not None
    (one,) = pairs(found)
    assert [short(card.card.functions) for card in one.ranking] == [["19"]]


def test_drives_are_paired_too() -> None:
    files = pair_of(put("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.0", NVME), put("pci0000:70/70:01.0/71:00.0", NVME))
    files |= drive("nvme0", spelled("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.0"))
    (one,) = pairs(topology(files), kind="nvme")
    assert short(card.card.ref for card in one.local) == ["1a"]
    assert one.local[0].path.class_ == "PIX"


# --- ranking -------------------------------------------------------------------------------------------------


def test_one_nic_for_four_gpus() -> None:
    files = leaf(two_sockets(), 0x18, [*((0x18 + one, NVIDIA, None) for one in range(4)), (0x1C, NIC, "mlx5_0")], 0)
    found = topology(files)
    assert chosen(found) == {gpu: ["1c"] for gpu in ("18", "19", "1a", "1b")}
    assert all(one.shared for one in pairs(found))
    assert "shared: NIC0 by GPU0 GPU1 GPU2 GPU3" in as_table(found, pairs(found), 200)


def test_class_before_bandwidth() -> None:
    """Equal path depth, class first (Mooncake#1086): a fast NIC across the sockets never wins."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0)
    files |= put(
        "pci0000:15/15:01.0/16:00.0/17:01.0/19:00.0", verbs="mlx5_0", special={"19:00.0": ("8.0 GT/s PCIe", 8)}
    )
    files |= put("pci0000:70/70:01.0/71:00.0", node=1, verbs="mlx5_1")
    (one,) = pairs(topology(files))
    assert short(card.card.ref for card in one.ranking) == ["19", "71"]
    assert one.nccl_differs is not None  # NCCL ranks bandwidth before class
    assert "0000:71:00.0" in one.nccl_differs


def test_bandwidth_within_a_class() -> None:
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0)
    for bus, width in ((0x19, 8), (0x1A, 16), (0x1B, 16)):
        path = f"pci0000:15/15:01.0/16:00.0/17:{bus & 15:02x}.0/{bus:02x}:00.0"
        files |= put(path, verbs=f"mlx5_{bus}", special={f"{bus:02x}:00.0": ("32.0 GT/s PCIe", width)})
    (one,) = pairs(topology(files))
    assert short(card.card.ref for card in one.ranking) == ["1a", "1b", "19"]
    assert short(card.card.ref for card in one.local) == ["1a", "1b"]


def test_numa_distance_where_the_class_leaves_it_open() -> None:
    """SNC: a NIC on the other half of the socket is nearer than one across it, and both are SYS."""
    near = {0: range(2), 1: range(2, 4), 2: range(4, 6), 3: range(6, 8)}
    slit = {0: (10, 12, 21, 21), 1: (12, 10, 21, 21), 2: (21, 21, 10, 12), 3: (21, 21, 12, 10)}
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes(near, slit)
    files |= put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=0)
    files |= put("pci0000:10/10:01.0/11:00.0", node=2, verbs="mlx5_0") | put(
        "pci0000:30/30:01.0/31:00.0", node=1, verbs="mlx5_1"
    )
    (one,) = pairs(topology(files))
    assert [(short([card.card.ref])[0], card.path.class_, card.distance) for card in one.ranking] == [
        ("31", "SYS", 12), ("11", "SYS", 21),
    ]  # fmt: skip
    assert [card.card.ref.key[5:7] for card in one.chosen] == ["31"]


def test_an_unknown_distance_never_wins() -> None:
    near = {0: range(2), 1: range(2, 4), 2: range(4, 6), 3: range(6, 8)}
    slit = {node: [10 if other == node else 21 for other in range(4)] for node in range(4)}
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes(near, slit)
    files |= put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=0)
    files |= put("pci0000:30/30:01.0/31:00.0", node=-1, verbs="mlx5_0")
    files |= put("pci0000:40/40:01.0/41:00.0", node=1, verbs="mlx5_1")
    (one,) = pairs(topology(files))
    assert {card.path.class_ for card in one.ranking} == {"SYS"}
    assert "41" in short(card.card.ref for card in one.local)
    assert "the NUMA node of 1 card" in one.missing


def test_what_is_not_known_of_all_is_no_reason() -> None:
    """One link that does not tell leaves bandwidth out: the two are a tie."""
    files = pair_of()
    files |= grown("pci0000:15/15:01.0/16:00.0/17:01.0/19:00.0", numa_node="0\n")
    files = {name: said for name, said in files.items() if not re.search(r"(19:00.0|17:01.0)/max_link", name)}
    files |= put("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.0", verbs="mlx5_1", special={"1a:00.0": ("2.5 GT/s", 1)})
    (one,) = pairs(topology(files))
    assert short(card.card.ref for card in one.local) == ["19", "1a"]


def test_unknown_numa_node_is_low_confidence() -> None:
    files = two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=-1)
    files |= put("pci0000:30/30:01.0/31:00.0", node=0, verbs="mlx5_0")
    (one,) = pairs(topology(files))
    assert (one.confidence, one.local[0].path.class_, one.local[0].path.certain) == ("low", "SYS", False)
    assert any("0000:21:00.0" in said for said in one.missing)


def test_three_nics_for_two_gpus() -> None:
    """koordinator#2646: one root holds three NICs; each GPU gets one of its own."""
    members: list[tuple[int, dict[str, str], str | None]] = [(0x18, NVIDIA, None), (0x19, NVIDIA, None)]
    members += [(0x1A + one, NIC, f"mlx5_{one}") for one in range(3)]
    found = topology(leaf(two_sockets(), 0x18, members, 0))
    picked = chosen(found)
    assert len(picked["18"]) == len(picked["19"]) == 1
    assert picked["18"] != picked["19"]


def test_each_switch_for_itself() -> None:
    """A switch with more NICs than GPUs does not stand in for one with fewer."""
    files = two_sockets()
    for first, count in ((0x18, 3), (0x38, 1)):
        members: list[tuple[int, dict[str, str], str | None]] = [(first, NVIDIA, None), (first + 1, NVIDIA, None)]
        members += [(first + 2 + one, NIC, f"mlx5_{first + one}") for one in range(count)]
        leaf(files, first, members, 0)
    found = topology(files)
    assert {gpu: len(nics) for gpu, nics in chosen(found).items()} == {"18": 1, "19": 1, "38": 1, "39": 1}
    assert [one.shared for one in pairs(found)] == [False, False, True, True]


def test_four_nics_for_two_gpus() -> None:
    members: list[tuple[int, dict[str, str], str | None]] = [(0x18, NVIDIA, None), (0x19, NVIDIA, None)]
    members += [(0x1A + one, NIC, f"mlx5_{one}") for one in range(4)]
    picked = chosen(topology(leaf(two_sockets(), 0x18, members, 0)))
    assert sorted(picked["18"] + picked["19"]) == ["1a", "1b", "1c", "1d"]
    assert len(picked["18"]) == 2


def test_nobody_is_left_without() -> None:
    """GPU 18 is happy with either NIC, GPU 19 (a faster link) only with the first: both get one."""
    top = "pci0000:15/15:01.0/16:00.0"
    slow = ("16.0 GT/s PCIe", 16)
    files = two_sockets() | put(f"{top}/17:00.0/18:00.0", NVIDIA, special={"18:00.0": slow})
    files |= put(f"{top}/17:01.0/19:00.0", NVIDIA) | put(f"{top}/17:02.0/1a:00.0", verbs="mlx5_0")
    files |= put(f"{top}/17:03.0/1b:00.0", verbs="mlx5_1", special={"1b:00.0": slow})
    found = topology(files)
    assert nearest(found) == {"18": ["1a", "1b"], "19": ["1a"]}
    assert chosen(found) == {"18": ["1b"], "19": ["1a"]}


def test_nccl_has_no_node() -> None:
    """pairing.md §1 and §10.2: NCCL's set of {PHB, NODE} is both, ours the nearer; the difference is said."""
    files = (
        two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA) | put("pci0000:20/20:03.0/22:00.0", verbs="mlx5_0")
    )
    files |= put("pci0000:30/30:01.0/31:00.0", verbs="mlx5_1")
    (one,) = pairs(topology(files))
    assert [card.path.nccl_class for card in one.ranking] == ["PHB", "PHB"]
    assert short(card.card.ref for card in one.local) == ["22"]
    assert one.nccl_differs is not None
    assert "0000:31:00.0" in one.nccl_differs


def test_nccl_agrees_where_it_does() -> None:
    assert {one.nccl_differs for one in pairs(topology(dgx_h100()))} == {None}


def test_a_flat_virtual_machine_is_not_sure() -> None:
    files = two_sockets() | {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\n"}
    for slot, what, name in (("05", NVIDIA, None), ("06", NVIDIA, None), ("07", NIC, "mlx5_0")):
        files |= put(f"pci0000:00/00:{slot}.0", what, verbs=name)
    assert [(one.confidence, one.local[0].path.certain) for one in pairs(topology(files))] == [("low", False)] * 2


# --- a port that is down -------------------------------------------------------------------------------------


def with_port_down() -> Files:
    path = spelled("pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0")
    return dgx_h100() | {f"sys/devices/{path}/infiniband/mlx5_0/{name}": said for name, said in DOWN.items()}


def test_a_port_that_is_down_is_marked_and_not_ranked_lower() -> None:
    down, up = topology(with_port_down()), topology(dgx_h100())
    assert as_data(pairs(down)) == as_data(pairs(up))
    assert "down now: NIC0 mlx5_0" in as_table(down, pairs(down), 200)
    assert "down now" not in as_table(up, pairs(up), 200)


def test_a_port_that_is_down_is_not_in_the_environment_and_that_is_said() -> None:
    found = topology(with_port_down())
    text = as_environment(found, pairs(found))
    assert "mlx5_0:1" not in text
    assert any(line.startswith("#") and "down" in line and "mlx5_0" in line for line in text.splitlines())
    assert "UCX_NET_DEVICES" not in variables(text, 0)
    assert variables(text, 1)["UCX_NET_DEVICES"] == "mlx5_3:1"


# --- env -----------------------------------------------------------------------------------------------------


def shell(text: str, *words: str, **env: str) -> str:
    sh = shutil.which("sh")
    assert sh
    done = subprocess.run([sh, *words], input=text, env=env, capture_output=True, text=True, check=True, timeout=20)
    assert done.stderr == ""
    return done.stdout


def variables(text: str, rank: int, name: str = "LOCAL_RANK") -> dict[str, str]:
    """What a shell has exported after reading the text."""
    printed = shell(f"{text}\nexport -p\n", **{name: str(rank)})
    lines = [re.fullmatch(r"export (?P<name>[A-Z_]+)=(['\"])(?P<value>.*)\2", line) for line in printed.splitlines()]
    return {line["name"]: line["value"] for line in lines if line}


@pytest.mark.parametrize("box", [dgx_h100, with_port_down, gcp, mi325x, mi250x, p4d])
def test_the_environment_is_valid_shell(box: Callable[[], Files]) -> None:
    found = topology(box())
    shell(as_environment(found, pairs(found)), "-n")


def test_the_environment_of_a_machine_without_nics_is_valid_shell() -> None:
    found = topology(leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None)], 0))
    text = as_environment(found, pairs(found))
    assert not {"NCCL_IB_HCA", "UCX_NET_DEVICES"} & variables(text, 0).keys()
    assert "GPU0" in text


@pytest.mark.parametrize("rank_name", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_each_rank_gets_the_ports_of_its_gpu(rank_name: str) -> None:
    found = topology(dgx_h100())
    text = as_environment(found, pairs(found))
    names = [f"mlx5_{number}:1" for number in (0, 3, 4, 5, 6, 9, 10, 11)]  # layouts.md §1
    for rank, name in enumerate(names):
        said = variables(text, rank, rank_name)
        assert said["UCX_NET_DEVICES"] == said["NVSHMEM_HCA_LIST"] == name
        # NCCL env.rst: `=` in front makes names exact; all ranks see all compute NICs, storage cards are none
        assert said["NCCL_IB_HCA"] == "=" + ",".join(names)


def test_nvshmem_reads_its_list() -> None:
    """NVSHMEM env_defs: "NVSHMEM_ENABLE_NIC_PE_MAPPING must be set to 1 for this variable to be effective"."""
    found = topology(dgx_h100())
    assert variables(as_environment(found, pairs(found)), 0)["NVSHMEM_ENABLE_NIC_PE_MAPPING"] == "1"


def test_no_rank_sets_nothing_of_a_rank() -> None:
    found = topology(dgx_h100())
    text = as_environment(found, pairs(found))
    assert "UCX_NET_DEVICES" not in shell(f"{text}\nexport -p\n")
    assert "UCX_NET_DEVICES" not in variables(text, 8)


@pytest.mark.parametrize(
    "name",
    ["mlx5_0;echo owned", "mlx5_0$(echo owned >&2)", "x';echo owned;'", "mlx5 0"],
)  # fmt: skip
def test_a_name_is_never_a_command(name: str) -> None:
    """A recording is a stranger's text, and `eval "$(topo-agent pairs -f env --from …)"` runs it."""
    files = leaf(two_sockets(), 0x18, [(0x18, NVIDIA, None), (0x19, NIC, name)], 0)
    found = topology(files)
    assert place(found, "0000:19:00.0").names.rdma == (name,)
    text = as_environment(found, pairs(found))
    assert shell(text, LOCAL_RANK="0") == ""
    assert variables(text, 0).get("UCX_NET_DEVICES") in (f"{name}:1", None)


# --- for programs --------------------------------------------------------------------------------------------

KEYS = {
    "gpu", "chosen", "local", "shared", "confidence", "reason", "missing", "ranking", "left_out", "class",
    "bytes_per_second", "nccl_differs",
}  # fmt: skip


@pytest.mark.parametrize("box", [dgx_h100, mi250x, xe9680, p4d])
def test_json_of_every_machine_has_the_same_keys(box: Callable[[], Files]) -> None:
    said = json.loads(json.dumps(as_data(pairs(topology(box())))))
    for one in said:
        assert one.keys() <= KEYS
        assert KEYS - one.keys() <= {"class", "bytes_per_second", "nccl_differs"}
        assert set(one["chosen"]) <= set(one["local"]) <= {ref for card in one["ranking"] for ref in card["functions"]}
        assert one["confidence"] in ("high", "medium", "low", "operator")
        assert all(re.fullmatch(r"pci:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", ref) for ref in one["chosen"])
        for card in one["ranking"]:
            assert {"functions", "class", "nccl_class", "certain", "bridges", "reason"} <= card.keys()
            assert card["class"] in ("PIX", "PXB", "PHB", "NODE", "SYS")


# --- the operator's pairs ------------------------------------------------------------------------------------


def test_forced_pairs() -> None:
    found = topology(gcp())
    gpu, nic = (pci_ref(PciAddress.parse(f"0000:{bus}:00.0")) for bus in ("8f", "cd"))
    (one,) = (one for one in pairs(found, Resolved(pairs={gpu: (nic,)})) if one.gpu == gpu)
    assert (short(card.card.ref for card in one.chosen), one.confidence) == (["cd"], "operator")
    assert short(card.card.ref for card in one.local) == ["91", "92"]  # what the machine says stays visible


def test_a_forced_pair_of_a_card_with_another_role() -> None:
    """The operator's word wins: a BlueField that is named is taken."""
    found = topology(xe9680())
    gpu, nic = (pci_ref(PciAddress.parse(f"0000:{bus}:00.0")) for bus in ("9f", "9d"))
    (one,) = (one for one in pairs(found, Resolved(pairs={gpu: (nic,)})) if one.gpu == gpu)
    assert short(card.card.ref for card in one.chosen) == ["9d"]


def test_a_forced_nic_says_nothing_of_drives() -> None:
    files = pair_of(put("pci0000:15/15:01.0/16:00.0/17:02.0/1a:00.0", NVME))
    gpu, nic = (pci_ref(PciAddress.parse(f"0000:{bus}:00.0")) for bus in ("18", "19"))
    (one,) = pairs(topology(files), Resolved(pairs={gpu: (nic,)}), kind="nvme")
    assert short(card.card.ref for card in one.chosen) == ["1a"]


# --- the answer is of the wiring, and of nothing else --------------------------------------------------------


class Shuffled(PaperHost):
    """A kernel that lists directories in another order each time."""

    random = random.Random(0)  # noqa: S311 the same each time

    def names(self, path: str) -> list[str]:
        names = super().names(path)
        self.random.shuffle(names)
        return names


ANY_BOX = st.sampled_from([dgx_h100, hgx, gcp, mi325x, xe9680, p4d])


@settings(max_examples=25, deadline=None)
@given(box=ANY_BOX, seed=st.integers(0, 2**32))
def test_order_of_directories(box: Callable[[], Files], seed: int) -> None:
    files = list(box().items())
    dice = random.Random(seed)  # noqa: S311 the same each time
    dice.shuffle(files)
    host = Shuffled(dict(files), source=Source(kind="recording", complete=True))
    host.random = dice
    assert chosen(build(scan(host))) == chosen(topology(box()))


@settings(max_examples=25, deadline=None)
@given(names=st.permutations([f"mlx5_{number}" for number in range(12)]))
def test_renaming(names: list[str]) -> None:
    found = topology(dgx_h100(names))
    assert chosen(found) == published(*DGX_H100)
    assert [place(found, one.gpu.key).ref for one in pairs(found)] == [one.gpu for one in pairs(topology(dgx_h100()))]


_BUS = re.compile(r"0000:([0-9a-f]{2})(?=[:/]|$)", re.MULTILINE)


def renumbered(files: Files, buses: dict[str, str]) -> Files:
    def text(said: str) -> str:
        return _BUS.sub(lambda match: f"0000:{buses[match[1]]}", said)

    return {
        text(name): Link(text(said.target)) if isinstance(said, Link) else text(said) if isinstance(said, str) else said
        for name, said in files.items()
    }


@settings(max_examples=25, deadline=None)
@given(box=ANY_BOX, data=st.data())
def test_order_preserving_renumbering(box: Callable[[], Files], data: st.DataObject) -> None:
    files = box()
    used = sorted({bus for name in files for bus in _BUS.findall(name)})
    fresh = sorted(data.draw(st.sets(st.integers(0, 255), min_size=len(used), max_size=len(used))))
    buses = dict(zip(used, map(hexadecimal, fresh), strict=True))
    want = {
        f"{buses[gpu[:2]]}{gpu[2:]}": [f"{buses[nic[:2]]}{nic[2:]}" for nic in nics]
        for gpu, nics in chosen(topology(files)).items()
    }
    assert chosen(topology(renumbered(files, buses))) == want


def test_state_is_no_reason() -> None:
    """An idle GPU trains its link down: nothing about its pairs changes."""
    inventory = scan(PaperHost(gcp(), source=Source(kind="recording", complete=True)))
    quiet = replace(inventory, links_now=(), netdevs_now=(), rdma_now=())
    assert as_data(pairs(build(quiet))) == as_data(pairs(build(inventory)))
