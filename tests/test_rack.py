"""NVLink fabric and platform of a GPU: nvml.md sections 4 and 5, labels.md section 4, traps 97-99."""

from __future__ import annotations

from typing import Any

import pytest

from tests.paper import NVIDIA, answers, between, grown, machine, nvlink, nvml, place, topology
from tests.schemas import FOLDER, strict
from tests.test_metrics import series, values
from topo_agent.diagnostics import Unknown
from topo_agent.graph.nodes import GpuPart
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, recording
from topo_agent.views.document import document
from topo_agent.views.tree import tree

A, B = "0008:01:00.0", "0009:01:00.0"
FILES = grown("pci0008:00/00:00.0/01:00.0", NVIDIA) | grown("pci0009:00/00:00.0/01:00.0", NVIDIA)
CLUSTER = "9c6f5af3-53bf-49b5-a436-b66766c413c3"  # a GB200, leptonai/gpud PR 1106, clique 4026
ZERO = "00000000-0000-0000-0000-000000000000"
RACK: dict[str, Json] = {
    "api": "v2", "ib_guid": "9c61c00300b1d2f0", "chassis_serial": "1825024170029", "slot": 5, "tray": 4, "host_id": 1,
    "peer_type": 1, "module_id": 2,
}  # fmt: skip


FABRIC: dict[str, Json] = {
    "api": "v3", "state": 3, "status": 0, "uuid": CLUSTER, "cliques": [{"id": 4026}], "health_mask": 0,
    "health_summary": 0,
}  # fmt: skip

# nvml.h NVML_GPU_FABRIC_HEALTH_MASK_…, in the order of their bits
ISSUES = (
    "degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery", "incorrect_configuration",
)  # fmt: skip


def fabric(**said: Json) -> dict[str, Json]:
    return FABRIC | said


def gpus(*some: dict[str, Json]) -> Topology:
    """A GB200 tray with one or two GPUs, each with 18 links to switches that nobody sees."""
    links = [nvlink(number, "FFFFFFFF:FF:FF.0", 2) for number in range(18)]
    made = [
        answers(at, index, links, **{"compute_capability": [10, 0]} | one)  # type: ignore[arg-type]
        for index, (at, one) in enumerate(zip((A, B), some, strict=False))
    ]
    return topology(FILES, documents=nvml(*made))


def part(found: Topology, at: str = A) -> GpuPart:
    said = place(found, at).gpu
    assert said is not None
    return said


def document_of(found: Topology, at: str = A) -> tuple[Any, Any]:
    """(`gpu` of its device, `fabric` of its state) in a document that is as its schema says."""
    whole: Any = document(found)
    assert not list(strict(FOLDER / "topo-agent-v1.json").iter_errors(whole))
    (gpu,) = (one for one in whole["devices"] if one["id"] == f"pci:{at}")
    return gpu["gpu"], whole["state"].get(f"pci:{at}", {}).get("fabric")


def test_a_fabric_that_is_up() -> None:
    gpu, now = document_of(gpus({"fabric": fabric()}))
    assert gpu["fabric"] == f"{CLUSTER}.4026"
    assert now == {"state": "completed", "status": 0, "health_mask": "0x00000000"}  # 0 is nothing told, not healthy


def test_the_clique_is_that_of_unicast_pointers() -> None:
    """nvml.md, section 4: v4 has several; "the legacy clique id is the first UNICAST_POINTER id"."""
    cliques: list[Json] = [{"type": 1, "id": 7}, {"type": 0, "id": 4026}, {"type": 3, "id": 9}, {"type": 0, "id": 8}]
    gpu, _ = document_of(gpus({"fabric": fabric(api="v4", cliques=cliques)}))
    assert gpu["fabric"] == f"{CLUSTER}.4026"
    assert gpu["cliques"] == [
        {"type": "multicast_pointer", "id": 7}, {"type": "unicast_pointer", "id": 4026},
        {"type": "multicast_logical_endpoint", "id": 9}, {"type": "unicast_pointer", "id": 8},
    ]  # fmt: skip


def test_no_unicast_clique() -> None:
    """A multicast clique is no NVLink partition."""
    assert part(gpus({"fabric": fabric(cliques=[{"type": 1, "id": 7}])})).fabric is None


