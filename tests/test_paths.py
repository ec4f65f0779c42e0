"""How far apart two devices are: every rule of pairing.md sections 3-8 on a small tree, and the machines it names."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paper import (
    AMD,
    DEVICES,
    NIC,
    NVIDIA,
    NVME,
    Files,
    answers,
    between,
    cpus,
    function,
    grown,
    link_files,
    machine,
    nodes,
    nvlink,
    nvml,
    place,
    topology,
    two_sockets,
)
from topo_agent.graph.build import build
from topo_agent.graph.paths import Path, Paths, all_pairs
from topo_agent.graph.topology import Topology
from topo_agent.host.paper import Link, PaperHost
from topo_agent.scan import scan

VIRTUAL: Files = {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu hypervisor\n"}


def address(path: str) -> str:
    """The last function of a path as `grown` understands it."""
    last = path.rpartition("/")[2]
    roots = [part[3:].partition(":")[0] for part in path.split("/") if part.startswith("pci")]
    return last if last.count(":") == 2 else f"{roots[-1]}:{last}"


def path(
    one: str, other: str, more: Files | None = None, *, a: dict[str, str] = NVIDIA, b: dict[str, str] = NIC
) -> Path:
    vmd = {"6f:00.5": {"class_": "0x010400", "vendor": "0x8086", "device": "0x28c0"}}
    files = grown(one, a, numa_node="0\n", ports=vmd) | grown(other, b, numa_node="0\n", ports=vmd) | (more or {})
    return between(topology(two_sockets() | files), address(one), address(other))


DGX = "pci0000:00/00:01.1/01:00.0"
DGX_GPU07 = f"{DGX}/02:00.0/03:00.0/04:00.0/05:00.0/06:00.0/07:00.0"
DGX_GPU0F = f"{DGX}/02:04.0/0a:00.0/0b:10.0/0d:00.0/0e:00.0/0f:00.0"
DGX_NIC0C = f"{DGX}/02:04.0/0a:00.0/0b:00.0/0c:00.0"
DGX_NIC12 = f"{DGX}/02:08.0/10:00.0/11:10.0/12:00.0"
DGX_NVME09 = f"{DGX}/02:00.0/03:00.0/04:14.0/09:00.0"
VMD = "pci0000:6f/6f:00.5/pci10001:80"
SWITCH = "pci0000:15/15:01.0/16:00.0"


@pytest.mark.parametrize(
    ("one", "other", "word", "nccl"),
    [
        pytest.param(f"{SWITCH}/17:01.0/18:00.0", f"{SWITCH}/17:03.0/1d:00.0", "PIX", "PIX", id="siblings"),
        pytest.param(
            f"{SWITCH}/17:01.0/18:00.0/19:00.0/1a:00.0",
            f"{SWITCH}/17:03.0/20:00.0/21:00.0/22:00.0",
            "PXB",
            "PXB",
            id="two leaf switches below one root switch",
        ),
        pytest.param(
            f"{SWITCH}/17:01.0/18:00.0/19:00.0/1a:00.0", f"{SWITCH}/17:03.0/20:00.0", "PXB", "PXB", id="leaf and root"
        ),
        pytest.param(f"{SWITCH}/17:01.0/18:00.0", "pci0000:15/15:01.0/16:00.1", "PXB", "PHB", id="beside a switch"),
        pytest.param(DGX_GPU07, DGX_NIC0C, "PXB", "PXB", id="DGX A100 07-0c"),
        pytest.param(DGX_GPU07, DGX_NIC12, "PXB", "PXB", id="DGX A100 07-12"),
        pytest.param(DGX_GPU0F, DGX_NIC0C, "PXB", "PXB", id="DGX A100 0f-0c"),
        pytest.param(DGX_NIC0C, DGX_NIC12, "PXB", "PXB", id="DGX A100 0c-12"),
        pytest.param(DGX_GPU07, DGX_NVME09, "PXB", "PXB", id="DGX A100 07-09"),
        pytest.param("pci0000:10/10:1c.0", "pci0000:10/10:1b.0", "PHB", "PHB", id="p4d (traps 38)"),
        pytest.param("pci0000:c0/c0:01.1/c1:00.0", "pci0000:c0/c0:03.1/c3:00.0", "PHB", "PHB", id="Perlmutter"),
        pytest.param("pci0000:c4/c4:07.1/c6:00.0", "pci0000:c4/c4:01.1/c5:00.0", "PHB", "PHB", id="MI250X, odd"),
        pytest.param("pci0000:c0/c0:07.1/c1:00.0", "pci0000:c4/c4:01.1/c5:00.0", "NODE", "PHB", id="MI250X, even"),
        pytest.param("pci0000:16/16:01.0/17:00.0", "pci0000:16/16:01.0/17:00.1", "PIX", "PIX", id="one card"),
        pytest.param("pci0000:16/16:01.0", "pci0000:16/16:01.1", "PIX", "PIX", id="one card on a root bus"),
        pytest.param(f"{VMD}/80:01.0/81:00.0", f"{VMD}/80:07.0/84:00.0", "PHB", "PHB", id="VMD, inner bus"),
        pytest.param(f"{VMD}/80:01.0/81:00.0", "pci0000:6f/6f:01.0/70:00.0", "PHB", "PHB", id="VMD and outer bus"),
        pytest.param(
            f"{VMD}/80:01.0/81:00.0/82:01.0/83:00.0", f"{VMD}/80:01.0/81:00.0/82:02.0/84:00.0", "PIX", "PIX",
            id="VMD, a switch below it",
        ),
        pytest.param(
            "pci0000:24/24:00.0/25:00.0/26:00.0/27:00.0",
            "pci0000:24/24:00.0/25:00.0/26:00.2/29:00.0",
            "PIX",
            "PIX",
            id="AWS p6e, ports are functions (traps 37)",
        ),
        pytest.param("pci0008:00/00:00.0/01:00.0", "pci0000:00/00:00.0/03:00.0", "NODE", "PHB", id="GB200 (traps 40)"),
        pytest.param("pci0000:00/00:01.0/01:00.0", "pci0001:00/00:01.0/01:00.0", "NODE", "PHB", id="two domains"),
    ],
)  # fmt: skip
def test_words(one: str, other: str, word: str, nccl: str) -> None:
    found = path(one, other)
    assert (found.class_, found.nccl_class, found.certain) == (word, nccl, True)


def ids(vendor: str, device: str) -> dict[str, str]:
    return {"vendor": f"0x{vendor}", "device": f"0x{device}"}


AMD_BRIDGES = [
    pytest.param(("1022", "1500"), ("1002", "1501"), {**AMD}, id="MI300X"),
    pytest.param(("1022", "1470"), ("1022", "1471"), {**AMD, "class_": "0x038000", "device": "0x6860"}, id="MI25"),
    pytest.param(("1002", "14a0"), ("1002", "14a1"), {**AMD, "class_": "0x038000", "device": "0x66a1"}, id="MI50"),
]
GPU_PATH, NIC_PATH = f"{SWITCH}/17:01.0/19:00.0/1a:00.0/1b:00.0", f"{SWITCH}/17:03.0/1d:00.0"


def behind(upper: tuple[str, str], lower: tuple[str, str], gpu: dict[str, str]) -> Files:
    return grown(GPU_PATH, gpu, ports={"19:00.0": ids(*upper), "1a:00.0": ids(*lower)}, numa_node="0\n")


def mi300x() -> Files:
    return behind(("1022", "1500"), ("1002", "1501"), AMD)


@pytest.mark.parametrize(("upper", "lower", "gpu"), AMD_BRIDGES)
def test_bridges_inside_an_amd_gpu(upper: tuple[str, str], lower: tuple[str, str], gpu: dict[str, str]) -> None:
    """pairing.md, section 5, traps 43, 44: ours PIX, NCCL does not collapse them."""
    found = topology(two_sockets() | behind(upper, lower, gpu) | grown(NIC_PATH, numa_node="0\n"))
    one = between(found, "0000:1b:00.0", "0000:1d:00.0")
    assert (one.class_, one.nccl_class) == ("PIX", "PXB")


def word(more: Files, one: str = "0000:1b:00.0", other: str = "0000:1d:00.0") -> str:
    return between(topology(two_sockets() | mi300x() | grown(NIC_PATH) | more), one, other).class_


INSIDE = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0"


def test_a_virtual_function_of_the_gpu_is_its_own() -> None:
    """Traps 52: VF 1b:02.0 of 1b:00.0, and the audio function of older ones."""
    vf = function("0000:1b:02.0", under=INSIDE, files={"physfn": Link("../0000:1b:00.0")}, **AMD)
    audio = function("0000:1b:00.1", under=INSIDE, class_="0x040300", vendor="0x1002", device="0xab38")
    assert word(vf | audio) == "PIX"
    assert word(vf | audio, "0000:1b:02.0") == "PIX"


def test_a_virtual_function_on_the_next_bus() -> None:
    """pairing.md, section 6: VF addresses "may spill to the next bus"; `physfn` tells whose they are."""
    assert word(function("0000:1c:00.0", under=INSIDE, files={"physfn": Link("../0000:1b:00.0")}, **AMD)) == "PIX"


def test_a_second_port_inside_is_a_switch() -> None:
    """pairing.md, section 5: internal is a pair "with exactly one downstream bus"."""
    more = grown(f"{SWITCH}/17:01.0/19:00.0/1a:01.0/1c:00.0", ports={"19:00.0": ids("1022", "1500")})
    assert word(more) == "PXB"


def test_another_device_beside_the_gpu() -> None:
    """pairing.md, section 5: "holding only functions of one AMD GPU"."""
    assert word(function("0000:1b:01.0", under=INSIDE)) == "PXB"


def test_bridges_of_others_stay() -> None:
    """A GPU of NVIDIA behind a switch of AMD, and a GPU of AMD behind a switch of Broadcom."""
    for ports, gpu in (("1022", NVIDIA), ("1000", AMD)):
        files = behind((ports, "1500"), (ports, "1501"), gpu) | grown(NIC_PATH)
        assert between(topology(two_sockets() | files), "0000:1b:00.0", "0000:1d:00.0").class_ == "PXB"


def test_no_bridges_inside() -> None:
    """Traps 44: MI250X and MI300A are right below the root port, whose vendor is AMD too."""
    ports = {"c4:07.1": ids("1022", "14ab"), "c4:01.1": ids("1022", "14ab")}
    files = grown("pci0000:c4/c4:07.1/c6:00.0", AMD, ports=ports) | grown("pci0000:c4/c4:01.1/c5:00.0", ports=ports)
    assert between(topology(two_sockets() | files), "0000:c6:00.0", "0000:c5:00.0").class_ == "PHB"


def test_behind_a_second_switch() -> None:
    """layouts.md, section 6: MI300X, Intel, IB: PXB even after collapsing (rccl topo_8p_940.xml)."""
    gpu = "pci0000:04/04:01.0/05:00.0/06:00.0/08:00.0/09:00.0/0a:00.0/0b:00.0/0c:00.0"
    files = grown(gpu, AMD, ports={"0a:00.0": ids("1022", "1500"), "0b:00.0": ids("1002", "1501")})
    files |= grown("pci0000:04/04:01.0/05:00.0/06:02.0/07:00.0")
    assert between(topology(two_sockets() | files), "0000:0c:00.0", "0000:07:00.0").class_ == "PXB"


@pytest.mark.parametrize(
    ("parent", "child", "nccl"),
    [
        (("c030", "1000", "0072"), ("c030", "1000", "1003"), "PIX"),  # layouts.md, section 2: OCI H100
        (("c010", "1000", "a024"), ("c010", "1000", "a032"), "PIX"),
        (("c030", "1028", "224b"), ("c030", "1028", "224b"), "PXB"),  # pairing.md, section 7: Dell
        (("c030", "1000", "1003"), ("c030", "1000", "0072"), "PXB"),  # the wrong way round
        (("c010", "1000", "a024"), ("c030", "1000", "1003"), "PXB"),
    ],
)
def test_nccl_flattens_two_levels_of_broadcom(parent: tuple[str, ...], child: tuple[str, ...], nccl: str) -> None:
    """NCCL src/graph/topo.cc ncclTopoFlattenBcmSwitches. Our own word stays PXB."""

    def port(part: tuple[str, ...]) -> Files:
        return {"subsystem_vendor": f"0x{part[1]}\n", "subsystem_device": f"0x{part[2]}\n"}

    root = "pci0000:07/07:01.0/08:00.0"
    which = {"08:00.0": ids("1000", parent[0]), "0d:00.0": ids("1000", child[0]), "0a:00.0": ids("1000", child[0])}
    subsystem = {"08:00.0": port(parent), "0d:00.0": port(child), "0a:00.0": port(child)}
    files = grown(f"{root}/09:00.0/0d:00.0/0e:00.0/0f:00.0", NVIDIA, ports=which, links=subsystem)
    files |= grown(f"{root}/09:04.0/0a:00.0/0b:00.0/0c:00.0", ports=which, links=subsystem)
    found = between(topology(two_sockets() | files), "0000:0f:00.0", "0000:0c:00.0")
    assert (found.class_, found.nccl_class) == ("PXB", nccl)


# --- different host bridges: section 4 ---


def apart(one: str, other: str, more: Files | None = None) -> Path:
    """Two devices below two host bridges with these numa_node files."""
    files = two_sockets() if more is None else more
    files |= grown("pci0000:16/16:01.0/17:00.0", NVIDIA, numa_node=f"{one}\n")
    files |= grown("pci0000:96/96:01.0/97:00.0", numa_node=f"{other}\n")
    return between(topology(files), "0000:17:00.0", "0000:97:00.0")


def test_numa_nodes_known() -> None:
    assert [(found.class_, found.certain) for found in (apart("0", "0"), apart("0", "1"))] == [
        ("NODE", True),
        ("SYS", True),
    ]


@pytest.mark.parametrize(("one", "other"), [("-1", "0"), ("0", "-1"), ("-1", "-1")])
def test_a_numa_node_unknown(one: str, other: str) -> None:
    """SYS, not certain, with the reason: -1 never becomes 0."""
    found = apart(one, other)
    assert (found.class_, found.certain) == ("SYS", False)
    assert "unknown" in found.reason
    assert "firmware_silent" in found.reason


def test_the_only_node_is_assumed() -> None:
    """Traps 61: DGX Spark, one node and numa_node -1: NODE, assumed."""
    one_node = cpus({0: range(4)}) | nodes({0: range(4)})
    found = apart("-1", "-1", one_node)
    assert (found.class_, found.certain) == ("NODE", False)
    assert "assumed" in found.reason
    assert apart("0", "0", one_node).certain


def test_nodes_of_one_package() -> None:
    """Traps 22: SNC. SYS, and the package is noted."""
    snc = cpus({0: range(8), 1: range(8, 16)}) | nodes({0: range(4), 1: range(4, 8), 2: range(8, 12), 3: range(12, 16)})
    near, far = apart("0", "1", dict(snc)), apart("1", "2", dict(snc))
    assert (near.class_, far.class_) == ("SYS", "SYS")
    assert "one package" in near.reason
    assert "package" not in far.reason


def test_a_memory_node_stands_for_its_processor() -> None:
    """pairing.md, section 4: a node without CPUs is mapped to the nearest with CPUs."""
    hbm = cpus({0: range(4), 1: range(4, 8)})
    hbm |= nodes({0: range(4), 1: range(4, 8), 2: ()}, {0: (10, 21, 13), 1: (21, 10, 23), 2: (13, 23, 10)})
    assert (apart("2", "0", dict(hbm)).class_, apart("2", "1", dict(hbm)).class_) == ("NODE", "SYS")


def flat(count: int, *, virtual: bool, under: str = "pci0000:00") -> Topology:
    files = two_sockets() | (VIRTUAL if virtual else {})
    for number in range(count):
        files |= grown(f"{under}/00:{number + 4:02x}.0", NVIDIA, numa_node="0\n")
    return topology(files)


def test_a_flat_virtual_machine() -> None:
    """pairing.md, section 7, traps 55: nothing is known of the real switches."""
    found = between(flat(2, virtual=True), "0000:00:04.0", "0000:00:05.0")
    assert (found.class_, found.certain) == ("PHB", False)
    assert "virtual machine" in found.reason
    assert between(flat(2, virtual=False), "0000:00:04.0", "0000:00:05.0").certain


def test_a_virtual_machine_with_switches() -> None:
    """Traps 55: QEMU with emulated 104c:8232 keeps true PIX pairs."""
    files = grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA) | grown(f"{SWITCH}/17:03.0/1d:00.0")
    found = between(topology(two_sockets() | VIRTUAL | files), "0000:18:00.0", "0000:1d:00.0")
    assert (found.class_, found.certain) == ("PIX", True)


def test_a_virtual_machine_with_a_root_for_each_device() -> None:
    """layouts.md, section 4: Azure ND A100 v4, "pairs of a node are NODE, `uncertain`"."""
    files = two_sockets() | VIRTUAL
    for domain, what in (("0003", NVIDIA), ("0004", NVIDIA), ("0101", NIC)):
        files |= grown(f"pci{domain}:00/00:00.0", what, numa_node="0\n")
    found = between(topology(files), "0003:00:00.0", "0101:00:00.0")
    assert (found.class_, found.certain) == ("NODE", False)


def test_one_card_in_a_tree_of_plain_directories() -> None:
    """pairing.md, section 3: rule 1 comes first; traps 30: plain directories, the parent is unknown."""
    files = two_sockets()
    for number in (0, 1):
        files |= {
            f"{DEVICES}/0000:17:00.{number}/class": "0x020000\n",
            f"{DEVICES}/0000:17:00.{number}/numa_node": "0\n",
        }
    assert between(topology(files), "0000:17:00.0", "0000:17:00.1").class_ == "PIX"


def test_devices_whose_parents_are_unknown() -> None:
    """pairing.md, section 2: "Entries may be plain directories: then the parent is unknown, not root"."""
    files = two_sockets()
    for bus in ("17", "18"):
        files |= {f"{DEVICES}/0000:{bus}:00.0/class": "0x020000\n", f"{DEVICES}/0000:{bus}:00.0/numa_node": "0\n"}
    assert not between(topology(files), "0000:17:00.0", "0000:18:00.0").certain


def test_bridges_that_are_not_recorded() -> None:
    """Two devices of one switch whose ports nobody recorded: `parent` is unknown (bus.py), and so is the class."""
    files = two_sockets()
    for port, bus in (("17:01.0", "18"), ("17:03.0", "1d")):
        files |= function(
            f"0000:{bus}:00.0", under=f"pci0000:15/0000:15:01.0/0000:16:00.0/0000:{port}", numa_node="0\n"
        )
    found = between(topology(files), "0000:18:00.0", "0000:1d:00.0")
    assert found.class_ == "PIX" or not found.certain


# --- virtual functions ---


def test_a_virtual_function_is_as_near_as_its_card() -> None:
    vf = grown(f"{SWITCH}/17:03.0/1d:01.0", files={"physfn": Link("../0000:1d:00.0")}, numa_node="0\n")
    files = two_sockets() | grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA) | grown(NIC_PATH) | vf
    found = topology(files)
    assert between(found, "0000:18:00.0", "0000:1d:01.0").class_ == "PIX"
    assert between(found, "0000:1d:00.0", "0000:1d:01.0").class_ == "PIX"
    assert {str(end) for one in all_pairs(found) for end in (one.a, one.b)} == {"pci:0000:18:00.0", "pci:0000:1d:00.0"}


def test_a_virtual_function_has_the_link_of_its_card() -> None:
    """pairing.md, section 6: "class and link facts are the PF's"; traps 69: the VF's own files say Unknown and 0."""
    unknown: Files = {"max_link_speed": "Unknown\n", "max_link_width": "0\n", "physfn": Link("../0000:17:00.0")}
    files = two_sockets() | grown(
        "pci0000:16/16:01.0/17:00.0", links={"17:00.0": link_files(width=8), "16:01.0": link_files()}
    )
    files |= grown("pci0000:16/16:01.0/17:00.2", files=unknown, links={"16:01.0": link_files()})
    files |= grown("pci0000:16/16:03.0/18:00.0", NVIDIA, links={"18:00.0": link_files(), "16:03.0": link_files()})
    found = topology(files)
    card, vf = (between(found, one, "0000:18:00.0").bytes_per_second for one in ("0000:17:00.0", "0000:17:00.2"))
    assert card is not None
    assert vf == card


