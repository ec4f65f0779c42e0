"""expected.json of a recorded machine, leaf by leaf: what was asked, and what the topology answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topo_agent.graph.topology import Device, Memory, Topology
from topo_agent.ids import NumaId, PciAddress, cpulist, pci_ref


@dataclass(frozen=True)
class Leaf:
    """One thing that another program said of the machine."""

    path: str
    wanted: tuple[Any, ...]  # any of these agrees
    found: Any

    @property
    def agrees(self) -> bool:
        return any(type(self.found) is type(one) and self.found == one for one in self.wanted)


ABSENT = "absent"


def leaves(expected: dict[str, Any], topology: Topology) -> Iterator[Leaf]:
    """Every leaf of the keys `functions`, `numa` and `counts`; a device that is not there agrees with nothing."""
    for name, wanted in expected.get("counts", {}).items():
        if name in _COUNTS:
            yield Leaf(f"counts.{name}", (wanted,), _COUNTS[name](topology))
    for node, said in expected.get("numa", {}).items():
        yield from _memory(f"numa.{node}", said, topology.memory(NumaId(int(node))))
    for address, said in expected.get("functions", {}).items():
        device = topology.device(pci_ref(PciAddress.parse(address)))
        yield from _function(f"functions.{address}", said, device)


_COUNTS = {
    "packages": lambda topology: len(topology.packages or ()),
    "cores": lambda topology: topology.cores,
    "pus": lambda topology: len(topology.online_cpus),
}


def _memory(path: str, said: dict[str, Any], memory: Memory | None) -> Iterator[Leaf]:
    for key, wanted in said.items():
        found: Any = ABSENT
        if memory is None:
            pass
        elif key == "cpus":
            found = None if memory.cpus is None else cpulist(memory.cpus)
        elif key == "near_cpus":
            found = None if memory.near_cpus is None else cpulist(memory.near_cpus)
        elif key == "distances":
            found = None if memory.distances is None else [distance for _, distance in memory.distances]
        elif key == "memory_bytes":
            found = memory.memory_bytes
        elif key == "memory":
            found = _in_unit_of(wanted, memory.memory_bytes)
        elif key == "memory_kind":
            found = None if memory.kind is None else memory.kind.upper()
        elif key in ("cpus_derived", "cpulist_file"):  # a remark, not something to answer
            continue
        yield Leaf(f"{path}.{key}", (wanted,), found)


def _in_unit_of(wanted: str, count: int | None) -> str | None:
    """Bytes in the unit that hwloc printed, rounded as it rounds: `("126GiB", 135…)` -> `"126GiB"`."""
    matched = re.fullmatch(r"([0-9]+)([MG]iB)", wanted)
    assert matched
    if count is None:
        return None
    shift = {"MiB": 20, "GiB": 30}[matched[2]]
    return f"{((count >> (shift - 1)) + 1) >> 1}{matched[2]}"


def _function(path: str, said: dict[str, Any], device: Device | None) -> Iterator[Leaf]:
    for key, wanted in said.items():
        if key == "pcie_root":
            yield Leaf(f"{path}.{key}", (wanted,), device.root.key if device and device.root else ABSENT)
        elif key == "numa_node":
            accepted = (wanted, said["numa_node_kernel"]) if "numa_node_kernel" in said else (wanted,)
            yield Leaf(f"{path}.{key}", accepted, device.numa_node if device else ABSENT)
        elif key == "kind":
            yield Leaf(f"{path}.{key}", (wanted,), device.kind if device else ABSENT)
        elif key == "sriov_parent":
            yield Leaf(f"{path}.{key}", (wanted,), device.physfn.key if device and device.physfn else ABSENT)
