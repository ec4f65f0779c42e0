"""A small text file that a user names: read whole, bounded, with one line for what goes wrong."""

from __future__ import annotations

import os
import stat


class Unreadable(Exception):
    """One line that names the file and what was expected."""


def text(path: str, expected: str, most: int = 4 << 20) -> str:
    """The text of a regular file of `most` bytes; `expected` says what it should have been: "an overlay (YAML)"."""
    try:
        # O_NONBLOCK: a FIFO must not wait for somebody who writes.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unreadable(f"{path}: expected {expected}, and this is no file")
            raw = file.read(most + 1)
    except OSError as error:
        raise Unreadable(f"{path}: expected {expected}; {error.strerror}") from None
    if len(raw) > most:
        raise Unreadable(f"{path}: expected {expected} of at most {most >> 10} KiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: expected {expected}; byte {error.start} is not UTF-8") from None
