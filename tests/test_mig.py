"""MIG devices: parts of a GPU with places of their own, that nothing counts as GPUs (contract.md 4, nvml.md 8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.paper import NIC, NVIDIA, answers, grown, machine, nvlink, nvml, place, put, topology, two_sockets
from tests.schemas import FOLDER, readers, strict
from topo_agent.diagnostics import Level
from topo_agent.graph import checks, pairing
from topo_agent.graph.chosen import gpus_of
from topo_agent.graph.explain import nearest
from topo_agent.graph.find import NoSuchDevice, find
from topo_agent.graph.order import gpu_numbers
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, recording
from topo_agent.views import devices
from topo_agent.views.bind import bind
from topo_agent.views.document import document
from topo_agent.views.matrix import matrix
from topo_agent.views.tree import tree

A, B = "0000:17:00.0", "0000:18:00.0"
FILES = (
    two_sockets()
    | put("pci0000:16/16:01.0/17:00.0", NVIDIA, node=1)
    | put("pci0000:16/16:03.0/18:00.0", NVIDIA, node=1)
    | grown("pci0000:16/16:05.0/19:00.0", NIC)
)
REFUSED: Json = {"error": "NO_PERMISSION"}


def uuid(number: int) -> str:
    return f"MIG-0000000{number}-5f3a-4000-8000-000000000000"


def part(number: int, instance: Json, compute: Json = 0, profile: str = "1g.10gb", **said: Json) -> Json:
    """One MIG device of the NVML document."""
    return {
        "index": number, "uuid": uuid(number), "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
        "memory_bytes": 10468982784, "gpu_instance": instance, "compute_instance": compute, **said,
    }  # fmt: skip


def cut(*parts: Json) -> Topology:
    """Two H100, the first of them in MIG mode with these devices."""
    return topology(FILES, documents=nvml(answers(A, 0, mig=mode(list(parts))), answers(B, 1, mig=mode(None))))


def mode(devices: Json) -> Json:
    return {"current": 0, "pending": 0} if devices is None else {"current": 1, "pending": 1, "devices": devices}


def ids(found: Topology) -> list[str]:
    return [str(one.ref) for one in found.migs]


def told(found: Topology, id_: str) -> Any:
    (one,) = (one for one in document(found)["devices"] if one["id"] == id_)  # type: ignore[union-attr,call-overload,index]
    return one


def codes(found: Topology) -> list[tuple[Level, str]]:
    return [(one.level, one.code) for one in found.diagnostics]


def test_ids_are_places() -> None:
    """Not in the order of NVML's index, and as numbers: 9 before 13."""
    found = cut(part(0, 13), part(1, 9), part(2, 1))
    assert ids(found) == [f"mig:{A}/1", f"mig:{A}/9", f"mig:{A}/13"]


def test_one_gpu_instance_with_several_compute_instances() -> None:
    """The place of the first stays when a second is made beside it."""
    alone, beside = cut(part(0, 1, 0)), cut(part(0, 1, 0), part(1, 1, 2))
    assert (ids(alone), ids(beside)) == ([f"mig:{A}/1"], [f"mig:{A}/1", f"mig:{A}/1/2"])
    assert [one.uid for one in beside.migs] == [uuid(0), uuid(1)]


def test_a_place_does_not_hang_on_what_a_process_may_see() -> None:
    """A container with one of three: NVML counts from 0, the instances are those of the host."""
    assert ids(cut(part(0, 9))) == [f"mig:{A}/9"]


def test_the_document() -> None:
    """nvml.md, section 8: no address of its own, "locality of the parent"."""
    found = cut(part(0, 1), part(1, 2, REFUSED, memory_bytes={"error": "UNKNOWN"}))
    assert told(found, f"mig:{A}/1") == {
        "id": f"mig:{A}/1", "kind": "mig", "partition_of": f"pci:{A}", "gpu_instance": 1, "compute_instance": 0,
        "model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "uid": uuid(0), "memory_bytes": 10468982784,
        "numa_node": 1, "numa_nodes": [1], "cpus": "4-7",
    }  # fmt: skip
    second = told(found, f"mig:{A}/2")
    assert (second["compute_instance"], second["memory_bytes"]) == (None, None)
    assert second["unknown"] == {"compute_instance": "not_permitted", "memory_bytes": "driver_error"}
    assert (told(found, f"pci:{A}")["gpu"]["mig"], "mig" in told(found, f"pci:{B}")["gpu"]) == (True, False)
    for schema in (strict, readers):
        assert not list(schema(FOLDER / "topo-agent-v1.json").iter_errors(document(found)))


