"""NVML shows fewer GPUs than sysfs: a container, a virtual machine, vGPU. Told, and not lost."""

from __future__ import annotations

import pytest

from tests.paper import NVIDIA, Files, answers, grown, nvml, place, two_sockets
from tests.schemas import FOLDER, strict
from topo_agent.diagnostics import Level, Unknown
from topo_agent.graph import checks, pairing
from topo_agent.graph.build import build
from topo_agent.graph.findings import Finding
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, Source
from topo_agent.host.paper import Failure, Link, PaperHost
from topo_agent.scan import scan
from topo_agent.views import devices
from topo_agent.views.document import document
from topo_agent.views.tree import tree

A, B = "0000:17:00.0", "0000:18:00.0"
PLACES = ("pci0000:16/16:01.0/17:00.0", "pci0000:16/16:03.0/18:00.0")


def bound(*drivers: str, files: Files | None = None) -> Files:
    """Two GPUs, each bound to a driver."""
    found = two_sockets() | (files or {})
    for path, driver in zip(PLACES, drivers, strict=True):
        found |= grown(path, NVIDIA, numa_node="0\n", files={"uevent": f"DRIVER={driver}\n"})
    return found


def seen(files: Files, *gpus: Json, scope: str | None = "host") -> Topology:
    source = Source(kind="live", complete=True, privileged=True, scope=scope)  # type: ignore[arg-type]
    return build(scan(PaperHost(files, dict(nvml(*gpus)), source=source)))


def found(graph: Topology) -> dict[str, Finding]:
    return {one.code: one for one in checks.findings(graph, pairing.pairs(graph))}


def nothing_lost(graph: Topology) -> None:
    """`--strict` asks for these levels; every GPU of the bus is there, and the document is as its schema says."""
    assert [one for one in graph.diagnostics if one.level in (Level.LOST, Level.DEGRADED)] == []
    assert len(list(devices.gpus(graph))) == 2
    assert "2 GPUs" in tree(graph)
    assert not list(strict(FOLDER / "topo-agent-v1.json").iter_errors(document(graph)))


def test_a_container_with_one_of_two() -> None:
    graph = seen(bound("nvidia", "nvidia"), answers(B, 0), scope="container")
    nothing_lost(graph)
    assert dict(place(graph, A).unknown)["uid"] is Unknown.HIDDEN
    assert "uid" not in dict(place(graph, B).unknown)
    finding = found(graph)["gpu_not_in_driver"]
    assert (finding.severity, finding.subjects) == ("info", (f"pci:{A}",))
    assert finding.evidence == "NVML lists 1 of 2 GPUs of the driver, in a container"


def test_the_same_on_a_host_is_wrong() -> None:
    """There NVML lists every GPU of its driver: one that is missing has fallen out."""
    graph = seen(bound("nvidia", "nvidia"), answers(B, 0))
    assert dict(place(graph, A).unknown)["uid"] is Unknown.DRIVER_ERROR
    assert found(graph)["gpu_not_in_driver"].severity == "error"


def test_proc_tells_what_nvml_hides() -> None:
    uuid = "GPU-5f3a1e0c-1111-2222-3333-444444444444"
    proc: Files = {f"proc/driver/nvidia/gpus/{A}/information": f"Model: \t NVIDIA\nGPU UUID: \t {uuid}\n"}
    one = place(seen(bound("nvidia", "nvidia", files=proc), answers(B, 0), scope="container"), A)
    assert (one.uid, "uid" in dict(one.unknown)) == (uuid, False)


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau"])
def test_a_gpu_of_another_driver(driver: str) -> None:
    """nvml.md, section 1: a vfio-bound GPU is invisible to NVML; it was not asked about it, and nothing is unknown."""
    graph = seen(bound(driver, "nvidia"), answers(B, 0))
    nothing_lost(graph)
    assert ("uid" in dict(place(graph, A).unknown), "gpu_not_in_driver" in found(graph)) == (False, False)
    assert ("passed_through" in found(graph)) == (driver == "vfio-pci")


