"""`explain`: hops, classes, the narrowest link and who shares it, against constants and machines of other programs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.machines import SHARED
from tests.paper import AMD, NIC, NVIDIA, Files, grown, machine, now, place, put, topology, two_sockets
from topo_agent.cli import cli
from topo_agent.facts import PcieLink
from topo_agent.graph.bandwidth import of_lanes, of_link
from topo_agent.graph.explain import Explanation, between, nearest
from topo_agent.graph.topology import Topology
from topo_agent.host import recording
from topo_agent.views import explain as view

NCCL = SHARED / "peer-formats" / "nccl"

needs_nccl = pytest.mark.skipif(not NCCL.is_dir(), reason=f"no NCCL files in {NCCL}")

# pairing.md §8: raw GB/s per lane, and NCCL's planning GB/s of x16: width * {15, 30, 60, 120, 240, 480} / 80
PER_LANE = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.56}
PLANNED = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}


def told(found: Topology, one: str, other: str) -> Explanation:
    return between(found, place(found, one), place(found, other))


def hops(said: Explanation) -> list[str]:
    return [hop.ref.key.removeprefix("0000:") for hop in said.hops]


# --- constants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gts", PER_LANE)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_bandwidth_per_lane(gts: float, width: int) -> None:
    assert of_lanes(gts, width) == pytest.approx(PER_LANE[gts] * width * 1e9, rel=1e-3)


def test_gen5_x16() -> None:
    """§8: 63.015 GB/s."""
    assert (of_lanes(32.0, 16) or 0) / 1e9 == pytest.approx(63.015, abs=0.001)


@pytest.mark.parametrize("gts", PLANNED)
def test_the_order_is_that_of_nccl(gts: float) -> None:
    """Planning rates are 0.74 to 0.8 of the raw ones up to Gen5, and never above them; the order is one."""
    ratio = 16 * PLANNED[gts] / 80 * 1e9 / (of_lanes(gts, 16) or 1)
    assert 0.74 < ratio <= 0.8


@pytest.mark.parametrize(
    ("device", "port", "gts", "width"),
    [
        ((32.0, 16), (32.0, 16), 32.0, 16),
        ((32.0, 16), (16.0, 16), 16.0, 16),
        ((16.0, 8), (32.0, 16), 16.0, 8),
        ((16.0, 16), (32.0, 8), 16.0, 8),
        ((32.0, 4), None, 32.0, 4),
    ],
)
def test_a_link_is_the_lesser_of_its_ends(
    device: tuple[float, int], port: tuple[float, int] | None, gts: float, width: int
) -> None:
    said = of_link(PcieLink(*device), PcieLink(*port) if port else None)
    assert said == of_lanes(gts, width)
    assert said is not None


@pytest.mark.parametrize(("gts", "width"), [(None, 16), (32.0, None), (7.0, 16)])
def test_what_is_unknown_has_no_bandwidth(gts: float | None, width: int | None) -> None:
    assert of_lanes(gts, width) is None


# --- NCCL's own files ----------------------------------------------------------------------------------------

Node = tuple[str, ...]  # bus ids from the top down


def branches(name: str) -> Iterator[tuple[int, list[ET.Element]]]:
    """(NUMA node, pci elements from the processor down) of every element of a file."""

    def down(element: ET.Element, above: list[ET.Element]) -> Iterator[list[ET.Element]]:
        for child in element.findall("pci"):
            yield [*above, child]
            yield from down(child, [*above, child])

    for processor in ET.parse(NCCL / name).getroot().findall("cpu"):  # noqa: S314 a file of this project
        for branch in down(processor, []):
            yield int(processor.get("numaid", "-1")), branch


def lane(element: ET.Element) -> tuple[str, int]:
    return element.get("link_speed", ""), int(element.get("link_width", "0"))


def numbers(element: ET.Element) -> tuple[float, int]:
    return float(element.get("link_speed", "").split()[0]), int(element.get("link_width", "0"))


def rebuilt(name: str) -> tuple[Files, dict[str, list[ET.Element]]]:
    """The machine of a file: NCCL keeps one element of a switch, its upstream port; the ports below it are ours.

    A root of its own for each tree (on the bus of its top less one), a downstream port above each child, on the bus
    e0 and up, with the link of what hangs below it, as both ends of a link have.
    """
    files, leaves = two_sockets(), dict[str, list[ET.Element]]()
    ports: dict[tuple[str, ...], str] = {}
    for numa, branch in branches(name):
        names = [element.get("busid", "") for element in branch]
        top = int(names[0][5:7], 16) - 1
        path, special = f"pci0000:{top:02x}/{top:02x}:01.0", dict[str, tuple[str, int]]()
        special[f"{top:02x}:01.0"] = lane(branch[0])
        for place_, element in enumerate(branch):
            if place_:
                key = tuple(names[: place_ + 1])
                siblings = [one for one in ports if one[:-1] == key[:-1]]
                port = ports.setdefault(key, f"{int(names[place_ - 1][5:7], 16) + 1:02x}:{len(siblings):02x}.0")
                path, special[port] = f"{path}/{port}", lane(element)
            path, special[names[place_][5:]] = f"{path}/{names[place_][5:]}", lane(element)
        last = branch[-1]
        what = {
            "class_": last.get("class", ""),
            "vendor": last.get("vendor", "0x10de"),
            "device": last.get("device", "0x2330"),
        }
        ids = {one.get("busid", "")[5:]: {"vendor": one.get("vendor", "0x1000"), "device": one.get("device", "0xc030")}
               for one in branch[:-1]}  # fmt: skip
        files |= put(path, what, node=numa % 2, special=special, ports=ids)
        if not what["class_"].startswith("0x0604"):
            leaves[last.get("busid", "")] = branch
    return files, leaves


def of_kind(leaves: dict[str, list[ET.Element]], *classes: str) -> list[str]:
    return [name for name, branch in leaves.items() if branch[-1].get("class", "").startswith(classes)]


@needs_nccl
@pytest.mark.parametrize("name", ["oci-h100.xml", "oci-a100-nps4-flattened.xml", "rccl-mi300x.xml"])
def test_bandwidth_of_real_machines(name: str) -> None:
    """A path is as fast as the slowest link of the file between two devices; one above their switch is not on it.

    oci-h100.xml: the uplinks were idle at 5.0 GT/s when NCCL looked, and a path below the switch does not use them.
    """
    files, leaves = rebuilt(name)
    found = topology(files)
    pairs = list(product(of_kind(leaves, "0x0302", "0x1200"), of_kind(leaves, "0x02")))
    assert len(pairs) >= 64
    agreed = 0
    for gpu, nic in pairs:
        mine, yours = leaves[gpu], leaves[nic]
        common = sum(a is b for a, b in zip(mine, yours, strict=False))
        links = [numbers(element) for element in (*mine[common:], *yours[common:])]
        want = min(PER_LANE[gts] * width for gts, width in links)
        said = told(found, gpu, nic)
        assert (said.path.bytes_per_second or 0) / 1e9 == pytest.approx(want, rel=1e-3), (gpu, nic)
        agreed += 1
    print(f"{name}: {agreed}/{len(pairs)} bandwidths agree")


# --- hops ----------------------------------------------------------------------------------------------------

TOP = "pci0000:15/15:01.0/16:00.0"


def switched(**special: tuple[str, int]) -> Files:
    """GPU 18 and NIC 19 below one switch; a NIC on the other socket; `u16=("8.0 GT/s", 8)` for the link above 16."""
    lanes = {f"{name[1:]}:00.0": said for name, said in special.items()}
    files = two_sockets() | put(f"{TOP}/17:00.0/18:00.0", NVIDIA, special=lanes)
    files |= put(f"{TOP}/17:01.0/19:00.0", verbs="mlx5_0", special=lanes)
    return files | put("pci0000:05/05:01.0/06:00.0", node=1, verbs="mlx5_1")


def test_hops_of_a_switch() -> None:
    said = told(topology(switched()), "0000:18:00.0", "0000:19:00.0")
    assert hops(said) == ["18:00.0", "17:00.0", "16:00.0", "17:01.0", "19:00.0"]
    assert (said.path.class_, said.path.nccl_class, said.path.certain) == ("PIX", "PIX", True)
    assert said.unknown == ()


def test_hops_in_the_order_that_was_asked() -> None:
    found = topology(switched())
    there, back = told(found, "0000:18:00.0", "0000:19:00.0"), told(found, "0000:19:00.0", "0000:18:00.0")
    assert hops(back) == hops(there)[::-1]
    assert back.path == there.path
    assert hops(told(found, "0000:18:00.0", "0000:06:00.0")) == [
        "18:00.0", "17:00.0", "16:00.0", "15:01.0", "pci0000:15", "pci0000:05", "05:01.0", "06:00.0",
    ]  # fmt: skip


def test_the_narrowest_link_is_the_narrow_one() -> None:
    said = told(topology(switched(u19=("16.0 GT/s PCIe", 8))), "0000:18:00.0", "0000:19:00.0")
    assert said.narrowest is not None
    assert said.narrowest.ref.key == "0000:19:00.0"
    assert said.narrowest.bytes_per_second == pytest.approx(1.969e9 * 8, rel=1e-3)


def test_a_narrow_uplink_counts_only_for_those_who_use_it() -> None:
    found = topology(switched(u16=("8.0 GT/s PCIe", 8)))
    far = told(found, "0000:18:00.0", "0000:06:00.0")
    assert far.narrowest is not None
    assert far.narrowest.ref.key == "0000:16:00.0"
    assert far.path.bytes_per_second == pytest.approx(0.985e9 * 8, rel=1e-3)


def test_a_narrow_uplink_is_not_on_the_way_below_the_switch() -> None:
    """Between ports of one switch there is no PCIe link: the uplink (x8 Gen3) carries nothing of this."""
    said = told(topology(switched(u16=("8.0 GT/s PCIe", 8))), "0000:18:00.0", "0000:19:00.0")
    assert (said.path.bytes_per_second or 0) / 1e9 == pytest.approx(63.015, abs=0.01)


# --- sharers -------------------------------------------------------------------------------------------------


def oversubscribed(nic_root: str = "70", node: int = 1, uplink: tuple[str, int] = ("32.0 GT/s PCIe", 8)) -> Files:
    files = two_sockets()
    for port in range(4):
        path = f"{TOP}/17:{port:02x}.0/{0x18 + port:02x}:00.0"
        files |= put(path, NVIDIA, special={"16:00.0": uplink, "15:01.0": uplink})
    return files | put(
        f"pci0000:{nic_root}/{nic_root}:01.0/{int(nic_root, 16) + 1:02x}:00.0", node=node, verbs="mlx5_0"
    )


def test_four_gpus_share_an_uplink() -> None:
    """Four x16 links over one x8: eight times what it carries."""
    said = told(topology(oversubscribed()), "0000:18:00.0", "0000:71:00.0")
    assert said.path.bytes_per_second == pytest.approx(3.938e9 * 8, rel=1e-3)
    assert said.sharers is not None
    assert [ref.key[5:7] for ref in said.sharers.devices] == ["18", "19", "1a", "1b"]
    assert said.sharers.ratio == pytest.approx(8.0)


def test_a_link_is_named_by_its_lower_end() -> None:
    """pairing.md §12: a link joins a port and a device; name it by the device. Above 15:01.0 is the host bridge."""
    said = told(topology(oversubscribed()), "0000:18:00.0", "0000:71:00.0")
    assert said.narrowest is not None
    assert said.narrowest.ref.key == "0000:16:00.0"


@pytest.mark.parametrize("root", ["70", "05"])
def test_a_shared_uplink_among_equally_narrow_links(root: str) -> None:
    """All links are x16: what limits four GPUs is the uplink that they share, whatever its address."""
    files = oversubscribed(root, uplink=("32.0 GT/s PCIe", 16))
    nic = f"0000:{int(root, 16) + 1:02x}:00.0"
    said = told(topology(files), "0000:1b:00.0", nic)
    assert said.sharers is not None
    assert said.sharers.ratio == pytest.approx(4.0)
    assert len(said.sharers.devices) == 4


def test_nobody_shares_a_link_of_ones_own() -> None:
    said = told(topology(switched(u19=("16.0 GT/s PCIe", 8))), "0000:18:00.0", "0000:19:00.0")
    assert said.sharers is not None
    assert [ref.key for ref in said.sharers.devices] == ["0000:19:00.0"]
    assert said.sharers.ratio == pytest.approx(1.0)


def test_a_sharer_that_does_not_tell_leaves_no_ratio() -> None:
    files = oversubscribed()
    files = {name: said for name, said in files.items() if "17:03.0/max_link" not in name and "1b:00.0/max" not in name}
    said = told(topology(files), "0000:18:00.0", "0000:71:00.0")
    assert said.sharers is not None
    assert len(said.sharers.devices) == 4


# --- AMD -----------------------------------------------------------------------------------------------------

INSIDE = {"19:00.0": {"vendor": "0x1022", "device": "0x1500"}, "1a:00.0": {"vendor": "0x1002", "device": "0x1501"}}


def amd(outer: tuple[str, int] = ("16.0 GT/s PCIe", 8)) -> Files:
    """pairing.md §5, the recorded MI300X path; the link above the outer bridge is x8 Gen4 (LACT#334)."""
    gpu = f"{TOP}/17:01.0/19:00.0/1a:00.0/1b:00.0"
    files = two_sockets() | put(gpu, AMD, ports=INSIDE, special={"19:00.0": outer})
    return files | put(f"{TOP}/17:03.0/1d:00.0", verbs="mlx5_0")


def test_the_link_of_an_amd_gpu_is_the_one_above_its_outer_bridge() -> None:
    """Traps 43 and 67: PIX (PXB to NCCL), and x8 Gen4, whatever the GPU says of itself."""
    said = told(topology(amd()), "0000:1b:00.0", "0000:1d:00.0")
    assert (said.path.class_, said.path.nccl_class) == ("PIX", "PXB")
    assert hops(said) == ["1b:00.0", "17:01.0", "16:00.0", "17:03.0", "1d:00.0"]
    assert said.narrowest is not None
    assert said.narrowest.ref.key == "0000:1b:00.0"
    assert said.path.bytes_per_second == pytest.approx(1.969e9 * 8, rel=1e-3)


def test_the_link_of_an_amd_gpu_now() -> None:
    gpu = f"{TOP}/17:01.0/19:00.0/1a:00.0/1b:00.0"
    files = amd() | now(gpu) | now(f"{TOP}/17:01.0/19:00.0", "2.5 GT/s PCIe", 8)
    first = told(topology(files), "0000:1b:00.0", "0000:1d:00.0").hops[0]
    assert first.now_bytes_per_second == 250_000_000 * 8


# --- now, and not known --------------------------------------------------------------------------------------


def test_links_now_against_maximum() -> None:
    files = switched() | now(f"{TOP}/17:00.0/18:00.0", "2.5 GT/s PCIe", 16)
    found = topology(files)
    said = told(found, "0000:18:00.0", "0000:19:00.0")
    assert (said.hops[0].bytes_per_second or 0) / 1e9 == pytest.approx(63.015, abs=0.01)
    assert said.hops[0].now_bytes_per_second == 250_000_000 * 16
    assert said.path == told(topology(switched()), "0000:18:00.0", "0000:19:00.0").path  # state changes no path
    text = view.between(found, said, 100)
    assert "now 4 GB/s" in text or "now 4.0 GB/s" in text


def test_what_was_not_known_is_said() -> None:
    files = two_sockets() | put("pci0000:20/20:01.0/21:00.0", NVIDIA, node=-1)
    files |= grown("pci0000:30/30:01.0/31:00.0", NIC, numa_node="0\n")
    found = topology(files)
    said = told(found, "0000:21:00.0", "0000:31:00.0")
    assert (said.path.class_, said.path.certain, said.narrowest, said.sharers) == ("SYS", False, None, None)
    assert any("NUMA node of 0000:21:00.0" in one for one in said.unknown)
    assert any("0000:31:00.0" in one and "link speed" in one for one in said.unknown)
    text = view.between(found, said, 100)
    assert text.count("not known: ") == len(said.unknown) == 2
    assert "not certain" in text


def test_everything_near_one() -> None:
    found = topology(switched())
    said = nearest(found, place(found, "0000:18:00.0"))
    assert [(path.a.key, path.b.key, path.class_) for path in said] == [
        ("0000:18:00.0", "0000:19:00.0", "PIX"),
        ("0000:06:00.0", "0000:18:00.0", "SYS"),
    ]


def test_functions_of_one_card() -> None:
    files = switched() | put(f"{TOP}/17:01.0/19:00.1", verbs="mlx5_2")
    said = told(topology(files), "0000:19:00.0", "0000:19:00.1")
    assert (said.path.class_, hops(said)) == ("PIX", ["19:00.0", "19:00.1"])


# --- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("explain") / "box.topo"
    path.write_text(recording.write(machine(oversubscribed() | now(f"{TOP}/17:00.0/18:00.0", "2.5 GT/s PCIe"))))
    return str(path)


def run(box: str, *arguments: str) -> str:
    """What the command writes into a file."""
    output = f"{box}.out"
    done = CliRunner().invoke(cli, ["explain", *arguments, "--from", box, "-o", output], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return Path(output).read_text(encoding="utf-8")


def test_text(box: str) -> None:
    text = run(box, "gpu0", "mlx5_0")
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "SYS" in text.splitlines()[0]
    assert ", 32 GB/s (estimate)" in text
    assert "shared by: GPU0 GPU1 GPU2 GPU3, 8.0 times" in text


def test_json(box: str) -> None:
    said = json.loads(run(box, "gpu0", "mlx5_0", "-f", "json"))
    assert said["path"]["class"] == "SYS"
    assert said["shared_by"] == {"devices": [f"pci:0000:{bus}:00.0" for bus in ("18", "19", "1a", "1b")], "ratio": 8.0}
    assert said["narrowest"] in [hop["id"] for hop in said["hops"]]
    assert said["hops"][0]["id"] == "pci:0000:18:00.0"
    assert said["hops"][0]["now_bytes_per_second"] == 4_000_000_000
    assert said["hops"][0]["max_bytes_per_second"] / 1e9 == pytest.approx(63.015, abs=0.01)
    assert said["unknown"] == []


def test_near_in_json_and_text(box: str) -> None:
    said = json.loads(run(box, "gpu0", "-f", "json"))
    assert [path["class"] for path in said] == ["PIX", "PIX", "PIX", "SYS"]
    text = run(box, "gpu0")
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["GPU1", "GPU2", "GPU3", "NIC0"]


def test_the_narrowest_link_now(box: str) -> None:
    """Issue 7, point 1: the narrowest hop and its bandwidth now and at maximum. Now it is GPU 18, at 2.5 GT/s."""
    (line,) = (line for line in run(box, "gpu0", "mlx5_0").splitlines() if line.startswith("narrowest"))
    assert "now" in line
    assert "4.0 GB/s" in line or "4 GB/s" in line


def test_nothing_of_an_emulated_port() -> None:
    """Traps 66: neither a maximum nor what the link claims to do now."""
    files = two_sockets() | {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\n"}
    for number, what in ((1, NVIDIA), (2, NIC)):
        path = f"{TOP}/17:0{number}.0/{17 + number}:00.0"
        files |= put(path, what, ports={f"17:0{number}.0": {"vendor": "0x104c", "device": "0x8233"}})
        files |= now(path, "2.5 GT/s PCIe", 1)
    found = topology(files)
    said = told(found, "0000:18:00.0", "0000:19:00.0")
    text = view.between(found, said, 100)
    assert "narrowest link: not known" in text
    assert ", now " not in text
    assert "now_bytes_per_second" not in json.dumps(view.as_data(said))


@pytest.mark.parametrize("names", [("gpu0", "gpu0"), ("gpu0", "18:00.0"), ("gpu9",), ("numa:0",)])
def test_what_cannot_be_explained(names: tuple[str, ...], box: str) -> None:
    done = CliRunner().invoke(cli, ["explain", *names, "--from", box])
    assert done.exit_code == 3
    assert done.stdout == ""
