"""A socket that says when one file changes, also where a ConfigMap's volume is swapped as a whole.

The library for it is a part of pyroute2, which is here anyway.
"""

from __future__ import annotations

import ctypes
import os

from topo_agent.host import Unavailable

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x8, 0x40, 0x80, 0x100, 0x200, 0x400
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF  # linux/inotify.h
_SWAPPED = "..data"  # kubelet renames a link of that name: k8s.io/kubernetes pkg/volume/util/atomic_writer.go


class FileEvents:
    """Its directory is watched: a file that is replaced is another file."""

    def __init__(self, path: str) -> None:
        """Unavailable where its directory is not there, or the kernel has no more of them."""
        from pyroute2.inotify.inotify_fd import Inotify

        directory, self._name = os.path.split(os.path.abspath(path))
        try:
            self._inotify = Inotify(libc=ctypes.CDLL(None, use_errno=True), path=[])
            self._inotify.bind()
            self._inotify.register_path(directory, _MASK)
        except OSError as error:
            raise Unavailable("not_supported", f"{directory}: {error.strerror or error}") from None
        if self._inotify.fd < 0 or -1 in self._inotify.wd:
            raise Unavailable("not_supported", f"{directory}: {os.strerror(ctypes.get_errno())}")
        os.set_blocking(self._inotify.fd, False)

    def fileno(self) -> int:
        number: int = self._inotify.fd
        return number

    def heard(self) -> list[str]:
        """`["mapping.csv"]`, of one reading; other files of the directory are nothing."""
        try:
            data = os.read(self.fileno(), 64 << 10)
        except BlockingIOError:
            return []
        try:
            names = {str(one["name"]) for one in self._inotify.parse(data)}
        except UnicodeDecodeError:  # a name that is none, of whatever file
            names = {self._name}
        return sorted(names & {self._name, _SWAPPED})