@pytest.mark.parametrize("uuid", ["ffffffff-ffff-ffff-ffff-ffffffffffff", "", "N/A", None, 7])
def test_a_placeholder_is_no_cluster(uuid: Json) -> None:
    """Nor is it the answer that there is none."""
    found = gpus({"fabric": fabric(uuid=uuid)})
    gpu, _ = document_of(found)
    assert (gpu["fabric"], gpu["unknown"]) == (None, {"fabric": "driver_error"})


def test_zeros_are_no_cluster() -> None:
    """Traps 97: HGX H100 is COMPLETED with SUCCESS and zeros: up, without a cluster, and nothing is unknown."""
    found = gpus({"fabric": fabric(uuid=ZERO)})
    gpu, now = document_of(found)
    assert {"fabric", "cliques", "unknown"} & {*gpu} == set()
    assert now["state"] == "completed"
    assert "NVLink cluster" not in tree(found)


@pytest.mark.parametrize(("step", "word"), [(1, "not_started"), (2, "in_progress")])
def test_a_fabric_that_is_not_up_yet(step: int, word: str) -> None:
    """nvml.md, section 4: only COMPLETED makes the status valid. No cluster, whatever stands in the field."""
    found = gpus({"fabric": fabric(state=step)}, {"fabric": fabric()})
    gpu, now = document_of(found)
    assert ("fabric" in gpu, now["state"], "status" in now) == (False, word, False)
    assert f"NVLink cluster {CLUSTER}, clique 4026 (1 of 2 GPUs)" in tree(found)
    assert f"NVLink fabric {word.replace('_', ' ')}: GPU0" in tree(found)


def test_progress_is_state() -> None:
    """contract.md, section 3: what moves by itself is not in what is compared."""
    up, ill = gpus({"fabric": fabric()}), gpus({"fabric": fabric(health_mask=0x1A9, health_summary=2)})
    assert up == ill
    assert document(up)["digest"] == document(ill)["digest"]
    assert document(up)["state"] != document(ill)["state"]


def test_a_fabric_that_failed() -> None:
    """NVML_ERROR_UNKNOWN as its status."""
    gpu, now = document_of(gpus({"fabric": fabric(status=999)}))
    assert (gpu["fabric"], gpu["unknown"], now["status"]) == (None, {"fabric": "driver_error"}, 999)


BROKEN = fabric(state=0, uuid=ZERO, cliques=[{"id": 0}])


def test_not_supported_is_suspect_on_a_part_with_switches() -> None:
    """Traps 98, leptonai/gpud PR 1108: a broken GB200 says NOT_SUPPORTED, Success, clique 0."""
    found = gpus({"fabric": BROKEN}, {"fabric": fabric()})
    gpu, now = document_of(found)
    assert (gpu["fabric"], gpu["unknown"], now["state"]) == (None, {"fabric": "contradicts"}, "not_supported")
    assert "NVLink fabric unknown (contradicts): GPU0" in tree(found)


@pytest.mark.parametrize(
    "rightly",
    [
        {"nvlinks": {"error": "NOT_SUPPORTED"}},  # a single H100 (gpud#1140), GH200 (gpud#1206)
        {"nvlinks": [nvlink(one, "FFFFFFFF:FF:FF.0", 2, 0) for one in range(18)]},  # all down: outside of the fabric
        {"nvlinks": [nvlink(one, B, 0) for one in range(4)]},  # a bridge
        {"compute_capability": [8, 0]},  # A100: its switches have no fabric manager to register with
        {"compute_capability": {"error": "UNKNOWN"}},
    ],
)
def test_not_supported_that_is_right(rightly: dict[str, Json]) -> None:
    gpu, now = document_of(gpus({"fabric": BROKEN, **rightly}))
    assert ("fabric" in gpu, "unknown" in gpu, now["state"]) == (False, False, "not_supported")


