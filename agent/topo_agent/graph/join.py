"""What network, RDMA, NVMe and GPU drivers say of one PCI function, joined to that function.

A name is never a key: what belongs together is told by the function in its sysfs path, and by GUIDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from topo_agent.diagnostics import Level, Notes, Unknown, UnknownFields
from topo_agent.facts import Gpu, Inventory, Netdev, Nvme, RdmaDevice
from topo_agent.graph.nodes import Device, GpuPart, Memory, Mig, Names, NicPart, NvmePart
from topo_agent.graph.ports import is_network, is_representor, nic_ports
from topo_agent.ids import PciAddress, Ref, mig_ref, pci_ref

T = TypeVar("T")

_BLUEFIELD = frozenset({0xA2D2, 0xA2D6, 0xA2DC, 0xA2DF})  # 15b3: BlueField 1 to 4, network functions
_MELLANOX, _AMD = 0x15B3, 0x1002
# What drivers add to a GPU: unknown there and not of the function.
_PARTS = ("fabric", "mig", "mig_devices", "platform")


class Said(NamedTuple):
    """Everything said of each function."""

    netdevs: dict[PciAddress, list[Netdev]]
    rdma: dict[PciAddress, list[RdmaDevice]]
    nvme: dict[PciAddress, list[Nvme]]
    disks: dict[PciAddress, list[str]]
    gpus: dict[PciAddress, list[Gpu]]
    memories: dict[PciAddress, Memory]
    kfd_hidden: bool
    unlisted: dict[str, Unknown]  # driver -> why a GPU of it is not among those that it tells of


def devices(inventory: Inventory, bare: tuple[Device, ...], memories: Iterable[Memory], notes: Notes) -> list[Device]:
    """The functions with everything their drivers say of them."""
    said = Said(
        netdevs=_by_function(inventory.netdevs, lambda one: one.function),
        rdma=_by_function(inventory.rdma, lambda one: one.function),
        nvme=_by_function(inventory.nvme, lambda one: one.function),
        disks={place: [disk.name for disk in disks]
               for place, disks in _by_function(inventory.disks, lambda one: one.function).items()},
        gpus=_by_function(inventory.gpus, lambda one: one.function),
        memories={memory.gpu: memory for memory in memories if memory.gpu is not None},
        kfd_hidden=inventory.kfd_hidden > 0,
        unlisted=_unlisted(inventory),
    )  # fmt: skip
    _strangers(said, {device.address for device in bare}, notes)
    enslaved = {lower for netdev in inventory.netdevs for lower in netdev.lower if netdev.kind == "bond"}
    return _boards([_joined(device, said, enslaved) for device in bare], said)


def _unlisted(inventory: Inventory) -> dict[str, Unknown]:
    """NVML lists every GPU that this process may use; KFD those that compute, as far as the device cgroup lets us see.

    Each of them says so only where it told of any GPU at all, and of physical functions.
    """
    found: dict[str, Unknown] = {}
    origins = {one.origin for one in inventory.gpus}
    if "nvml" in origins:
        found["nvidia"] = Unknown.HIDDEN if inventory.source.scope == "container" else Unknown.DRIVER_ERROR
    if "kfd" in origins:
        found["amdgpu"] = Unknown.NOT_SUPPORTED
    return found


def migs(inventory: Inventory, devices: Iterable[Device]) -> tuple[Mig, ...]:
    """The MIG devices of every GPU that is on the bus."""
    present = {device.ref for device in devices}
    return tuple(
        Mig(
            ref=mig_ref(one.function, *one.place),
            partition_of=pci_ref(one.function),
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
            uid=one.uuid,
            title=one.name,
            memory_bytes=one.memory_bytes,
            unknown=one.unknown,
        )
        for one in inventory.migs
        if pci_ref(one.function) in present
    )


def _by_function(items: Iterable[T], function: Callable[[T], PciAddress | None]) -> dict[PciAddress, list[T]]:
    found: dict[PciAddress, list[T]] = {}
    for item in items:
        place = function(item)
        if place is not None:
            found.setdefault(place, []).append(item)
    return found


def _strangers(said: Said, present: set[PciAddress], notes: Notes) -> None:
    """A driver that speaks of a function that is not on the bus: kept as a note, for there is no place for it."""
    for place in sorted({*said.netdevs, *said.rdma, *said.nvme, *said.disks, *said.gpus} - present):
        notes.add(
            Level.LOST, str(pci_ref(place)), "not_on_the_bus", "a driver names this function; the PCI bus has none"
        )


def _joined(device: Device, said: Said, enslaved: set[str]) -> Device:
    place = device.address
    netdevs, rdma = said.netdevs.get(place, []), said.rdma.get(place, [])
    nvme, gpus = said.nvme.get(place, []), said.gpus.get(place, [])
    kind = device.kind
    if kind == "other" and (rdma or any(is_network(one) for one in netdevs)):
        kind = "nic"  # what carries an interface is a NIC, whatever its class says
    if kind == "other" and any(one.origin in ("nvml", "kfd") for one in gpus):
        kind = "gpu"
    device = device._replace(kind=kind, names=_names(netdevs, rdma, nvme, said.disks.get(place, []), gpus))
    if kind == "nic":
        device = _nic(device, netdevs, rdma, enslaved)
    if nvme:
        first = nvme[0]
        reasons = _reasons(device, first.unknown)
        device = device._replace(nvme=nvme_part(first), uid=first.serial, title=first.model, unknown=reasons)
    if kind == "gpu":
        hidden = said.kfd_hidden and all(one.origin != "kfd" for one in gpus)
        listed = any(one.origin in ("nvml", "kfd") for one in gpus)
        unlisted = None if listed or device.physfn else said.unlisted.get(device.driver or "")
        device = _gpu(device, gpus, said.memories.get(place), hidden=hidden, unlisted=unlisted)
    return device


def _names(netdevs: list[Netdev], rdma: list[RdmaDevice], nvme: list[Nvme], disks: list[str], gpus: list[Gpu]) -> Names:
    return Names(
        netdev=tuple(one.name for one in sorted(netdevs, key=lambda one: (one.port or 0, one.name))),
        rdma=tuple(one.name for one in rdma),
        nvme=tuple(dict.fromkeys(name for one in nvme for name in (one.name, *one.namespaces))),
        nvme_path=tuple(name for one in nvme for name in one.path_names),
        block=tuple(sorted(disks)),
        nodes=tuple(dict.fromkeys(name for one in gpus for name in one.nodes)),
        nvml_index=next((one.nvml_index for one in gpus if one.nvml_index is not None), None),
    )


def _nic(device: Device, netdevs: list[Netdev], rdma: list[RdmaDevice], enslaved: set[str]) -> Device:
    ports = tuple(nic_ports(netdevs, rdma))
    own = [one for one in netdevs if not is_representor(one) and one.name not in enslaved]
    uids = (*(one.node_guid for one in rdma), *(one.address for one in own))
    uid = next((one for one in uids if one), None)
    silent = (*(one.unknown for one in own), *(one.unknown for one in rdma))
    return device._replace(
        uid=uid,
        nic=NicPart(
            ports=ports,
            firmware=next((one.firmware for one in rdma if one.firmware), None),
            dpu=device.vendor == _MELLANOX and device.device in _BLUEFIELD,
        ),
        unknown=_reasons(device, () if uid else (reason for fields in silent for reason in fields)),
    )


def _reasons(device: Device, more: Iterable[tuple[str, Unknown]]) -> UnknownFields:
    """Why a function has no value in some fields, with what its driver did not answer."""
    return tuple(sorted({**dict(device.unknown), **dict(more)}.items()))


def nvme_part(one: Nvme) -> NvmePart:
    return NvmePart(
        transport=one.transport, model=one.model, firmware=one.firmware, subsystem=one.subsystem, remote=one.remote
    )


def _gpu(device: Device, gpus: list[Gpu], memory: Memory | None, *, hidden: bool, unlisted: Unknown | None) -> Device:
    """NVML first, then proc and KFD: the first that answers a question is believed.

    `hidden`: the device cgroup keeps some of KFD's GPUs from us, and this one is among those not seen. `unlisted`: its
    driver tells of other GPUs, and why not of this one.
    """
    order = sorted(gpus, key=lambda one: ("nvml", "nvidia", "kfd", "drm").index(one.origin))
    node = next((one.numa_node for one in order if one.numa_node is not None), None)
    uid = next((one.uuid for one in order if one.uuid), None)
    title = next((one.name for one in order if one.name), None)
    refused = {field: reason for one in reversed(order) for field, reason in one.unknown}
    if unlisted is not None:
        refused["uid"] = unlisted
    if hidden and device.vendor == _AMD:
        refused["uid"] = Unknown.HIDDEN
    for field, value in (("uid", uid), ("model", title)):
        if value is not None:
            refused.pop(field, None)
    return device._replace(
        uid=uid,
        title=title,
        gpu=GpuPart(
            memory_bytes=next((one.memory_bytes for one in order if one.memory_bytes is not None), None),
            memory_node=node if node is not None else (memory.id if memory else None),
            partitions=next((one.partitions for one in order if one.partitions), None),
            compute_partition=next((one.compute_partition for one in order if one.compute_partition), None),
            memory_partition=next((one.memory_partition for one in order if one.memory_partition), None),
            compute_units=next((one.compute_units for one in order if one.compute_units), None),
            fabric=next((one.fabric for one in order if one.fabric), None),
            hive=next((one.hive for one in order if one.hive), None),
            cliques=next((one.cliques for one in order if one.cliques), ()),
            platform=next((one.platform for one in order if one.platform), None),
            virtualization=next((one.virtualization for one in order if one.virtualization), None),
            mig=any(one.mig for one in order),
            unknown=tuple((field, refused.pop(field)) for field in _PARTS if field in refused),
        ),
        unknown=_reasons(device, refused.items()),
    )


def _boards(devices: list[Device], said: Said) -> list[Device]:
    """NICs of one card: functions of one device, and whatever shares a sys_image_guid, in other domains too.

    The board is called after the first function that is on it.
    """
    keys: dict[Ref, tuple[str, ...]] = {}
    for device in devices:
        if device.kind == "nic" and device.physfn is None:
            guids = (one.board_guid for one in said.rdma.get(device.address, []) if one.board_guid)
            keys[device.ref] = (str(device.address).rpartition(".")[0], *guids)
    boards = {key: key for some in keys.values() for key in some}
    for some in (*keys.values(), *reversed(keys.values())):  # twice, so that what meets through a third meets
        least = min(boards[key] for key in some)
        merged = {boards[key] for key in some}
        boards = {key: least if board in merged else board for key, board in boards.items()}
    first: dict[str, str] = {}
    for device in devices:
        if device.ref in keys:
            first.setdefault(boards[keys[device.ref][0]], keys[device.ref][0])
    return [
        device._replace(board=first[boards[keys[device.ref][0]]]) if device.ref in keys else device
        for device in devices
    ]