def test_a_virtual_function_is_where_its_card_is() -> None:
    files = two_sockets() | grown("pci0000:16/17:00.0", numa_node="0\n")
    files |= function("0000:17:00.2", under="pci0000:16", numa_node="-1\n", files={"physfn": Link("../0000:17:00.0")})
    files |= grown("pci0000:96/97:00.0", NVIDIA, numa_node="0\n")
    assert between(topology(files), "0000:17:00.2", "0000:97:00.0").class_ == "NODE"


# --- NVLink ---


def test_nvlink_goes_before_pci() -> None:
    one, other = f"{SWITCH}/17:01.0/18:00.0", f"{SWITCH}/17:03.0/1d:00.0"
    files = two_sockets() | grown(one, NVIDIA) | grown(other, NVIDIA)
    ends = ("0000:18:00.0", "0000:1d:00.0")

    def found(state: int) -> Path:
        gpus = [answers(here, place_, [nvlink(n, there, 0, state) for n in range(6)])
                for place_, (here, there) in enumerate((ends, ends[::-1]))]  # fmt: skip
        return between(topology(files, documents=nvml(*gpus)), *ends)

    assert (found(1).class_, found(1).nccl_class) == ("NV6", "NVL")
    assert found(1).rank < found(0).rank
    assert (found(0).class_, found(0).nccl_class) == ("PIX", "PIX")  # inactive links give the PCI word