def test_nobody_lists_any() -> None:
    """NVML did not answer: that is one note of its own, and no GPU is blamed."""
    source = Source(kind="live", complete=True, privileged=True, scope="host")
    graph = build(scan(PaperHost(bound("nvidia", "nvidia"), {}, source=source)))
    assert "uid" not in dict(place(graph, A).unknown)
    assert "gpu_not_in_driver" not in found(graph)


def test_a_gpu_in_a_virtual_machine() -> None:
    """nvml.h NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: told, without a finding."""
    flags: Files = {"proc/cpuinfo": "processor : 0\nmodel name : X\nflags : fpu hypervisor\n"}
    graph = seen(bound("nvidia", "nvidia", files=flags), *(answers(at, place_, virtualization_mode=1) for place_, at in
                                                           enumerate((A, B))))  # fmt: skip
    nothing_lost(graph)
    assert graph.machine.virtual is True
    assert tree(graph).count("passed through") == 2
    assert {"gpu_not_in_driver", "driver_missing"} & {*found(graph)} == set()


def test_a_host_of_vgpus() -> None:
    """NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: the VFs that it hands out are bound, and NVML does not list them."""
    files = bound("nvidia", "nvidia")
    for number in (4, 5):
        told: Files = {"uevent": "DRIVER=nvidia\n", "physfn": Link(f"../{A}")}
        files |= grown(f"pci0000:16/16:01.0/17:00.{number}", NVIDIA, numa_node="0\n", files=told)
    graph = seen(files, answers(A, 0, virtualization_mode=3), answers(B, 1))
    nothing_lost(graph)
    assert "gpu_not_in_driver" not in found(graph)
    vf = place(graph, "0000:17:00.4")
    assert (str(vf.physfn), vf.unknown) == (f"pci:{A}", ())
    assert "host of vGPUs" in tree(graph)
    assert "+2 VFs" in tree(graph)


def test_a_vgpu() -> None:
    """NVML_GPU_VIRTUALIZATION_MODE_VGPU, in the virtual machine that has it; much of it is not supported there."""
    refused: Json = {"error": "NOT_SUPPORTED"}
    one = answers(A, 0, virtualization_mode=2, nvlinks=refused, mig=refused, fabric=refused, platform=refused)
    graph = seen(bound("nvidia", "nvidia"), one, answers(B, 1))
    nothing_lost(graph)
    (gpu,) = (gpu["gpu"] for gpu in document(graph)["devices"] if gpu["id"] == f"pci:{A}")  # type: ignore[union-attr,call-overload,index]
    assert gpu == {"memory_bytes": 85899345920, "virtualization": "vgpu"}


def test_mig_in_a_container() -> None:
    """One device of one GPU was given: NVML lists that GPU, and refuses the device of somebody else."""
    mine: Json = {"index": 0, "uuid": "MIG-1", "name": "NVIDIA H100 MIG 1g.10gb", "gpu_instance": 9,
                  "compute_instance": 0, "memory_bytes": 1}  # fmt: skip
    mig: Json = {"current": 1, "pending": 1, "devices": [mine, {"index": 1, "error": "NO_PERMISSION"}]}
    graph = seen(bound("nvidia", "nvidia"), answers(B, 0, mig=mig), scope="container")
    nothing_lost(graph)
    assert [str(one.ref) for one in graph.migs] == [f"mig:{B}/9"]
    assert [(one.level, one.code) for one in graph.diagnostics] == [(Level.NOTE, "mig_without_place")]
    assert dict(place(graph, A).unknown)["uid"] is Unknown.HIDDEN


def test_a_driver_that_says_nothing_of_its_gpus() -> None:
    """A container without the driver's files: proc is unreadable, which is said."""
    files = bound("nvidia", "nvidia") | {"proc/driver/nvidia/gpus": Failure(13, directory=True)}
    assert [one.code for one in seen(files, answers(A, 0), answers(B, 1)).diagnostics] == ["directory_unreadable"]
