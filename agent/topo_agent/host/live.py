"""A machine seen through a root directory: `/`, `/host`, or an unpacked archive."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import deque

from topo_agent.host import (
    DOCUMENT_LIMIT,
    LINKS_AT_MOST,
    TEXT_LIMIT,
    BadSource,
    Json,
    Silent,
    Source,
    Unavailable,
    Watch,
    checked,
)

_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
# O_NONBLOCK: opening a FIFO that somebody put into a root directory must not wait for a writer.
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

# One of these is there wherever the NVIDIA driver is loaded, in a container too: elsewhere no process is started.
_NVIDIA = ("/proc/driver/nvidia", "/dev/nvidiactl", "/sys/module/nvidia")


class LiveHost:
    """Reads files below `root`, each once, bounded, through the descriptor of their directory.

    Opening a file relative to its directory costs a third of opening it by an absolute path, and
    sources read several files of one directory in turn, so the last directory stays open.
    """

    def __init__(self, root: str = "/", *, timeout: float = 60.0, watch: Watch | None = None) -> None:
        """`timeout`: seconds that a driver has for its answers; `watch` hears while it is waited for."""
        self._timeout, self._watch = timeout, watch
        self._live = os.path.realpath(root) == "/"
        try:
            self._root = os.open(root, _DIRECTORY)
        except OSError as error:
            raise BadSource(f"{root}: cannot open this directory: {error.strerror}") from None
        self._real_root = os.path.realpath(root).rstrip("/")
        self._entered: str | None = None
        self._directory = -1
        self.files_read = 0
        self._source = _here() if self._live else Source(kind="directory", complete=False)
        if not self._live and not os.path.isdir(os.path.join(root, "sys")):
            self.close()
            raise BadSource(f"{root}: expected a directory that holds the sys/ of a machine")

    def close(self) -> None:
        self._leave()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __del__(self) -> None:
        if hasattr(self, "_entered"):
            self.close()

    @property
    def source(self) -> Source:
        return self._source

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        file = self._file(path)
        try:
            return os.read(file, most).decode("utf-8", "replace")
        finally:
            os.close(file)

    def _file(self, path: str) -> int:
        """The descriptor of a file below the root, to be closed by whoever asked."""
        head, _, name = checked(path).rpartition("/")
        directory = self._enter(head)
        try:
            file = os.open(name, _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            file = self._open(path, _FILE)  # a link to a file: by hand, so that it stays inside
        try:
            if not self._live:
                _must_be_file(os.fstat(file).st_mode, path)
        except OSError:
            os.close(file)
            raise
        self.files_read += 1
        return file

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._enter(checked(path))))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def link(self, path: str) -> str | None:
        head, _, name = checked(path).rpartition("/")
        try:
            return os.readlink(name, dir_fd=self._enter(head))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
                return None
            raise

    def document(self, name: str) -> Json:
        if not self._live:
            return self._kept_document(name)
        if name == "acs":
            return self._acs()
        if name == "process":
            return {
                "allowed_cpus": [*sorted(os.sched_getaffinity(0))],
                "architecture": os.uname().machine,
                "default_routes": [*self._default_routes()],
            }
        if name == "netlink":
            from topo_agent.host import netlink  # 0.13 s and 25 MB: only where something asks for it

            return netlink.links()
        if name == "nvml":
            if not os.environ.get("TOPO_AGENT_NVML") and not any(map(os.path.exists, _NVIDIA)):
                raise Unavailable("not_supported", "no NVIDIA driver is loaded here")
            from topo_agent.host import child

            return child.ask_in_child(name, self._timeout, self._watch)
        raise Unavailable("not_supported", f"nothing here answers for {name}")

    def _default_routes(self) -> list[str]:
        try:
            return _default_routes(self.text("proc/net/route"))
        except OSError:  # no IPv4, or no /proc
            return []

    def _kept_document(self, name: str) -> Json:
        """A directory keeps documents as documents/<name>.json beside sys/ and proc/."""
        path = f"documents/{name}.json"
        try:
            answer: Json = json.loads(self.text(path, DOCUMENT_LIMIT))
        except FileNotFoundError:
            if name == "acs":  # a copy may hold the files that the answers are read from
                return self._acs()
            raise Unavailable("not_recorded", f"this directory has no {path}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise Unavailable("unreadable", f"{path}: {error}") from None
        return answer

    def _acs(self) -> Json:
        from topo_agent.host import acs

        watch = self._watch or Silent()
        try:
            return acs.ask(self, self._file, watch.waiting, self._timeout)
        finally:
            watch.done()

    def _enter(self, path: str) -> int:
        """The descriptor of a directory below the root, kept until another one is asked for."""
        if path != self._entered:
            self._leave()
            self._directory = self._inside(path)
            self._entered = path
        return self._directory

    def _leave(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
        self._directory, self._entered = -1, None

    def _inside(self, path: str) -> int:
        if self._live:
            return os.open(path or ".", _DIRECTORY, dir_fd=self._root)
        try:
            # O_PATH: nothing is opened yet, should a link lead out of the root, to a disk that is away for one.
            found = os.open(path or ".", _DIRECTORY | os.O_PATH, dir_fd=self._root)
        except OSError:  # the kernel may have followed a link out of the root: what it met there is no answer
            return self._open(path, _DIRECTORY)
        try:
            real = os.readlink(f"/proc/self/fd/{found}")
        except OSError:
            real = ""  # no /proc: cannot tell, so walk by hand
        try:
            if real == self._real_root or real.startswith(self._real_root + "/"):
                return os.open(".", _DIRECTORY, dir_fd=found)
        finally:
            os.close(found)
        return self._open(path, _DIRECTORY)

    def _open(self, path: str, flags: int) -> int:
        """Open below the root with every link resolved by hand, as chroot would resolve it."""
        todo = deque(part for part in path.split("/") if part)
        walked: list[str] = []
        links = 0
        while todo:
            part = todo.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if walked:
                    walked.pop()
                continue
            target = self._target("/".join([*walked, part]))
            if target is None:
                walked.append(part)
                continue
            links += 1
            if links > LINKS_AT_MOST:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                walked.clear()
            todo.extendleft(reversed(target.split("/")))
        return os.open("/".join(walked) or ".", flags | os.O_NOFOLLOW, dir_fd=self._root)

    def _target(self, path: str) -> str | None:
        try:
            return os.readlink(path, dir_fd=self._root)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise


def _must_be_file(mode: int, path: str) -> None:
    """A directory answers as the kernel answers; a FIFO or a device in a root directory is never read."""
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number), path)


def _default_routes(text: str) -> list[str]:
    """The interfaces of IPv4 default routes: lines of proc/net/route with destination and mask 0, names only."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return sorted({words[0] for words in lines if len(words) > 7 and words[1] == words[7] == "00000000"})


def _here() -> Source:
    inside = any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv"))
    return Source(
        kind="live",
        complete=True,
        privileged=os.geteuid() == 0,
        scope="container" if inside or "KUBERNETES_SERVICE_HOST" in os.environ else "host",
    )