def test_a_nic_has_no_nvlink() -> None:
    """ConnectX-7 for NVLink management sits beside the switches; a GPU's links do not lead to it."""
    files = two_sockets() | grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA) | grown(NIC_PATH)
    links = [nvlink(n, "FFFFFFFF:FF:FF.0", 2) for n in range(18)]
    found = topology(files, documents=nvml(answers("0000:18:00.0", 0, links)))
    assert between(found, "0000:18:00.0", "0000:1d:00.0").class_ == "PIX"


# --- bandwidth: section 8, bytes per second of a lane by the PCI Express base specification ---

GEN3, GEN4, GEN5 = 984_615_384, 1_969_230_769, 3_938_461_538


def rate(found: Path) -> float | None:
    return found.bytes_per_second


def near(value: float | None, lanes: float) -> bool:
    return value is not None and abs(value - lanes) < lanes / 1000


def test_the_narrowest_link() -> None:
    one, other = "pci0000:16/16:01.0/17:00.0", "pci0000:16/16:03.0/18:00.0"
    links = {
        "17:00.0": link_files(),
        "16:01.0": link_files(),
        "18:00.0": link_files("16.0 GT/s PCIe"),
        "16:03.0": link_files(),
    }
    files = grown(one, NVIDIA, links=links) | grown(other, links=links)
    found = between(topology(two_sockets() | files), "0000:17:00.0", "0000:18:00.0")
    assert near(rate(found), 16 * GEN4)
    assert str(found.bottleneck) == "pci:0000:18:00.0"


