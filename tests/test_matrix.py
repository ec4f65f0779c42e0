"""`dump -f matrix`, read by a parser of our own, against what nvidia-smi printed on machines that can be described."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.machines import SHARED
from tests.paper import (
    NIC,
    NODE,
    NVIDIA,
    NVME,
    Files,
    answers,
    cpus,
    drive,
    function,
    grown,
    netdev,
    nodes,
    nvlink,
    nvml,
    rdma,
    topology,
    two_sockets,
)
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.host.paper import Document, Link
from topo_agent.views.matrix import matrix, peer_access

PRINTED = SHARED / "peer-formats" / "topo-m"

needs_matrices = pytest.mark.skipif(not PRINTED.is_dir(), reason=f"no printed matrices in {PRINTED}")

Cells = dict[tuple[str, str], str]


def parsed(text: str) -> Cells:
    """(row, column) -> word, up to the first empty line. Cells that a row does not have are left out."""
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    lines = lines[: lines.index("") if "" in lines else None]
    header = lines[0].split("\t")[1:]
    found: Cells = {}
    for line in lines[1:]:
        row, *words = line.split("\t")
        assert len(words) <= len(header)
        found |= {(row, column): word.strip() for column, word in zip(header, words, strict=False)}
    return found


def printed(name: str) -> Cells:
    """What nvidia-smi printed; NICs of the older style (mlx5_4) are called as we call them (NIC4)."""
    found = parsed((PRINTED / f"{name}.txt").read_text(encoding="utf-8"))
    return {(_called(row), _called(column)): word for (row, column), word in found.items()}


def _called(name: str) -> str:
    return name.replace("mlx5_", "NIC")


def sixteen(of: int) -> list[int]:
    return [*range(of * 16, of * 16 + 16), *range(128 + of * 16, 144 + of * 16)]


DGX_ROOTS = {
    # bus numbers from the root down: layouts.md, section 2; numbers between the ends are ours where it prints none
    "00": (3, "01 02 03 04 05 06 07 0a 0b 0c 0d 0e 0f 10 11 12"),
    "40": (1, "41 42 43 44 45 46 47 49 4a 4b 4c 4d 4e 52 53 54"),
    "80": (7, "81 82 83 84 85 86 87 8b 8c 8d 8e 8f 90 92 93 94"),
    "b0": (5, "b1 b2 b3 b4 b5 b6 b7 b8 b9 ba bb bc bd ca cb cc"),
}


def dgx_a100() -> Files:
    """Two EPYC 7742 in NPS4; four roots of two GPUs and two NICs, two storage cards of two ports, six NVSwitches."""
    files = cpus(
        {0: [cpu for n in range(4) for cpu in sixteen(n)], 1: [cpu for n in range(4, 8) for cpu in sixteen(n)]}
    )
    files |= nodes({node: sixteen(node) for node in range(8)})
    for root, (node, numbers) in DGX_ROOTS.items():
        b = numbers.split()
        top, near = f"pci0000:{root}/{root}:01.1/{b[0]}:00.0", f"{node}\n"
        second = f"{top}/{b[1]}:04.0/{b[7]}:00.0"
        files |= grown(
            f"{top}/{b[1]}:00.0/{b[2]}:00.0/{b[3]}:00.0/{b[4]}:00.0/{b[5]}:00.0/{b[6]}:00.0", A100, numa_node=near
        )
        files |= grown(f"{second}/{b[8]}:00.0/{b[9]}:00.0", numa_node=near)
        files |= grown(f"{second}/{b[8]}:10.0/{b[10]}:00.0/{b[11]}:00.0/{b[12]}:00.0", A100, numa_node=near)
        files |= grown(f"{top}/{b[1]}:08.0/{b[13]}:00.0/{b[14]}:10.0/{b[15]}:00.0", numa_node=near)
    for root, bus, node in (("60", "61", 0), ("e0", "e1", 4)):
        for port in (0, 1):
            files |= grown(f"pci0000:{root}/{root}:03.1/{bus}:00.{port}", numa_node=f"{node}\n")
    for number in range(6):
        path = f"pci0000:b0/b0:01.1/b1:00.0/b2:0c.0/be:00.0/bf:{number:02x}.0/{0xC4 + number:x}:00.0"
        files |= grown(path, {"class_": "0x068000", "vendor": "0x10de", "device": "0x1af1"}, numa_node="5\n")
    return files


A100 = {**NVIDIA, "device": "0x20b2"}


def through_switches(buses: str, links: int, *switches: str) -> dict[str, Document]:
    """GPUs in index order, each with so many links, dealt out to these switches."""

    def of(bus: str) -> list[Json]:
        return [nvlink(number, switches[number % len(switches)], 2) for number in range(links)]

    return nvml(*(answers(f"00000000:{bus.upper()}:00.0", index, of(bus)) for index, bus in enumerate(buses.split())))


def gke() -> Files:
    """GCP a4/a3-ultra: four switches, each over two GPUs and two NICs; CPU list A of layouts.md."""
    node = {0: [*range(56), *range(112, 168)], 1: [*range(56, 112), *range(168, 224)]}
    files = cpus(node) | nodes(node)
    for first, where in ((0x8F, 0), (0x96, 0), (0xC4, 1), (0xCB, 1)):
        root, up, down = (f"{first - below:02x}" for below in (3, 2, 1))
        for place in range(4):
            path = f"pci0000:{root}/{root}:00.0/{up}:00.0/{down}:{place:02x}.0/{first + place:02x}:00.0"
            files |= grown(path, NVIDIA if place < 2 else NIC, numa_node=f"{where}\n")
    return files


def wrx90() -> Files:
    """One Threadripper, two root switches with two leaf switches each; buses of the GPUs as the file has them."""
    files = cpus({0: range(16)}) | nodes({0: range(16)})
    for path in (
        "20/20:01.1/21:00.0/22:00.0/23:00.0/24:00.0/25:00.0",
        "20/20:01.1/21:00.0/22:00.0/23:00.0/24:01.0/26:00.0",
        "20/20:01.1/21:00.0/22:01.0/28:00.0/29:00.0/2a:00.0",
        "20/20:01.1/21:00.0/22:01.0/28:00.0/29:01.0/2b:00.0",
        "40/40:01.1/41:00.0/42:00.0/43:00.0/44:00.0/45:00.0",
        "40/40:01.1/41:00.0/42:00.0/43:00.0/44:01.0/46:00.0",
        "40/40:01.1/41:00.0/42:01.0/47:00.0/48:00.0/49:00.0",
        "40/40:01.1/41:00.0/42:01.0/47:00.0/48:01.0/4a:00.0",
    ):
        files |= grown(f"pci0000:{path}", {**NVIDIA, "device": "0x2bb1"}, numa_node="0\n")
    return files


def two_root_ports() -> Files:
    """Traps 39: Threadripper, 2 x 5090 on ports 01.1 and 03.1 of one host bridge."""
    files = cpus({0: range(64)}) | nodes({0: range(64)})
    for port, bus in (("01.1", "01"), ("03.1", "02")):
        files |= grown(f"pci0000:00/00:{port}/{bus}:00.0", {**NVIDIA, "device": "0x2b85"}, numa_node="0\n")
    return files


def node_without_memory() -> Files:
    """Traps 21: one Threadripper with two nodes, 2 x 3090; node 0 has CPUs and no memory."""
    near, far = [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]
    files = cpus({0: range(32)}) | nodes({0: near, 1: far})
    files[f"{NODE}/node0/meminfo"] = "Node 0 MemTotal:       0 kB\n"
    for root, bus, node in (("00", "09", 0), ("40", "41", 1)):
        path = f"pci0000:{root}/{root}:01.1/{bus}:00.0"
        files |= grown(path, {**NVIDIA, "device": "0x2204"}, numa_node=f"{node}\n")
    return files


def described(name: str) -> Topology:
    if name == "dgx-a100":
        switches = [f"00000000:{bus}:00.0" for bus in ("C4", "C5", "C6", "C7", "C8", "C9")]
        return topology(dgx_a100(), documents=through_switches("07 0f 47 4e 87 90 b7 bd", 12, *switches))
    if name == "gke-a3-ultra-h200":
        return topology(gke(), documents=through_switches("8f 90 96 97 c4 c5 cb cc", 18, "FFFFFFFF:FF:FF.0"))
    others = {
        "wrx90-root-and-leaf-switches": wrx90,
        "threadripper-two-root-ports": two_root_ports,
        "threadripper-numa-na": node_without_memory,
    }
    return topology(others[name]())


@needs_matrices
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("dgx-a100", 20 * 20 + 2 * 8),
        ("gke-a3-ultra-h200", 16 * 16 + 3 * 8),
        ("wrx90-root-and-leaf-switches", 64),
        ("threadripper-two-root-ports", 4 + 3 * 2),
        ("threadripper-numa-na", 4 + 3 * 2),
    ],
)
def test_agrees_with_nvidia_smi(name: str, asked: int) -> None:
    """Every cell: the words of all pairs, CPU affinity, NUMA affinity and GPU NUMA ID."""
    wanted, found = printed(name), parsed(matrix(described(name)))
    wrong = {at: (word, found.get(at)) for at, word in wanted.items() if found.get(at) != word}
    print(f"{name}: agreed/asked {len(wanted) - len(wrong)}/{len(wanted)}")
    assert wrong == {}
    assert len(wanted) == asked


def rows(cells: Cells) -> list[str]:
    return list(dict.fromkeys(row for row, _ in cells))


def columns(cells: Cells) -> list[str]:
    return list(dict.fromkeys(column for _, column in cells))


def test_nv_only_with_a_document() -> None:
    """Issue 4: NV* words are asked only where NVLink data exists. GPU0 and GPU1 are PXB, the others SYS."""
    found = parsed(matrix(topology(dgx_a100())))
    assert (found["GPU0", "GPU1"], found["GPU0", "GPU2"]) == ("PXB", "SYS")
    assert not [word for word in found.values() if word.startswith("NV")]


def test_it_is_symmetric() -> None:
    for name in ("dgx-a100", "gke-a3-ultra-h200", "wrx90-root-and-leaf-switches"):
        found = parsed(matrix(described(name)))
        for one in rows(found):
            assert found[one, one] == "X"
            for other in rows(found):
                assert found[one, other] == found[other, one]


def test_indices_are_those_of_nvml() -> None:
    """Contract, section 2: gpuN is nvidia-smi's. GPU0 and GPU7 of the DGX change places."""
    documents = through_switches("bd 0f 47 4e 87 90 b7 07", 12, "FFFFFFFF:FF:FF.0")
    found = parsed(matrix(topology(dgx_a100(), documents=documents)))
    assert rows(found)[:8] == [f"GPU{number}" for number in range(8)]
    assert (found["GPU0", "NUMA Affinity"], found["GPU7", "NUMA Affinity"]) == ("5", "3")
    assert [found["GPU0", f"NIC{number}"] for number in (0, 8, 9)] == ["SYS", "PXB", "PXB"]


