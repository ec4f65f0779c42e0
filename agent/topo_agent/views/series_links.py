"""Samples of metric families about what connects: pairs of devices, NVLink and xGMI, PCIe links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.graph import links, links_health
from topo_agent.graph.bandwidth import of_lanes
from topo_agent.graph.findings import Machine
from topo_agent.graph.nodes import Device
from topo_agent.ids import Ref
from topo_agent.views.series import Labels, Sample, Scene, first_names, who

# Classes as numbers: nvml.h nvmlGpuTopologyLevel_t where it has one.
_LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


def nearest_nics(scene: Scene) -> Iterator[Sample]:
    for choice in scene.machine.choices:
        gpu = scene.topology.device(choice.gpu)
        near = [(one.path.class_, ref) for one in choice.chosen for ref in one.nearest]
        for rank, (path, ref) in enumerate(near, 1):
            nic = scene.topology.device(ref)
            if gpu is not None and nic is not None:
                yield {**_pair(gpu, nic), "path": path, "confidence": choice.confidence, "rank": rank}, 1


def path_levels(scene: Scene) -> Iterator[Sample]:
    """A class that is a guess is no number."""
    for gpu in scene.machine.gpus:
        for nic in scene.machine.nics:
            path = scene.machine.paths.between(gpu, nic)
            if path.certain:
                yield _pair(gpu, nic), _LEVELS[path.class_]


def path_bandwidths(scene: Scene) -> Iterator[Sample]:
    for gpu in scene.machine.gpus:
        for nic in scene.machine.nics:
            rate = scene.machine.paths.between(gpu, nic).bytes_per_second
            if rate is not None:
                yield _pair(gpu, nic), rate


def _pair(gpu: Device, nic: Device) -> Labels:
    return {**who(gpu), "nic_pci_bus_id": str(nic.address), "rdma_device": first_names(nic)["rdma_device"]}


def gpu_links(scene: Scene) -> Iterator[Sample]:
    """Each link from both of its ends, so that the links of one GPU add up."""
    found: Counter[tuple[Ref, Ref | None, str, str]] = Counter()
    for link in scene.topology.links or ():
        for one, other in ((link.a, link.b), (link.b, link.a)):
            if one is not None and _is_gpu(scene, one) and link.links is not None and link.peer != "unknown":
                found[one, other if link.peer == "gpu" else None, link.peer, link.kind] += link.links
    for (one, other, peer, kind), count in found.items():
        gpu, there = scene.topology.device(one), scene.topology.device(other)
        if gpu is not None and (there is not None or peer != "gpu"):
            place = str(there.address) if there else None
            uuid = there.uid if there else "nvswitch" if peer == "switch" else peer
            yield {**who(gpu), "peer_pci_bus_id": place, "peer_uuid": uuid, "kind": kind}, count


def nvlinks(scene: Scene) -> Iterator[Sample]:
    active, whole = links.nvlinks(scene.topology)
    for gpu in scene.machine.gpus:
        if gpu.ref in active:
            yield {**who(gpu), "state": "active"}, active[gpu.ref]
            if whole[gpu.ref] >= active[gpu.ref]:
                yield {**who(gpu), "state": "inactive"}, whole[gpu.ref] - active[gpu.ref]


def _is_gpu(scene: Scene, ref: Ref) -> bool:
    device = scene.topology.device(ref)
    return device is not None and device.kind == "gpu"


def bandwidths(scene: Scene) -> Iterator[Sample]:
    for device in _linked(scene.machine):
        end = scene.topology.device(scene.machine.hops.link_end(device.ref))
        now = scene.machine.links_now.get(end.ref) if end else None
        if end is not None and now is not None:
            rate = of_lanes(now.gts, now.width)
            if rate is not None and not scene.machine.hops.emulated(end, scene.topology.device(end.parent)):
                yield {"pci_bus_id": str(device.address)}, rate


def best_bandwidths(scene: Scene) -> Iterator[Sample]:
    for device in _linked(scene.machine):
        rate = scene.machine.hops.rate(device.ref)
        if rate is not None:
            yield {"pci_bus_id": str(device.address)}, rate


def _linked(machine: Machine) -> list[Device]:
    return [*machine.devices, *machine.switches]


def degraded(scene: Scene) -> Iterator[Sample]:
    """A GPU that is slower may only be idle: that it is not is said by a finding that was raised to a warning."""
    raised = {subject for subject, severity in scene.severities("link_speed").items() if severity != "info"}
    for device, now, best in links_health.readings(scene.machine):
        labels: Labels = {"pci_bus_id": str(device.address)}
        if now.width is not None and best.max_width is not None:
            yield {**labels, "reason": "width"}, int(now.width < best.max_width)
        if now.gts is not None and best.max_gts is not None:
            slower = now.gts < best.max_gts
            if not slower or device.kind != "gpu" or str(device.ref) in raised:
                yield {**labels, "reason": "speed"}, int(slower)


def oversubscriptions(scene: Scene) -> Iterator[Sample]:
    """Links to a GPU, NIC, drive or further switch count. Where one does not tell, the sum would be too small."""
    if scene.topology.machine.virtual:
        return
    for switch in scene.machine.switches:
        above = scene.machine.hops.rate(switch.ref)
        below = [_rate_below(scene, port) for port in scene.topology.children(switch.ref) if _used(scene, port)]
        known = [rate for rate in below if rate is not None]
        if above is not None and known and len(known) == len(below):
            yield {"pci_bus_id": str(switch.address)}, round(sum(known) / above, 4)


def _used(scene: Scene, port: Ref) -> bool:
    wanted = {one.ref for one in scene.machine.devices}
    return not wanted.isdisjoint(scene.topology.below(port))


def _rate_below(scene: Scene, port: Ref) -> int | None:
    """The functions of one card share one link."""
    rates = (scene.machine.hops.rate(child) for child in scene.topology.children(port))
    return next((rate for rate in rates if rate is not None), None)
