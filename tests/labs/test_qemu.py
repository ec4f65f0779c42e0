"""A fresh boot of each QEMU machine: the recording made inside, against the fixture, hwloc, and what QEMU was told."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import lstopo
from tests.expectations import leaves
from tests.labs.apt import CannotStart
from tests.labs.guest import REPOSITORY
from tests.labs.qemu import MACHINES, Boot, Machine, boot
from tests.labs.qemu import booted as once_more
from tests.schemas import FOLDER, strict
from topo_agent.graph.build import build
from topo_agent.host.opening import open_host
from topo_agent.ids import CpuSet, PciAddress
from topo_agent.scan import scan
from topo_agent.sources import parse
from topo_agent.views.document import document

# What may differ between two boots of one machine: a pattern of a recording's line, what stays of it, and why.
MAY_DIFFER: tuple[tuple[str, str, str], ...] = (
    (
        r"^(proc|sys/devices/system/node/node[0-9]+)/meminfo = .*",
        r"\1/meminfo",
        "how much is in use; what the kernel and the initramfs take is not in MemTotal, and both grow with versions",
    ),
    (r"(cpu MHz|bogomips)(\\t)+: [0-9.]+", r"\1", "measured at boot against an emulated clock"),
    (r"^(.*/msi_irqs)/[0-9]+ = .*", r"\1", "interrupts are numbered as drivers come to it, and NVMe drives do at once"),
    (r"^(proc/irq)/[0-9]+(/.*) = .*", r"\1\2", "the same; and each CPU gets its queue by the number"),
    (r"^(.*/(ng|nvme)[0-9]+(c[0-9]+)?n[0-9]+/(dev|uevent|diskseq)) = .*", r"\1", "namespaces are numbered likewise"),
    (r"^(.*n[0-9]+/bdi) -> .*", r"\1", "and their block devices"),
    (r"^(.*/hotplug/states) = .*", r"\1", "numbered in the order in which subsystems register"),
    (r"^(.*/runtime_status) = .*", r"\1", "an idle device sleeps a while later"),
    (r"^(proc/sys/kernel/osrelease|.*/srcversion) = .*", r"\1", "Debian updates its kernel"),
    (r"^(.*/cpu/vulnerabilities)\b.*", r"\1", "so does it here, with files for what was found meanwhile"),
    (r"^(.*/dmi/id/(bios_.*|modalias|uevent)) = .*", r"\1", "they hold the version of SeaBIOS"),
    (r"^(.*/firmware_rev) = .*", r"\1", "QEMU's own version"),
)

# Where hwloc and we answer differently on purpose.
ON_PURPOSE = {
    ("qemu-x86", "near", "pci0000:30"): "its firmware names node 2, which has no CPUs: its local_cpulist is empty, so"
    " hwloc puts it under the machine; we name the node with CPUs that is nearest to node 2",
}


@pytest.fixture(scope="module", params=MACHINES, ids=lambda machine: machine.name)
def booted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Boot]:
    machine: Machine = request.param
    try:
        done = once_more(partial(boot, machine), lambda: tmp_path_factory.mktemp(machine.name))
    except CannotStart as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    print(f"{machine.name}: {done.seconds:.0f} s in all, the agent started after {done.ready:.0f} s")
    return machine, done


def fixture(machine: Machine) -> Path:
    return REPOSITORY / "fixtures" / machine.name


def said(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def test_the_recording_is_the_fixture(booted: tuple[Machine, Boot], request: pytest.FixtureRequest) -> None:
    """`make labs ARGS=--update` writes the fixture anew."""
    machine, done = booted
    fresh = said(done.folder, "host.topo")
    if request.config.getoption("--update"):
        fixture(machine).mkdir(parents=True, exist_ok=True)
        (fixture(machine) / "host.topo").write_text(fresh, encoding="utf-8")
    kept = said(fixture(machine), "host.topo")
    kernels = [release(text) for text in (fresh, kept)]
    if kernels[0] != kernels[1] and not os.environ.get("CI"):
        pytest.skip(f"this guest runs Linux {kernels[0]}, the recording is of {kernels[1]}")
    same, other = comparable(fresh), comparable(kept)
    print(f"{machine.name}: {len(same & other)}/{len(other)} lines agree, of {len(kept.splitlines())} in all")
    assert [f"+ {line[:300]}" for line in sorted(same - other)][:20] == []
    assert [f"- {line[:300]}" for line in sorted(other - same)][:20] == []


def release(recording: str) -> str:
    """`"6.1"`: within it, Debian only mends."""
    found = re.search(r'^proc/sys/kernel/osrelease = "([0-9]+\.[0-9]+)', recording, re.MULTILINE)
    assert found
    return found[1]


def comparable(recording: str) -> set[str]:
    lines = set()
    for line in recording.splitlines():
        for pattern, stays, _ in MAY_DIFFER:
            line = re.sub(pattern, stays, line)  # noqa: PLW2901 - one after the other
        lines.add(line)
    return lines


def test_the_recording_answers_as_the_machine_did(booted: tuple[Machine, Boot]) -> None:
    _, done = booted
    live: dict[str, Any] = json.loads(said(done.folder, "dump.json"))
    again: dict[str, Any] = json.loads(json.dumps(document(build(scan(open_host(str(done.folder / "kept.topo")))))))
    assert again.pop("source") != live.pop("source")
    assert again.pop("state").keys() == live.pop("state").keys()  # its values change by themselves
    assert again.keys() == live.keys()
    for part, answer in again.items():
        assert answer == live[part], part


def test_what_qemu_was_told(booted: tuple[Machine, Boot]) -> None:
    machine, done = booted
    expected: dict[str, Any] = json.loads(said(fixture(machine), "expected.json"))
    asked = list(leaves(expected, build(scan(open_host(str(done.folder / "host.topo"))))))
    wrong = [f"{leaf.path}: {leaf.found!r}, and not {leaf.wanted[0]!r}" for leaf in asked if not leaf.agrees]
    print(f"{machine.name}: QEMU: agreed/asked {len(asked) - len(wrong)}/{len(asked)}")
    assert asked
    assert not wrong


TYPES = {"root_port": 4, "upstream_port": 5, "downstream_port": 6}  # PCI Express Capabilities register, bits 7:4


def test_acs_as_qemu_builds_it(booted: tuple[Machine, Boot]) -> None:
    """hw/pci/pcie.c pcie_acs_init: a downstream port has SV TB RR CR UF DT, all off: without an IOMMU Linux sets none.

    Root ports have it (gen_pcie_root_port.c); the emulated TI switch got it later. No endpoint has it here, nor ATS.
    """
    _, done = booted
    found: dict[str, Any] = json.loads(said(done.folder, "acs.json"))
    assert [*strict(FOLDER / "acs-document.json").iter_errors(found)] == []
    functions = {one["bdf"]: one for one in found["functions"]}
    topology = build(scan(open_host(str(done.folder / "kept.topo"))))
    assert {str(one.address) for one in topology.of_kind("bridge", "nic") if one.physfn is None} <= {*functions}
    ours = {"capability": 0x5F, "control": 0}
    print(f"read: {sum('error' not in one for one in functions.values())}/{len(functions)}")
    assert any(one.get("acs") == ours for one in functions.values())
    for one in topology.of_kind("bridge", "nic", "gpu"):
        function = functions[str(one.address)]
        if "error" in function:  # an idle port sleeps
            assert function["error"] == "SUSPENDED"
            continue
        assert function.get("type", 0) == TYPES.get(one.role or "", 0)
        assert "ats" not in function
        if one.role == "root_port":
            assert function["acs"] == ours
        else:
            assert function.get("acs", ours) == ours
            assert one.role == "downstream_port" or "acs" not in function


def test_agrees_with_hwloc(booted: tuple[Machine, Boot]) -> None:
    machine, done = booted
    theirs = set(hwloc((done.folder / "lstopo.xml").read_bytes()))
    on_purpose = {one for one in theirs if (machine.name, *one[:2]) in ON_PURPOSE}
    asked = theirs - on_purpose
    ours = set(answers(json.loads(said(done.folder, "dump.json"))))
    ours = {one for one in ours if (machine.name, *one[:2]) not in ON_PURPOSE}
    kinds = sorted({str(one[0]) for one in asked})
    counts = ", ".join(f"{kind} {sum(one[0] == kind for one in asked & ours)}" for kind in kinds)
    print(
        f"{machine.name}: hwloc: agreed/asked {len(asked & ours)}/{len(asked)}, {len(on_purpose)} on purpose: {counts}"
    )
    assert sorted(map(repr, asked - ours)) == []
    assert sorted(map(repr, ours - asked)) == []
    assert len(on_purpose) == sum(name == machine.name for name, *_ in ON_PURPOSE)


Answer = tuple[object, ...]  # what is asked, of which thing, and the answer


def answers(document: dict[str, Any]) -> Iterator[Answer]:
    """What our JSON document says, thing by thing, of all that hwloc knows too."""
    for package in document["packages"]:
        yield "package", cpus(package["cpus"])
        yield from (("core", cpus(core)) for core in package["cores"])
    yield from (("pu", cpu) for cpu in cpus(document["machine"]["online_cpus"]))
    for node in document["numa"]:
        number = int(node["id"].removeprefix("numa:"))
        yield "numa", number, cpus(node["cpus"] or node["near_cpus"])
        yield from (("distance", number, int(other), value) for other, value in node["distances"].items())
    for root in document["roots"]:
        bridge = root["id"].rpartition("/")[2].removeprefix("root:")
        yield "near", bridge, None if root["cpus"] is None else cpus(root["cpus"])
    for device in document["devices"]:
        address, parent = PciAddress.parse(device["address"]), device.get("parent")
        yield "function", address, PciAddress.parse(parent.removeprefix("pci:")) if parent else None
        if device["kind"] == "bridge":
            yield "bridge", address


def hwloc(xml: bytes) -> Iterator[Answer]:
    """The same of lstopo's XML."""
    seen = lstopo.parse(xml)
    yield from (("package", package) for package in seen.packages)
    yield from (("core", core) for core in seen.cores)
    yield from (("pu", cpu) for cpu in seen.pus)
    yield from (("numa", *node) for node in seen.numa.items())
    yield from (("function", *parents) for parents in seen.functions.items())
    yield from (("bridge", address) for address in seen.bridges)
    root = ET.fromstring(xml)  # noqa: S314 - lstopo wrote it just now
    for distances in root.iterfind("distances2[@type='NUMANode']"):
        nodes = [int(node) for node in distances.findtext("indexes", "").split()]
        values = iter(distances.findtext("u64values", "").split())
        yield from (("distance", one, other, int(next(values))) for one in nodes for other in nodes)
    for thing in root.iter("object"):
        for bridge in thing.iterfind("object[@bridge_type='0-1']"):  # from the CPUs to PCI: a host bridge
            domain, bus = re.findall(r"[0-9a-f]+", bridge.attrib["bridge_pci"])[:2]
            yield "near", f"pci{domain}:{bus}", None if thing.get("type") == "Machine" else lstopo._cpus(thing)


def cpus(text: str) -> CpuSet:
    return frozenset(parse.cpulist(text))


def test_numa_node_of_the_default_root(booted: tuple[Machine, Boot]) -> None:
    """-1 in every file below it: unknown, and never node 0."""
    _, done = booted
    pattern = r"^sys/devices/\S*pci0000:00/[0-9a-f:.]+/numa_node = (.*)$"
    files = re.findall(pattern, said(done.folder, "host.topo"), re.MULTILINE)
    assert set(files) == {r'"-1\n"'}
    devices = json.loads(said(done.folder, "dump.json"))["devices"]
    below = [one for one in devices if one["pcie_root"].endswith("pci0000:00")]
    assert len(below) >= len(files)
    assert {(one["numa_node"], one["unknown"]["numa_node"]) for one in below} == {(None, "firmware_silent")}
