"""The files of a machine while they are made: text, relative links as the kernel writes them, stable numbers."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable

from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import cpulist


class Tree:
    """Entries by path. Every number of one device (MAC, GUID, serial) comes from `name` and that device."""

    def __init__(self, name: str, possible: int) -> None:
        self.name = name
        self.possible = possible  # how many CPUs there may be: so long is every mask
        self.entries: dict[str, Entry] = {}

    def write(self, directory: str, **files: str | int | None) -> None:
        """Attributes, each with the line end that the kernel prints; None is no such file."""
        for name, text in files.items():
            if text is not None:
                self.entries[f"{directory}/{name}"] = f"{text}\n"

    def text(self, path: str, text: str) -> None:
        """A file as it is."""
        self.entries[path] = text

    def fail(self, path: str, number: int) -> None:
        self.entries[path] = Failure(number)

    def directory(self, path: str) -> None:
        self.entries.setdefault(path, None)

    def link(self, path: str, target: str) -> None:
        """fs/kernfs/symlink.c: up to a directory above both, never to the target itself, and down again."""
        head, _, name = target.rpartition("/")
        up = posixpath.relpath(head, posixpath.dirname(path))
        self.entries[path] = Link(name if up == "." else f"{up}/{name}")

    def cpus(self, directory: str, mask: str, listed: str, cpus: Iterable[int]) -> None:
        """A mask and a list of the same CPUs."""
        told = frozenset(cpus)
        self.write(directory, **{mask: self.mask(told), listed: cpulist(told)})

    def mask(self, cpus: Iterable[int]) -> str:
        """lib/vsprintf.c bitmap_string: 32 bits in each group, the first as long as the rest needs."""
        value = sum(1 << cpu for cpu in cpus)
        digits = f"{value:0{(self.possible + 3) // 4}x}"
        first = len(digits) % 8
        groups = [digits[place : place + 8] for place in range(first, len(digits), 8)]
        return ",".join([digits[:first], *groups] if first else groups)

    def digits(self, what: str, count: int) -> str:
        """Hexadecimal digits that belong to one thing of this machine, the same every time."""
        return hashlib.sha256(f"{self.name}/{what}".encode()).hexdigest()[:count]

    def mac(self, what: str) -> str:
        """A locally administered address: 02:…"""
        digits = "02" + self.digits(f"mac {what}", 10)
        return ":".join(digits[place : place + 2] for place in range(0, 12, 2))

    def guid(self, what: str) -> str:
        """`0200:xxxx:xxxx:xxxx`, as drivers/infiniband/core/sysfs.c prints one."""
        digits = "0200" + self.digits(f"guid {what}", 12)
        return ":".join(digits[place : place + 4] for place in range(0, 16, 4))

    def uuid(self, what: str) -> str:
        digits = self.digits(f"uuid {what}", 32)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
