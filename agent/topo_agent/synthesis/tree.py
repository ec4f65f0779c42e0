"""The files of a machine while they are made: text, relative links as the kernel writes them, stable numbers."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable

from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import cpulist
from topo_agent.synthesis.nodes import Wrong

ENTRIES_AT_MOST = 500_000  # the largest machine that a description may have, 8192 CPUs, has 160,000
TEXT_AT_MOST = 256 << 20  # as host/archive.py


class Tree:
    """Entries by path. Every number of one device (MAC, GUID, serial) comes from `name` and that device."""

    def __init__(self, name: str, possible: int) -> None:
        self.name = name
        self.possible = possible  # how many CPUs there may be: so long is every mask
        self.entries: dict[str, Entry] = {}
        self._letters = 0
        self._masks: dict[frozenset[int], tuple[str, str]] = {}  # thousands of CPUs have a few sets of neighbours

    def write(self, directory: str, **files: str | int | None) -> None:
        """Attributes, each with the line end that the kernel prints; None is no such file."""
        for name, text in files.items():
            if text is not None:
                self._put(f"{directory}/{name}", f"{text}\n")

    def text(self, path: str, text: str) -> None:
        """A file as it is."""
        self._put(path, text)

    def _put(self, path: str, entry: Entry) -> None:
        """A page of text can describe more than any machine has, a count of interrupts in a range of roots for one."""
        self.entries[path] = entry
        self._letters += len(path) + (len(entry) if isinstance(entry, str) else 0)
        if len(self.entries) > ENTRIES_AT_MOST or self._letters > TEXT_AT_MOST:
            raise Wrong(
                (), "", f"this machine has more than {ENTRIES_AT_MOST} files, or {TEXT_AT_MOST >> 20} MiB of them"
            )

    def fail(self, path: str, number: int) -> None:
        self._put(path, Failure(number))

    def directory(self, path: str) -> None:
        self.entries.setdefault(path, None)

    def link(self, path: str, target: str) -> None:
        """fs/kernfs/symlink.c: up to a directory above both, never to the target itself, and down again."""
        head, _, name = target.rpartition("/")
        up = posixpath.relpath(head, posixpath.dirname(path))
        self._put(path, Link(name if up == "." else f"{up}/{name}"))

    def cpus(self, directory: str, mask: str, listed: str, cpus: Iterable[int]) -> None:
        """A mask and a list of the same CPUs."""
        told = frozenset(cpus)
        if told not in self._masks:
            self._masks[told] = self.mask(told), cpulist(told)
        bits, ranges = self._masks[told]
        self.write(directory, **{mask: bits, listed: ranges})

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
