"""Topology -> the JSON document `topo-agent/v1`, as docs/schema/topo-agent-v1.json describes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from topo_agent.diagnostics import Diagnostic, UnknownFields
from topo_agent.facts import LinkState, Machine
from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.topology import Device, Memory, Origin, Package, Root, Topology
from topo_agent.host import Json, Source
from topo_agent.ids import Ref, cpulist
from topo_agent.views import names

SCHEMA = "topo-agent/v1"

T = TypeVar("T")

_NOT_WIRING = frozenset({"kernel"})  # of the machine: changes with an update, not with a screwdriver


def document(topology: Topology, only: frozenset[Ref] | None = None) -> dict[str, Json]:
    """The machine as plain data. A part that was not recorded at all is absent.

    `only` keeps the nodes of a device's surroundings; `digest` is that of the whole machine either way.
    """
    structure: dict[str, Json] = {
        "machine": _machine(topology.machine, topology),
        "packages": _part(topology.packages, _package),
        "numa": _part(topology.memories, _memory),
        "roots": _part(topology.roots, _root),
        "devices": _part(topology.devices, device),
    }
    structure = {name: part for name, part in structure.items() if part is not None}
    state = _state(topology)
    whole = digest(structure)
    if only is not None:
        kept = {str(ref) for ref in only}
        structure = {name: _restricted(part, kept) for name, part in structure.items()}
        state = {name: said for name, said in state.items() if name in kept}
    return {
        "schema": SCHEMA,
        "digest": whole,
        "source": _source(topology.source, topology),
        **structure,
        "state": state,
        "diagnostics": [_diagnostic(one) for one in topology.diagnostics],
    }


def surroundings(topology: Topology, ref: Ref) -> frozenset[Ref]:
    """A node with everything above and below it, and the NUMA node it is near."""
    found = {ref, *topology.ancestors(ref), *topology.below(ref)}
    one = topology.device(ref)
    memory = topology.memory(one.numa_node) if one else None
    return frozenset(found | {memory.ref} if memory else found)


def digest(structure: Mapping[str, Json]) -> str:
    """`sha256:…` over structure only: the same machine gives the same digest, whatever its links do now."""
    machine = structure.get("machine")
    if isinstance(machine, dict):
        machine = {key: value for key, value in machine.items() if key not in _NOT_WIRING}
    canonical = json.dumps({**structure, "machine": machine}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def device(one: Device) -> dict[str, Json]:
    """One PCI function. What does not apply is absent; what was asked and not answered is null."""
    said: dict[str, Json] = {
        "id": str(one.ref),
        "kind": one.kind,
        "address": str(one.address),
        "class": _hex(one.class_code, 6),
        "vendor_id": _hex(one.vendor, 4),
        "device_id": _hex(one.device, 4),
        "parent": str(one.parent) if one.parent else None,
        "pcie_root": one.root.key if one.root else None,
        "numa_node": one.numa_node,
        "numa_nodes": list(one.numa_nodes),
        "cpus": None if one.cpus is None else cpulist(one.cpus),
        "standard": _standard(one),
    }
    if one.parent is None and one.root is not None:
        del said["parent"]  # right below its root
    optional: dict[str, Json] = {
        "role": one.role,
        "vendor": names.vendor(one.vendor),
        "model": names.model(one.vendor, one.device),
        "subsystem_vendor_id": _hex(one.subvendor, 4),
        "subsystem_device_id": _hex(one.subdevice, 4),
        "driver": one.driver,
        "physfn": str(one.physfn) if one.physfn else None,
        "sriov": _sriov(one),
        "iommu_group": one.iommu_group,
        "slot": one.slot,
        "link": _link(one),
        "sources": _sources(one.sources),
        "unknown": _unknown(one.unknown),
    }
    return said | {key: value for key, value in optional.items() if value is not None}


def _part(items: Iterable[T] | None, show: Callable[[T], dict[str, Json]]) -> list[Json] | None:
    return None if items is None else [show(item) for item in items]


def _restricted(part: Json, kept: set[str]) -> Json:
    if not isinstance(part, list):
        return part
    return [one for one in part if isinstance(one, dict) and one.get("id") in kept]


def _source(source: Source, topology: Topology) -> dict[str, Json]:
    said: dict[str, Json] = {"kind": source.kind, "complete": source.complete, "redacted": source.redacted}
    optional: dict[str, Json] = {
        "privileged": source.privileged,
        "scope": source.scope,
        "allowed_cpus": None if topology.allowed_cpus is None else cpulist(topology.allowed_cpus),
    }
    return said | {key: value for key, value in optional.items() if value is not None}


def _machine(machine: Machine, topology: Topology) -> dict[str, Json]:
    said: dict[str, Json] = {
        "vendor": machine.vendor,
        "product": machine.product,
        "board": machine.board,
        "bios_version": machine.bios_version,
        "architecture": machine.architecture,
        "cpu_model": machine.cpu_model,
        "kernel": machine.kernel,
        "virtual": machine.virtual,
    }
    if machine.hypervisor is not None:
        said["hypervisor"] = machine.hypervisor
    if topology.cpus is not None:
        said["online_cpus"] = cpulist(topology.online_cpus)
        offline = [cpu.id for cpu in topology.cpus if not cpu.online]
        if offline:
            said["offline_cpus"] = cpulist(offline)
        said["cores"] = topology.cores
    return said | _why((), machine.unknown)


def _package(package: Package) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(package.ref),
        "cpus": cpulist(package.cpus),
        "cores": None if package.cores is None else [cpulist(core) for core in package.cores],
    }
    if len(package.dies) > 1:
        said["dies"] = {str(die): cpulist(cpus) for die, cpus in package.dies}
    return said


def _memory(memory: Memory) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(memory.ref),
        "cpus": None if memory.cpus is None else cpulist(memory.cpus),
        "memory_bytes": memory.memory_bytes,
        "kind": memory.kind,
        "distances": None if memory.distances is None else {str(node): distance for node, distance in memory.distances},
    }
    if memory.cpus == frozenset():
        said["near_cpus"] = None if memory.near_cpus is None else cpulist(memory.near_cpus)
    if memory.gpu is not None:
        said["gpu"] = f"pci:{memory.gpu}"
    return said | _why(memory.sources, memory.unknown)


def _root(root: Root) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(root.ref),
        "numa_node": root.numa_node,
        "cpus": None if root.cpus is None else cpulist(root.cpus),
    }
    return said | _why(root.sources, root.unknown)


def _why(sources: tuple[tuple[str, Origin], ...], unknown: UnknownFields) -> dict[str, Json]:
    said = {"sources": _sources(sources), "unknown": _unknown(unknown)}
    return {key: value for key, value in said.items() if value is not None}


def _sources(sources: tuple[tuple[str, Origin], ...]) -> dict[str, Json] | None:
    return {**dict(sources)} or None


def _unknown(unknown: UnknownFields) -> dict[str, Json] | None:
    return {field: reason.value for field, reason in unknown} or None


def _standard(one: Device) -> dict[str, Json]:
    said: dict[str, Json] = {
        "pciBusID": one.standard.pci_bus_id,
        "pcieRoot": one.standard.pcie_root,
        "numaNode": one.standard.numa_node,
    }
    return {key: value for key, value in said.items() if value is not None}


def _sriov(one: Device) -> dict[str, Json] | None:
    if one.sriov_total is None and one.sriov_enabled is None:
        return None
    return {"total": one.sriov_total, "enabled": one.sriov_enabled}


def _link(one: Device) -> dict[str, Json] | None:
    if one.link is None:
        return None
    return {
        "max_gts": one.link.max_gts,
        "max_width": one.link.max_width,
        "max_bytes_per_second": of_lanes(one.link.max_gts, one.link.max_width),
    }


def _state(topology: Topology) -> dict[str, Json]:
    """What moves by itself, by the id of what it belongs to."""
    state: dict[str, Json] = {str(ref): {"link": _link_now(link)} for ref, link in topology.links_now}
    for memory in topology.memories or ():
        if memory.hugepages:
            pages: dict[str, Json] = {str(page.size_bytes): page.count for page in memory.hugepages}
            state[str(memory.ref)] = {"hugepages": pages}
    return state


def _link_now(link: LinkState) -> dict[str, Json]:
    return {"gts": link.gts, "width": link.width, "bytes_per_second": of_lanes(link.gts, link.width)}


def _diagnostic(one: Diagnostic) -> dict[str, Json]:
    return {"level": one.level.value, "subject": one.subject, "code": one.code, "message": one.message}


def _hex(value: int | None, digits: int) -> str | None:
    return None if value is None else f"0x{value:0{digits}x}"