def test_a_card_in_a_narrower_slot() -> None:
    """Traps 68: device x16, port x8."""
    links = {"17:00.0": link_files(), "16:01.0": link_files(width=8), "18:00.0": link_files(), "16:03.0": link_files()}
    files = grown("pci0000:16/16:01.0/17:00.0", NVIDIA, links=links) | grown("pci0000:16/16:03.0/18:00.0", links=links)
    assert near(rate(between(topology(two_sockets() | files), "0000:17:00.0", "0000:18:00.0")), 8 * GEN5)


@pytest.mark.parametrize("silent", ["17:00.0", "18:00.0"])
def test_a_link_that_does_not_tell(silent: str) -> None:
    """Neither end tells: the bandwidth is unknown, not that of the others. One end is enough."""
    links = {"17:00.0": link_files(), "16:01.0": link_files(), "18:00.0": link_files(), "16:03.0": link_files()}
    port = {"17:00.0": "16:01.0", "18:00.0": "16:03.0"}[silent]
    for gone, known in (({silent}, True), ({silent, port}, False)):
        some = {key: one for key, one in links.items() if key not in gone}
        files = grown("pci0000:16/16:01.0/17:00.0", NVIDIA, links=some) | grown(
            "pci0000:16/16:03.0/18:00.0", links=some
        )
        found = between(topology(two_sockets() | files), "0000:17:00.0", "0000:18:00.0")
        assert (found.bytes_per_second is not None) == known
        assert (found.bottleneck is not None) == known


