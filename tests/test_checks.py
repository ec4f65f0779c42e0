"""`check`: each code on a machine where it fires, and on one next to it where it must not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.paper import (
    AMD,
    NIC,
    NVIDIA,
    NVME,
    Files,
    answers,
    cpus,
    inventory,
    machine,
    nodes,
    now,
    nvlink,
    nvml,
    put,
    rdma,
    spelled,
    topology,
    two_sockets,
)
from topo_agent.cli import cli
from topo_agent.graph.build import build
from topo_agent.graph.checks import CHECKS, findings, kept
from topo_agent.graph.findings import Finding
from topo_agent.graph.overlay import Overlay
from topo_agent.graph.pairing import pairs
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, recording
from topo_agent.host.paper import Document, Link
from topo_agent.ids import NumaId
from topo_agent.scan import scan

TOP = "pci0000:15/15:01.0/16:00.0"
BOUND = {**NVIDIA, "driver": "nvidia"}
VIRTUAL: Files = {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor\n"}


def found(one: Topology | Files) -> tuple[Finding, ...]:
    graph = one if isinstance(one, Topology) else topology(one)
    return findings(graph, pairs(graph))


def codes(one: Topology | Files) -> set[str]:
    return {finding.code for finding in found(one)}


def of(one: Topology | Files, code: str) -> Finding:
    (finding,) = (finding for finding in found(one) if finding.code == code)
    return finding


def gpu(bus: int, *, node: int = 0, what: dict[str, str] = NVIDIA, **more: object) -> Files:
    """A GPU at the root port of a root of its own, on the bus before it."""
    return put(direct(bus), what, node=node, **more)  # type: ignore[arg-type]


def direct(bus: int) -> str:
    return f"pci0000:{bus - 1:02x}/{bus - 1:02x}:01.0/{bus:02x}:00.0"


def below(bus: int) -> str:
    """A port of the one switch."""
    return f"{TOP}/17:{bus & 31:02x}.0/{bus:02x}:00.0"


def fine() -> Files:
    """GPU 20 and NIC 21 below the switch, on node 0 of two, in one IOMMU group."""
    return isolated(1, 1)


def numa(gpu_node: int) -> Files:
    return two_sockets() | gpu(0x21, node=gpu_node) | put(direct(0x31), node=0, verbs="mlx5_0")


def silent() -> Files:
    return two_sockets() | gpu(0x21, node=-1) | put(direct(0x31), node=-1, verbs="mlx5_0")


def silent_single() -> Files:
    """-1 is no fault where there is one node."""
    return cpus({0: range(4)}) | nodes({0: range(4)}) | gpu(0x21, node=-1)


def overlaid(node: int) -> Topology:
    return build(inventory(numa(0)), Overlay(roots={"pci0000:20": NumaId(node)}))


def one_nic(node: int, *, nic: str = direct(0x31)) -> Files:
    return two_sockets() | gpu(0x21, node=0) | put(nic, node=node, verbs="mlx5_0")


def one_behind_a_switch(*, both: bool) -> Files:
    """A GPU and a NIC below a switch, and another GPU at a root port, or below the switch too."""
    return fine() | (put(below(0x22), NVIDIA) if both else gpu(0x41))


def flat(*, virtual: bool, switch: bool = False) -> Files:
    files = two_sockets() | (VIRTUAL if virtual else {})
    for slot in (5, 6):
        path = f"{TOP}/17:0{slot}.0/{slot + 0x20:02x}:00.0" if switch else f"pci0000:00/00:0{slot}.0"
        files |= put(path, NVIDIA)
    return files


def azure() -> Files:
    """layouts.md §4: one root per device, so that nothing is on one bus."""
    files = two_sockets() | VIRTUAL
    for domain in ("0001", "0002"):
        files |= put(f"pci{domain}:00/00:00.0", NVIDIA)
    return files


def uplink(count: int) -> Files:
    files = two_sockets()
    for bus in range(0x20, 0x20 + count):
        files |= put(below(bus), NVIDIA)
    return files


def irq(cpus_: str, node: int = 0) -> Files:
    where = f"sys/devices/{spelled(direct(0x31))}"
    files = two_sockets() | put(direct(0x31), node=node, verbs="mlx5_0", interface="eth0")
    return files | {f"{where}/msi_irqs/128": "msix\n", "proc/irq/128/effective_affinity_list": f"{cpus_}\n"}


def running(speed: str, width: int, *, path: str = direct(0x31), virtual: bool = False) -> Files:
    files = two_sockets() | put(path, node=0, verbs="mlx5_0") | now(path, speed, width)
    return files | (VIRTUAL if virtual else {})


def slot(port: tuple[str, int], *, virtual: bool = False) -> Files:
    return two_sockets() | put(direct(0x31), special={"30:01.0": port}) | (VIRTUAL if virtual else {})


def equals(*widths: int, what: dict[str, str] = NVIDIA) -> Files:
    """Equal cards, each in a slot that has as many lanes as it has."""
    files = two_sockets()
    for place, width in enumerate(widths):
        files |= put(direct(0x21 + place * 16), what, lane=("32.0 GT/s PCIe", width))
    return files


def linked(*counts: int, absent: bool = False) -> Topology:
    """GPUs of one model with so many of 18 NVLinks up; `absent`: those that are not up are not told at all."""
    files, said = two_sockets(), list[Json]()
    for index, count in enumerate(counts):
        bus = 0x21 + index * 16
        files |= gpu(bus)
        links = [nvlink(number, "FFFFFFFF:FF:FF.0", 2, 1 if number < count else 0) for number in range(18)]
        said.append(answers(f"00000000:{bus:02X}:00.0", index, links[:count] if absent else links))
    return topology(files, documents=nvml(*said))


def drivers(*, nic: bool) -> Files:
    return (
        two_sockets() | gpu(0x21, what=BOUND) | put(direct(0x31), {**NIC, **({"driver": "mlx5_core"} if nic else {})})
    )


def no_driver_at_all() -> Files:
    """Nothing is bound to anything: drivers were not recorded."""
    return two_sockets() | gpu(0x21) | put(direct(0x31))


def passed(driver: str) -> Files:
    return two_sockets() | gpu(0x21, what={**NVIDIA, "driver": driver})


def listed(*, both: bool, driver: str = "nvidia") -> Topology:
    files = two_sockets() | gpu(0x21, what=BOUND) | gpu(0x31, what={**NVIDIA, "driver": driver})
    said = [answers(f"00000000:{bus}:00.0", index) for index, bus in enumerate(("21", "31"))]
    return topology(files, documents=nvml(*said[: 1 + both]))


def off_the_bus(*, gone: bool) -> Topology:
    files = two_sockets() | gpu(0x21, what=BOUND)
    said = [answers("00000000:21:00.0", 0), answers("00000000:31:00.0", 1)]
    return topology(files, documents=nvml(*said[: 1 + gone]))


def spread(*nodes_: int) -> Files:
    """Equal GPUs, each on a root of its own, near these nodes; each node is a package."""
    files = two_sockets()
    for place, node in enumerate(nodes_):
        files |= gpu(0x21 + place * 16, node=node)
    return files


def versions(*firmware: str, what: dict[str, str] = NIC) -> Files:
    """NICs that run these versions."""
    files = two_sockets()
    for place, version in enumerate(firmware):
        path = direct(0x21 + place * 16)
        files |= put(path, {**what, "device": "0x1021"} if place else what, verbs=f"mlx5_{place}")
        files |= {f"sys/devices/{spelled(path)}/infiniband/mlx5_{place}/fw_ver": f"{version}\n"}
    return files


def group(path: str, number: int | None) -> Files:
    """The link of a function to its IOMMU group, as relative as the kernel writes it."""
    return (
        {} if number is None else {"iommu_group": Link("../" * (path.count("/") + 2) + f"kernel/iommu_groups/{number}")}
    )


def isolated(*groups: int | None) -> Files:
    """A GPU, then NICs, below one switch, in these IOMMU groups."""
    first, *others = groups
    files = two_sockets() | put(below(0x20), NVIDIA, files=group(below(0x20), first))
    for place, number in enumerate(others):
        path = below(0x21 + place)
        files |= put(path, verbs=f"mlx5_{place}", files=group(path, number))
    return files


def apart() -> Files:
    """Different groups below different host bridges are what they are everywhere."""
    one, other = direct(0x21), direct(0x31)
    return two_sockets() | put(one, NVIDIA, files=group(one, 1)) | put(other, verbs="mlx5_0", files=group(other, 2))


ON, OFF = 0x1D, 0  # ACS Control: SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+, as Linux sets it; nothing


def ports(*controls: int | str | None, ats: bool = False) -> dict[str, Document]:
    """What 17:00.0 (above the GPU), 17:01.0 (above the NIC) and more say of ACS; None has none, a word is an error."""
    said = list[Json]()
    for place, one in enumerate(controls):
        bdf = f"0000:17:{place:02x}.0"
        if isinstance(one, str):
            said.append({"bdf": bdf, "error": one})
        else:
            acs: dict[str, Json] = {} if one is None else {"acs": {"capability": 0x5F, "control": one}}
            said.append({"bdf": bdf, "type": 6, **acs})
    for bus in (0x20, 0x21) if ats else ():
        said.append({"bdf": f"0000:{bus:02x}:00.0", "type": 0, "ats": {"capability": 0x20, "control": 0x8000}})
    return {"acs": {"functions": said}}


def probed(*controls: int | str | None, box: Files | None = None, ats: bool = False) -> Topology:
    return topology(isolated(None, None) if box is None else box, documents=ports(*controls, ats=ats), acs=True)


def translated(type_: str | None, *, path: str = below(0x21), virtual: bool = False) -> Files:
    """A GPU in IOMMU group 1, and a NIC in group 1 too, or in 2 where it is behind another port; both of this type."""
    other = 1 if path == below(0x21) else 2
    files = put(below(0x20), NVIDIA, files=group(below(0x20), 1)) | put(path, verbs="mlx5_0", files=group(path, other))
    files |= {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu\n"} | (VIRTUAL if virtual else {})
    if type_ is not None:
        files |= {f"sys/kernel/iommu_groups/{one}/type": f"{type_}\n" for one in (1, other)}
    return two_sockets() | files


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 16:30:26 UTC 2024\nGCC version:  13\n"
OPENED = CLOSED.replace("x86_64 Kernel Module", "Open Kernel Module for x86_64")


def loaded(
    *modules: str, version: str | None = CLOSED, kernel: str = "6.8.0-51-generic", driver: str = "mlx5_core",
    verbs: str | None = "mlx5_0",
) -> Files:  # fmt: skip
    """A GPU and a NIC with their drivers, on a kernel with these modules beside theirs."""
    files = two_sockets() | gpu(0x21, what=BOUND) | put(direct(0x31), {**NIC, "driver": driver}, verbs=verbs)
    files |= {f"sys/module/{name}/initstate": "live\n" for name in ("nvidia", "ib_core", driver, *modules)}
    files |= {} if version is None else {"proc/driver/nvidia/version": version}
    return files | {"proc/sys/kernel/osrelease": f"{kernel}\n"}


def not_recorded(*names: str) -> Files:
    """`loaded` without some modules, or without all of them."""
    gone = tuple(f"sys/module/{name}/" for name in names) or ("sys/module/",)
    return {path: entry for path, entry in loaded().items() if not path.startswith(gone)}


def software(*, pci: bool) -> Files:
    return two_sockets() | (put(direct(0x31), verbs="rxe0") if pci else rdma("rxe0", "virtual/rxe"))


Make = Callable[[], Topology | Files]

GEN5 = ("32.0 GT/s PCIe", 16)

CASES: list[tuple[str, str, Make, Make]] = [
    ("numa_unknown", "-1 for one device", lambda: numa(-1), lambda: numa(1)),
    ("numa_unknown", "-1 and one node", lambda: numa(-1), silent_single),
    ("numa_silent", "-1 for every function", silent, lambda: numa(-1)),
    ("numa_silent", "-1 and one node", silent, silent_single),
    ("sources_disagree", "a node that is not there", lambda: numa(7), lambda: numa(1)),
    ("overlay_contradicts", "another node", lambda: overlaid(1), lambda: overlaid(0)),
    ("gpu_without_nic", "a NIC across the sockets", lambda: one_nic(1), lambda: one_nic(0)),
    ("gpu_without_nic", "nobody knows where the NIC is", lambda: one_nic(1), lambda: one_nic(-1)),
    ("gpu_without_switch_nic", "beside one that has", lambda: one_behind_a_switch(both=False),
     lambda: one_behind_a_switch(both=True)),
    ("gpu_without_switch_nic", "no switches anywhere", lambda: one_behind_a_switch(both=False), lambda: one_nic(0)),
    ("vm_flat_pci", "a real machine", lambda: flat(virtual=True), lambda: flat(virtual=False)),
    ("vm_flat_pci", "true switches in a VM (traps 55)", lambda: flat(virtual=True),
     lambda: flat(virtual=True, switch=True)),
    ("vm_flat_pci", "one root per device", lambda: flat(virtual=True), azure),
    ("uplink_shared", "three are usual", lambda: uplink(4), lambda: uplink(3)),
    ("irq_far", "one queue is near", lambda: irq("4-7"), lambda: irq("3-7")),
    ("irq_far", "no node, no verdict", lambda: irq("4-7"), lambda: irq("4-7", node=-1)),
    ("link_width", "as wide as it can", lambda: running("32.0 GT/s PCIe", 8), lambda: running(*GEN5)),
    ("link_width", "width 0 is no link (§12)", lambda: running("32.0 GT/s PCIe", 8), lambda: running("Unknown", 0)),
    ("link_width", "width 63 is no link (§12)", lambda: running("32.0 GT/s PCIe", 8), lambda: running("Unknown", 63)),
    ("link_width", "a VM's links give no verdict", lambda: running("32.0 GT/s PCIe", 8),
     lambda: running("32.0 GT/s PCIe", 8, virtual=True)),
    ("link_speed", "as fast as it can", lambda: running("8.0 GT/s PCIe", 16), lambda: running(*GEN5)),
    ("link_speed", "the old spelling of a speed", lambda: running("8 GT/s", 16), lambda: running("32 GT/s", 16)),
    ("link_speed", "a VM's links give no verdict", lambda: running("8.0 GT/s PCIe", 16),
     lambda: running("8.0 GT/s PCIe", 16, virtual=True)),
    ("slot_limits", "a slot that is as good", lambda: slot(("32.0 GT/s PCIe", 8)), lambda: slot(GEN5)),
    ("slot_limits", "a slot that is better", lambda: slot(("16.0 GT/s PCIe", 16)),
     lambda: slot(("64.0 GT/s PCIe", 16))),
    ("link_outlier", "all alike", lambda: equals(16, 16, 16, 8), lambda: equals(8, 8, 8, 8)),
    ("link_outlier", "of two nobody is usual", lambda: equals(16, 16, 8), lambda: equals(16, 8)),
    ("link_outlier", "better than the rest", lambda: equals(16, 16, 8), lambda: equals(8, 8, 16)),
    ("gpus_uneven", "two and two", lambda: spread(0, 0, 0, 1), lambda: spread(0, 0, 1, 1)),
    ("gpus_uneven", "all at one package", lambda: spread(0, 0, 0, 1), lambda: spread(0, 0, 0)),
    ("gpus_uneven", "nobody knows where one is", lambda: spread(0, 0, 0, 1), lambda: spread(0, 0, -1, 1)),
    ("firmware_differs", "all run one version", lambda: versions("28.39.1002", "28.40.1000", "28.39.1002"),
     lambda: versions("28.39.1002", "28.39.1002")),
    ("firmware_differs", "other cards", lambda: versions("28.39.1002", "28.40.1000"),
     lambda: versions("28.39.1002", "28.40.1000", what={**NIC, "device": "0x101d"})),
    ("nvlink_partial", "all alike", lambda: linked(18, 18, 17), lambda: linked(17, 17, 17)),
    ("nvlink_partial", "one GPU has no equals", lambda: linked(18, 18, 0), lambda: linked(0)),
    ("driver_missing", "all are bound", lambda: drivers(nic=False), lambda: drivers(nic=True)),
    ("driver_missing", "drivers were not recorded", lambda: drivers(nic=False), no_driver_at_all),
    ("passed_through", "the GPU's own driver", lambda: passed("vfio-pci"), lambda: passed("nvidia")),
    ("gpu_not_in_driver", "all are listed", lambda: listed(both=False), lambda: listed(both=True)),
    ("gpu_not_in_driver", "a VM has the other one", lambda: listed(both=False),
     lambda: listed(both=False, driver="vfio-pci")),
    ("gpu_not_on_bus", "all are there", lambda: off_the_bus(gone=True), lambda: off_the_bus(gone=False)),
    ("acs_redirect", "one group", lambda: isolated(1, 2), lambda: isolated(1, 1)),
    ("acs_redirect", "no IOMMU: unknown, and never off", lambda: isolated(1, 2), fine),
    ("acs_redirect", "one of the two has no group", lambda: isolated(1, 2), lambda: isolated(1, None)),
    ("acs_redirect", "behind different host bridges", lambda: isolated(1, 2), apart),
    ("acs_redirect", "the ports say off, whatever the groups are", lambda: probed(ON, ON),
     lambda: probed(OFF, OFF, box=isolated(1, 2))),
    ("acs_redirect", "the port of another device", lambda: probed(OFF, ON), lambda: probed(OFF, OFF, ON)),
    ("acs_redirect", "ports without ACS redirect nothing", lambda: probed(None, ON),
     lambda: probed(None, None, box=isolated(1, 2))),
    ("acs_redirect", "source validation alone redirects nothing", lambda: probed(1 << 2, OFF), lambda: probed(1, 1)),
    ("acs_redirect", "a port that did not tell", lambda: probed(ON, "NOT_PERMITTED"),
     lambda: probed(OFF, "NOT_PERMITTED")),
    ("acs_redirect", "a virtual machine", lambda: isolated(1, 2), lambda: isolated(1, 2) | VIRTUAL),
    ("acs_unknown", "one group", lambda: isolated(None, None), lambda: isolated(1, 1)),
    ("acs_unknown", "different groups", lambda: isolated(1, None), lambda: isolated(1, 2)),
    ("acs_unknown", "no NIC behind the switch", lambda: isolated(None, None), lambda: numa(0)),
    ("acs_unknown", "the ports say on", lambda: isolated(None, None), lambda: probed(ON, OFF)),
    ("acs_unknown", "the ports say off", lambda: probed(OFF, "NOT_PERMITTED"), lambda: probed(OFF, OFF)),
    ("acs_unknown", "one port is enough to say on", lambda: probed(OFF, "SUSPENDED"), lambda: probed(ON, "SUSPENDED")),
    ("iommu_translates", "iommu=pt", lambda: translated("DMA-FQ"), lambda: translated("identity")),
    ("iommu_translates", "older kernels do not tell", lambda: translated("DMA"), lambda: translated(None)),
    ("iommu_translates", "the IOMMU of a hypervisor", lambda: translated("DMA"),
     lambda: translated("DMA", virtual=True)),
    ("iommu_translates", "through the processor anyway", lambda: translated("DMA"),
     lambda: translated("DMA", path=direct(0x31))),
    ("peer_memory_missing", "it is loaded", loaded, lambda: loaded("nvidia_peermem")),
    ("peer_memory_missing", "its older name", loaded, lambda: loaded("nv_peer_mem")),
    ("peer_memory_missing", "dma-buf", loaded, lambda: loaded(version=OPENED)),
    ("peer_memory_missing", "a kernel with dma-buf", lambda: loaded(version=OPENED, kernel="5.11.0-49-generic"),
     lambda: loaded(version=OPENED, kernel="5.12.0")),
    ("peer_memory_missing", "no /proc: nobody tells which modules", loaded, lambda: loaded(version=None)),
    ("peer_memory_missing", "modules were not recorded", loaded, not_recorded),
    ("peer_memory_missing", "the driver that runs is not in the list", loaded, lambda: not_recorded("nvidia")),
    ("peer_memory_missing", "that of the NIC is not", loaded, lambda: not_recorded("mlx5_core")),
    ("peer_memory_missing", "no RDMA device", loaded, lambda: loaded(verbs=None)),
    ("peer_memory_missing", "EFA brings its own", loaded, lambda: loaded(driver="efa")),
    ("software_rdma", "on a PCI function", lambda: software(pci=False), lambda: software(pci=True)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "near", "fires", "misses"), CASES, ids=[f"{one[0]}: {one[1]}" for one in CASES])
def test_a_code_and_its_near_miss(code: str, near: str, fires: Make, misses: Make) -> None:
    assert code in codes(fires())
    assert code not in codes(misses())


def test_every_code_has_its_pair() -> None:
    assert {check.code for check in CHECKS} == {case[0] for case in CASES}


def test_a_machine_where_nothing_is_wrong() -> None:
    assert found(fine() | now(below(0x20)) | now(below(0x21))) == ()


SEVERITIES = {
    # issue 7, point 4: one snapshot gives info; contract §1: --fail-on is about warnings and errors
    "numa_unknown": "warning", "numa_silent": "warning", "sources_disagree": "warning", "overlay_contradicts": "error",
    "gpu_without_nic": "warning", "gpu_without_switch_nic": "info", "vm_flat_pci": "warning",
    "uplink_shared": "warning", "irq_far": "warning", "link_width": "info", "link_speed": "info",
    "slot_limits": "info", "link_outlier": "warning", "nvlink_partial": "error", "driver_missing": "warning",
    "passed_through": "info", "gpu_not_in_driver": "error", "gpu_not_on_bus": "error", "acs_redirect": "warning",
    "software_rdma": "info", "gpus_uneven": "info", "firmware_differs": "info",
    "acs_unknown": "info", "iommu_translates": "warning", "peer_memory_missing": "warning",
}  # fmt: skip


@pytest.mark.parametrize("code", SEVERITIES)
def test_severities(code: str) -> None:
    fires = next(case[2] for case in CASES if case[0] == code)
    assert of(fires(), code).severity == SEVERITIES[code]


def test_the_worst_comes_first() -> None:
    ranks = [["error", "warning", "info"].index(one.severity) for one in found(overlaid(1))]
    assert ranks == sorted(ranks)


# --- links ---------------------------------------------------------------------------------------------------


def idle(count: int) -> Files:
    files = two_sockets()
    for bus in range(0x20, 0x20 + count):
        files |= put(below(bus), NVIDIA) | now(below(bus), "2.5 GT/s PCIe")
        files |= {f"sys/devices/{spelled(below(bus)).rpartition('/')[0]}/current_link_speed": "2.5 GT/s PCIe\n",
                  f"sys/devices/{spelled(below(bus)).rpartition('/')[0]}/current_link_width": "16\n"}  # fmt: skip
    return files


def test_idle_gpus_are_information_told_once() -> None:
    """§12: eight idle GPUs and the ports above them at 2.5 GT/s are eight links, one finding, no alarm."""
    one = of(idle(8), "link_speed")
    assert (one.severity, len(one.subjects)) == ("info", 8)
    assert all(subject.startswith("pci:0000:2") for subject in one.subjects)
    assert "idle" in one.evidence


def test_a_nic_is_not_called_idle() -> None:
    one = of(running("8.0 GT/s PCIe", 16), "link_speed")
    assert (one.severity, "idle" in one.evidence) == ("info", False)


def test_different_links_are_told_apart() -> None:
    files = running("8.0 GT/s PCIe", 16) | put(direct(0x41), verbs="mlx5_1") | now(direct(0x41), "16.0 GT/s PCIe")
    assert len([one for one in found(files) if one.code == "link_speed"]) == 2


INSIDE = {"19:00.0": {"vendor": "0x1022", "device": "0x1500"}, "1a:00.0": {"vendor": "0x1002", "device": "0x1501"}}
AMD_GPU = f"{TOP}/17:01.0/19:00.0/1a:00.0/1b:00.0"


def amd(special: dict[str, tuple[str, int]], speed: str, width: int) -> Files:
    files = two_sockets() | put(AMD_GPU, AMD, ports=INSIDE, special=special) | now(AMD_GPU)
    return files | now(f"{TOP}/17:01.0/19:00.0", speed, width)


def test_the_real_link_of_an_amd_gpu_is_judged() -> None:
    """Traps 67: the endpoint says x16 Gen5 while the link above the outer bridge runs at x4."""
    assert {"link_width", "link_speed"} <= codes(amd({}, "8.0 GT/s PCIe", 4))
    assert not {"link_width", "link_speed"} & codes(amd({}, *GEN5))


def test_an_amd_gpu_whose_bridge_can_no_more_is_not_degraded() -> None:
    """nokyan/resources#512: x8 Gen4 is all that the outer bridge can, whatever the endpoint says."""
    x8 = ("16.0 GT/s PCIe", 8)
    assert not {"link_width", "link_speed"} & codes(amd({"19:00.0": x8}, *x8))


