"""AMD's KFD: nvml.md section 12 and traps 104-109, 112, 113."""

from __future__ import annotations

from typing import Any

import pytest

from tests.paper import AMD, Files, between, grown, inventory, kfd, place, topology
from tests.schemas import FOLDER, strict
from topo_agent.diagnostics import Level, Unknown
from topo_agent.facts import Gpu, GpuLink, Inventory
from topo_agent.graph.build import build
from topo_agent.graph.fabric import Place
from topo_agent.graph.readings import readings
from topo_agent.host.paper import Failure, Link
from topo_agent.ids import PciAddress
from topo_agent.views.document import document
from topo_agent.views.tree import tree

NODES = "sys/class/kfd/kfd/topology/nodes"
AT = "sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0"
A, B = PciAddress(0, 5, 0, 0), PciAddress(0, 0x26, 0, 0)
BOX = grown("pci0000:00/00:01.1/05:00.0", AMD) | grown("pci0000:20/20:01.1/26:00.0", AMD)
CPU = {"cpu_cores_count": 96, "simd_count": 0, "location_id": 0, "vendor_id": 0, "domain": 0}


def gpu(location: int, **said: int) -> dict[str, int]:
    return {
        "cpu_cores_count": 0, "simd_count": 1216, "simd_per_cu": 4, "vendor_id": 4098, "device_id": 29857,
        "location_id": location, "domain": 0, "unique_id": 16404946649897475633, "hive_id": 15188982192727901047,
    } | said  # fmt: skip


def link(to: int, weight: int, bandwidth: int, type_: int = 11) -> dict[str, int]:
    return {"type": type_, "node_to": to, "weight": weight, "min_bandwidth": 0, "max_bandwidth": bandwidth, "flags": 1}


def gpus(found: Inventory) -> list[PciAddress]:
    return [one.function for one in found.gpus]


def notes(found: Inventory) -> list[str]:
    return [f"{one.level.value} {one.code}" for one in found.diagnostics if "kfd" in one.subject]


def test_a_gpu_and_numbers_that_json_would_cut() -> None:
    """Traps 112, 113: decimal, and above 2^53 (15188982192727901047 = 0xd2ca…): hex strings, unsigned."""
    found = inventory(BOX | kfd(0, CPU) | kfd(1, gpu(0x500)))
    assert found.gpus == (
        Gpu(function=A, origin="kfd", uuid=f"{16404946649897475633:#018x}", compute_units=304,
            hive=f"{15188982192727901047:#018x}"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "model"),
    [("AMD Instinct MI300X OAM\n", "AMD Instinct MI300X OAM"), (None, None), ("\n", None), ("N/A\n", None)],
)
def test_a_card_that_names_itself(said: str | None, model: str | None) -> None:
    """Linux, Documentation/gpu/amdgpu/driver-misc: product_name, "only available for certain server cards"."""
    files = grown("pci0000:00/00:01.1/05:00.0", AMD, files={} if said is None else {"product_name": said})
    files |= kfd(0, CPU) | kfd(1, gpu(0x500))
    found = topology(files)
    assert place(found, str(A)).title == model
    assert readings(found, (), Place({}))["gpu-model"].raw == (model and model.replace(" ", "-"))


@pytest.mark.parametrize(
    "locations",
    [[0x500 + number for number in range(8)], [number << 28 | 0x500 for number in range(8)]],
    ids=["function bits", "bits 31-28"],
)
def test_partitions(locations: list[int]) -> None:
    """Traps 104: MI300X in CPX mode, eight nodes, one GPU."""
    files = BOX | kfd(0, CPU)
    for number, location in enumerate(locations):
        files |= kfd(number + 1, gpu(location, simd_count=152))
    (one,) = inventory(files).gpus
    assert (one.function, one.partitions, one.compute_units) == (A, 8, 304)
    assert [str(device.address) for device in topology(files).of_kind("gpu")] == [str(A), str(B)]