@pytest.mark.parametrize("key", ["fabric", "platform"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [("NOT_SUPPORTED", None), ("FUNCTION_NOT_FOUND", None), ("NO_PERMISSION", "not_permitted"),
     ("UNKNOWN", "driver_error"), ("TIMEOUT", "timeout")],
)  # fmt: skip
def test_refusals(key: str, error: str, reason: str | None) -> None:
    """nvml.md, section 3: not supported is an answer, an old driver has no such question; the rest is unknown."""
    gpu, now = document_of(gpus({key: {"error": error}}))
    assert now is None
    assert (gpu.get("unknown"), key in gpu) == ({key: reason} if reason else None, reason is not None)


@pytest.mark.parametrize(
    ("mask", "summary", "health", "faults"),
    [
        (0xAA, 0, "healthy", None),  # nvml.md, section 4: the first four all FALSE
        (0x11AA, 0, "healthy", None),  # and configured rightly, with a partition
        (0, 0, None, None),  # "nothing reported, not healthy"
        (0x2A, 0, None, None),  # three of four
        (0xA9, 0, "unhealthy", ["degraded_bandwidth"]),
        (0xA6, 0, "unhealthy", ["route_recovery"]),
        (0x9A, 0, "unhealthy", ["route_unhealthy"]),
        (0x6A, 0, "unhealthy", ["access_timeout_recovery"]),
        (0x3AA, 0, "unhealthy", ["chassis_serial"]),
        (0x8A9, 0, "unhealthy", ["degraded_bandwidth", "gpu_state"]),
        (0xFAA, 0, "unhealthy", ["configuration_15"]),
        (0xAA, 1, "healthy", None),
        (0xAA, 2, "unhealthy", None),
        (0xAA, 3, "limited_capacity", None),
        (0xA9, 1, "healthy", ["degraded_bandwidth"]),  # the two of them disagree: both are told
    ],
)
def test_health(mask: int, summary: int, health: str | None, faults: list[str] | None) -> None:
    found = gpus({"fabric": fabric(health_mask=mask, health_summary=summary)})
    _, now = document_of(found)
    assert (now.get("health"), now.get("faults"), now["health_mask"]) == (health, faults, f"0x{mask:08x}")
    assert ("NVLink fabric" in tree(found)) == (bool(faults) or health not in (None, "healthy"))


@pytest.mark.parametrize(
    ("step", "word"), [(0, "not_supported"), (1, "not_started"), (2, "in_progress"), (3, "completed")]
)
def test_state_as_series(step: int, word: str) -> None:
    """nvml.h NVML_GPU_FABRIC_STATE_…; OpenMetrics 1.0, StateSet: one series a state, exactly one of them true."""
    found = values(gpus({"fabric": fabric(state=step)}), "topo_fabric_state", "topo_fabric_state")
    assert found == {(one,): int(one == word) for one in ("not_supported", "not_started", "in_progress", "completed")}


@pytest.mark.parametrize(
    ("mask", "summary", "healthy", "issues"),
    [
        (0, 0, None, {}),  # nvml.h: every field "not supported"
        (0xAA, 0, 1, dict.fromkeys(ISSUES[:4], 0)),
        (0x1AA, 1, 1, dict.fromkeys(ISSUES, 0)),
        (0x01, 2, 0, {"degraded_bandwidth": 1}),
        (0x1A9, 2, 0, {**dict.fromkeys(ISSUES, 0), "degraded_bandwidth": 1}),
        (0x1A6, 2, 0, {**dict.fromkeys(ISSUES, 0), "route_recovery": 1}),
        (0x19A, 2, 0, {**dict.fromkeys(ISSUES, 0), "route_unhealthy": 1}),
        (0x16A, 2, 0, {**dict.fromkeys(ISSUES, 0), "access_timeout_recovery": 1}),
        (0x3AA, 2, 0, {**dict.fromkeys(ISSUES, 0), "incorrect_configuration": 1}),
        (0xAA, 3, 0, dict.fromkeys(ISSUES[:4], 0)),
    ],
)
def test_health_as_series(mask: int, summary: int, healthy: int | None, issues: dict[str, int]) -> None:
    found = gpus({"fabric": fabric(health_mask=mask, health_summary=summary)})
    assert values(found, "topo_fabric_healthy", "pci_bus_id") == ({} if healthy is None else {(A,): healthy})
    assert values(found, "topo_fabric_health_issue", "issue") == {(issue,): value for issue, value in issues.items()}


@pytest.mark.parametrize("said", [{"error": "NOT_SUPPORTED"}, fabric(state=4)])
def test_no_state_no_series(said: dict[str, Json]) -> None:
    assert values(gpus({"fabric": said}), "topo_fabric_state", "topo_fabric_state") == {}


def test_an_old_struct_tells_no_health() -> None:
    said = fabric(api="v1")
    del said["health_mask"], said["health_summary"]
    _, now = document_of(gpus({"fabric": said}))
    assert now == {"state": "completed", "status": 0}


def test_a_state_that_nvml_h_does_not_have() -> None:
    _, now = document_of(gpus({"fabric": fabric(state=4)}))
    assert now["state"] is None


def test_platform() -> None:
    """labels.md, section 6.1: a record of NMX; a node is told apart by serial, slot and tray, a GPU by its module."""
    found = gpus({"platform": RACK}, {"platform": RACK | {"module_id": 3}})
    gpu, _ = document_of(found)
    assert gpu["platform"] == {"chassis_serial": "1825024170029", "slot": 5, "tray": 4, "host_id": 1, "module_id": 2}
    assert "chassis 1825024170029, slot 5, tray 4" in tree(found).splitlines()


def test_the_first_tray() -> None:
    """0 is a place where there is a chassis."""
    said = part(gpus({"platform": RACK | {"tray": 0}})).platform
    assert said is not None
    assert (said.tray, said.unknown) == (0, ())


@pytest.mark.parametrize(
    "serial", ["", "N/A", "0000000000000", "To be filled by O.E.M.", "\\xff\\xfe12", "18 25\t", None]
)
def test_a_serial_that_is_none(serial: Json) -> None:
    """nvml.md, section 5: "ASCII only, refuse empty"; labels.md, section 3: fillers."""
    found = gpus({"platform": RACK | {"chassis_serial": serial}})
    gpu, _ = document_of(found)
    assert (gpu["platform"]["chassis_serial"], gpu["platform"]["slot"]) == (None, 5)
    assert gpu["platform"]["unknown"] == {"chassis_serial": "firmware_silent"}
    assert "chassis" not in tree(found)


def test_an_unset_place() -> None:
    """nvml.md, section 5: 255."""
    gpu, _ = document_of(gpus({"platform": RACK | {"slot": 255, "tray": 255}}))
    assert gpu["platform"]["unknown"] == {"slot": "firmware_silent", "tray": "firmware_silent"}


def test_zeros_without_a_chassis() -> None:
    """labels.md, section 3: fillers; what is set stays."""
    gpu, _ = document_of(gpus({"platform": RACK | {"chassis_serial": "", "slot": 0, "tray": 0}}))
    silent = dict.fromkeys(("chassis_serial", "slot", "tray"), "firmware_silent")
    assert (gpu["platform"]["host_id"], gpu["platform"]["unknown"]) == (1, silent)


def test_nothing_is_set() -> None:
    zeros = dict.fromkeys(("slot", "tray", "host_id", "peer_type", "module_id"), 0)
    gpu, _ = document_of(gpus({"platform": RACK | zeros | {"chassis_serial": ""}}))
    assert "platform" not in gpu


def test_what_gpus_do_not_agree_on() -> None:
    """Nothing is said of all that is true of one."""
    apart, unset = "chassis 1825024170029, slot 5", "chassis 1825024170029"
    assert "chassis" not in tree(gpus({"platform": RACK}, {"platform": RACK | {"chassis_serial": "1825024170030"}}))
    assert apart in tree(gpus({"platform": RACK}, {"platform": RACK | {"tray": 9}})).splitlines()
    assert unset in tree(gpus({"platform": RACK | {"slot": 255, "tray": 255}})).splitlines()


NOWHERE = {"chassis_serial": "", "slot": "", "tray": ""}
PLACE = {"chassis_serial": "1825024170029", "slot": "5", "tray": "4"}


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ([{"fabric": fabric(), "platform": RACK}] * 2, {"cluster_uuid": CLUSTER, "clique": "4026"} | PLACE),
        ([{"fabric": fabric()}] * 2, {"cluster_uuid": CLUSTER, "clique": "4026"} | NOWHERE),
        ([{"fabric": fabric(state=2), "platform": RACK}] * 2, {"cluster_uuid": "", "clique": ""} | PLACE),
        (
            [{"fabric": fabric(), "platform": RACK}, {"fabric": fabric(), "platform": RACK | {"tray": 9}}],
            {"cluster_uuid": CLUSTER, "clique": "4026"} | PLACE | {"tray": ""},
        ),
        (
            [{"fabric": fabric(), "platform": RACK | {"slot": 255, "tray": 255}}],
            {"cluster_uuid": CLUSTER, "clique": "4026"} | PLACE | {"slot": "", "tray": ""},
        ),
        (
            [{"fabric": fabric(), "platform": RACK | {"chassis_serial": "N/A"}}],
            {"cluster_uuid": CLUSTER, "clique": "4026"} | NOWHERE,
        ),
    ],
)
def test_the_metric_of_the_node(some: list[dict[str, Json]], expected: dict[str, str]) -> None:
    """metrics.md, section 4: cluster, clique, chassis, slot and tray; what nobody has set is empty."""
    (one,) = series(gpus(*some), "topo_node_fabric_info")
    assert one.labels == expected | {"source": "nvml"}