def test_the_slot_of_an_amd_gpu() -> None:
    assert "slot_limits" in codes(amd({"17:01.0": ("32.0 GT/s PCIe", 8)}, "32.0 GT/s PCIe", 8))


def test_the_uplink_of_a_switch() -> None:
    """A switch at x4 of x16 slows everything behind it, and each device below is at its best."""
    files = fine() | now(below(0x20)) | now(below(0x21)) | now(TOP, "32.0 GT/s PCIe", 4)
    one = of(files, "link_width")
    assert one.subjects == ("pci:0000:16:00.0",)


def test_slots_of_a_virtual_machine() -> None:
    """Traps 66: PCI[0.2], x1 Gen1 of an emulated port: no verdict."""
    assert "slot_limits" in codes(slot(("2.5 GT/s PCIe", 1)))
    assert "slot_limits" not in codes(slot(("2.5 GT/s PCIe", 1), virtual=True))


def test_slots_of_emulated_ports() -> None:
    """On ARM nothing tells that a machine is virtual, and QEMU's own ports do."""
    qemu = {"30:01.0": {"vendor": "0x1b36", "device": "0x000c"}}
    files = put(direct(0x31), special={"30:01.0": ("2.5 GT/s PCIe", 1)}, ports=qemu)
    files |= now(direct(0x31), "2.5 GT/s PCIe", 1)
    assert not {"slot_limits", "link_width", "link_speed"} & codes(two_sockets() | files)