def test_a_gpu_of_unknown_place() -> None:
    files = grown("pci0000:16/16:01.0/17:00.0", NVIDIA)
    one = told(topology(files, documents=nvml(answers(A, 0, mig=mode([part(0, 1)])))), f"mig:{A}/1")
    assert (one["numa_node"], one["cpus"], sorted(one["unknown"])) == (None, None, ["cpus", "numa_node"])


def test_they_are_no_gpus() -> None:
    """Numbers, matrix, pairs, lists, distances and findings are those of the same machine without MIG."""
    whole, parts = cut(), cut(part(0, 1), part(1, 2), part(2, 3))
    plain = topology(FILES, documents=nvml(answers(A, 0), answers(B, 1)))
    for found in (whole, parts):
        assert gpu_numbers(found) == gpu_numbers(plain)
        assert (matrix(found), bind(found)) == (matrix(plain), bind(plain))
        assert pairing.pairs(found) == pairing.pairs(plain)
        assert document(found)["paths"] == document(plain)["paths"]
        assert checks.findings(found, pairing.pairs(found)) == checks.findings(plain, pairing.pairs(plain))
    assert [row | {"mig": ""} for row in devices.gpus(parts)] == list(devices.gpus(plain))
    assert [row["mig"] for row in devices.gpus(parts)] == ["1g.10gb 1g.10gb 1g.10gb", ""]


def test_no_nvlinks_are_missing() -> None:
    """nvml.md, section 8: "MIG devices have no NVLink": its whole GPU has none, and an equal one beside it has 18."""
    links = [nvlink(number, "FFFFFFFF:FF:FF.0", 2) for number in range(18)]
    gone = answers(A, 0, mig=mode([part(0, 1)]), nvlinks={"error": "NOT_SUPPORTED"})

    def found(one: Json) -> list[str]:
        graph = topology(FILES, documents=nvml(one, answers(B, 1, links)))
        return [one.code for one in checks.findings(graph, pairing.pairs(graph))]

    assert "nvlink_partial" not in found(gone)
    assert "nvlink_partial" in found(answers(A, 0, nvlinks={"error": "NOT_SUPPORTED"}))


def test_one_line_of_the_tree() -> None:
    text = tree(cut(part(0, 1, profile="3g.40gb"), *(part(number, number + 6) for number in range(1, 5))))
    assert "└─ 5 MIG: 3g.40gb, 4 × 1g.10gb\n" in text
    assert "2 GPUs" in text


def test_a_long_line_is_cut() -> None:
    some = [part(number, number, profile=f"{number}g.{number}gb+me.all.and.more") for number in range(1, 8)]
    assert max(len(line) for line in tree(cut(*some)).splitlines()) <= 100


@pytest.mark.parametrize(
    ("devices", "line", "unknown"),
    [
        ([], "MIG on, no devices", None),
        (REFUSED, "MIG on, its devices unknown (not_permitted)", {"mig_devices": "not_permitted"}),
        ({"error": "UNKNOWN"}, "MIG on, its devices unknown (driver_error)", {"mig_devices": "driver_error"}),
    ],
)
def test_mig_without_devices(devices: Json, line: str, unknown: Json) -> None:
    """No device, and no answer, are two things."""
    found = topology(FILES, documents=nvml(answers(A, 0, mig=mode(devices)), answers(B, 1)))
    assert line in tree(found)
    gpu = told(found, f"pci:{A}")["gpu"]
    assert (gpu["mig"], gpu.get("unknown"), "mig_devices" in gpu) == (True, unknown, unknown is not None)
    assert not list(strict(FOLDER / "topo-agent-v1.json").iter_errors(document(found)))


@pytest.mark.parametrize(
    "said", [{"error": "NOT_SUPPORTED"}, {"current": 0, "pending": 1}, {"current": REFUSED}, None, 7]
)
def test_no_mig(said: Json) -> None:
    found = topology(FILES, documents=nvml(answers(A, 0, mig=said), answers(B, 1)))
    assert (found.migs, "MIG" in tree(found), codes(found)) == ((), False, [])


@pytest.mark.parametrize(("error", "reason"), [("NO_PERMISSION", "not_permitted"), ("UNKNOWN", "driver_error")])
def test_a_mode_that_is_refused(error: str, reason: str) -> None:
    """nvml.md, section 3: field unknown; NOT_SUPPORTED alone says that there is no MIG."""
    gpu = told(topology(FILES, documents=nvml(answers(A, 0, mig={"error": error}))), f"pci:{A}")["gpu"]
    assert (gpu["mig"], gpu["unknown"]) == (None, {"mig": reason})


