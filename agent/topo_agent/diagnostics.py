"""What went wrong on the way, as data: shown by views, counted by metrics, logged once at the edge."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple


class Level(str, Enum):
    """How much a diagnostic cost."""

    NOTE = "note"  # nothing was lost
    CONFLICT = "conflict"  # two sources disagree; the rule in graph/ says which one wins
    DEGRADED = "degraded"  # one field is unknown
    LOST = "lost"  # a device, or a whole source, is missing


class Unknown(str, Enum):
    """Why a field that was asked for has no value (docs/schema: `unknown`)."""

    FIRMWARE_SILENT = "firmware_silent"
    CONTRADICTS = "contradicts"
    HIDDEN = "hidden"
    UNREADABLE = "unreadable"
    NOT_RECORDED = "not_recorded"
    NOT_PERMITTED = "not_permitted"
    NOT_SUPPORTED = "not_supported"
    DRIVER_ERROR = "driver_error"
    TIMEOUT = "timeout"


NOT_HERE = frozenset({Unknown.NOT_SUPPORTED.value, Unknown.NOT_RECORDED.value})
"""Reasons of a document that nobody can give here: no driver is loaded, no answer was recorded. That is an answer."""

UnknownFields = tuple[tuple[str, Unknown], ...]
"""(field, reason) pairs, sorted by field: what a fact was asked and did not answer."""

ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENXIO, errno.EOPNOTSUPP})
"""Ordinary: kernel or driver do not offer the file, or the device was unplugged between list and read."""

REFUSED = frozenset({errno.EACCES, errno.EPERM})


class Diagnostic(NamedTuple):
    """One sentence about one subject (a path below the root, or the id of a device)."""

    subject: str
    code: str
    level: Level
    message: str

    def __str__(self) -> str:
        return f"{self.level.value}: {self.subject}: {self.message}"


class Notes:
    """Where sources and graph leave their diagnostics while they work."""

    def __init__(self) -> None:
        self._found: dict[Diagnostic, None] = {}

    def add(self, level: Level, subject: str, code: str, message: str) -> None:
        self._found[Diagnostic(subject, code, level, message)] = None

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(sorted(self._found))

    @property
    def count(self) -> int:
        return len(self._found)

    def after(self, count: int) -> Iterator[Diagnostic]:
        """Those that came since there were so many, in their order."""
        return islice(self._found, count, None)


def errno_name(error: OSError) -> str:
    """`EACCES` for the error that the kernel gave; `EIO` for one without a number."""
    return errno.errorcode.get(error.errno or errno.EIO, "EIO")
