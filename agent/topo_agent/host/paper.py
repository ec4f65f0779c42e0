"""A machine on paper: a tree of files in memory that answers as the machine itself did."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass

from topo_agent.host import LINKS_AT_MOST, TEXT_LIMIT, Json, Source, Unavailable, checked

PATH_AT_MOST = 1024  # the longest of a recorded machine has 216 characters
PARTS_AT_MOST = 64
ENTRIES_AT_MOST = 2_000_000  # with the directories above them, of which one path may name sixty
TARGET_AT_MOST = 1024


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; the target is kept as it was written."""

    target: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that cannot be read, or a directory that cannot be listed."""

    errno: int
    directory: bool = False


Entry = str | bytes | Link | Failure | None
"""What is at a path: the text of a file, a link, a failure; None is a directory."""

Document = Json | Unavailable


class PaperHost:
    """Entries by path ("sys/devices/system/cpu/online"), documents by name, and where it all came from.

    Directories above an entry need not be given. ValueError where a path is a file and a directory at once.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        documents: Mapping[str, Document] | None = None,
        *,
        source: Source,
    ) -> None:
        self._entries = dict(entries)
        self._documents = dict(documents or {})
        self._source = source
        self._names = _directories(self._entries)
        self._entered: dict[str, str] = {"": ""}  # a directory as asked for -> where it really is

    @property
    def source(self) -> Source:
        return self._source

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Everything in the tree, every directory included."""
        return self._entries

    @property
    def documents(self) -> Mapping[str, Document]:
        return self._documents

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        head, _, name = checked(path).rpartition("/")
        if not name:
            raise _error(errno.ENOENT, path)
        here = _join(self._enter(head), name)
        entry = self._entries.get(here)
        if isinstance(entry, Link) or name == ".":
            here = self._real(here)
            entry = self._entries.get(here)
        if isinstance(entry, (str, bytes)):
            return _first(entry, most)
        if isinstance(entry, Failure):
            raise _error(entry.errno, path)
        raise _error(errno.EISDIR if here in self._names else errno.ENOENT, path)

    def names(self, path: str) -> list[str]:
        try:
            return list(self._names[self._enter(checked(path))])
        except (FileNotFoundError, NotADirectoryError):
            return []

    def link(self, path: str) -> str | None:
        head, _, name = checked(path).rpartition("/")
        try:
            entry = self._entries.get(_join(self._enter(head), name))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
                return None
            raise
        return entry.target if isinstance(entry, Link) else None

    def document(self, name: str) -> Json:
        answer = self._documents.get(name, Unavailable("not_recorded", f"no answer of {name} is recorded"))
        if isinstance(answer, Unavailable):
            raise Unavailable(answer.reason, str(answer))
        return answer

    def without(self, path: str) -> PaperHost:
        """The same machine without a file, a link, or a directory and everything below it."""
        return self._changed(self._less(self._place(path)))

    def saying(self, path: str, text: str | bytes) -> PaperHost:
        """The same machine where a file, new or not, has this text."""
        place = self._place(path)
        return self._changed({**self._less(place), place: text})

    def failing(self, path: str, name: str) -> PaperHost:
        """The same machine where a file or directory fails: `failing("…/vendor", "EIO")`."""
        number: int = getattr(errno, name)
        place = self._place(path)
        return self._changed({**self._less(place), place: Failure(number, directory=place in self._names)})

    def _less(self, place: str) -> dict[str, Entry]:
        below = f"{place}/"
        return {at: it for at, it in self._entries.items() if at != place and not at.startswith(below)}

    def _changed(self, entries: Mapping[str, Entry]) -> PaperHost:
        return PaperHost(entries, self._documents, source=self._source)

    def _place(self, path: str) -> str:
        """Where an entry really is: "sys/bus/pci/devices/0000:17:00.0/vendor" is below sys/devices."""
        head, _, name = checked(path).rpartition("/")
        try:
            return _join(self._enter(head), name)
        except OSError:
            return path

    def _enter(self, path: str) -> str:
        """The real path of a directory; remembered, since sources read many files of each."""
        found = self._entered.get(path)
        if found is None:
            found = self._real(path)
            if found not in self._names:
                raise _error(_in_the_way(self._entries.get(found)), path)
            self._entered[path] = found
        return found

    def _real(self, path: str) -> str:
        """The path with every link followed as chroot would follow it: nothing is above the root."""
        todo = path.split("/")[::-1]
        here, links = "", 0
        while todo:
            part = todo.pop()
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            at = here if part in ("", ".") else _join(here, part)
            if at not in self._entries and at != "":
                raise _error(errno.ENOENT, path)
            entry = self._entries.get(at)
            if isinstance(entry, Link):
                links += 1
                if links > LINKS_AT_MOST:
                    raise _error(errno.ELOOP, path)
                here = "" if entry.target.startswith("/") else here
                todo.extend(entry.target.split("/")[::-1])
            elif todo and entry is not None:
                raise _error(_in_the_way(entry), path)
            else:
                here = at
        return here


def placed(path: str) -> str:
    """The path itself, if a tree from elsewhere may hold it: relative, no "..", of a sane length; else ValueError."""
    parts = path.split("/")
    if len(path) > PATH_AT_MOST or len(parts) > PARTS_AT_MOST or "\0" in path:
        raise ValueError(f"{path[:40]!r}… is no path of a machine")
    if not all(parts) or "." in parts or ".." in parts:
        raise ValueError(f"{path[:80]!r} is no path below the root of a machine")
    return path


def _directories(entries: dict[str, Entry]) -> dict[str, list[str]]:
    """The names in every directory, sorted; adds to `entries` the directories that were left out."""
    names: dict[str, list[str]] = {"": []}
    for path in list(entries):
        if entries[path] is None:
            names.setdefault(path, [])
        below = path
        while below:
            head, _, name = below.rpartition("/")
            beside = names.get(head)
            if beside is not None:  # a directory that is known has all those above it
                beside.append(name)
                break
            if entries.setdefault(head, None) is not None:
                raise ValueError(f"{head} is a file and a directory")
            names[head] = [name]
            below = head
        if len(entries) > ENTRIES_AT_MOST:
            raise ValueError(f"it has more than {ENTRIES_AT_MOST} files and directories")
    return {path: sorted(set(found)) for path, found in names.items()}


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _in_the_way(entry: Entry) -> int:
    """The error of a path that goes on below something that cannot be entered."""
    return entry.errno if isinstance(entry, Failure) and entry.directory else errno.ENOTDIR


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _first(text: str | bytes, most: int) -> str:
    """The first `most` bytes. A byte that was replaced when the text was recorded counts as the one it was."""
    if isinstance(text, str):
        if len(text) * 4 <= most:
            return text
        text = text.encode("utf-8", "surrogatepass").replace(b"\xef\xbf\xbd", b"\xff")
    return text[:most].decode("utf-8", "replace")
