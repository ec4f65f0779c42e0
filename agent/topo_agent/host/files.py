"""A small text file that a user names: read whole, bounded, with one line for what goes wrong."""

from __future__ import annotations

import os
import stat

BYTES_AT_MOST = 4 << 20


class Unreadable(Exception):
    """One line that names the file and what was expected."""


def text(path: str, expected: str) -> str:
    """The text of a regular file; `expected` says what it should have been: "an overlay (YAML)"."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unreadable(f"{path}: expected {expected}, and this is no file")
            raw = file.read(BYTES_AT_MOST + 1)
    except OSError as error:
        raise Unreadable(f"{path}: expected {expected}; {error.strerror}") from None
    if len(raw) > BYTES_AT_MOST:
        raise Unreadable(f"{path}: expected {expected}, and this is larger than {BYTES_AT_MOST >> 20} MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable(f"{path}: expected {expected}, and this is no UTF-8") from None
