"""A file, replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re

_DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
_SIGNS = 50  # of a name that its neighbour begins with: with more in UTF-8 it would be longer than names may be
_RANDOM = 8  # bytes at its end


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
    beside, handle = _beside(target)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if group is not None:
                _give(file.fileno(), group, target)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            elif os.path.exists(target):
                os.fchmod(file.fileno(), os.stat(target).st_mode & 0o777)
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # somebody took it for left over, and the old file stands
            os.unlink(beside)
        raise


def _beside(target: str) -> tuple[str, int]:
    """A new file in the same folder, open, whose name nobody else has, and what was left of earlier ones is gone.

    A process that is killed leaves its file, and in a pod each has number 1: a name of the number alone would be taken
    forever, or be that of a program in another pod that writes there, too.
    """
    folder, name = os.path.split(target)
    ours = f".{name[:_SIGNS]}.{os.getpid()}."
    _remove_left(folder, ours)
    beside = os.path.join(folder, ours + os.urandom(_RANDOM).hex())
    return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _remove_left(folder: str, beginning: str) -> None:
    """Files and links alone; what cannot be removed is in nobody's way."""
    left = re.compile(re.escape(beginning) + f"[0-9a-f]{{{2 * _RANDOM}}}")
    with contextlib.suppress(OSError):
        for name in filter(left.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _give(file: int, group: int, target: str) -> None:
    """OSError that names the group: a user may give a file to groups of its own only."""
    try:
        os.fchown(file, -1, group)
    except OSError as error:
        raise OSError(error.errno, f"group {group}: {error.strerror}", target) from None
