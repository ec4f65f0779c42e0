"""What drivers say of GPUs, and above all the NVML document: nvml.md sections 3, 6, 7, 10 and traps 93-98, 103, 110."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.paper import (
    AMD,
    NVIDIA,
    Files,
    answers,
    between,
    function,
    grown,
    inventory,
    machine,
    nvlink,
    nvml,
    place,
    topology,
    two_sockets,
)
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Gpu, GpuLink, Inventory, NvLinkState
from topo_agent.graph.build import build
from topo_agent.host import Json
from topo_agent.host.paper import Link
from topo_agent.ids import PciAddress
from topo_agent.scan import scan
from topo_agent.sources.gpu import bus_id
from topo_agent.views import devices
from topo_agent.views.bind import bind
from topo_agent.views.document import as_json, document
from topo_agent.views.matrix import matrix
from topo_agent.views.tree import tree

A, B, SWITCH = "0000:17:00.0", "0000:18:00.0", "0000:05:00.0"
BOX: Files = (
    grown("pci0000:16/16:01.0/17:00.0", NVIDIA)
    | grown("pci0000:16/16:03.0/18:00.0", NVIDIA)
    | grown("pci0000:00/00:01.0/05:00.0", {"class_": "0x068000", "vendor": "0x10de", "device": "0x22a3"})
)
HERE, THERE, HUB = PciAddress.parse(A), PciAddress.parse(B), PciAddress.parse(SWITCH)
HIDDEN = "FFFFFFFF:FF:FF.0"
ERROR: Json = {"error": "NOT_SUPPORTED"}


def told(*gpus: Json) -> Inventory:
    return inventory(BOX, documents=nvml(*gpus))


def of(found: Inventory, address: PciAddress) -> Gpu:
    (one,) = (gpu for gpu in found.gpus if gpu.function == address and gpu.origin == "nvml")
    return one


def links(*some: Json) -> list[tuple[str, PciAddress | None, int | None]]:
    """(kind of peer, peer, how many) of the links of GPU A."""
    found = told(answers(A, 0, some), answers(B, 1)).gpu_links
    return [(link.peer_kind, link.peer, link.links) for link in found or () if link.function == HERE]


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("00000000:3B:00.0", PciAddress(0, 0x3B, 0, 0)),  # traps 103
        ("0000:3b:00.0", PciAddress(0, 0x3B, 0, 0)),
        ("00010001:84:00.0", PciAddress(0x10001, 0x84, 0, 0)),
        (HIDDEN, None),  # traps 93: HGX B200
        ("fffffff:ffff:ff", None),  # NCCL's sentinel
        ("ffff:ff:ff.0", None),
        ("", None),
        ("\x00\x01", None),
        (ERROR, None),
        (None, None),
        (7, None),
        ("0000:3b:20.0", None),
        ("0000:3b:00.8", None),
        ("-1:3b:00.0", None),
        ("9" * 5000 + ":3b:00.0", None),
    ],
)
def test_bus_ids(said: Json, address: PciAddress | None) -> None:
    assert bus_id(said) == address


@pytest.mark.parametrize("said", ["0_0:3b:00.0", "+0:3b:00.0", "0x0:3b:00.0", "٠:3b:00.0", " 0 :3b:00.0"])
def test_bus_ids_that_no_driver_prints(said: str) -> None:
    """Traps 24: `int()` is no validation."""
    assert bus_id(said) is None


def test_index_order_is_not_bus_order() -> None:
    found = told(answers("00000000:18:00.0", 0), answers("00000000:17:00.0", 1))
    assert (of(found, THERE).nvml_index, of(found, HERE).nvml_index) == (0, 1)


def test_a_lost_gpu_costs_itself() -> None:
    """Traps 110: "GPU is lost" on one handle. sysfs is the list of GPUs, NVML only decorates (nvml.md, section 1)."""
    lost: Json = {"error": "GPU_IS_LOST"}
    gone = answers(A, lost, uuid=lost, name=lost, memory_bytes=lost, nvlinks=lost)
    found = told(gone, answers(B, 1))
    assert of(found, HERE) == Gpu(function=HERE, origin="nvml", unknown=of(found, HERE).unknown)
    assert dict(place(build(found), A).unknown)["uid"] is Unknown.DRIVER_ERROR
    assert of(found, THERE) == of(told(answers(B, 1)), THERE)
    assert place(build(found), A).kind == "gpu"


@pytest.mark.parametrize("gone", [{"index": 0, "error": "GPU_IS_LOST"}, {"error": "GPU_IS_LOST"}, None, [], "lost", 7])
def test_a_gpu_that_does_not_tell_where_it_is(gone: Json) -> None:
    found = told(gone, answers(B, 1))
    assert [gpu.function for gpu in found.gpus] == [THERE]
    assert [one.code for one in found.diagnostics] == ["gpu_without_place"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NOT_SUPPORTED", Unknown.NOT_SUPPORTED),
        ("FUNCTION_NOT_FOUND", Unknown.NOT_SUPPORTED),  # nvml.md, section 3: old driver, feature absent
        ("NO_PERMISSION", Unknown.NOT_PERMITTED),
        ("TIMEOUT", Unknown.TIMEOUT),
        ("UNKNOWN", Unknown.DRIVER_ERROR),
        ("A_NEW_ONE", Unknown.DRIVER_ERROR),
    ],
)
def test_refusals(name: str, code: Unknown) -> None:
    """contract.md, section 4: the reason stands beside the field that the document has, `uid`."""
    assert dict(place(build(told(answers(A, 0, uuid={"error": name}))), A).unknown)["uid"] is code


def test_links_to_switches() -> None:
    """HGX H100: links to NVSwitches that are functions on the bus, counted for each switch."""
    assert links(nvlink(0, SWITCH, 2), nvlink(1, SWITCH, 2), nvlink(2, "0000:06:00.0", 2)) == [
        ("switch", HUB, 2),
        ("switch", PciAddress(0, 6, 0, 0), 1),
    ]


def test_switches_that_nobody_sees() -> None:
    """Traps 93: HGX B200, 18 links to FFFFFFFF:FF:FF.0."""
    assert links(*(nvlink(one, HIDDEN, 2) for one in range(18))) == [("switch", None, 18)]


def test_itself_as_the_other_end() -> None:
    """Traps 94: Azure NC A100 v4, the target of 0001:00:00.0 is 0001:00:00.0, count 12: unknown, no loop."""
    assert links(*(nvlink(one, "00000000:17:00.0", 0) for one in range(12))) == [("unknown", None, 12)]


def test_direct_links() -> None:
    assert links(*(nvlink(one, "00000000:18:00.0", 0) for one in range(4))) == [("gpu", THERE, 4)]


def test_links_to_the_processor() -> None:
    """POWER9: remote type 1 (nvml.h NVML_NVLINK_DEVICE_TYPE_IBMNPU)."""
    assert links(nvlink(0, "0004:00:00.0", 1), nvlink(1, "0004:00:00.0", 1)) == [("cpu", None, 2)]


def test_a_peer_is_told_by_its_address_where_the_type_is_refused() -> None:
    assert links(nvlink(0, B, ERROR)) == [("gpu", THERE, 1)]


@pytest.mark.parametrize("kind", [ERROR, 255], ids=["refused", "unknown"])
@pytest.mark.parametrize(
    ("remote", "peer"),
    [
        (SWITCH, HUB),
        (HIDDEN, None),
        ("", None),
    ],
    ids=["on the bus", "all f", "empty"],
)
def test_a_switch_where_the_type_is_refused(kind: Json, remote: str, peer: PciAddress | None) -> None:
    """nvml.md, section 6: type first, then the PCI class of the remote address (0x0680 of 10de); a peer that is not
    visible: "kind from RemoteDeviceType, else switch assumed"."""
    assert links(nvlink(0, remote, kind)) == [("switch", peer, 1)]


def test_a_peer_that_is_not_on_the_bus() -> None:
    """nvml.md, section 6: "not in the PCI list = peer unknown"."""
    assert [peer for _, peer, _ in links(nvlink(0, "0000:99:00.0", 0))] == [None]


def test_active_links() -> None:
    """nvml.md, section 6: 0 inactive, 1 active, 2 asleep, 3 active with traffic disabled; an error ends the loop."""
    some = [nvlink(number, B, 0, state) for number, state in enumerate([0, 1, 2, 3])]
    found = told(answers(A, 0, [*some, nvlink(4, B, 0, {"error": "INVALID_ARGUMENT"})]), answers(B, 1))
    assert found.nvlinks_now == (NvLinkState(HERE, THERE, "gpu", 3),)
    assert [link.links for link in found.gpu_links or ()] == [4]


def test_bandwidth() -> None:
    """nvml.md, section 6: field 164 in MB/s for each link."""
    found = told(answers(A, 0, [nvlink(one, B, 0) for one in range(4)]), answers(B, 1))
    assert [link.bytes_per_second for link in found.gpu_links or ()] == [4 * 25_000_000_000]


def test_one_speed_that_is_refused() -> None:
    """contract.md, section 4: never 0 for unknown."""
    one = nvlink(1, B, 0)
    assert isinstance(one, dict)
    found = told(answers(A, 0, [nvlink(0, B, 0), one | {"speed_mbps": ERROR}]), answers(B, 1))
    assert [link.bytes_per_second for link in found.gpu_links or ()] == [None]


@pytest.mark.parametrize("speed", [0, ERROR, 25000])
def test_a_link_that_is_down_is_as_fast_as_the_others(speed: Json) -> None:
    """How fast links are is wiring; what one says of it that is down is state."""
    down: Json = {**nvlink(3, B, 0, 0), "speed_mbps": speed}  # type: ignore[dict-item]
    found = told(answers(A, 0, [*(nvlink(one, B, 0) for one in range(3)), down]), answers(B, 1))
    assert [(link.links, link.bytes_per_second) for link in found.gpu_links or ()] == [(4, 4 * 25_000_000_000)]


def test_links_that_are_all_down_tell_no_speed() -> None:
    down: list[Json] = [{**nvlink(one, B, 0, 0), "speed_mbps": 0} for one in range(4)]  # type: ignore[dict-item]
    found = told(answers(A, 0, down), answers(B, 1))
    assert [(link.links, link.bytes_per_second) for link in found.gpu_links or ()] == [(4, None)]


def test_who_tells_of_nvlink() -> None:
    """None is "nobody told", () is "there is none"."""
    assert inventory(BOX).gpu_links is None
    assert told(answers(A, 0)).gpu_links == ()
    assert told(answers(A, 0, nvlinks=ERROR)).gpu_links is None


def test_nvlink_of_two_gpus() -> None:
    """Each direct link once, although both ends tell of it; the word is NV4."""
    found = topology(BOX, documents=nvml(answers(A, 0, [nvlink(one, B, 0) for one in range(4)]),
                                         answers(B, 1, [nvlink(one, A, 0) for one in range(4)])))  # fmt: skip
    assert [(str(link.a), str(link.b), link.links) for link in found.links or ()] == [(f"pci:{A}", f"pci:{B}", 4)]
    assert between(found, A, B).class_ == "NV4"


def test_the_memory_node_is_not_the_locality() -> None:
    """Traps 5: the node that NVML names on Grace is HBM."""
    found = topology(BOX, documents=nvml(answers(A, 0, numa_node_id=4)))
    gpu = place(found, A)
    assert gpu.gpu is not None
    assert (gpu.gpu.memory_node, gpu.numa_node) == (4, None)


def test_proc() -> None:
    """proc/driver/nvidia/gpus; the UUID is question marks until the GPU was used once."""
    text = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 215\nGPU UUID: \t {}\nBus Location: \t {}\n"
    name = f"proc/driver/nvidia/gpus/{A}/information"
    known = inventory(BOX | {name: text.format("GPU-00000001-0000-0000-0000-000000000000", A)}).gpus
    assert known == (
        Gpu(
            function=HERE,
            origin="nvidia",
            name="NVIDIA A100-SXM4-40GB",
            uuid="GPU-00000001-0000-0000-0000-000000000000",
        ),
    )
    (unused,) = inventory(BOX | {name: text.format("GPU-????????-????-????-????-????????????", A)}).gpus
    assert unused.uuid is None


def test_device_nodes() -> None:
    """card0-DP-1 is a connector, and `version` a file."""
    below = f"../../devices/pci0000:16/0000:16:01.0/{A}/drm"
    files: Files = {f"sys/class/drm/{name}": Link(f"{below}/{name}") for name in ("card1", "renderD129")}
    files |= {"sys/class/drm/card1-DP-1": Link(f"{below}/card1/card1-DP-1"), "sys/class/drm/version": "drm 1.1.0\n"}
    assert inventory(BOX | files).gpus == (Gpu(function=HERE, origin="drm", nodes=("card1", "renderD129")),)


def test_accel() -> None:
    """Gaudi: class/accel/accel0."""
    gaudi = function("0000:19:00.0", under="pci0000:16", class_="0x120000", vendor="0x1da3", device="0x1020")
    files = gaudi | {"sys/class/accel/accel0": Link("../../devices/pci0000:16/0000:19:00.0/accel/accel0")}
    assert place(topology(files), "0000:19:00.0").names.nodes == ("accel0",)


def shown(found: Inventory) -> str:
    """Everything that people and programs are shown."""
    graph = build(found)
    rows = [list(view(graph)) for view in (devices.gpus, devices.nics, devices.nvme, devices.switches, devices.links)]
    return f"{as_json(document(graph))}{matrix(graph)}{tree(graph)}{bind(graph)}{rows}"


WHOLE: Any = nvml(
    answers(A, 0, [nvlink(0, B, 0), nvlink(1, SWITCH, 2)], cpu_affinity=["ff"]),
    answers(B, 1, [nvlink(0, A, 0)]),
)["nvml"]

GARBAGE: list[Json] = [None, True, -1, 1.5, "", "x" * 70000, "\x1b[31m", [], [None], [[]], {}, ERROR, {"error": 7}]

ENORMOUS = 10**400


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    return [path, *(deeper for key, one in inside for deeper in places(one, (*path, key)))]


def replaced(path: tuple[Any, ...], said: Json) -> Json:
    if not path:
        return said
    whole = copy.deepcopy(WHOLE)
    holder = whole
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = said
    return whole  # type: ignore[no-any-return]


@pytest.mark.parametrize("said", GARBAGE, ids=lambda said: repr(said)[:16])
def test_anything_in_any_field(said: Json) -> None:
    """Nothing raises, no source fails, and no GPU vanishes: the list of GPUs is the PCI bus."""
    for path in places(WHOLE):
        found = scan(machine(BOX, documents={"nvml": replaced(path, said)}))
        assert [one for one in found.diagnostics if one.code == "source_failed"] == [], path
        assert "\x1b" not in shown(found).replace("\\u001b", ""), path
        assert [str(one.address) for one in build(found).of_kind("gpu")] == [A, B], path


@pytest.mark.parametrize(
    "field",
    [
        "index",
        "numa_node_id",
        "memory_bytes",
        "speed_mbps",
    ],
)
def test_enormous_numbers(field: str) -> None:
    """JSON has no limit for integers: a recording with one must not end `list` and `dump` in a traceback."""
    for path in places(WHOLE):
        if path[-1:] == (field,):
            assert shown(scan(machine(BOX, documents={"nvml": replaced(path, ENORMOUS)})))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=12) | st.sampled_from([A, B, HIDDEN, SWITCH]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["gpus", "bdf", "index", "uuid", "nvlinks", "state", "remote_bdf", "remote_type", "error"]),
            inner,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(JSON, st.lists(JSON, max_size=3))
def test_any_document(whole: Any, gpus: Any) -> None:
    documents: list[Json] = [whole, {"gpus": gpus}, {"gpus": [{"bdf": A, "nvlinks": gpus}]}]
    for said in documents:
        found = scan(machine(BOX, documents={"nvml": said}))
        assert [one for one in found.diagnostics if one.code == "source_failed"] == []
        assert shown(found)


def test_the_document_here_is_what_the_driver_is_asked() -> None:
    """docs/schema/nvml-document.json: tests over a document that nobody writes would prove nothing."""
    schema = json.loads((Path(__file__).parents[1] / "docs/schema/nvml-document.json").read_text(encoding="utf-8"))
    jsonschema.validate(WHOLE, schema)


def test_near_cpus_by_nvml() -> None:
    """pairing.md, section 4, step 4: where neither numa_node, a bridge nor a CPU list tells, NVML's affinity does."""
    found = place(topology(two_sockets() | BOX, documents=nvml(answers(A, 0, cpu_affinity=["f0"]))), A)
    assert (found.numa_node, dict(found.sources)) == (1, {"numa_node": "nvml"})


def test_bandwidth_of_older_drivers() -> None:
    """nvml.md, section 6: field 90 is the speed that all links have in common (`nvlink_mbps` of the document)."""
    one = nvlink(0, B, 0)
    assert isinstance(one, dict)
    found = told(answers(A, 0, [one | {"speed_mbps": ERROR, "link": n} for n in range(4)], nvlink_mbps=25781))
    assert [link.bytes_per_second for link in found.gpu_links or ()] == [4 * 25_781_000_000]


def test_links_that_are_no_links() -> None:
    assert told(answers(A, 0, [None, 7, "x", [], {}, {"state": ERROR}, {"state": True}])).gpu_links == ()


def test_a_gpu_of_amd_has_no_answers() -> None:
    found = inventory(grown("pci0000:16/16:01.0/17:00.0", AMD), documents=nvml())
    assert (found.gpus, found.gpu_links) == ((), None)


def test_one_link_fact_of_each_peer() -> None:
    assert told(answers(A, 0, [nvlink(0, B, 0), nvlink(1, B, 0, 0)]), answers(B, 1)).gpu_links == (
        GpuLink(function=HERE, kind="nvlink", peer=THERE, peer_kind="gpu", links=2, bytes_per_second=50_000_000_000),
    )