def test_the_bridges_of_an_amd_gpu_are_no_switch() -> None:
    """One link, one finding: the outer bridge of the GPU is an upstream port too."""
    assert of(amd({}, "8.0 GT/s PCIe", 4), "link_width").subjects == ("pci:0000:1b:00.0",)


def test_outliers_of_a_virtual_machine() -> None:
    assert "link_outlier" not in codes(equals(16, 16, 16, 1) | VIRTUAL)


def test_a_verdict_is_not_told_by_the_order_of_addresses() -> None:
    assert codes(equals(16, 16, 8, 8)) == codes(equals(8, 8, 16, 16))


def test_the_odd_firmware_is_named() -> None:
    assert of(versions("28.39.1", "28.39.1", "28.40.1"), "firmware_differs").subjects == ("pci:0000:41:00.0",)
    assert {one.subjects for one in found(versions("1.0", "2.0")) if one.code == "firmware_differs"} == {
        ("pci:0000:21:00.0",),
        ("pci:0000:31:00.0",),
    }


def test_how_uneven() -> None:
    one = of(spread(0, 0, 0, 1), "gpus_uneven")
    assert (one.subjects, one.evidence) == (("machine",), "4 equal GPUs: 3 on 0, 1 on 1")


# --- NVLink --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(18, 0), (0, 18)])  # fmt: skip
def test_one_of_two_gpus_without_nvlink(counts: tuple[int, int]) -> None:
    one = of(linked(*counts), "nvlink_partial")
    assert one.subjects == (f"pci:0000:{(0x21, 0x31)[counts.index(0)]:02x}:00.0",)


