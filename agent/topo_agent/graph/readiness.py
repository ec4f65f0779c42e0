"""Checks of what stands in the way of a device: no driver, hidden, lost, software where hardware is meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.graph.findings import Machine, Seen
from topo_agent.graph.order import equals

_NVIDIA = 0x10DE


def driver_missing(machine: Machine) -> Iterator[Seen]:
    """Where no function at all has a driver, drivers were not recorded."""
    if any(device.driver for device in machine.topology.devices or ()):
        for device in machine.devices:
            if device.driver is None:
                yield Seen(str(device.ref), f"this {device.kind} is bound to no driver", "warning", device.kind)


def passed_through(machine: Machine) -> Iterator[Seen]:
    for device in machine.devices:
        if device.driver in ("vfio-pci", "xen-pciback"):
            yield Seen(str(device.ref), f"bound to {device.driver}", "info", device.driver or "")


def gpu_not_in_driver(machine: Machine) -> Iterator[Seen]:
    """Only where NVML answered: it lists every GPU that its driver has."""
    gpus = [gpu for gpu in machine.gpus if gpu.vendor == _NVIDIA and gpu.driver == "nvidia"]
    listed = [gpu for gpu in gpus if gpu.names.nvml_index is not None]
    hidden = machine.topology.source.scope == "container"
    for gpu in gpus if listed else ():
        if gpu.names.nvml_index is None:
            evidence = f"NVML lists {len(listed)} of {len(gpus)} GPUs of the driver" + (
                ", in a container" if hidden else ""
            )
            yield Seen(str(gpu.ref), evidence, "info" if hidden else "error", "hidden" if hidden else "")


def gpu_not_on_bus(machine: Machine) -> Iterator[Seen]:
    for one in machine.topology.diagnostics:
        if one.code == "not_on_the_bus":
            yield Seen(one.subject, one.message, "error")


def firmware_differs(machine: Machine) -> Iterator[Seen]:
    """The rarer version is named; of two that are as frequent, nobody is the odd one, and all are."""
    for same in equals([*machine.nics, *machine.drives]):
        versions = {one.ref: part.firmware for one in same if (part := one.nic or one.nvme) and part.firmware}
        counts = Counter(versions.values())
        most = max(counts.values(), default=0)
        usual = [version for version, count in counts.items() if count == most]
        odd = {ref: text for ref, text in versions.items() if len(usual) > 1 or text != usual[0]}
        for ref, text in odd.items() if len(counts) > 1 else ():
            others = sorted({*versions.values()} - {text})
            yield Seen(str(ref), f"firmware {text}, equal ones have {', '.join(others)}", "info", text)


def software_rdma(machine: Machine) -> Iterator[Seen]:
    for one in machine.topology.virtuals:
        if one.kind == "software_rdma":
            yield Seen(str(one.ref), "an RDMA device on no PCI function", "info")
