"""expected.json of a recorded machine, leaf by leaf: what was asked, and what the topology answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from topo_agent.graph.nodes import Device, Memory
from topo_agent.graph.paths import Paths
from topo_agent.graph.topology import Topology
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
    """Every leaf of expected.json; a device that is not there agrees with nothing."""
    for name, wanted in expected.get("counts", {}).items():
        if name in _COUNTS:
            yield Leaf(f"counts.{name}", (wanted,), _COUNTS[name](topology))
    for node, said in expected.get("numa", {}).items():
        yield from _memory(f"numa.{node}", said, topology.memory(NumaId(int(node))))
    for address, said in expected.get("functions", {}).items():
        device = topology.device(pci_ref(PciAddress.parse(address)))
        yield from _function(f"functions.{address}", said, device)
    yield from _paths(expected, topology)


_COUNTS: dict[str, Callable[[Topology], int | None]] = {
    "packages": lambda topology: len(topology.packages or ()),
    "cores": lambda topology: topology.cores,
    "pus": lambda topology: len(topology.online_cpus),
    "nvme": lambda topology: len(topology.of_kind("nvme")),
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
        elif key == "os_devices":
            names = device.names if device else None
            called = {*names.netdev, *names.rdma, *names.nvme, *names.nvme_path, *names.block} if names else set()
            yield Leaf(f"{path}.{key}", (wanted,), [name for name in wanted if name in called])
        elif key == "sriov_parent":
            yield Leaf(f"{path}.{key}", (wanted,), device.physfn.key if device and device.physfn else ABSENT)


def _paths(expected: dict[str, Any], topology: Topology) -> Iterator[Leaf]:
    """Words of nvidia-smi, the NICs nearest to a GPU, and which NICs share a switch with one."""
    paths = Paths(topology)
    gpus = [device for device in topology.of_kind("gpu") if device.physfn is None]
    nics = [device for device in topology.of_kind("nic") if device.physfn is None]
    for a, b, word in expected.get("paths", ()):
        if word.startswith("NV") and not topology.links:
            continue  # asked only where NVLink data exists
        one, other = (topology.device(pci_ref(PciAddress.parse(name))) for name in (a, b))
        found = paths.between(one, other).class_ if one and other else ABSENT
        yield Leaf(f"paths.{a}.{b}", (word,), found)
    for address, wanted in expected.get("nearest_nics", {}).items():
        gpu = topology.device(pci_ref(PciAddress.parse(address)))
        yield Leaf(f"nearest_nics.{address}", (sorted(wanted),), _nearest(gpu, nics, paths) if gpu else ABSENT)
    for address, shares in expected.get("shares_switch_with_gpu", {}).items():
        nic = topology.device(pci_ref(PciAddress.parse(address)))
        answer = any(paths.between(nic, gpu).class_ in ("PIX", "PXB") for gpu in gpus) if nic else ABSENT
        yield Leaf(f"shares_switch_with_gpu.{address}", (shares,), answer)


def _nearest(gpu: Device, nics: list[Device], paths: Paths) -> list[str]:
    ranks = {str(nic.address): paths.between(gpu, nic).rank for nic in nics}
    return sorted(address for address, rank in ranks.items() if rank == min(ranks.values()))


KINDS = ("gpu", "nic", "nvme", "nvswitch")


def of_kind(expected: dict[str, Any], kind: str) -> set[str]:
    """The functions of one kind; one without a kind is none of these (a management display is no GPU)."""
    return {address for address, said in expected.get("functions", {}).items() if said.get("kind") == kind}