@pytest.mark.parametrize(
    ("port", "link", "virtual", "known"),
    [
        pytest.param(("104c", "8233"), link_files("2.5 GT/s PCIe", 1), True, False, id="H200 VM (nccl-tests#256)"),
        pytest.param(("104c", "8233"), link_files(), True, False, id="the part tells, whatever its link says"),
        pytest.param(("104c", "8233"), link_files("2.5 GT/s PCIe", 1), False, True, id="the same part is real too"),
        pytest.param(("8086", "352a"), link_files("2.5 GT/s PCIe", 1), True, False, id="the least link tells"),
        pytest.param(("8086", "352a"), link_files("2.5 GT/s PCIe", 1), False, True, id="a real x1 slot"),
        pytest.param(("8086", "352a"), link_files(), True, True, id="a port of a VM that may be true"),
        pytest.param(("1b36", "000c"), link_files(), False, False, id="QEMU on ARM, where nothing tells of a VM"),
    ],
)
def test_the_link_of_an_emulated_port_says_nothing(
    port: tuple[str, str],
    link: Files,
    virtual: bool,  # noqa: FBT001 a parameter of a table
    known: bool,  # noqa: FBT001 a parameter of a table
) -> None:
    """Traps 66, pairing.md, section 12: no number, and no verdict, from a port of an emulator."""
    ports = {"17:01.0": ids(*port), "17:03.0": ids(*port)}
    links = {"17:01.0": link, "17:03.0": link, "18:00.0": link_files(), "1d:00.0": link_files()}
    files = two_sockets() | (VIRTUAL if virtual else {})
    files |= grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA, links=links, ports=ports)
    files |= grown(NIC_PATH, links=links, ports=ports)
    found = between(topology(files), "0000:18:00.0", "0000:1d:00.0")
    assert (found.bytes_per_second is not None, found.bottleneck is not None) == (known, known)
    assert found.class_ == "PIX"


