"""A file, replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace(path: str, text: str) -> None:
    """Write beside the file, make it durable, then rename; OSError leaves the old file as it was.

    A device or a pipe (`/dev/stdout`, a FIFO) is written to directly: there is nothing to replace.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    target = target.resolve()  # a link keeps pointing at the file it names
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