SLOT = "pci0000:16/0000:16:05.0/0000:1a:00.0"


def mixed() -> Files:
    files = two_sockets() | grown("pci0000:16/16:01.0/17:00.0", NVIDIA, numa_node="1\n")
    files |= grown("pci0000:16/16:03.0/18:00.0", numa_node="1\n")
    files |= grown("pci0000:16/16:03.0/18:00.1", numa_node="1\n")
    files |= rdma("mlx5_0", "pci0000:16/0000:16:03.0/0000:18:00.0") | netdev(
        "ens1", "pci0000:16/0000:16:03.0/0000:18:00.0"
    )
    return files | grown("pci0000:16/16:05.0/1a:00.0", NVME, numa_node="1\n") | drive("nvme3", f"{SLOT}/nvme")


@pytest.mark.parametrize(
    "kinds", [("gpu", "nic"), ("nic", "gpu"), ("gpu", "nvme"), ("nvme", "nic", "gpu"), ("nic",), ("nvme",)]
)
def test_kinds_in_the_order_asked(kinds: tuple[str, ...]) -> None:
    names = {"gpu": ["GPU0"], "nic": ["NIC0", "NIC1"], "nvme": ["nvme3"]}
    found = parsed(matrix(topology(mixed()), kinds))  # type: ignore[arg-type]
    wanted = [name for kind in kinds for name in names[kind]]
    assert rows(found) == wanted
    assert columns(found)[: len(wanted)] == wanted