def switched(uplink: Files, down: Files | None = None) -> Path:
    """Two devices on a switch whose link to the processor is this one."""
    wide = down or link_files()
    links = {
        "15:01.0": link_files(),
        "16:00.0": uplink,
        "17:01.0": wide,
        "18:00.0": wide,
        "17:03.0": wide,
        "1d:00.0": wide,
    }
    files = grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA, links=links) | grown(NIC_PATH, links=links)
    return between(topology(two_sockets() | files), "0000:18:00.0", "0000:1d:00.0")


def test_below_a_switch() -> None:
    assert near(rate(switched(link_files())), 16 * GEN5)


@pytest.mark.parametrize(
    "uplink",
    [
        pytest.param(link_files("16.0 GT/s PCIe", 8), id="narrow"),
        pytest.param({}, id="silent"),
    ],
)
def test_the_uplink_is_not_on_the_way_between_neighbours(uplink: Files) -> None:
    """max_link_* of a downstream port is the link below it (PCIe base spec, Link Capabilities: "the PCI Express Link
    associated with the function"); what joins it to the upstream port is inside the chip. A GPU and a NIC on one Gen5
    switch with a Gen4 x8 uplink talk at Gen5 x16."""
    found = switched(uplink, {"max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n"})
    assert near(rate(found), 16 * GEN5)
    assert str(found.bottleneck) in {"pci:0000:18:00.0", "pci:0000:1d:00.0", "pci:0000:17:01.0", "pci:0000:17:03.0"}


