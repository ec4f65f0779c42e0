"""Topology -> flat tables: one row for each thing of a kind, the columns named as in the document."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence

from topo_agent.graph.nodes import Device, Memory
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuId, NumaId, Ref, cpulist
from topo_agent.views import devices, names
from topo_agent.views.devices import Row, Value
from topo_agent.views.text import clean, width
from topo_agent.views.units import binary_size, link_name

UNKNOWN = "?"


def rows(topology: Topology, kind: str) -> list[Row]:
    """The rows of one of KINDS. None in a cell is unknown, an empty text does not apply."""
    return list(KINDS[kind](topology))


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Aligned text with a header; `?` is unknown, `-` does not apply (an empty string in the row)."""
    lines = [[column.upper() for column in columns], *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(width(line[place]) for line in lines) for place in range(len(columns))]
    padded = ((cell + " " * (wide - width(cell)) for cell, wide in zip(line, widths, strict=True)) for line in lines)
    return "".join("  ".join(line).rstrip() + "\n" for line in padded)


def comma_separated(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """RFC 4180 with a header; unknown is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(row[column]) for column in columns] for row in rows)
    return out.getvalue()


def as_json(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A list of objects; unknown is null."""
    return json.dumps([{column: row[column] for column in columns} for row in rows], indent=2) + "\n"


FORMATS: dict[str, Callable[[Sequence[Row], Sequence[str]], str]] = {
    "table": table,
    "csv": comma_separated,
    "json": as_json,
}


def _cell(value: Value) -> str:
    if value is None:
        return UNKNOWN
    return _plain(value) or "-"


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else clean(str(value))


def _numa(topology: Topology) -> Iterator[Row]:
    for memory in topology.memories or ():
        package = topology.parent(memory.ref)
        yield {
            "node": memory.id,
            "package": package.key if package else None,
            "cpus": None if memory.cpus is None else cpulist(memory.cpus),
            "near_cpus": _near(memory),
            "memory": None if memory.memory_bytes is None else binary_size(memory.memory_bytes),
            "memory_bytes": memory.memory_bytes,
            "kind": memory.kind or "",
            "distances": None
            if memory.distances is None
            else " ".join(f"{node}:{distance}" for node, distance in memory.distances),
        }


def _near(memory: Memory) -> Value:
    if memory.cpus:
        return ""
    return None if memory.near_cpus is None else cpulist(memory.near_cpus)


def _cpus(topology: Topology) -> Iterator[Row]:
    nodes: dict[CpuId, NumaId] = {
        CpuId(cpu): memory.id for memory in topology.memories or () for cpu in memory.cpus or ()
    }
    for cpu in topology.cpus or ():
        yield {
            "cpu": cpu.id,
            "online": cpu.online,
            "allowed": None if topology.allowed_cpus is None else cpu.id in topology.allowed_cpus,
            "package": cpu.package if cpu.online else "",
            "die": cpu.die if cpu.die is not None else "",
            "cluster": cpu.cluster if cpu.cluster is not None else "",
            "core": cpu.core if cpu.online else "",
            "threads": (cpulist(cpu.threads) or None) if cpu.online else "",
            "numa": nodes.get(cpu.id) if cpu.online else "",
            "kind": cpu.kind or "",
            "capacity": cpu.capacity if cpu.capacity is not None else "",
        }


def _pci(topology: Topology) -> Iterator[Row]:
    for device in topology.devices or ():
        yield {
            "address": str(device.address),
            "kind": device.kind,
            "class": names.class_name(device.class_code),
            "name": names.title(device.vendor, device.device),
            "driver": device.driver or "",
            "numa": device.numa_node,
            "root": device.root.key if device.root else None,
            "parent": _parent(device),
            "link": "" if device.link is None else link_name(device.link.max_gts, device.link.max_width),
            "vf_of": _key(device.physfn),
            "role": device.role or "",
            "slot": device.slot or "",
            "iommu_group": "" if device.iommu_group is None else device.iommu_group,
            "cpus": None if device.cpus is None else cpulist(device.cpus),
        }


def _parent(device: Device) -> Value:
    return None if device.root is None else _key(device.parent)


def _key(ref: Ref | None) -> str:
    return ref.key if ref else ""


KINDS: dict[str, Callable[[Topology], Iterator[Row]]] = {
    "gpus": devices.gpus,
    "nics": devices.nics,
    "nvme": devices.nvme,
    "numa": _numa,
    "cpus": _cpus,
    "pci": _pci,
    "switches": devices.switches,
    "links": devices.links,
}

COLUMNS: dict[str, tuple[str, ...]] = {
    "gpus": ("gpu", "nvml", "cuda", "address", "name", "driver", "numa", "link", "nearest_nics"),
    "nics": ("nic", "address", "name", "netdev", "rdma", "state", "speed", "numa", "link", "vfs"),
    "nvme": ("nvme", "address", "name", "disks", "transport", "numa", "link"),
    "switches": ("kind", "address", "name", "numa", "link", "ports", "empty", "devices"),
    "links": ("a", "b", "kind", "peer", "count", "active", "bandwidth", "weight"),
    "numa": ("node", "package", "cpus", "near_cpus", "memory", "kind", "distances"),
    "cpus": ("cpu", "online", "package", "die", "cluster", "core", "threads", "numa", "kind", "capacity"),
    "pci": ("address", "kind", "name", "driver", "numa", "root", "parent", "link", "vf_of"),
}
"""What a table shows unless other columns are asked for."""

ALL_COLUMNS: dict[str, tuple[str, ...]] = {
    "gpus": (*COLUMNS["gpus"], "cpus", "memory", "uuid", "vfs", "nodes", "mig"),
    "nics": (*COLUMNS["nics"], "driver", "cpus", "layer", "mtu", "firmware", "board", "uid", "dpu"),
    "nvme": (*COLUMNS["nvme"], "driver", "cpus", "firmware", "serial", "remote"),
    "switches": (*COLUMNS["switches"], "driver", "cpus"),
    "links": COLUMNS["links"],
    "numa": ("node", "package", "cpus", "near_cpus", "memory", "memory_bytes", "kind", "distances"),
    "cpus": ("cpu", "online", "allowed", *COLUMNS["cpus"][2:]),
    "pci": (*COLUMNS["pci"], "class", "role", "slot", "iommu_group", "cpus"),
}
