"""Which GPU is gpu0 and which NIC is NIC0: numbers for people, in one place. And which devices are alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref


def physical(topology: Topology, *kinds: DeviceKind) -> list[Device]:
    """The physical functions of some kinds, by kind as asked and in bus order within."""
    return [device for kind in kinds for device in topology.of_kind(kind) if device.physfn is None]


def equals(devices: Iterable[Device]) -> Iterator[list[Device]]:
    """Devices of one vendor, part and subsystem, where there are several."""
    kinds: dict[tuple[int | None, ...], list[Device]] = {}
    for device in devices:
        kinds.setdefault((device.vendor, device.device, device.subvendor, device.subdevice), []).append(device)
    yield from (same for same in kinds.values() if len(same) > 1)


def gpu_numbers(topology: Topology) -> dict[Ref, int]:
    """GPU -> the index of nvidia-smi where NVML answers; the others follow in bus order.

    Where NVML does not answer for any GPU this is bus order, which is what CUDA_DEVICE_ORDER=PCI_BUS_ID gives.
    """
    gpus = physical(topology, "gpu")
    told = {gpu.ref: gpu.names.nvml_index for gpu in gpus if gpu.names.nvml_index is not None}
    after = max(told.values(), default=-1) + 1
    rest = [gpu.ref for gpu in gpus if gpu.ref not in told]
    return told | {ref: after + place for place, ref in enumerate(rest)}


def nic_numbers(topology: Topology) -> dict[Ref, int]:
    """NIC -> its place in bus order among NICs. A number says nothing of which GPU it is near."""
    return {nic.ref: place for place, nic in enumerate(physical(topology, "nic"))}


def labels(topology: Topology) -> dict[Ref, str]:
    """What tables and trees call a device: GPU0, NIC3, nvme1."""
    found = {ref: f"GPU{number}" for ref, number in gpu_numbers(topology).items()}
    found |= {ref: f"NIC{number}" for ref, number in nic_numbers(topology).items()}
    for drive in physical(topology, "nvme"):
        found[drive.ref] = drive.names.nvme[0] if drive.names.nvme else str(drive.address)
    return found
