"""A tree of files as an archive that the kernel unpacks at boot."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class File(NamedTuple):
    mode: int  # as in st_mode
    data: bytes = b""  # of a link, where it points


Tree = dict[str, File]


def link(target: str) -> File:
    return File(stat.S_IFLNK | 0o777, target.encode())


def cpio(tree: Mapping[str, File]) -> bytes:
    """An archive in the format of Documentation/driver-api/early-userspace/buffer-format.rst, directories included."""
    paths = dict(tree)
    for path in tree:
        for parent in Path(path).parents:
            paths.setdefault(str(parent), File(stat.S_IFDIR | 0o755))
    paths.pop(".", None)
    entries = [*sorted(paths.items()), ("TRAILER!!!", File(0))]
    return b"".join(_entry(number, path, file) for number, (path, file) in enumerate(entries, 1))


def _entry(number: int, path: str, file: File) -> bytes:
    name = path.encode() + b"\0"
    fields = (number, file.mode, 0, 0, 1, 0, len(file.data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name
    return _aligned(head) + _aligned(file.data)


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
