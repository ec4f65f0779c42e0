"""Samples of metric families: what a machine says, by label; what it does not say has no sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.graph.checks import CHECKS
from topo_agent.graph.findings import Finding, Machine
from topo_agent.graph.kinds import is_data_direct
from topo_agent.graph.nodes import Device, Memory
from topo_agent.graph.pairing import Choice
from topo_agent.graph.topology import Topology
from topo_agent.ids import NumaId, PciAddress
from topo_agent.views import names

Labels = dict[str, str | int | None]
Sample = tuple[Labels, float]

_MEMORY = {"gpu": "gpu_memory", "cxl": "cxl", "hbm": "hbm", "nvm": "pmem"}


class Scene:
    """What all families look at."""

    def __init__(self, topology: Topology, choices: tuple[Choice, ...], findings: tuple[Finding, ...]) -> None:
        self.topology = topology
        self.machine = Machine(topology, choices)
        self.findings = findings
        engines = [one for one in topology.of_kind("other") if is_data_direct(one)]
        self.nics = sorted([*self.machine.nics, *engines], key=lambda one: one.address)

    def severities(self, code: str) -> dict[str, str]:
        """Who has a finding of that code, and how bad it is."""
        found = (one for one in self.findings if one.code == code)
        return {subject: one.severity for one in found for subject in one.subjects}


def gpus(scene: Scene) -> Iterator[Sample]:
    for gpu in scene.machine.gpus:
        yield {**who(gpu), "gpu": gpu.names.nvml_index, **_place(scene, gpu)}, 1


def nics(scene: Scene) -> Iterator[Sample]:
    for nic in scene.nics:
        called: Labels = {"function": _function(scene, nic), "board": nic.board}
        yield {"pci_bus_id": str(nic.address), **first_names(nic), **_place(scene, nic), **called}, 1


def aliases(scene: Scene) -> Iterator[Sample]:
    """As node_exporter (procfs PciDeviceLocation.Strings) and NVML (nvmlPciInfo_t busId) write an address."""
    for one in [*scene.machine.gpus, *scene.nics]:
        at = one.address
        parts: Labels = {
            "segment": f"{at.domain:04x}",
            "bus": f"{at.bus:02x}",
            "device": f"{at.device:02x}",
            "function": f"{at.function:x}",
        }
        uuid = one.uid if one.kind == "gpu" else None
        yield {"pci_bus_id": str(at), **parts, "dcgm_pci_bus_id": _dcgm(at), "uuid": uuid, **first_names(one)}, 1


def _dcgm(at: PciAddress) -> str:
    return f"{at.domain:08X}:{at.bus:02X}:{at.device:02X}.{at.function:X}"


def who(gpu: Device) -> Labels:
    return {"pci_bus_id": str(gpu.address), "uuid": gpu.uid}


def first_names(device: Device) -> Labels:
    """One series for each function, or a join by address finds two: a second port's names have no place in it."""
    netdev, rdma = device.names.netdev, device.names.rdma
    return {"netdev": netdev[0] if netdev else None, "rdma_device": rdma[0] if rdma else None}


def _place(scene: Scene, device: Device) -> Labels:
    switch = next(iter(scene.machine.hops.switches_above(device.ref)), None)
    return {
        "vendor": names.vendor(device.vendor),
        "model": device.title or names.model(device.vendor, device.device),
        "numa_node": device.numa_node,
        "package": _package(scene.topology, device.numa_node),
        "pcie_root": device.root.key if device.root else None,
        "upstream_switch": str(switch.address) if switch else None,
    }


def _package(topology: Topology, node: NumaId | None) -> str | None:
    memory = topology.memory(node)
    package = topology.parent(memory.ref) if memory else None
    return package.key if package else None


def _function(scene: Scene, nic: Device) -> str | None:
    """A virtual machine shows a virtual function without its physical one: there nothing tells them apart."""
    if is_data_direct(nic):
        return "data_direct"
    return "pf" if nic.sriov_total is not None or scene.topology.machine.virtual is False else None


def numa_nodes(scene: Scene) -> Iterator[Sample]:
    for memory in scene.topology.memories or ():
        package, gpu = _package(scene.topology, memory.id), memory.gpu
        place = str(gpu) if gpu else None
        yield {"node": memory.id, "kind": _kind(memory), "package": package, "gpu_pci_bus_id": place}, 1


def _kind(memory: Memory) -> str | None:
    if memory.kind in _MEMORY:
        return _MEMORY[memory.kind]
    if memory.cpus:
        return "cpu"
    return "empty" if memory.cpus is not None and memory.memory_bytes == 0 else None


def numa_cpus(scene: Scene) -> Iterator[Sample]:
    for memory in scene.topology.memories or ():
        if memory.cpus is not None:
            yield {"node": memory.id}, len(memory.cpus)


def numa_memory(scene: Scene) -> Iterator[Sample]:
    for memory in scene.topology.memories or ():
        if memory.memory_bytes is not None:
            yield {"node": memory.id}, memory.memory_bytes


def devices(scene: Scene) -> Iterator[Sample]:
    if scene.topology.devices is None:
        return
    machine, not_listed = scene.machine, scene.severities("gpu_not_in_driver")
    kinds = {"gpu": machine.gpus, "nic": machine.nics, "nvme": machine.drives, "switch": machine.switches}
    for kind, some in kinds.items():
        states = Counter(_state(machine, one, not_listed.get(str(one.ref))) for one in some)
        for state in ("ok", "unknown_numa", *(("lost", "hidden") if kind == "gpu" else ())):
            yield {"kind": kind, "state": state}, states[state]


def _state(machine: Machine, device: Device, not_listed: str | None) -> str:
    if not_listed is not None:
        return "hidden" if not_listed == "info" else "lost"  # readiness.gpu_not_in_driver: info in a container
    return "unknown_numa" if device.numa_node is None and len(machine.with_cpus) > 1 else "ok"


def found(scene: Scene) -> Iterator[Sample]:
    codes = {one.code for one in scene.findings}
    for check in CHECKS:
        if check.code in codes:
            yield {"code": check.code}, 1
