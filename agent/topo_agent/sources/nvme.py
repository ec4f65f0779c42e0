"""sys/class/{nvme,nvme-subsystem,block} -> Nvme and Disk: drives, and the names that people mount them by.

A multipath disk (`nvme0n1`) hangs below its subsystem, and its controller shows a hidden path (`nvme0c0n1`).
The number of a controller is not the number of its disk.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from topo_agent.diagnostics import Notes, Unknown
from topo_agent.facts import Disk, Nvme
from topo_agent.host import Host
from topo_agent.ids import PciAddress, function_in
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry, class_members

_CONTROLLER = re.compile(r"nvme[0-9]+", re.ASCII)
_NAMESPACE = re.compile(r"nvme[0-9]+n[0-9]+", re.ASCII)
_PATH = re.compile(r"nvme[0-9]+c[0-9]+n[0-9]+", re.ASCII)


class Found(NamedTuple):
    controllers: tuple[Nvme, ...]
    disks: tuple[Disk, ...]


def read(host: Host, notes: Notes) -> Found:
    """Every NVMe controller and every other disk on a PCI function."""
    shared = _shared_disks(host, notes)
    blocks = {name: function_in(entry.path) for name, entry in class_members(host, "sys/class/block", notes)}
    controllers = [
        _controller(name, entry, shared.get(name, ()), blocks.keys())
        for name, entry in class_members(host, "sys/class/nvme", notes)
        if entry.names()  # or the link leads nowhere: unplugged
    ]
    known = {function for one in controllers if (function := one.function) is not None}
    controllers += _old_kernel(blocks, known)
    return Found(tuple(controllers), tuple(_disks(blocks)))


def _shared_disks(host: Host, notes: Notes) -> dict[str, tuple[str, ...]]:
    """Controller -> the multipath disks of the subsystem that links to it."""
    found: dict[str, tuple[str, ...]] = {}
    for _, entry in class_members(host, "sys/class/nvme-subsystem", notes):
        names = entry.names()
        disks = tuple(name for name in names if _NAMESPACE.fullmatch(name))
        found.update({name: disks for name in names if _CONTROLLER.fullmatch(name)})
    return found


def _controller(name: str, entry: Entry, shared: tuple[str, ...], blocks: Collection[str]) -> Nvme:
    """drivers/nvme/host/multipath.c: path nvme<subsystem>c<controller>n<head> serves disk nvme<subsystem>n<head>."""
    inside = entry.names()
    paths = tuple(one for one in inside if _PATH.fullmatch(one))
    heads = (f"{one.partition('c')[0]}n{one.rpartition('n')[2]}" for one in paths)
    own = (*(one for one in inside if _NAMESPACE.fullmatch(one)), *(head for head in heads if head in blocks))
    function = function_in(entry.path)
    remote = entry.want("address", parse.clean) if function is None and "address" in inside else None
    return Nvme(
        name=name,
        function=function,
        transport=entry.offered("transport", parse.clean) or None,
        namespaces=tuple(sorted({*own, *shared})),
        path_names=paths,
        model=_told(entry, "model", "model"),
        serial=_told(entry, "serial", "uid"),
        firmware=entry.offered("firmware_rev", parse.clean) or None,
        subsystem=entry.offered("subsysnqn", parse.clean) or None,
        remote=remote,
        unknown=entry.unknown,
    )


def _told(entry: Entry, name: str, field: str) -> str | None:
    """What a drive says of itself, blanks left out; one that says nothing is no file that fails."""
    word = entry.offered(name, parse.clean, field)
    if word == "":
        entry.say_unknown(field, Unknown.FIRMWARE_SILENT)
    return word or None


def _old_kernel(blocks: dict[str, PciAddress | None], known: set[PciAddress]) -> list[Nvme]:
    """Kernels before 4.4 have no class/nvme: the disk hangs right below the function."""
    found: dict[PciAddress, list[str]] = {}
    for name, function in blocks.items():
        if function is not None and function not in known and _NAMESPACE.fullmatch(name):
            found.setdefault(function, []).append(name)
    return [
        Nvme(name=names[0].rpartition("n")[0], function=function, transport="pcie", namespaces=tuple(names))
        for function, names in sorted(found.items())
    ]


def _disks(blocks: dict[str, PciAddress | None]) -> list[Disk]:
    """Whole disks: a partition is called after its disk, `vda1` or `mmcblk0p1`."""
    found = {name: function for name, function in blocks.items() if function is not None and name[:4] != "nvme"}
    return [
        Disk(name=name, function=function)
        for name, function in found.items()
        if not any(_is_partition(name, other) for other in found)
    ]


def _is_partition(name: str, disk: str) -> bool:
    return name.startswith(disk) and parse.numbered(name[len(disk) :].removeprefix("p")) is not None