def test_a_gpu_that_tells_of_no_nvlink() -> None:
    """Traps 96 (vllm#16336): one B200 of eight is NODE and SYS to all, the others are NV18."""
    one = of(linked(18, 18, 0, 18, absent=True), "nvlink_partial")
    assert one.subjects == ("pci:0000:41:00.0",)


def test_nvlink_is_never_told_where_nothing_tells_of_it() -> None:
    assert "nvlink_partial" not in codes(two_sockets() | gpu(0x21) | gpu(0x31))


# --- together, and left out ----------------------------------------------------------------------------------


def test_equal_devices_are_told_once_with_a_count() -> None:
    files = two_sockets() | gpu(0x11, what=BOUND)
    for bus in range(0x20, 0x28):
        files |= put(below(bus), NVME)
    one = of(files, "driver_missing")
    assert len(one.subjects) == 8
    text = printed(files)
    assert text.count("driver_missing") == 1
    assert "and 5 more" in text


def test_no_subject_twice() -> None:
    assert of(isolated(1, 2, 3), "acs_redirect").subjects == ("pci:0000:20:00.0",)


@pytest.mark.parametrize("box", [apart(), isolated(1, 2)])
def test_groups_are_read(box: Files) -> None:
    groups = [device.iommu_group for device in topology(box).of_kind("gpu", "nic")]
    assert groups == [1, 2]