@pytest.mark.parametrize(
    ("device", "level"),
    [
        ({"index": 3, "error": "NO_PERMISSION"}, Level.NOTE),  # a container: not lost, only not for us
        (part(3, REFUSED), Level.NOTE),
        ({"index": 3, "error": "GPU_IS_LOST"}, Level.LOST),
        (part(3, {"error": "UNKNOWN"}), Level.LOST),
        (part(3, 1), Level.LOST),  # the place of another
        (part(3, 2, REFUSED), Level.LOST),  # one of two compute instances, and which of them
        (None, Level.LOST),
    ],
)
def test_a_device_without_a_place(device: Json, level: Level) -> None:
    found = cut(part(0, 1), part(1, 2, 0), device)
    assert ids(found) == [f"mig:{A}/1", f"mig:{A}/2"]
    assert codes(found) == [(level, "mig_without_place")]


def test_a_gpu_that_is_not_on_the_bus() -> None:
    files = two_sockets() | grown("pci0000:16/16:01.0/18:00.0", NVIDIA)
    found = topology(files, documents=nvml(answers(A, 0, mig=mode([part(0, 1)])), answers(B, 1)))
    assert (found.migs, [code for _, code in codes(found)]) == ((), ["not_on_the_bus"])


def test_names() -> None:
    found = cut(part(0, 1), part(1, 2))
    for name in (f"mig:{A}/2", uuid(1), uuid(1)[:12]):
        assert str(find(found, name)) == f"mig:{A}/2"
    with pytest.raises(NoSuchDevice, match=rf"ambiguous: mig:{A}/1, mig:{A}/2"):
        find(found, "MIG-0")
    with pytest.raises(NoSuchDevice, match=f"near: mig:{A}/"):
        find(found, f"mig:{A}/3")


def test_what_surrounds_one() -> None:
    found = cut(part(0, 1, profile="3g.40gb"), part(1, 2))
    ref = find(found, uuid(0))
    text = tree(found, start=ref)
    assert f"MIG 3g.40gb · 9.8 GiB · {uuid(0)}" in text
    assert "17:00.0 GPU0" in text
    assert "18:00.0" not in text
    around = document(found, ref)
    kept = [one["id"] for one in around["devices"]]  # type: ignore[union-attr,call-overload,index]
    assert kept == ["pci:0000:16:01.0", f"pci:{A}", f"mig:{A}/1"]
    assert around["paths"] == document(found, find(found, A))["paths"]


def test_it_is_as_near_as_its_gpu() -> None:
    found = cut(part(0, 1))
    gpu = found.function(find(found, uuid(0)))
    assert gpu == place(found, A)
    assert nearest(found, gpu) == nearest(found, place(found, A))


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_the_gpu_of_a_process(variable: str) -> None:
    """`where`: since driver 470 a MIG device has a UUID of its own, which only NVML joins to its GPU."""
    found = topology(FILES, documents=nvml(answers(A, 0), answers(B, 1, mig=mode([part(0, 1), part(1, 2)]))))

    def chosen(value: str) -> tuple[list[str], bool]:
        gpus, _, certain = gpus_of(found, opened=(), visible=None, asked=[(variable, value)], pci_order=False)
        return [str(gpu.address) for gpu in gpus], certain

    assert chosen(uuid(1)) == ([B], True)
    assert chosen(f"{uuid(0)},{uuid(1)}") == ([B], True)
    assert chosen(uuid(7)) == ([A, B], False)  # of a GPU that does not tell its devices


def test_redacted() -> None:
    """One pseudonym for a UUID, also inside the name that drivers before 470 give to a MIG device."""
    whole = "GPU-5f3a1e0c-1111-2222-3333-444444444444"
    parts: list[Json] = [part(0, 1), part(1, 2, uuid=f"MIG-{whole}/2/0")]
    host = machine(FILES, documents=nvml(answers(A, 0, uuid=whole, mig=mode(parts))))
    text = recording.write(host)
    assert "5f3a" not in text
    said: Any = recording.parse(text).document("nvml")
    (gpu,) = said["gpus"]
    assert gpu["uuid"].startswith("GPU-")
    assert gpu["mig"]["devices"][1]["uuid"] == f"MIG-{gpu['uuid']}/2/0"
    assert gpu["mig"]["devices"][0]["uuid"].startswith("MIG-")
