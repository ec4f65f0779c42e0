"""Checks of links: PCIe below what both ends could, slots that limit, outliers among equals, NVLinks missing.

One snapshot is one reading, and information. Repeated readings (`Machine.again`) make it a warning, save the speed
of a GPU, which trains its link down while it is idle, however often one looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from topo_agent.facts import LinkState, PcieLink
from topo_agent.graph.findings import Machine, Seen, Severity
from topo_agent.graph.links import nvlinks
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import equals


class Reading(NamedTuple):
    """The link above a device as it is now, and the best that both of its ends can; None is unknown."""

    device: Device
    now: LinkState
    best: PcieLink


def width(machine: Machine) -> Iterator[Seen]:
    for device, now, best in readings(machine):
        if now.width is not None and best.max_width is not None and now.width < best.max_width:
            evidence = f"x{now.width} now, and both ends can x{best.max_width}"
            severity: Severity = "warning" if f"link_width:{device.ref}" in machine.again else "info"
            yield Seen(str(device.ref), evidence, severity, f"{now.width}/{best.max_width}")


def speed(machine: Machine) -> Iterator[Seen]:
    for device, now, best in readings(machine):
        if now.gts is not None and best.max_gts is not None and now.gts < best.max_gts:
            idle = ", as an idle GPU does" if device.kind == "gpu" else ""
            evidence = f"{now.gts:g} GT/s now, and both ends can {best.max_gts:g} GT/s{idle}"
            repeated = not idle and f"link_speed:{device.ref}" in machine.again
            yield Seen(str(device.ref), evidence, "warning" if repeated else "info", f"{now.gts}/{best.max_gts} {idle}")


def slot_limits(machine: Machine) -> Iterator[Seen]:
    for device, end, port in _ends(machine, machine.devices):
        if end.link is None or port is None or port.link is None:
            continue
        mine, theirs = (end.link.max_gts, end.link.max_width), (port.link.max_gts, port.link.max_width)
        if any(slot is not None and card is not None and slot < card for card, slot in zip(mine, theirs, strict=True)):
            evidence = f"the card can {_words(*mine)}, its port {_words(*theirs)}"
            yield Seen(str(device.ref), evidence, "info", evidence)


def outlier(machine: Machine) -> Iterator[Seen]:
    judged = [device for device, _, _ in _ends(machine, machine.devices)]
    for same in equals(judged):
        rates = {device.ref: machine.hops.rate(device.ref) for device in same}
        counts = Counter(rate for rate in rates.values() if rate is not None)
        (usual, times), *others = counts.most_common(2) or [(0, 0)]
        if not others or others[0][1] == times:
            continue  # all are alike, or there is no saying which is usual
        for ref, rate in rates.items():
            if rate is not None and rate < usual:
                evidence = f"{rate / 1e9:.0f} GB/s at most, {times} equal cards have {usual / 1e9:.0f}"
                yield Seen(str(ref), evidence, "warning")


def nvlink_partial(machine: Machine) -> Iterator[Seen]:
    """A GPU that is cut into MIG devices has no NVLinks by itself."""
    active, told = nvlinks(machine.topology)
    for same in equals(gpu for gpu in machine.gpus if not (gpu.gpu and gpu.gpu.mig)):
        most = max((active[gpu.ref] for gpu in same if gpu.ref in told), default=0)
        for gpu in same:
            if active[gpu.ref] < most and (gpu.ref in told or gpu.names.nvml_index is not None):
                yield Seen(str(gpu.ref), f"{active[gpu.ref]} active NVLinks, an equal one has {most}", "error")


def readings(machine: Machine) -> Iterator[Reading]:
    """Every link of devices and of switches that can be judged and says what it does now."""
    for device, end, port in _ends(machine, [*machine.devices, *machine.switches]):
        now = machine.links_now.get(end.ref)
        if now is not None:
            ends = [one.link for one in (end, port) if one is not None and one.link is not None]
            speeds = [one.max_gts for one in ends if one.max_gts is not None]
            widths = [one.max_width for one in ends if one.max_width is not None]
            yield Reading(device, now, PcieLink(min(speeds, default=None), min(widths, default=None)))


def _ends(machine: Machine, devices: Iterable[Device]) -> Iterator[tuple[Device, Device, Device | None]]:
    """(who is named, lower end, upper end) of the link above each device, where it can be judged.

    An emulated one cannot, and nothing of a virtual machine, whose ports may hide that they are emulated.
    """
    for device in devices:
        end = machine.topology.device(machine.hops.link_end(device.ref))
        port = machine.topology.device(end.parent) if end is not None else None
        if end is not None and not machine.topology.machine.virtual and not machine.hops.emulated(end, port):
            yield device, end, port


def _words(gts: float | None, lanes: int | None) -> str:
    return f"{'?' if gts is None else f'{gts:g}'} GT/s x{'?' if lanes is None else lanes}"