def test_affinity_columns() -> None:
    """As nvidia-smi: rows of GPUs only."""
    found = parsed(matrix(topology(mixed())))
    assert columns(found)[-3:] == ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    assert [found["GPU0", name] for name in columns(found)[-3:]] == ["4-7", "1", "N/A"]
    assert ("NIC0", "CPU Affinity") not in found


def test_unknown_is_not_zero() -> None:
    """Traps 21: NUMA Affinity N/A; the words that rest on it are said to be doubtful, with the reason."""
    files = two_sockets() | grown("pci0000:16/16:01.0/17:00.0", NVIDIA) | grown("pci0000:96/96:01.0/97:00.0", NVIDIA)
    text = matrix(topology(files))
    found = parsed(text)
    assert [found["GPU0", name] for name in ("GPU1", "CPU Affinity", "NUMA Affinity")] == ["SYS", "N/A", "N/A"]
    assert "Not certain:" in text
    assert "firmware_silent" in text


def test_the_memory_node_of_a_gpu() -> None:
    found = topology(mixed(), documents=nvml(answers("0000:17:00.0", 0, numa_node_id=2)))
    assert parsed(matrix(found))["GPU0", "GPU NUMA ID"] == "2"


def legend(text: str) -> Iterator[tuple[str, list[str]]]:
    after = text.partition("NIC Legend:\n\n")[2]
    for line in after.split("\n\n")[0].splitlines():
        name, _, called = line.strip().partition(": ")
        yield name, called.split()