def test_acs_beside_a_nic_in_the_same_group() -> None:
    assert "acs_redirect" in codes(isolated(1, 1, 3))


def test_the_ports_that_redirect_are_named() -> None:
    """As lspci calls the bits. The near ends only: 17:02.0 is on no way between the two."""
    assert (
        of(probed(ON, OFF, ON), "acs_redirect").evidence == "ReqRedir+ CmpltRedir+ at 0000:17:00.0 before 0000:21:00.0"
    )
    both = of(probed(ON, ON), "acs_redirect").evidence
    assert both == "ReqRedir+ CmpltRedir+ at 0000:17:00.0, 0000:17:01.0 before 0000:21:00.0"
    assert of(probed(1 << 4, OFF), "acs_redirect").evidence.startswith("UpstreamFwd+ at 0000:17:00.0 ")


def test_translated_addresses_pass() -> None:
    """ATS at both ends, and bit 6 of ACS Control at the ports."""
    one = of(probed(ON | 1 << 6, ON | 1 << 6, ats=True), "acs_redirect")
    assert one.evidence.endswith("; ATS on at both, DirectTrans+")
    assert of(probed(ON | 1 << 6, ON, ats=True), "acs_redirect").evidence.endswith("; ATS on at both")
    assert "ATS" not in of(probed(ON, ON), "acs_redirect").evidence