def test_no_metric_of_a_node_that_is_in_no_rack() -> None:
    assert series(gpus({"platform": RACK | {"chassis_serial": ""}}), "topo_node_fabric_info") == []


def test_where_a_gpu_is_is_structure() -> None:
    here, there = gpus({"platform": RACK}), gpus({"platform": RACK | {"tray": 5}})
    assert here != there
    assert document(here)["digest"] != document(there)["digest"]


def test_two_clusters_do_not_reach_each_other() -> None:
    """Traps 99, dra-driver-nvidia-gpu#377: the same clique in two racks."""
    other = "11111111-2222-3333-4444-555555555555"
    same, apart = (gpus({"fabric": fabric()}, {"fabric": fabric(uuid=uuid)}) for uuid in (CLUSTER, other))
    assert (between(same, A, B).class_, between(apart, A, B).class_[:2] == "NV") == ("NV18", False)


@pytest.mark.parametrize(("number", "word", "line"), [(0, None, None), (1, "passthrough", "passed through"),
                                                      (2, "vgpu", "vGPU"), (3, "host_vgpu", "host of vGPUs"),
                                                      (4, "host_vsga", "host of vSGA"), (5, None, None)])  # fmt: skip
def test_virtualization(number: int, word: str | None, line: str | None) -> None:
    """nvml.h nvmlGpuVirtualizationMode_t."""
    found = gpus({"virtualization_mode": number})
    gpu, _ = document_of(found)
    assert gpu.get("virtualization") == word
    (shown,) = (text for text in tree(found).splitlines() if "GPU0" in text)
    assert shown.endswith(f"· {line}" if line else "H100 80GB HBM3")


