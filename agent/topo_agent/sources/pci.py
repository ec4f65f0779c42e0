"""sys/bus/pci -> PciDevice: every function and where it hangs, from links and uevents; config space stays shut.

Reading 256 bytes of `config` costs a hundred times a normal file and wakes a sleeping device, and `vpd` is
worse. Everything here comes from the link of the function, its `uevent` and a few small attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.facts import LinkState, PciBus, PciDevice, PcieLink, Slot
from topo_agent.host import Host, resolve
from topo_agent.ids import NumaId, PciAddress
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, each, members

_DEVICES = "sys/bus/pci/devices"
_SLOTS = "sys/bus/pci/slots"
_ROOT = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})", re.ASCII)
_SLOT = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2})(?::([0-9a-f]{2}))?", re.ASCII)

_FIELDS = {
    "class": "class",
    "vendor": "vendor_id",
    "device": "device_id",
    "subsystem_vendor": "subsystem_vendor_id",
    "subsystem_device": "subsystem_device_id",
}
"""What the document calls an attribute."""


class Found(NamedTuple):
    """What the PCI bus says: structure, and the links as they are now."""

    devices: tuple[PciDevice, ...]
    buses: tuple[PciBus, ...]
    slots: tuple[Slot, ...]
    links_now: tuple[tuple[PciAddress, LinkState], ...]


def read(host: Host, notes: Notes) -> Found | None:
    """Every function in bus order; None where this host has no PCI bus or nothing is recorded of it."""
    place = Entry(host, _DEVICES, notes)
    names = place.names()
    if not names:
        return None
    links = {name: place.written(name) for name in names}
    now: list[tuple[PciAddress, LinkState]] = []
    devices = sorted(each(names, lambda name: _device(host, notes, name, links[name], now)), key=lambda d: d.address)
    return Found(
        tuple(devices),
        tuple(_buses(host, notes, devices)),
        tuple(_slots(host, notes)),
        tuple(sorted(now, key=lambda pair: pair[0])),
    )


def _device(
    host: Host, notes: Notes, name: str, link: str | None, now: list[tuple[PciAddress, LinkState]]
) -> PciDevice:
    path = _path(name, link)
    entry = Entry(host, path or f"{_DEVICES}/{name}", notes)
    address = entry.must(name, PciAddress.parse)
    event = entry.want("uevent", parse.uevent) or {}
    class_code = _id(entry, event.get("PCI_CLASS"), "class")
    vendor, device = _pair(entry, event.get("PCI_ID"), "vendor", "device")
    subvendor = subdevice = None  # a bridge may have none
    if "PCI_SUBSYS_ID" in event or entry.has("subsystem_vendor"):
        subvendor, subdevice = _pair(entry, event.get("PCI_SUBSYS_ID"), "subsystem_vendor", "subsystem_device")
    virtual = entry.has("physfn")
    physfn = entry.follow("physfn", PciAddress.parse, "physfn") if virtual else None
    pcie = None
    if not virtual and (entry.has("max_link_speed") or entry.has("max_link_width")):  # the link of a VF is its PF's
        pcie = _link(entry, address, now)
    numa_node = _numa_node(entry)
    total, enabled = _sriov(entry)
    group = entry.follow("iommu_group", _group, "iommu_group") if entry.has("iommu_group") else None
    local_cpus = None if numa_node is not None else _local_cpus(entry)
    return PciDevice(
        address=address,
        path=path,
        class_code=class_code,
        vendor=vendor,
        device=device,
        subvendor=subvendor,
        subdevice=subdevice,
        driver=event.get("DRIVER") or (None if event else entry.link("driver")),
        numa_node=numa_node,
        local_cpus=local_cpus,
        link=pcie,
        physfn=physfn,
        sriov_total=total,
        sriov_enabled=enabled,
        iommu_group=group,
        unknown=entry.unknown,
    )


def _path(name: str, link: str | None) -> str:
    """Where the kernel's relative link points; "" for a plain directory or a link no kernel writes."""
    if link is None or link.startswith("/"):
        return ""
    path = resolve(_DEVICES, link) or ""
    return path if path.startswith("sys/devices/") and path.endswith(f"/{name}") else ""


def _id(entry: Entry, word: str | None, name: str) -> int | None:
    """A number that uevent prints without leading zeros ("60400"), or else the attribute of that name."""
    read = parse.class_code if name == "class" else parse.hexadecimal
    if word is not None:
        try:
            return read(word)
        except ValueError as error:
            entry.notes.add(Level.DEGRADED, f"{entry.path}/uevent", "file_garbled", f"{error}; {name} read instead")
    return entry.want(name, read, _FIELDS[name])