def test_the_uplink_is_on_the_way_out() -> None:
    links = {"15:01.0": link_files(), "16:00.0": link_files(width=4), "17:01.0": link_files(), "18:00.0": link_files()}
    links |= {"20:01.0": link_files(), "21:00.0": link_files()}
    files = grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA, links=links, numa_node="0\n")
    files |= grown("pci0000:20/20:01.0/21:00.0", links=links, numa_node="1\n")
    found = between(topology(two_sockets() | files), "0000:18:00.0", "0000:21:00.0")
    assert (found.class_, str(found.bottleneck)) == ("SYS", "pci:0000:16:00.0")
    assert near(rate(found), 4 * GEN5)


def test_the_link_that_matters_is_above_the_bridges_inside() -> None:
    """pairing.md, section 5, traps 67: the endpoint says x16 32 GT/s, its outer bridge x8 16 GT/s (resources#512)."""
    wide = link_files()
    links = dict.fromkeys(("15:01.0", "16:00.0", "17:01.0", "17:03.0", "1a:00.0", "1b:00.0", "1d:00.0"), wide)
    links["19:00.0"] = link_files("16.0 GT/s PCIe", 8)
    ports = {"19:00.0": ids("1022", "1500"), "1a:00.0": ids("1002", "1501")}
    files = two_sockets() | grown(GPU_PATH, AMD, ports=ports, links=links) | grown(NIC_PATH, links=links)
    found = between(topology(files), "0000:1b:00.0", "0000:1d:00.0")
    assert near(rate(found), 8 * GEN4)
    assert str(found.bottleneck) == "pci:0000:19:00.0"


