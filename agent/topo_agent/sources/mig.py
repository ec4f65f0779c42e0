"""The `mig` answer of a GPU in the NVML document -> its MIG devices.

A MIG device is a compute instance inside a GPU instance. Both have ids that the driver gives when they are made and
that stay until they are destroyed; NVML's index of a MIG device counts what a process sees, and is no place.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown, UnknownFields
from topo_agent.facts import MigDevice
from topo_agent.host import Json, as_object
from topo_agent.ids import PciAddress, pci_ref
from topo_agent.sources.answers import Answers, number, refusal, refusals, text


class Mig(NamedTuple):
    enabled: bool | None  # None: not told, or a GPU that has no MIG
    devices: tuple[MigDevice, ...] = ()
    unknown: UnknownFields = ()  # `mig`: is it on; `mig_devices`: it is on, and what there is of them


def read(function: PciAddress, said: Json, notes: Notes) -> Mig:
    """MIG of one GPU. A container that may not see a device is refused its ids: that is a note, and nothing lost."""
    current = number(said.get("current")) if isinstance(said, dict) else None
    if not isinstance(said, dict) or current is None:
        reason = refusal(said) if isinstance(said, dict) and "error" in said else None
        if reason is None or reason is Unknown.NOT_SUPPORTED:  # that is an answer: a part without MIG
            return Mig(enabled=None)
        return Mig(enabled=None, unknown=(("mig", reason),))
    if current == 0:  # nvml.h NVML_DEVICE_MIG_DISABLE
        return Mig(enabled=False)
    listed = said.get("devices")
    if not isinstance(listed, list):
        return Mig(enabled=True, unknown=(("mig_devices", refusal(listed) or Unknown.NOT_RECORDED),))
    inside = Counter(number(one.get("gpu_instance")) for one in listed if isinstance(one, dict))
    found: dict[tuple[int, int], MigDevice] = {}
    for one in listed:
        device = _device(function, one, inside) if isinstance(one, dict) else None
        if device is None or device.place in found:
            _no_place(function, one, notes)
        else:
            found[device.place] = device
    return Mig(enabled=True, devices=tuple(found[place] for place in sorted(found)))


def _device(function: PciAddress, one: Answers, inside: Counter[int | None]) -> MigDevice | None:
    """None without a place: no GPU instance, or one of several compute instances that does not tell which."""
    instance, compute = number(one.get("gpu_instance")), number(one.get("compute_instance"))
    if instance is None or (compute is None and inside[instance] > 1):
        return None
    fields = {"compute_instance": "compute_instance", "uuid": "uid", "name": "model", "memory_bytes": "memory_bytes"}
    return MigDevice(
        function=function,
        gpu_instance=instance,
        compute_instance=compute,
        uuid=text(one.get("uuid")),
        name=text(one.get("name")),
        memory_bytes=number(one.get("memory_bytes")),
        unknown=refusals(one, fields),
    )


def _no_place(function: PciAddress, one: Json, notes: Notes) -> None:
    said = as_object(one)
    reason = refusal(said if "error" in said else said.get("gpu_instance"))
    level = Level.NOTE if reason is Unknown.NOT_PERMITTED else Level.LOST
    why = f" ({reason.value})" if reason else ""
    notes.add(level, str(pci_ref(function)), "mig_without_place", f"a MIG device does not tell its instances{why}")