def _pair(entry: Entry, word: str | None, first: str, second: str) -> tuple[int | None, int | None]:
    """`"10DE:20B0"` -> `(0x10de, 0x20b0)`."""
    before, colon, after = (word or "").partition(":")
    return _id(entry, before if colon else None, first), _id(entry, after if colon else None, second)


def _sriov(entry: Entry) -> tuple[int | None, int | None]:
    """How many VFs there can be, and how many there are. One field of the document: either file can fail it."""
    total = entry.offered("sriov_totalvfs", parse.count, "sriov")
    reason = dict(entry.unknown).get("sriov")
    enabled = entry.offered("sriov_numvfs", parse.count, "sriov")
    if reason is not None:
        entry.say_unknown("sriov", reason)
    return total, enabled


def _group(name: str) -> int:
    number = parse.numbered(name)
    if number is None:
        raise ValueError(f"{name[:40]!r} is no IOMMU group")
    return number


def _numa_node(entry: Entry) -> NumaId | None:
    node = entry.want("numa_node", parse.decimal, "numa_node")
    if node is not None and node < 0:
        entry.say_unknown("numa_node", Unknown.FIRMWARE_SILENT)
        return None
    return None if node is None else NumaId(node)


def _local_cpus(entry: Entry) -> frozenset[int] | None:
    """Asked only where numa_node is silent. Where list and mask disagree neither can be believed."""
    listed = entry.want("local_cpulist", parse.cpulist)
    mask = entry.want("local_cpus", parse.cpumask)
    if listed is not None and mask is not None and listed != mask:
        entry.notes.add(Level.CONFLICT, entry.path, "local_cpus_disputed", "local_cpus and local_cpulist differ")
        entry.say_unknown("numa_node", Unknown.CONTRADICTS)
        return None
    return mask if listed is None else listed


def _link(entry: Entry, address: PciAddress, now: list[tuple[PciAddress, LinkState]]) -> PcieLink | None:
    """The link above a function. What it runs at now is not asked of a device that sleeps: it would wake it."""
    speed = entry.want("max_link_speed", parse.link_speed, "link")
    width = entry.want("max_link_width", parse.link_width, "link") if speed is not None else None
    if speed is None or width is None:
        return None
    if entry.now("power/runtime_status", parse.clean) != "suspended":
        state = LinkState(
            gts=entry.now("current_link_speed", parse.link_speed),
            width=entry.now("current_link_width", parse.link_width),
        )
        if state.gts is not None or state.width is not None:
            now.append((address, state))
    return PcieLink(max_gts=speed, max_width=width)


def _buses(host: Host, notes: Notes, devices: Iterable[PciDevice]) -> Iterable[PciBus]:
    """The CPUs near a host bridge, asked only of roots with a function whose numa_node is silent."""
    roots = dict.fromkeys(root_of(device.path) for device in devices if device.numa_node is None)
    for root in roots:
        name = root.rpartition("/")[2].removeprefix("pci")
        entry = Entry(host, f"{root}/pci_bus/{name}", notes)
        cpus = entry.want("cpulistaffinity", parse.cpulist) if root else None
        if cpus:
            yield PciBus(root=root, cpus=cpus)


def root_of(path: str) -> str:
    """The host bridge of a function: everything up to the first `pci<domain>:<bus>` component, or "".

    `"sys/devices/pci0000:6f/0000:6f:00.5/pci10001:80/10001:84:00.0"` -> `"sys/devices/pci0000:6f"`.
    """
    parts = path.split("/")
    for place, part in enumerate(parts):
        if _ROOT.fullmatch(part):
            return "/".join(parts[: place + 1])
    return ""


def _slots(host: Host, notes: Notes) -> Iterable[Slot]:
    """drivers/pci/slot.c prints `0000:82:00`, and `0000:82` for a slot that is a whole bus."""
    for name, entry in members(host, _SLOTS, notes):
        place = entry.want("address", _slot_address)
        if place is not None:
            domain, bus, device = place
            yield Slot(name=name, domain=domain, bus=bus, device=device)


def _slot_address(text: str) -> tuple[int, int, int | None]:
    matched = _SLOT.fullmatch(parse.clean(text))
    if not matched:
        raise ValueError(f"{text[:40]!r} is no address of a slot")
    return int(matched[1], 16), int(matched[2], 16), None if matched[3] is None else int(matched[3], 16)