def test_legend_names() -> None:
    assert list(legend(matrix(topology(mixed())))) == [
        ("NIC0", ["mlx5_0", "ens1", "0000:18:00.0"]),
        ("NIC1", ["0000:18:00.1"]),
    ]


def test_every_word_is_in_the_legend() -> None:
    text = matrix(described("dgx-a100"))
    words = {
        "NV#" if word.startswith("NV") else word for (_, column), word in parsed(text).items() if column[3:].isdigit()
    }
    explained = {line.split()[0] for line in text.partition("Legend:\n")[2].splitlines() if " = " in line}
    assert words <= explained
    assert {"X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#"} <= explained


def test_nothing_to_show() -> None:
    assert matrix(topology(two_sockets())).count("\n") == 1


def test_virtual_functions_have_no_rows() -> None:
    """Traps 89: an H20 box with 26-34 "NICs" of which most are VFs."""
    files = mixed()
    for number in range(2, 8):
        physfn: Files = {"physfn": Link("../0000:18:00.0")}
        files |= function(f"0000:18:00.{number}", under="pci0000:16/0000:16:03.0", files=physfn)
    assert rows(parsed(matrix(topology(files)))) == ["GPU0", "NIC0", "NIC1"]


@pytest.mark.parametrize(
    "name",
    [
        "nvme\t3",
        "nvme\x1b[2J3",
    ],
    ids=["tab", "escape"],
)
def test_names_that_a_terminal_would_obey(name: str) -> None:
    """A recording may call a drive anything: no row or column moves, and no escape is printed."""
    files = two_sockets() | grown("pci0000:16/16:05.0/1a:00.0", NVME) | drive(name, f"{SLOT}/nvme")
    text = matrix(topology(files), ("nvme",))
    assert "\x1b" not in text
    assert len(rows(parsed(text))) == 1
    assert len(columns(parsed(text))) == 4


def test_interfaces_that_a_terminal_would_obey() -> None:
    files = mixed() | netdev("e\x1b[2J\n", "pci0000:16/0000:16:03.0/0000:18:00.1")
    text = matrix(topology(files))
    assert "\x1b" not in text
    assert [name for name, _ in legend(text)] == ["NIC0", "NIC1"]


# --- what the driver lets GPUs do with each other's memory -----------------------------------------------------


def with_pairs(*pairs: Json) -> Topology:
    """Two GPUs, numbered against the order of the bus."""
    files = two_sockets() | grown("pci0000:17/17:00.0", NVIDIA) | grown("pci0000:97/97:00.0", NVIDIA)
    gpus: list[Json] = [answers("0000:97:00.0", 0), answers("0000:17:00.0", 1)]
    return topology(files, documents={"nvml": {"gpus": gpus, "pairs": [*pairs]}})


@pytest.mark.parametrize(
    ("code", "word"),
    [(0, "OK"), (1, "CNS"), (2, "GNS"), (3, "TNS"), (4, "DR"), (5, "NS"), (6, "U"), (7, "U"), (-1, "U")],
)
def test_peer_access(code: int, word: str) -> None:
    """nvml.h nvmlGpuP2PStatus_t and the legend of `nvidia-smi topo -p2p`."""
    found = with_pairs({"a": 0, "b": 1, "p2p": {"read": code, "nvlink": 5}})
    head, first, second = peer_access(found, "read").splitlines()[:3]
    assert head.split() == ["GPU0", "GPU1"]
    assert [first.split(), second.split()] == [["GPU0", "X", word], ["GPU1", word, "X"]]
    assert peer_access(found, "nvlink").splitlines()[1].split() == ["GPU0", "X", "NS"]


@pytest.mark.parametrize(
    "pair",
    [
        {"a": 0, "b": 1, "p2p": {"read": {"error": "NOT_SUPPORTED"}, "write": 0}},
        {"a": 0, "b": 1, "p2p": {"read": "0", "write": 0}},
        {"a": 0, "b": 1, "p2p": {"read": True, "write": 0}},
    ],
)
def test_peer_access_that_was_refused_is_unknown(pair: Json) -> None:
    found = with_pairs(pair)
    assert peer_access(found, "read").splitlines()[1].split() == ["GPU0", "X", "U"]
    assert peer_access(found, "write").splitlines()[1].split() == ["GPU0", "X", "OK"]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [{"a": 0, "b": 7, "p2p": {"read": 0}}],
        [{"a": 0, "b": 1}],
        ["0-1"],
        [{"a": 0, "p2p": {"read": 0}}],
        [{"a": [], "b": {}, "p2p": {}}],
    ],
)
def test_no_peer_access_told(pairs: list[Json]) -> None:
    assert peer_access(with_pairs(*pairs), "read").startswith("no driver tells")
