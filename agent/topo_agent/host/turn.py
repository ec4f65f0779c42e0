"""Whose turn it is to ask a driver: one process of a user at a time, and none beside one that was given up.

A lock file names the child that asks; one that could not be ended stays in it until it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

Words = tuple[int, str, str]
"""A child in the lock file: process id, start time in clock ticks, and "asking", "ending" or "stuck"."""


class Turn:
    """A file of this user: locked while one asks, and naming the child that was left alive.

    Where no such file can be made (nothing is writable) there is no lock, and everybody may ask.
    """

    def __init__(self, name: str) -> None:
        self._file = -1
        for folder in _folders():
            self._file = _opened(f"{folder}/topo-agent-{os.geteuid()}-{name}.lock")
            if self._file >= 0:
                return

    def taken(self) -> Words | None:
        """The child of somebody else that asks or was left; None: it is our turn, and the file is ours until closed."""
        if self._file < 0:
            return None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return (self._words() or (0, ""))[0], "", "asking"
        except OSError:  # a file system that knows no locks
            return None
        words = self._words()
        if words is None or started(words[0]) != words[1]:
            return None
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return words

    def write(self, pid: int, doing: str) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):  # a full disk costs the memory of this child
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{pid} {started(pid)} {doing}\n".encode("ascii"), 0)

    def clear(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _words(self) -> Words | None:
        try:
            pid, start, doing = os.pread(self._file, 256, 0).decode("ascii").split()
            return int(pid), start, doing
        except (OSError, ValueError):
            return None


def _folders() -> Iterator[str]:
    """Where only this user writes, and last where everybody may."""
    user = os.geteuid()
    for folder in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}", "/run" if user == 0 else ""):
        if os.path.isabs(folder):
            with contextlib.suppress(OSError):
                if os.stat(folder).st_uid == user:
                    yield folder
    yield "/tmp"  # noqa: S108 opened without following a link, and used only if it is our own


def _opened(path: str) -> int:
    """The descriptor of a regular file of our own, made if need be; -1 where there is none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return -1
    said = os.fstat(file)
    if stat.S_ISREG(said.st_mode) and said.st_uid == os.geteuid() and said.st_nlink == 1:
        return file
    os.close(file)
    return -1


class _Stat(NamedTuple):
    state: str
    start: str


def started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None for one that is gone or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        found = _Stat(fields[0], fields[19])  # man 5 proc: fields 3 and 22
    except (OSError, IndexError):
        return None
    return None if found.state in ("Z", "X") else found.start