@pytest.mark.parametrize(("mode", "count"), [("SPX", 1), ("DPX", 2), ("QPX", 4), ("CPX", 8)])
def test_compute_partitions(mode: str, count: int) -> None:
    """MI300X: 304 compute units on eight dies, which a mode shares out; a GPU in one piece has no partitions."""
    files = BOX | {f"{AT}/current_compute_partition": f"{mode}\n", f"{AT}/current_memory_partition": "NPS4\n"}
    for number in range(count):
        files |= kfd(number + 1, gpu(0x500 + number, simd_count=1216 // count))
    (one,) = inventory(files).gpus
    assert (one.partitions, one.compute_units) == (count if count > 1 else None, 304)
    assert (one.compute_partition, one.memory_partition) == (mode, "NPS4")
    (line,) = (line for line in tree(topology(files)).splitlines() if "05:00.0" in line)
    assert (f"· {count} partitions ({mode} NPS4)" in line) == (count > 1)
    whole: Any = document(topology(files))
    (said,) = (one["gpu"] for one in whole["devices"] if one["id"] == f"pci:{A}")
    assert (said["compute_partition"], said["memory_partition"]) == (mode, "NPS4")
    assert not list(strict(FOLDER / "topo-agent-v1.json").iter_errors(whole))


@pytest.mark.parametrize("said", ["UNKNOWN\n", "\n", "CPX, SPX\n", None, Failure(22)])
def test_a_mode_that_is_not_told(said: str | Failure | None) -> None:
    """amdgpu_gfx_compute_mode_desc: UNKNOWN; an old kernel has no such file."""
    files = BOX | kfd(1, gpu(0x500))
    if said is not None:
        files |= {f"{AT}/current_compute_partition": said}
    (one,) = inventory(files).gpus
    assert (one.compute_partition, one.uuid is not None) == (None, True)


def test_render_nodes_of_partitions() -> None:
    """amdgpu_xcp.c: all but the first have their DRM devices on a platform device, where no function is in the path."""
    files = BOX | {"sys/class/drm/renderD128": Link(f"../../devices/pci0000:00/0000:00:01.1/{A}/drm/renderD128")}
    for one in range(3):
        name = f"renderD{129 + one}"
        files[f"sys/class/drm/{name}"] = Link(f"../../devices/platform/amdgpu_xcp_{one}/drm/{name}")
    for number in range(4):
        files |= kfd(number + 1, gpu(0x500 + number, drm_render_minor=128 + number))
    assert place(topology(files), str(A)).names.nodes == ("renderD128", "renderD129", "renderD130", "renderD131")


@pytest.mark.parametrize("minor", [0, 127, 4294967295])
def test_kfd_without_drm(minor: int) -> None:
    """KFD tells all else, and no device file is made up (-1 is printed without its sign)."""
    found = place(topology(BOX | kfd(1, gpu(0x500, drm_render_minor=minor))), str(A))
    assert (found.names.nodes, found.uid, found.gpu and found.gpu.compute_units) == ((), "0xe3aa140f9a5f9e31", 304)


def test_a_gpu_without_kfd() -> None:
    """A display GPU of amdgpu beside one that computes: on the bus, a GPU, and its id is not supported, not lost."""
    files = BOX | kfd(1, gpu(0x500)) | grown("pci0000:20/20:01.1/26:00.0", AMD, files={"uevent": "DRIVER=amdgpu\n"})
    found = topology(files)
    other = place(found, str(B))
    assert (other.kind, other.uid, dict(other.unknown)["uid"]) == ("gpu", None, Unknown.NOT_SUPPORTED)
    assert [one for one in found.diagnostics if one.level is not Level.NOTE] == []


def test_no_kfd() -> None:
    """Nobody was asked, and nothing is unknown."""
    found = topology(grown("pci0000:20/20:01.1/26:00.0", AMD, files={"uevent": "DRIVER=amdgpu\n"}))
    assert "uid" not in dict(place(found, str(B)).unknown)
    assert (found.links, found.diagnostics) == (None, ())


@pytest.mark.parametrize(("complete", "level"), [(True, "lost"), (False, "note")])
def test_a_kfd_that_leads_nowhere(complete: bool, level: str) -> None:  # noqa: FBT001 a parameter of the test
    """The link of the class is there, and what it means is not: another thing than a machine without KFD."""
    broken = BOX | {"sys/class/kfd/kfd": Link("../../devices/virtual/kfd/kfd")}
    assert notes(inventory(broken, complete=complete)) == [f"{level} kfd_unreadable"]
    empty = BOX | {f"{NODES}/x/name": "\n"}
    assert notes(inventory(empty, complete=complete)) == [f"{level} kfd_unreadable"]
    assert notes(inventory(BOX, complete=complete)) == []


def test_a_kfd_without_gpus() -> None:
    """amdgpu is loaded, and the GPU was unplugged: the processors are there."""
    assert (notes(inventory(BOX | kfd(0, CPU))), inventory(BOX | kfd(0, CPU)).gpu_links) == ([], ())


def test_hives() -> None:
    """nvml.md, section 12: 8 MI210, two hives of four in one box; links are within a hive."""
    hives = [place(topology(pair(15, 50000)), str(at)).gpu for at in (A, B)]
    assert {one.hive for one in hives if one} == {"0xd2ca1ad46147c377"}
    apart = BOX | kfd(1, gpu(0x500)) | kfd(2, gpu(0x2600, hive_id=7))
    assert place(topology(apart), str(B)).gpu.hive == f"0x{7:016x}"  # type: ignore[union-attr]


def test_partitions_beside_a_second_function() -> None:
    """nvml.md, section 12: "Group partitions by unique_id (equal for all partitions of a GPU), not by BDF text"."""
    files = BOX | kfd(0, CPU)
    files |= grown("pci0000:00/00:01.1/05:00.1", {"class_": "0x040300", "vendor": "0x1002", "device": "0xab38"})
    for number in range(8):
        files |= kfd(number + 1, gpu(0x500 + number, simd_count=152))
    assert [(one.function, one.partitions) for one in inventory(files).gpus] == [(A, 8)]


def test_old_kernels() -> None:
    """Traps 106: Vega10, neither domain nor hive_id."""
    said = gpu(0x500)
    for key in ("domain", "hive_id", "unique_id"):
        del said[key]
    (one,) = inventory(BOX | kfd(1, said)).gpus
    assert (one.function, one.hive, one.uuid) == (A, None, None)


def test_domains() -> None:
    """Traps 60: EX255a, four MI300A, all 02:00.0, in domains 0-3."""
    files = Files()
    for domain in range(4):
        files |= grown(f"pci000{domain}:00/00:07.1/02:00.0", AMD) | kfd(domain, gpu(0x200, domain=domain))
    assert gpus(inventory(files)) == [PciAddress(domain, 2, 0, 0) for domain in range(4)]


def test_no_hive() -> None:
    assert inventory(BOX | kfd(1, gpu(0x500, hive_id=0))).gpus[0].hive is None


def test_a_hidden_gpu() -> None:
    """Traps 108: kfd_devcgroup_check_permission answers EPERM. The GPU is on the bus all the same."""
    files = BOX | kfd(1, gpu(0x500)) | kfd(2, gpu(0x2600)) | {f"{NODES}/2/properties": Failure(1)}
    found = inventory(files)
    assert gpus(found) == [A]
    assert notes(found) == ["note kfd_node_hidden"]
    assert place(build(found), str(B)).kind == "gpu"


def test_a_hidden_gpu_is_not_guessed() -> None:
    """Its neighbour is known, its own id is hidden, and a link to it leads to something that is unknown."""
    files = BOX | kfd(1, gpu(0x500), [link(2, 15, 50000)]) | kfd(2, {}) | {f"{NODES}/2/properties": Failure(1)}
    found = topology(files)
    shown, hidden = place(found, str(A)), place(found, str(B))
    assert (dict(hidden.unknown)["uid"], "uid" in dict(shown.unknown)) == (Unknown.HIDDEN, False)
    assert [(str(one.a), one.b, one.peer) for one in found.links or ()] == [(f"pci:{A}", None, "unknown")]
    assert [one for one in found.diagnostics if one.level is not Level.NOTE] == []


def test_an_unreadable_node_costs_itself() -> None:
    found = inventory(BOX | kfd(1, gpu(0x500)) | kfd(2, gpu(0x2600)) | {f"{NODES}/2/properties": Failure(5)})
    assert gpus(found) == [A]
    assert notes(found) == ["lost kfd_node_unreadable"]


def pair(weight: int, bandwidth: int) -> Files:
    return (
        BOX
        | kfd(0, CPU)
        | kfd(1, gpu(0x500), [link(0, 20, 64000, 2), link(2, weight, bandwidth)])
        | kfd(2, gpu(0x2600), [link(0, 20, 64000, 2), link(1, weight, bandwidth)])
    )


@pytest.mark.parametrize(
    ("weight", "bandwidth", "bytes_per_second"),
    [(15, 50000, 50_000_000_000), (30, 50000, 50_000_000_000), (41, 0, None)],  # traps 105: 0 is "not reported"
)
def test_xgmi(weight: int, bandwidth: int, bytes_per_second: int | None) -> None:
    found = inventory(pair(weight, bandwidth))
    assert len(found.gpu_links or ()) == 2
    assert set(found.gpu_links or ()) == {
        GpuLink(function=here, kind="xgmi", peer=there, peer_kind="gpu", links=None, bytes_per_second=bytes_per_second,
                weight=weight)
        for here, there in ((A, B), (B, A))
    }  # fmt: skip


def test_xgmi_keeps_the_pci_word() -> None:
    """contract.md, section 4: its link is in `links`, once."""
    found = topology(pair(15, 50000))
    assert between(found, str(A), str(B)).class_ == "SYS"
    assert [(str(one.a), str(one.b), one.kind) for one in found.links or ()] == [(f"pci:{A}", f"pci:{B}", "xgmi")]


def test_pcie_is_no_xgmi() -> None:
    """Traps 107, 109: MI210 between two hives; type 2 is PCIe in the kernel's numbers."""
    files = BOX | kfd(1, gpu(0x500), [link(2, 72, 0, 2)]) | kfd(2, gpu(0x2600, hive_id=7), [link(1, 72, 0, 2)])
    assert inventory(files).gpu_links == ()


def cpx(nodes: int = 16) -> Files:
    """Two MI300X in CPX mode, node 1-8 and 9-16: weight 13 within a package, 41 across."""
    files = BOX | kfd(0, CPU)
    for number in range(1, nodes + 1):
        others = (other for other in range(1, 17) if other != number)
        links = [link(o, 13, 819200) if (o > 8) == (number > 8) else link(o, 41, 0) for o in others]
        second = number > 8
        files |= kfd(number, gpu((0x2600 if second else 0x500) + (number - 1) % 8, unique_id=2 if second else 1), links)
    return files


def test_links_of_partitions() -> None:
    """Traps 105: one link for each pair of GPUs, none of a GPU to itself, no bandwidth."""
    found = topology(cpx())
    assert [(str(one.a), str(one.b), one.weight, one.bytes_per_second) for one in found.links or ()] == [
        (f"pci:{A}", f"pci:{B}", 41, None)
    ]


@pytest.mark.parametrize("weights", [(41, 54), (54, 41)])
def test_the_lightest_link_is_the_direct_one(weights: tuple[int, int]) -> None:
    """Two partitions tell of the same other GPU."""
    files = BOX | kfd(3, gpu(0x2600))
    for number, weight in enumerate(weights):
        files |= kfd(number + 1, gpu(0x500 + number), [link(3, weight, 0)])
    assert [(one.peer, one.weight) for one in inventory(files).gpu_links or ()] == [(B, 41)]


def test_a_partition_that_is_not_recorded() -> None:
    """Traps 105: 63 of 64 nodes. A missing peer is unknown, not unlinked; what is known stays."""
    found = topology(cpx(15))
    links = {(str(one.a), str(one.b) if one.b else None): one.peer for one in found.links or ()}
    assert links[f"pci:{A}", f"pci:{B}"] == "gpu"
    assert links[f"pci:{A}", None] == "unknown"
    assert [one.gpu.partitions for one in found.of_kind("gpu") if one.gpu] == [8, 7]


def test_xgmi_to_the_processor() -> None:
    """kfd_crat.c kfd_fill_gpu_direct_io_link_to_cpu: XGMI where `gmc.xgmi.connected_to_cpu` (MI250X on Frontier)."""
    found = inventory(BOX | kfd(0, CPU) | kfd(1, gpu(0x500), [link(0, 13, 36000)]))
    assert [(one.peer, one.peer_kind) for one in found.gpu_links or ()] == [(None, "cpu")]


def test_an_apu_is_a_gpu() -> None:
    """nvml.md, section 12: MI300A, both counts above zero."""
    assert gpus(inventory(BOX | kfd(1, gpu(0x500, cpu_cores_count=24)))) == [A]


def test_a_class_of_display() -> None:
    """Class 0380 and 0300 of old ones are GPUs; a function of any other class becomes one by KFD."""
    files = grown("pci0000:00/00:01.1/05:00.0", {"class_": "0x088000", "vendor": "0x1002", "device": "0x74a1"})
    assert place(topology(files), str(A)).kind == "other"
    assert place(topology(files | kfd(1, gpu(0x500))), str(A)).kind == "gpu"


@pytest.mark.parametrize(
    "text",
    ["", "\n", "nonsense\n", "simd_count\n", "simd_count -4\n", "simd_count 1e3\n", "simd_count ١\n", "\0" * 100,
     "simd_count 4\nvendor_id 4098\nlocation_id " + "9" * 30 + "\n", "simd_count 4\nvendor_id 4098\n"],
)  # fmt: skip
def test_anything_in_properties(text: str) -> None:
    found = inventory(BOX | kfd(1, gpu(0x500)) | kfd(2, {}) | {f"{NODES}/2/properties": text})
    assert A in gpus(found)
    assert len(notes(found)) <= 1
    assert not [one for one in found.diagnostics if one.code == "source_failed"]


@pytest.mark.parametrize("text", ["", "nonsense\n", "type 11\n", "type 11\nnode_to 99\nweight x\n", "type -1\n"])
def test_anything_in_a_link(text: str) -> None:
    files = pair(15, 50000) | {f"{NODES}/1/io_links/1/properties": text}
    found = inventory(files)
    assert gpus(found) == [A, B]
    assert len(notes(found)) <= 1
    assert [(str(one.a), str(one.b)) for one in build(found).links or () if one.b] == [(f"pci:{A}", f"pci:{B}")]