DEEP = "pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0/19:00.0/20:00.0"


@pytest.mark.parametrize(("on", "redirects"), [("17:00.0", True), ("17:01.0", True), ("19:00.0", False)])  # fmt: skip
def test_the_ports_where_the_ways_part(on: str, redirects: bool) -> None:  # noqa: FBT001 a case
    """PXB: a port of the lower switch sends to the root what leaves that switch upwards anyway."""
    box = two_sockets() | put(DEEP, NVIDIA) | put(below(0x21), verbs="mlx5_0")
    said: list[Json] = [
        {"bdf": f"0000:{port}", "type": 6, "acs": {"capability": 0x5F, "control": ON if port == on else OFF}}
        for port in ("17:00.0", "17:01.0", "19:00.0")
    ]
    found = topology(box, documents={"acs": {"functions": said}}, acs=True)
    (choice,) = pairs(found)
    assert choice.local[0].path.class_ == "PXB"
    assert ("acs_redirect" in codes(found)) is redirects
    assert "acs_unknown" not in codes(found)


def test_asked_in_vain_is_a_warning() -> None:
    """Not asked is worth knowing; asked and not answered must not look like "off"."""
    assert of(isolated(None, None), "acs_unknown").severity == "info"
    one = of(probed(OFF, "NOT_PERMITTED", box=isolated(1, 1)), "acs_unknown")
    assert one.severity == "warning"
    assert one.evidence == "port 0000:17:01.0 of the switch, towards 0000:21:00.0, did not tell (not_permitted)"
    nowhere = topology(isolated(1, 1), acs=True)
    assert of(nowhere, "acs_unknown").severity == "warning"
    assert [note.code for note in nowhere.diagnostics] == ["acs_unread"]


