"""Checks of links: PCIe below what both ends could, slots that limit, outliers among equals, NVLinks missing.

One snapshot is one reading: an idle GPU trains down, so that speed and width are information here. Only a
repeated reading, or one under load, makes them a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.facts import LinkState
from topo_agent.graph.findings import Machine, Seen
from topo_agent.graph.nodes import Device
from topo_agent.ids import Ref


def width(machine: Machine) -> Iterator[Seen]:
    for device, port, now in _links(machine):
        ends = [end.link.max_width for end in (device, port) if end and end.link and end.link.max_width is not None]
        if now.width is not None and ends and now.width < min(ends):
            yield Seen(
                str(device.ref), f"x{now.width} now, and both ends can x{min(ends)}", "info", f"{now.width}/{min(ends)}"
            )


def speed(machine: Machine) -> Iterator[Seen]:
    for device, port, now in _links(machine):
        ends = [end.link.max_gts for end in (device, port) if end and end.link and end.link.max_gts is not None]
        if now.gts is not None and ends and now.gts < min(ends):
            idle = ", as an idle GPU does" if device.kind == "gpu" else ""
            evidence = f"{now.gts:g} GT/s now, and both ends can {min(ends):g} GT/s{idle}"
            yield Seen(str(device.ref), evidence, "info", f"{now.gts}/{min(ends)} {idle}")


def slot_limits(machine: Machine) -> Iterator[Seen]:
    for device in machine.devices:
        port = _port(machine, device)
        if device.link is None or port is None or port.link is None:
            continue
        mine, theirs = (device.link.max_gts, device.link.max_width), (port.link.max_gts, port.link.max_width)
        if any(slot is not None and card is not None and slot < card for card, slot in zip(mine, theirs, strict=True)):
            evidence = f"the card can {_words(*mine)}, its port {_words(*theirs)}"
            yield Seen(str(device.ref), evidence, "info", evidence)


def outlier(machine: Machine) -> Iterator[Seen]:
    for same in machine.equals(machine.devices):
        rates = {device.ref: machine.paths.rate(device.ref) for device in same}
        counts = Counter(rate for rate in rates.values() if rate is not None)
        if len(counts) > 1:
            usual, times = counts.most_common(1)[0]
            for ref, rate in rates.items():
                if rate is not None and rate < usual and times > 1:
                    yield Seen(
                        str(ref),
                        f"{rate / 1e9:.0f} GB/s at most, {times} equal cards have {usual / 1e9:.0f}",
                        "warning",
                    )


def nvlink_partial(machine: Machine) -> Iterator[Seen]:
    active: Counter[Ref] = Counter()
    for a, b, _, count in machine.topology.nvlinks_now:
        active[a] += count
        if b is not None:
            active[b] += count
    told = {ref for link in machine.topology.links or () for ref in (link.a, link.b) if ref and link.kind == "nvlink"}
    for same in machine.equals(machine.gpus):
        most = max((active[gpu.ref] for gpu in same if gpu.ref in told), default=0)
        for gpu in same:
            if active[gpu.ref] < most and (gpu.ref in told or gpu.names.nvml_index is not None):
                yield Seen(str(gpu.ref), f"{active[gpu.ref]} active NVLinks, an equal one has {most}", "error")


def _links(machine: Machine) -> Iterator[tuple[Device, Device | None, LinkState]]:
    """(lower end, upper end, what the link does now) of every link of interest, each once, named by its lower end."""
    emulated = machine.topology.machine.virtual
    for device in machine.devices:
        end = machine.topology.device(machine.paths.link_end(device.ref))
        now = machine.links_now.get(end.ref) if end else None
        if end is not None and now is not None and not emulated:
            yield end if end.kind != "bridge" else device, _port(machine, end), now


def _port(machine: Machine, device: Device) -> Device | None:
    return machine.topology.device(device.parent)


def _words(gts: float | None, lanes: int | None) -> str:
    return f"{'?' if gts is None else f'{gts:g}'} GT/s x{'?' if lanes is None else lanes}"
