"""A PCI function, or what is part of one or stands on one -> an object of the JSON document."""

from __future__ import annotations

from topo_agent.facts import FabricState, Platform
from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.nodes import Device, GpuPart, Mig, Names, NicPart, NvmePart, Virtual
from topo_agent.host import Json
from topo_agent.ids import cpulist
from topo_agent.views import names
from topo_agent.views.fields import hexadecimal, present, sources_of, unknown_of, with_unknown


def device(one: Device) -> dict[str, Json]:
    """One PCI function. What does not apply is absent; what was asked and not answered is null."""
    said: dict[str, Json] = {
        "id": str(one.ref),
        "kind": one.kind,
        "address": str(one.address),
        "class": hexadecimal(one.class_code, 6),
        "vendor_id": hexadecimal(one.vendor, 4),
        "device_id": hexadecimal(one.device, 4),
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
        "subsystem_vendor_id": hexadecimal(one.subvendor, 4),
        "subsystem_device_id": hexadecimal(one.subdevice, 4),
        "driver": one.driver,
        "physfn": str(one.physfn) if one.physfn else None,
        "sriov": _sriov(one),
        "iommu_group": one.iommu_group,
        "slot": one.slot,
        "link": _pcie_link(one),
        "gpu": _gpu(one.gpu),
        "nic": _nic(one.nic),
        "nvme": _nvme(one.nvme),
        "sources": sources_of(one.sources),
        "unknown": unknown_of(one.unknown),
    }
    said |= present(optional)
    return said | {field: None for field in dict(one.unknown) if field not in said}


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
    return with_unknown(said, tuple(sorted(unknown.items())))


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


def fabric_now(one: FabricState) -> dict[str, Json]:
    """`status` is NVML's code, `health_mask` as nvml.h takes it apart."""
    said: dict[str, Json] = {"state": one.state}
    faults: list[Json] = [*one.faults]
    optional: dict[str, Json] = {
        "status": one.status,
        "health": one.health,
        "health_mask": hexadecimal(one.health_mask, 8),
        "faults": faults or None,
    }
    return said | present(optional)


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
    return with_unknown(said, part.unknown) or None


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
    return with_unknown(present(said), one.unknown)


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
