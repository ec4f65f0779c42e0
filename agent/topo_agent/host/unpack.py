"""A host -> a new directory that other programs can read, with a config header for every PCI function."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import dropwhile

from topo_agent.host import DOCUMENTS, BadSource, Host, Unavailable, resolve
from topo_agent.host.header import DEEPEST, functions, headers
from topo_agent.host.paper import PaperHost

_TOPS = ("sys", "proc")

_ENTRIES_AT_MOST = 1_000_000  # the largest recorded machine has 13,000
_BYTES_AT_MOST = 1 << 30
_FILE_BYTES = 1 << 20  # /proc/cpuinfo of 512 CPUs is longer than what sources read of a file
_NAME_BYTES, _PATH_BYTES = 255, 2048  # NAME_MAX, and half of PATH_MAX: the directory has a name as well

_NEVER_READ = re.compile(r"config|vpd|rom|resource[0-9]*(_wc)?")  # of a device, not of a machine, and slow to ask


def unpack(host: Host, directory: str) -> list[str]:
    """Write all that `host` holds below `directory`, which must be new or empty; the paths that were left out.

    Left out are names and links that would lead out of the directory, and files that the host could not read
    or not to their end. Documents become documents/<name>.json. OSError when the directory cannot be written:
    then nothing is left behind.
    """
    if host.source.kind == "live":
        raise BadSource("/: the live machine is not unpacked; record it, then unpack the recording")
    wanted = os.path.realpath(directory)
    _refuse_used(wanted)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=os.path.dirname(wanted)) as beside:
        copy = _Copy(host, os.path.join(beside, "root"))
        copy.write()
        os.rename(copy.root, wanted)
    return sorted(copy.left_out)


def _refuse_used(directory: str) -> None:
    if not os.path.isdir(os.path.dirname(directory)):
        raise FileNotFoundError(errno.ENOENT, "expected a directory to write in", os.path.dirname(directory))
    if os.path.lexists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise FileExistsError(errno.EEXIST, "expected a new or an empty directory", directory)


class _Copy:
    """One walk over a host. What it writes is below directories that it made itself, so no link is followed."""

    def __init__(self, host: Host, root: str) -> None:
        self.root = root
        self.left_out: list[str] = []
        self._host = host
        self._functions = functions(host)
        self._made: set[str] = set()
        self._entries = self._bytes = 0

    def write(self) -> None:
        os.mkdir(self.root)
        todo = [top for top in self._host.names("") if top in _TOPS and self._entry(top)]
        while todo:
            todo.extend(path for path in self._below(todo.pop()) if self._entry(path))
        for path, header in headers(self._host, self._functions):
            if path in self._made:
                self._config(path, header)
        self._documents()

    def _documents(self) -> None:
        held = self._host.documents if isinstance(self._host, PaperHost) else ()
        for name in sorted({*DOCUMENTS, *held}):
            try:
                answer = self._host.document(name)
            except Unavailable:
                continue
            os.makedirs(f"{self.root}/documents", exist_ok=True)
            self._file(f"documents/{name}.json", (json.dumps(answer, indent=1, sort_keys=True) + "\n").encode())

    def _entry(self, path: str) -> bool:
        """Whether this is a directory now: then the walk goes on below it."""
        self._count(entries=1)
        try:
            target = self._host.link(path)
            text = None if target is not None else self._content(path)
        except OSError:
            self.left_out.append(path)
            return False
        if target is not None:
            self._link(path, target)
        elif text is not None:
            self._file(path, text.encode("utf-8", "replace"))
        else:
            os.mkdir(f"{self.root}/{path}")
            self._made.add(path)
        return target is None and text is None

    def _content(self, path: str) -> str | None:
        """None for a directory."""
        try:
            return self._host.text(path, _FILE_BYTES)
        except OSError:
            if self._is_directory(path):
                return None
            raise

    def _is_directory(self, path: str) -> bool:
        """EINVAL is what a root directory says of all that is no file; only "." in a directory is one, too."""
        try:
            self._host.text(f"{path}/.", 1)
        except OSError as error:
            return error.errno in (errno.EISDIR, errno.EINVAL)
        return False

    def _below(self, path: str) -> Iterator[str]:
        try:
            names = self._host.names(path)
        except OSError:
            self.left_out.append(path)
            return
        for name in names:
            below = f"{path}/{name}"
            if not is_name(name) or len(os.fsencode(below)) > _PATH_BYTES or below.count("/") > DEEPEST:
                self.left_out.append(below)
            elif path not in self._functions or not _NEVER_READ.fullmatch(name):
                yield below
            elif name != "config":  # that one is made anew
                self.left_out.append(below)

    def _link(self, path: str, target: str) -> None:
        if stays_inside(path.rpartition("/")[0], target):
            os.symlink(target, f"{self.root}/{path}")
        else:
            self.left_out.append(path)

    def _file(self, path: str, content: bytes) -> None:
        if len(content) >= _FILE_BYTES:
            self.left_out.append(path)  # cut short, so that it would say something else
            return
        self._count(size=len(content))
        with open(f"{self.root}/{path}", "xb") as file:
            file.write(content)

    def _config(self, path: str, header: bytes | None) -> None:
        if header is None:
            self.left_out.append(f"{path}/config")
        else:
            self._file(f"{path}/config", header)

    def _count(self, entries: int = 0, size: int = 0) -> None:
        self._entries += entries
        self._bytes += size
        if self._entries > _ENTRIES_AT_MOST or self._bytes > _BYTES_AT_MOST:
            raise BadSource(f"expected a machine of at most {_ENTRIES_AT_MOST} files and {_BYTES_AT_MOST >> 20} MiB")


def is_name(name: str) -> bool:
    """Whether a directory can hold this name, and only that directory: not "..", not "a/b", not "a\\0"."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return False
    return 0 < len(encoded) <= _NAME_BYTES and name not in (".", "..") and not {"/", "\0"} & set(name)


def stays_inside(directory: str, target: str) -> bool:
    """Whether a link in `directory` leads nowhere but below the root, whatever other links there are.

    ".." after a name is refused: where that name is a link, the kernel goes up from where it points to.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    down = list(dropwhile(lambda part: part == "..", parts))
    inside = not target.startswith("/") and resolve(directory, target) is not None
    return inside and 0 < len(target) <= _PATH_BYTES and all(map(is_name, down))
