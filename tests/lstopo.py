"""What hwloc's lstopo says of a directory, as sets that can be compared."""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from topo_agent.ids import CpuSet, PciAddress

PROGRAM = shutil.which("lstopo-no-graphics")

# hwloc reads the directory only, not the CPUID of the machine that the test runs on; all its nodes.
_ENVIRONMENT = {
    "HWLOC_THISSYSTEM": "0",
    "HWLOC_COMPONENTS": "-x86",
    "HWLOC_HIDE_ERRORS": "2",
    "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1",
}


@dataclass(kw_only=True)
class Seen:
    """Packages and cores are named by their CPUs: hwloc numbers cores within a package."""

    packages: set[CpuSet] = field(default_factory=set)
    cores: set[CpuSet] = field(default_factory=set)
    pus: set[int] = field(default_factory=set)
    numa: dict[int, CpuSet | None] = field(default_factory=dict)  # a node without CPUs: those near it
    bridges: set[PciAddress] = field(default_factory=set)
    functions: dict[PciAddress, PciAddress | None] = field(default_factory=dict)  # each with its parent, if PCI
    near: dict[PciAddress, CpuSet | None] = field(default_factory=dict)  # of each root, by its first function


def look(directory: Path) -> Seen:
    """Every function counts, bridges among them; lstopo 2.9 as Debian builds it has no domains above 0xffff."""
    assert PROGRAM, "lstopo-no-graphics is not installed"
    command = [PROGRAM, "--whole-io", "--of", "xml", "-"]
    environment = {**os.environ, **_ENVIRONMENT, "HWLOC_FSROOT": str(directory)}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60).stdout
    return parse(said)


def parse(xml: bytes) -> Seen:
    seen = Seen()
    machine = ET.fromstring(xml)  # noqa: S314 - lstopo wrote it just now
    for thing in machine.iter("object"):
        for first in thing.iterfind("object[@bridge_type='0-1']/object[1]"):
            seen.near[PciAddress.parse(first.attrib["pci_busid"])] = _cpus(thing)
    for thing, parent in _walk(machine, None):
        kind, index = thing.get("type"), int(thing.get("os_index", -1))
        if kind == "Package":
            seen.packages.add(_cpus(thing))
        elif kind == "Core":
            seen.cores.add(_cpus(thing))
        elif kind == "PU":
            seen.pus.add(index)
        elif kind == "NUMANode":
            seen.numa[index] = _cpus(thing)
        elif "pci_busid" in thing.attrib:
            address = PciAddress.parse(thing.attrib["pci_busid"])
            seen.functions[address] = parent
            if kind == "Bridge":
                seen.bridges.add(address)
    return seen


def _walk(thing: ET.Element, parent: PciAddress | None) -> Iterator[tuple[ET.Element, PciAddress | None]]:
    """Every object with the PCI function that it is below, if any."""
    yield thing, parent
    busid = thing.get("pci_busid")
    below = PciAddress.parse(busid) if busid else parent
    for child in thing.iterfind("object"):
        yield from _walk(child, below)


def _cpus(thing: ET.Element) -> CpuSet:
    """`cpuset="0x00000001,0x00000003"` -> `{0, 1, 32}`: 32 bits in each group, zeros in front left out."""
    mask = 0
    for group in thing.attrib["cpuset"].split(","):
        mask = mask << 32 | int(group or "0", 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
