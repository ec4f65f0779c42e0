"""sys/module, proc/driver/nvidia/version, kernel/iommu_groups -> GpuDirect: what a NIC needs to reach GPU memory.

Read for checks only: the groups are one file for each device.
"""

from __future__ import annotations

from collections.abc import Iterable

from topo_agent.diagnostics import Notes
from topo_agent.facts import GpuDirect, PciDevice
from topo_agent.host import Host
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry

_ENDPOINTS = frozenset({0x02, 0x03, 0x0B, 0x12})  # base classes of NICs and GPUs


def read(host: Host, notes: Notes, functions: Iterable[PciDevice]) -> GpuDirect:
    """Nothing of it is a fact of the wiring, so that what is not there leaves no reason in `unknown`."""
    ours = [one for one in functions if (one.class_code or 0) >> 16 in _ENDPOINTS and one.physfn is None]
    groups = Entry(host, "sys/kernel/iommu_groups", notes)
    types = {group: groups.now(f"{group}/type", parse.word) for group in sorted(_groups(ours))}
    return GpuDirect(
        modules=frozenset(Entry(host, "sys/module", notes).names()) or None,
        open_modules=Entry(host, "proc/driver/nvidia", notes).now("version", _is_open),
        domains=tuple((group, type_) for group, type_ in types.items() if type_ is not None),
    )


def _groups(functions: Iterable[PciDevice]) -> set[int]:
    return {one.iommu_group for one in functions if one.iommu_group is not None}


def _is_open(text: str) -> bool:
    """`"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 …"` -> True; False without "Open".

    ValueError where no version is told.
    """
    first = parse.clean(text.partition("\n")[0])
    if not first.startswith("NVRM version:"):
        raise ValueError(f"{first[:40]!r} is no version of the NVIDIA driver")
    return "Open Kernel Module" in first
