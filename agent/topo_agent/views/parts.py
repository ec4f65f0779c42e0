"""One thing of the topology -> one object of the JSON document. What does not apply is absent."""

from __future__ import annotations

from collections.abc import Mapping

from topo_agent.diagnostics import Unknown, UnknownFields
from topo_agent.facts import Cache, FabricState, Platform
from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.nodes import (
    Device,
    GpuPart,
    Link,
    Memory,
    Mig,
    Names,
    NicPart,
    NvmePart,
    Origin,
    Package,
    Root,
    Virtual,
)
from topo_agent.graph.paths import Path
from topo_agent.host import Json
from topo_agent.ids import cpulist
from topo_agent.views import names


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
    if one.parent is None and "parent" not in dict(one.unknown):
        del said["parent"]  # right below its root
    optional: dict[str, Json] = {
        "role": one.role,
        "vendor": names.vendor(one.vendor),
        "model": one.title or names.model(one.vendor, one.device),
        "names": _names(one.names),
        "uid": one.uid,
        "board": one.board,
        "subsystem_vendor_id": _hex(one.subvendor, 4),
        "subsystem_device_id": _hex(one.subdevice, 4),
        "driver": one.driver,
        "physfn": str(one.physfn) if one.physfn else None,
        "sriov": _sriov(one),
        "iommu_group": one.iommu_group,
        "slot": one.slot,
        "link": _pcie_link(one),
        "gpu": _gpu(one.gpu),
        "nic": _nic(one.nic),
        "nvme": _nvme(one.nvme),
        "sources": _sources(one.sources),
        "unknown": _unknown(one.unknown),
    }
    said |= present(optional)
    return said | {field: None for field in dict(one.unknown) if field not in said}


def _standard(one: Device) -> dict[str, Json]:
    said: dict[str, Json] = {
        "pciBusID": one.standard.pci_bus_id,
        "pcieRoot": one.standard.pcie_root,
        "numaNode": one.standard.numa_node,
    }
    return present(said)


def _sriov(one: Device) -> dict[str, Json] | None:
    if one.sriov_total is None and one.sriov_enabled is None:
        return None
    counts: dict[str, Json] = {"total": one.sriov_total, "enabled": one.sriov_enabled}
    return present(counts)


def _pcie_link(one: Device) -> dict[str, Json] | None:
    if one.link is None:
        return None
    return {
        "max_gts": one.link.max_gts,
        "max_width": one.link.max_width,
        "max_bytes_per_second": of_lanes(one.link.max_gts, one.link.max_width),
    }


def _names(called: Names) -> dict[str, Json] | None:
    """Every list of names that is not empty."""
    said: dict[str, Json] = {
        kind: list(some)
        for kind, some in (
            ("netdev", called.netdev),
            ("rdma", called.rdma),
            ("nvme", called.nvme),
            ("nvme_path", called.nvme_path),
            ("block", called.block),
            ("nodes", called.nodes),
        )
        if some
    }
    if called.nvml_index is not None:
        said["nvml_index"] = called.nvml_index
    return said or None


def _gpu(part: GpuPart | None) -> dict[str, Json] | None:
    if part is None:
        return None
    said = present(
        {
            "memory_bytes": part.memory_bytes,
            "memory_node": part.memory_node,
            "partitions": part.partitions,
            "compute_partition": part.compute_partition,
            "memory_partition": part.memory_partition,
            "compute_units": part.compute_units,
            "hive": part.hive,
            "fabric": part.fabric,
            "cliques": [{"type": one.type, "id": one.id} for one in part.cliques] or None,
            "platform": _platform(part.platform),
            "virtualization": part.virtualization,
            "mig": True if part.mig else None,
        }
    )
    return _with_unknown(said, part.unknown) or None


def _platform(one: Platform | None) -> dict[str, Json] | None:
    if one is None:
        return None
    said: dict[str, Json] = {
        "chassis_serial": one.chassis_serial,
        "slot": one.slot,
        "tray": one.tray,
        "host_id": one.host_id,
        "module_id": one.module_id,
    }
    return _with_unknown(present(said), one.unknown)


def fabric_now(one: FabricState) -> dict[str, Json]:
    """`status` is NVML's code, `health_mask` as nvml.h takes it apart."""
    said: dict[str, Json] = {"state": one.state}
    faults: list[Json] = [*one.faults]
    optional: dict[str, Json] = {
        "status": one.status,
        "health": one.health,
        "health_mask": _hex(one.health_mask, 8),
        "faults": faults or None,
    }
    return said | present(optional)


def _with_unknown(said: dict[str, Json], unknown: UnknownFields) -> dict[str, Json]:
    """null for what was asked and not answered, and the reasons."""
    if not unknown:
        return said
    return said | {field: None for field, _ in unknown if field not in said} | {"unknown": _unknown(unknown)}