def test_via() -> None:
    """Every hop between two devices, from the first to the second."""
    found = path(f"{SWITCH}/17:01.0/18:00.0", f"{SWITCH}/17:03.0/1d:00.0")
    assert [ref.key for ref in found.via] == ["0000:17:01.0", "0000:16:00.0", "0000:17:03.0"]
    apart_ = path("pci0000:16/16:01.0/17:00.0", "pci0000:96/96:01.0/97:00.0")
    assert [ref.key for ref in apart_.via] == ["0000:16:01.0", "pci0000:16", "pci0000:96", "0000:96:01.0"]


# --- any tree ---


class Spot(NamedTuple):
    """A device of a random machine: the components above it, host bridge first, and its NUMA node."""

    parts: tuple[str, ...]
    numa: int


Tree = list["Tree"] | None
"""A port: None leads to an endpoint, a list to a switch with those ports."""

TREES: st.SearchStrategy[Tree] = st.recursive(
    st.none(), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6
)
MACHINES = st.lists(st.tuples(st.integers(-1, 1), st.lists(TREES, min_size=1, max_size=3)), min_size=1, max_size=3)


def spots(roots: list[tuple[int, list[Tree]]], buses: list[int]) -> list[Spot]:
    """The devices of a machine; buses are numbered by `buses` in the order in which firmware walks the tree."""
    found: list[Spot] = []
    rest = iter(buses)

    def walk(above: tuple[str, ...], bus: int, trees: list[Tree], numa: int) -> None:
        for number, tree in enumerate(trees):
            port = (*above, f"0000:{bus:02x}:{number + 1:02x}.0")
            below = next(rest)
            end = (*port, f"0000:{below:02x}:00.0")
            if tree is None:
                found.append(Spot(end, numa))
            else:
                walk(end, next(rest), tree, numa)

    for numa, trees in roots:
        bus = next(rest)
        walk((f"pci0000:{bus:02x}",), bus, trees, numa)
    return found


def described(devices: list[Spot]) -> Files:
    files = two_sockets()
    for number, spot in enumerate(devices):
        what = (NVIDIA, NIC, NVME)[number % 3]
        files |= grown("/".join(spot.parts), what, numa_node=f"{spot.numa}\n")
    return files


def expected(one: Spot, other: Spot) -> str:
    """pairing.md, sections 3 and 4, word for word."""
    k = 0
    while one.parts[k] == other.parts[k]:
        k += 1
    if k == 0:
        return "NODE" if one.numa == other.numa != -1 else "SYS"
    if k == 1:
        return "PHB"
    return "PIX" if max(len(one.parts), len(other.parts)) - k - 1 <= 1 else "PXB"


def classes(found: Topology, devices: list[Spot]) -> list[tuple[str, str, bool]]:
    paths = Paths(found)
    here = [place(found, spot.parts[-1]) for spot in devices]
    return [
        (one.class_, one.nccl_class, one.certain) for one in (paths.between(a, b) for a, b in combinations(here, 2))
    ]


class Shuffled(PaperHost):
    """A file system that lists in another order."""

    def names(self, path: str) -> list[str]:
        return super().names(path)[::-1]


@settings(max_examples=60, deadline=None)
@given(MACHINES, st.lists(st.integers(0, 255), min_size=120, max_size=120, unique=True))
def test_any_tree(roots: list[tuple[int, list[Tree]]], numbers: list[int]) -> None:
    devices, renumbered = spots(roots, list(range(1, 255))), spots(roots, sorted(numbers))
    found = topology(described(devices))
    said = classes(found, devices)
    assert [word for word, _, _ in said] == [expected(a, b) for a, b in combinations(devices, 2)]
    assert classes(topology(described(renumbered)), renumbered) == said
    shuffled = build(scan(Shuffled(described(devices), source=machine({}).source)))
    assert classes(shuffled, devices) == said
    paths = Paths(found)
    for a, b in combinations([place(found, spot.parts[-1]) for spot in devices], 2):
        there, back = paths.between(a, b), paths.between(b, a)
        assert there == back
        assert there.a < there.b
        ends = {there.a.key, there.b.key}
        silent = any(spot.numa == -1 for spot in devices if spot.parts[-1] in ends)
        assert there.certain == (there.class_ != "SYS" or not silent)
