"""A file, replaced whole or not at all."""

from __future__ import annotations

import os

_DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


def replace(path: str, text: str, *, mode: int | None = None, group: int | None = None) -> None:
    """Write beside the file, make it durable, then rename; OSError leaves the old file as it was.

    `mode` and `group` are the file's from its first byte on; without them an old file's mode is kept, and a new one
    has that of the umask.

    A device, a pipe or an open descriptor (`/dev/null`, a FIFO, `/dev/stdout`) is written to directly: there is
    nothing to replace, and `/dev/stdout` may be a file that others append to.
    """
    if path.startswith(_DESCRIPTORS) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
        return
    target = os.path.realpath(path)  # a link keeps pointing at the file it names
    folder, name = os.path.split(target)
    beside = os.path.join(folder, f".{name}.{os.getpid()}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if group is not None:
                os.fchown(file.fileno(), -1, group)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            elif os.path.exists(target):
                os.fchmod(file.fileno(), os.stat(target).st_mode & 0o777)
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
