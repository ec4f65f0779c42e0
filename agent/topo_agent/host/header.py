"""The config header of a PCI function, made from its class, ids and buses: 64 bytes, for programs that read those.

PCI Local Bus Specification, configuration space header types 0, 1 and 2. Nothing of ours reads it.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator

from topo_agent.host import Host, resolve
from topo_agent.ids import PciAddress

_FUNCTIONS = "sys/bus/pci/devices"
_NUMBER = {10: re.compile(r"[0-9]{1,9}", re.ASCII), 16: re.compile(r"(0x)?[0-9a-fA-F]{1,8}", re.ASCII)}
_HEADER_TYPES = {0x0604: 1, 0x0609: 1, 0x0607: 2}  # PCI and CardBus bridges: both have their buses at 0x18
DEEPEST = 64  # directories above one another; the deepest function known has 12
_FIELDS: dict[str, tuple[int | None, int]] = {  # file: what hardware says of nothing, the largest value
    "class": (None, 0xFFFFFF),
    "vendor": (0xFFFF, 0xFFFF),
    "device": (0xFFFF, 0xFFFF),
    "subsystem_vendor": (0, 0xFFFF),
    "subsystem_device": (0, 0xFFFF),
    "revision": (0, 0xFF),
}


def functions(host: Host) -> dict[str, PciAddress]:
    """The directory of every PCI function: `{"sys/devices/pci0000:00/0000:00:1f.0": 0000:00:1f.0}`."""
    found: dict[str, PciAddress] = {}
    try:
        names = host.names(_FUNCTIONS)
    except OSError:
        return found
    for name in names:
        try:
            address = PciAddress.parse(name)
            target = host.link(f"{_FUNCTIONS}/{name}")
        except (OSError, ValueError):
            continue
        path = resolve(_FUNCTIONS, name if target is None else target)
        if path and path.count("/") <= DEEPEST:
            found[path] = address
    return found


def headers(host: Host, where: dict[str, PciAddress]) -> Iterator[tuple[str, bytes | None]]:
    """The config header of every function by its directory; None where its class is not known."""
    below = _buses_below(where)
    cards = Counter(address.card for path, address in where.items() if not _is_virtual(host, path))
    taken = {(address.domain, address.bus) for address in where.values()}
    for path, address in where.items():
        said = _identity(host, path)
        if "class" not in said:
            yield path, None
            continue
        buses = (0, 0, 0)
        if said["class"] >> 8 in _HEADER_TYPES:
            buses = (address.bus, *_range(host, path, address, below[path], taken))
        yield path, header(said, buses, several=cards[address.card] > 1)


def header(said: dict[str, int], buses: tuple[int, int, int], *, several: bool) -> bytes:
    """The first 64 bytes of config space (PCI Local Bus Specification 3.0, 6.1; PCI-to-PCI Bridge 1.2, 3.2).

    `said` has class (24 bits), vendor, device, subsystem_vendor, subsystem_device, revision; `buses` are
    primary, secondary, subordinate; `several` tells that the card has more functions than one.
    """
    layout = _HEADER_TYPES.get(said["class"] >> 8, 0)
    ids = struct.pack("<HHxxxxI", said["vendor"], said["device"], said["class"] << 8 | said["revision"])
    common = ids + struct.pack("<xxBx", layout | several << 7)
    if layout:
        return (common + struct.pack("<8x3B", *buses)).ljust(64, b"\0")
    subsystem = struct.pack("<28xHH", said["subsystem_vendor"], said["subsystem_device"])
    return (common + subsystem).ljust(64, b"\0")


def _buses_below(where: dict[str, PciAddress]) -> dict[str, set[int]]:
    """The bus numbers of all functions below a function; a VMD has another domain below it, so none."""
    found: dict[str, set[int]] = defaultdict(set)
    for path, address in where.items():
        above = path
        while above := above.rpartition("/")[0]:
            if above in where and where[above].domain == address.domain:
                found[above].add(address.bus)
    return found


def _range(host: Host, path: str, address: PciAddress, below: set[int], taken: set[tuple[int, int]]) -> tuple[int, int]:
    """The secondary and subordinate bus of a bridge: what its files say, else what lies below it.

    A port with nothing behind it gets a number of its own that no function has: hwloc leaves out a bridge
    whose secondary bus is not above its own (pci-common.c, hwloc_pcidisc_find_bridge_buses).
    """
    secondary = _number(_text(host, f"{path}/secondary_bus_number"), 10, 0xFF)
    subordinate = _number(_text(host, f"{path}/subordinate_bus_number"), 10, 0xFF)
    if secondary is not None and subordinate is not None:
        return secondary, subordinate
    if not below:
        free = (bus for bus in range(address.bus + 1, 0x100) if (address.domain, bus) not in taken)
        below = {next(free, 0)}
        taken.add((address.domain, min(below)))
    return min(below), max(below)


def _identity(host: Host, path: str) -> dict[str, int]:
    """What a function says of itself in its files, else in its uevent, else what hardware says of nothing."""
    uevent = _uevent(host, path)
    found: dict[str, int] = {}
    for name, (silent, most) in _FIELDS.items():
        own = _number(_text(host, f"{path}/{name}"), 16, most)
        for value in (own, _number(uevent.get(name), 16, most), silent):
            if value is not None:
                found[name] = value
                break
    return found


def _uevent(host: Host, path: str) -> dict[str, str]:
    """`"PCI_CLASS=30200\\nPCI_ID=10DE:20B0\\n"` -> `{"class": "30200", "vendor": "10DE", "device": "20B0"}`."""
    lines = (line.partition("=") for line in (_text(host, f"{path}/uevent") or "").splitlines())
    said = {key: value for key, _, value in lines}
    found = {"class": said.get("PCI_CLASS", "")}
    found["vendor"], _, found["device"] = said.get("PCI_ID", "").partition(":")
    found["subsystem_vendor"], _, found["subsystem_device"] = said.get("PCI_SUBSYS_ID", "").partition(":")
    return found


def _is_virtual(host: Host, path: str) -> bool:
    """A virtual function is found through its physical one, not by counting the functions of a card."""
    try:
        return host.link(f"{path}/physfn") is not None
    except OSError:
        return False


def _number(text: str | None, base: int, most: int) -> int | None:
    word = (text or "").strip(" \n\0")
    value = int(word, base) if _NUMBER[base].fullmatch(word) else most + 1
    return value if value <= most else None


def _text(host: Host, path: str) -> str | None:
    try:
        return host.text(path)
    except OSError:
        return None
