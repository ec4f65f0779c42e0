"""Checks of where things are: NUMA nodes, NICs near GPUs, shared uplinks, interrupts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.diagnostics import Level, Unknown
from topo_agent.graph.findings import Machine, Seen
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import equals
from topo_agent.ids import Ref, cpulist

_GPUS_ON_AN_UPLINK = 4


def numa_unknown(machine: Machine) -> Iterator[Seen]:
    if len(machine.with_cpus) < 2 or _silent(machine):
        return
    for device in machine.devices:
        if device.numa_node is None:
            reason = dict(device.unknown).get("numa_node", Unknown.NOT_SUPPORTED).value
            yield Seen(str(device.ref), f"no source names its NUMA node ({reason})", "warning", reason)


def numa_silent(machine: Machine) -> Iterator[Seen]:
    if len(machine.with_cpus) > 1 and _silent(machine):
        yield Seen("machine", f"numa_node is -1 for all {len(machine.topology.devices or ())} functions", "warning")


def _silent(machine: Machine) -> bool:
    """Did firmware answer -1 for everything? Not recorded, or not readable, is something else."""
    devices = machine.topology.devices or ()
    reasons = [dict(device.unknown).get("numa_node") for device in devices]
    return bool(devices) and all(reason is Unknown.FIRMWARE_SILENT for reason in reasons)


def sources_disagree(machine: Machine) -> Iterator[Seen]:
    for one in machine.topology.diagnostics:
        if one.level is Level.CONFLICT and one.code != "overlay_contradicts":
            yield Seen(one.subject, one.message, "warning", f"{one.code} {one.message}")


def overlay_contradicts(machine: Machine) -> Iterator[Seen]:
    for one in machine.topology.diagnostics:
        if one.code == "overlay_contradicts":
            yield Seen(one.subject, one.message, "error")


def gpu_without_nic(machine: Machine) -> Iterator[Seen]:
    for choice in machine.choices:
        if choice.local and choice.local[0].path.class_ == "SYS" and choice.local[0].path.certain:
            nearest = choice.local[0]
            yield Seen(str(choice.gpu), f"the nearest NIC is {nearest.card.ref}: {nearest.path.reason}", "warning")


def gpu_without_switch_nic(machine: Machine) -> Iterator[Seen]:
    behind_switch = any(choice.local and choice.local[0].path.class_ in ("PIX", "PXB") for choice in machine.choices)
    for choice in machine.choices:
        if behind_switch and choice.local and choice.local[0].path.class_ in ("PHB", "NODE"):
            nearest = choice.local[0]
            yield Seen(str(choice.gpu), f"the nearest NIC is {nearest.card.ref}: {nearest.path.reason}", "info")


def gpus_uneven(machine: Machine) -> Iterator[Seen]:
    """Only where the package of every one is known. A package without GPUs is how many machines are made."""
    for same in equals(machine.gpus):
        packages = [_package(machine, gpu) for gpu in same]
        counts = Counter(package for package in packages if package is not None)
        if counts.total() == len(same) and len({*counts.values()}) > 1:
            spread = ", ".join(f"{count} on {package.key}" for package, count in sorted(counts.items()))
            yield Seen("machine", f"{len(same)} equal GPUs: {spread}", "info", str(same[0].ref))


def _package(machine: Machine, device: Device) -> Ref | None:
    memory = machine.topology.memory(device.numa_node)
    return machine.topology.parent(memory.ref) if memory is not None else None


def vm_flat_pci(machine: Machine) -> Iterator[Seen]:
    flat = [gpu for gpu in machine.gpus if gpu.parent is None and gpu.root is not None]
    roots = {gpu.root for gpu in flat}
    if machine.topology.machine.virtual and len(flat) == len(machine.gpus) > 1 and len(roots) < len(flat):
        yield Seen(
            "machine",
            f"{len(flat)} GPUs on the bus of {', '.join(root.key for root in sorted(filter(None, roots)))}",
            "warning",
        )


def uplink_shared(machine: Machine) -> Iterator[Seen]:
    for device in machine.topology.devices or ():
        if device.role == "root_port":
            below = set(machine.topology.below(device.ref))
            gpus = [gpu for gpu in machine.gpus if gpu.ref in below]
            if len(gpus) >= _GPUS_ON_AN_UPLINK:
                yield Seen(str(device.ref), f"{len(gpus)} GPUs are behind it", "warning", str(len(gpus)))


def irq_far(machine: Machine) -> Iterator[Seen]:
    now = dict(machine.topology.irqs_now)
    for nic in machine.nics:
        irqs = now.get(nic.ref)
        if irqs is not None and nic.cpus and irqs.cpus and _is_a_choice(machine, nic) and not irqs.cpus & nic.cpus:
            yield Seen(
                str(nic.ref), f"interrupts on CPUs {cpulist(irqs.cpus)}, near are {cpulist(nic.cpus)}", "warning"
            )


def _is_a_choice(machine: Machine, nic: Device) -> bool:
    """Near CPUs that are all CPUs are no choice."""
    return nic.cpus is not None and nic.cpus < machine.topology.online_cpus