def mig(one: Mig, gpu: Device | None) -> dict[str, Json]:
    """A MIG device. It is near what its GPU is near, and told as unknown where that is."""
    said: dict[str, Json] = {
        "id": str(one.ref),
        "kind": "mig",
        "partition_of": str(one.partition_of),
        "gpu_instance": one.gpu_instance,
    }
    said |= present(
        {
            "compute_instance": one.compute_instance,
            "model": one.title,
            "uid": one.uid,
            "memory_bytes": one.memory_bytes,
        }
    )
    unknown = dict(one.unknown)
    if gpu is not None:
        said["numa_node"] = gpu.numa_node
        said["numa_nodes"] = list(gpu.numa_nodes)
        said["cpus"] = None if gpu.cpus is None else cpulist(gpu.cpus)
        unknown |= {field: reason for field, reason in gpu.unknown if field in ("numa_node", "cpus")}
    return _with_unknown(said, tuple(sorted(unknown.items())))


def _nic(part: NicPart | None) -> dict[str, Json] | None:
    if part is None:
        return None
    ports: list[Json] = [
        present(
            {
                "netdev": port.netdev,
                "rdma": port.rdma,
                "rdma_port": port.rdma_port,
                "link_layer": port.link_layer,
                "address": port.address,
            }
        )
        for port in part.ports
    ]
    said: dict[str, Json] = {"ports": ports}
    return said | present({"firmware": part.firmware, "dpu": True if part.dpu else None})


def _nvme(part: NvmePart | None) -> dict[str, Json] | None:
    if part is None:
        return None
    return (
        present(
            {
                "transport": part.transport,
                "firmware": part.firmware,
                "subsystem": part.subsystem,
                "remote": part.remote,
            }
        )
        or None
    )


def virtual(one: Virtual) -> dict[str, Json]:
    said: dict[str, Json] = {"id": str(one.ref), "kind": one.kind, "lower": [str(ref) for ref in one.lower]}
    return said | present(
        {
            "type": one.type,
            "vlan_id": one.vlan_id,
            "names": _names(one.names),
            "uid": one.uid,
            "nvme": _nvme(one.nvme),
        }
    )


def link(one: Link) -> dict[str, Json]:
    said: dict[str, Json] = {
        "a": str(one.a),
        "b": str(one.b) if one.b else None,
        "kind": one.kind,
        "peer": one.peer,
    }
    said |= present({"count": one.links, "max_bytes_per_second": one.bytes_per_second, "weight": one.weight})
    return said | ({} if one.b else {"unknown": {"b": Unknown.HIDDEN.value}})


def path(one: Path) -> dict[str, Json]:
    """How far apart two devices are."""
    return {
        "a": str(one.a),
        "b": str(one.b),
        "class": one.class_,
        "nccl_class": one.nccl_class,
        "certain": one.certain,
        "via": [str(ref) for ref in one.via],
        **present(
            {"bottleneck": str(one.bottleneck) if one.bottleneck else None, "bytes_per_second": one.bytes_per_second}
        ),
        "reason": one.reason,
    }


def package(one: Package) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "cpus": cpulist(one.cpus),
        "cores": None if one.cores is None else [cpulist(core) for core in one.cores],
    }
    if len(one.dies) > 1:
        said["dies"] = {str(die): cpulist(cpus) for die, cpus in one.dies}
    return said


def cache(one: Cache) -> dict[str, Json]:
    """One cache and the CPUs that share it."""
    said: dict[str, Json] = {"level": one.level, "type": one.type, "cpus": cpulist(one.cpus)}
    return said | present({"size_bytes": one.size_bytes})


def memory(one: Memory) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "cpus": None if one.cpus is None else cpulist(one.cpus),
        "memory_bytes": one.memory_bytes,
        "distances": None if one.distances is None else {str(node): distance for node, distance in one.distances},
    }
    if one.cpus == frozenset():
        said["near_cpus"] = None if one.near_cpus is None else cpulist(one.near_cpus)
    if one.kind is not None:
        said["kind"] = one.kind
    if one.gpu is not None:
        said["gpu"] = f"pci:{one.gpu}"
    return said | why(one.sources, one.unknown)


def root(one: Root) -> dict[str, Json]:
    said: dict[str, Json] = {
        "id": str(one.ref),
        "numa_node": one.numa_node,
        "cpus": None if one.cpus is None else cpulist(one.cpus),
    }
    return said | why(one.sources, one.unknown)


def why(sources: tuple[tuple[str, Origin], ...], unknown: UnknownFields) -> dict[str, Json]:
    said = {"sources": _sources(sources), "unknown": _unknown(unknown)}
    return present(said)


def _sources(sources: tuple[tuple[str, Origin], ...]) -> dict[str, Json] | None:
    return {**dict(sources)} or None


def _unknown(unknown: UnknownFields) -> dict[str, Json] | None:
    return {field: reason.value for field, reason in unknown} or None


def present(fields: Mapping[str, Json]) -> dict[str, Json]:
    """What applies: None does not."""
    return {key: value for key, value in fields.items() if value is not None}


def _hex(value: int | None, digits: int) -> str | None:
    return None if value is None else f"0x{value:0{digits}x}"