def test_eight_gpus_are_told_once() -> None:
    files = two_sockets()
    for bus in range(0x20, 0x28):
        files |= put(below(bus), NVIDIA) | put(below(bus + 8), verbs=f"mlx5_{bus & 7}")
    assert len(of(files, "acs_unknown").subjects) == 8


def test_ports_of_a_virtual_machine_say_nothing() -> None:
    """No hypervisor hands a bridge over: what a guest sees of ACS is not what its traffic meets."""
    for control in (ON, OFF):
        said = codes(probed(control, control, box=isolated(1, 2) | VIRTUAL))
        assert "acs_unknown" in said
        assert "acs_redirect" not in said


def test_the_type_of_each_group() -> None:
    evidence = of(translated("DMA-FQ"), "iommu_translates").evidence
    assert evidence == "IOMMU domains: 0000:20:00.0 DMA-FQ, 0000:21:00.0 DMA-FQ"


def test_what_is_missing_for_peer_memory() -> None:
    assert of(loaded(), "peer_memory_missing").evidence.endswith("not of the open kernel modules, which offer dma-buf")
    old = of(loaded(version=OPENED, kernel="4.18.0-553.el8_10.x86_64"), "peer_memory_missing")
    assert old.evidence == "nvidia_peermem is not loaded, and Linux 4.18.0-553.el8_10.x86_64 takes no dma-buf"


def test_what_only_checks_need_is_not_read_otherwise() -> None:
    """A file for each device: `dump` does not pay for it."""
    found = scan(machine(translated("DMA") | loaded(), documents=ports(ON, ON)))
    assert (found.gpudirect, found.acs) == (None, None)
    asked = inventory(translated("DMA"))
    assert (asked.gpudirect and asked.gpudirect.domains, asked.acs) == (((1, "DMA"),), None)


def two_far() -> Files:
    files = irq("4-7") | put(direct(0x41), node=1, verbs="mlx5_1", interface="eth1")
    files[f"sys/devices/{spelled(direct(0x41))}/msi_irqs/129"] = "msix\n"
    return files | {"proc/irq/129/effective_affinity_list": "0-2\n"}


def test_ignored() -> None:
    said = found(two_far())
    first, second = of(two_far(), "irq_far").subjects
    assert "irq_far" not in {one.code for one in kept(said, ["irq_far"])}
    assert [one.subjects for one in kept(said, [f"irq_far:{first}"]) if one.code == "irq_far"] == [(second,)]
    assert "irq_far" not in {one.code for one in kept(said, [f"irq_far:{first}", f"irq_far:{second}"])}
    assert list(kept(said, ["irq", "irq_far:pci", "irq_far:", "link_width"])) == list(said)


def test_the_evidence_is_of_the_first_subject() -> None:
    first, _ = of(two_far(), "irq_far").subjects
    (one,) = (one for one in kept(found(two_far()), [f"irq_far:{first}"]) if one.code == "irq_far")
    assert "CPUs 0-2" in one.evidence


# --- the command ---------------------------------------------------------------------------------------------