@pytest.mark.parametrize(
    "said", [None, 7, [], "x", {}, {"state": True}, {"state": 3, "status": 0, "cliques": 7, "uuid": CLUSTER}]
)
def test_anything(said: Json) -> None:
    found = gpus({"fabric": said, "platform": said, "virtualization_mode": said})
    document_of(found)
    assert (part(found).fabric, part(found).platform) == (None, None)


def test_redacted() -> None:
    """The serial of a chassis is a name of somebody's property, and so are the GUID and the cluster."""
    some = nvml(*(answers(at, index, fabric=fabric(), platform=RACK) for index, at in enumerate((A, B))))
    text = recording.write(machine(FILES, documents=some))
    for secret in ("1825024170029", "9c61c00300b1d2f0", CLUSTER, "9c6f5af3"):
        assert secret not in text
    graph = topology(FILES, documents={"nvml": recording.parse(text).document("nvml")})
    one, other = part(graph), part(graph, B)
    assert one.platform is not None and one.platform.chassis_serial is not None  # noqa: PT018 one thought
    assert (one.platform, one.fabric) == (other.platform, other.fabric)
    assert (len(one.platform.chassis_serial), one.platform.slot) == (13, 5)
    assert one.fabric is not None and one.fabric.endswith(".4026")  # noqa: PT018


def test_a_redacted_placeholder_stays_one() -> None:
    some = nvml(answers(A, 0, fabric=fabric(uuid=ZERO), platform=RACK | {"chassis_serial": "N/A"}))
    said: Any = recording.parse(recording.write(machine(FILES, documents=some))).document("nvml")
    assert (said["gpus"][0]["fabric"]["uuid"], said["gpus"][0]["platform"]["chassis_serial"]) == (ZERO, "N/A")


def test_the_reasons_are_codes() -> None:
    """Of the part and not of the function: the function is known."""
    found = gpus({"fabric": BROKEN})
    assert part(found).unknown == (("fabric", Unknown.CONTRADICTS),)
    assert "fabric" not in dict(place(found, A).unknown)