def checked(files: Files, *arguments: str, documents: dict[str, Document] | None = None) -> tuple[int, str]:
    """(status, what was written)."""
    with tempfile.TemporaryDirectory() as folder:
        box, out = Path(folder) / "box.topo", Path(folder) / "out"
        box.write_text(recording.write(machine(files, documents=documents)), encoding="utf-8")
        done = CliRunner().invoke(cli, ["check", "--from", str(box), "-o", str(out), *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, out.read_text(encoding="utf-8") if out.exists() else ""


def printed(files: Files, *arguments: str) -> str:
    return checked(files, *arguments)[1]


def test_quiet_when_fine() -> None:
    assert checked(fine()) == (0, "")
    assert checked(fine(), "--info", "--fail-on", "warning") == (0, "")
    assert checked(fine(), "-f", "json") == (0, "[]\n")


def test_info_is_printed_when_asked_for() -> None:
    assert checked(idle(2)) == (0, "")
    assert checked(idle(2), "-f", "json") == (0, "[]\n")
    assert checked(idle(2), "--fail-on", "warning") == (0, "")
    status, text = checked(idle(2), "--info")
    assert (status, text.splitlines()[0]) == (0, "info: link_speed: pci:0000:20:00.0 pci:0000:21:00.0")


def test_a_warning_is_an_answer_only_where_asked() -> None:
    files = one_nic(1)
    assert checked(files)[0] == 0
    assert checked(files, "--fail-on", "error")[0] == 0
    status, text = checked(files, "--fail-on", "warning")
    assert (status, "warning: gpu_without_nic: pci:0000:21:00.0" in text) == (1, True)


def test_an_error_is_an_answer(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("roots: {pci0000:20: 1}\n", encoding="utf-8")
    status, text = checked(numa(0), "--overlay", str(overlay))
    assert (status, text.startswith("error: overlay_contradicts: root:pci0000:20\n")) == (1, True)
    assert checked(numa(0), "--overlay", str(overlay), "--ignore", "overlay_contradicts")[0] == 0
    assert checked(numa(0), "--overlay", str(overlay), "--ignore", "overlay_contradicts:root:pci0000:20")[0] == 0
    assert checked(numa(0), "--overlay", str(overlay), "--ignore", "overlay_contradicts:root:pci0000:30")[0] == 1


def test_what_is_ignored_is_not_printed_and_no_answer() -> None:
    assert checked(one_nic(1), "--fail-on", "warning", "--ignore", "gpu_without_nic") == (0, "")
    subject = "gpu_without_nic:pci:0000:21:00.0"
    assert checked(one_nic(1), "--fail-on", "warning", "--ignore", subject) == (0, "")


@pytest.mark.parametrize("arguments", [("--ignore", "no_such_code"), ("--ignore", "nothing:pci:0000:21:00.0"),
                                       ("--fail-on", "info"), ("-f", "yaml"), ("--probe", "ats"),
                                       ("--probe", "")])  # fmt: skip
def test_usage(arguments: tuple[str, ...]) -> None:
    assert checked(fine(), *arguments)[0] == 2


def test_probe() -> None:
    """Status and output are those of every finding; JSON too."""
    box = isolated(1, 1)
    assert checked(box, "--probe", "acs", documents=ports(OFF, OFF)) == (0, "")
    status, text = checked(box, "--probe", "acs", "--fail-on", "warning", documents=ports(ON, ON))
    assert (status, text.splitlines()[0]) == (1, "warning: acs_redirect: pci:0000:20:00.0")
    assert all(len(line) <= 100 for line in text.splitlines())
    said = json.loads(checked(box, "--probe", "acs", "-f", "json", documents=ports(ON, ON))[1])
    assert [(one["code"], one["severity"]) for one in said] == [("acs_redirect", "warning")]
    assert checked(box, "--fail-on", "warning", documents=ports(ON, ON)) == (0, "")  # not asked


def test_a_probe_that_is_not_answered() -> None:
    """A recording holds no configuration space: a warning, and facts that were lost."""
    status, text = checked(isolated(1, 1), "--probe", "acs")
    assert (status, text.splitlines()[0]) == (0, "warning: acs_unknown: pci:0000:20:00.0")
    assert checked(isolated(1, 1), "--probe", "acs", "--fail-on", "warning")[0] == 1
    assert checked(isolated(1, 1), "--probe", "acs", "--strict")[0] == 4
    assert checked(isolated(1, 1), "--strict")[0] == 0


def test_json_findings() -> None:
    said = json.loads(printed(one_nic(1), "-f", "json"))
    (one,) = (one for one in said if one["code"] == "gpu_without_nic")
    assert one.keys() == {"code", "severity", "subjects", "evidence", "advice"}
    assert (one["severity"], one["subjects"]) == ("warning", ["pci:0000:21:00.0"])
    assert one["advice"] == next(check.advice for check in CHECKS if check.code == "gpu_without_nic")


@pytest.mark.parametrize("fires", [case[2] for case in CASES], ids=[f"{one[0]}: {one[1]}" for one in CASES])
def test_every_finding_says_what_and_why(fires: Make) -> None:
    for one in found(fires()):
        assert one.subjects
        assert one.evidence
        assert one.advice.endswith(".")
        assert "None" not in one.evidence
        assert "\n" not in one.evidence


def test_at_100_columns() -> None:
    text = printed(two_far() | silent(), "--info")
    assert text
    assert all(len(line) <= 100 for line in text.splitlines())
