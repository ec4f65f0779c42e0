"""Quirks: changes to the files that the rules of the kernel made, in the order in which they are written."""

from __future__ import annotations

import errno
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from topo_agent.host.paper import Entry, Failure, Link, placed
from topo_agent.synthesis.fields import Place, Value
from topo_agent.synthesis.layout import Layout
from topo_agent.synthesis.named import named

_KINDS = ("gpu", "nic", "nvme", "nvswitch", "port", "switch", "device")
_AT_MOST = 100_000
_DOES = ("says", "raw", "gone", "fails", "points")


@dataclass(frozen=True, slots=True)
class Edit:
    """One file, or the file of one name of several functions."""

    of: tuple[str, ...]
    path: str
    does: str
    value: str
    place: Place


def read(value: Value) -> Edit:
    """`{of: gpu0, file: numa_node, says: -1}`, `{path: sys/…, fails: EIO}`, `{path: …, gone: true}`."""
    said = value.fields("of", "file", "path", *_DOES)
    does = [name for name in _DOES if value.has(name)]
    of, file, path = said.get("of"), said.get("file"), said.get("path")
    if len(does) != 1 or (path is None) == (of is None) or (of is None and file is not None):
        raise value.wrong(f"expected `of` (and `file`) or `path`, and one of {', '.join(_DOES)}")
    what = said[does[0]]
    if does[0] == "fails" and not isinstance(getattr(errno, what.word(), None), int):
        raise what.wrong(f"{what.word()[:40]!r} is no error of the kernel, such as EIO")
    if does[0] == "gone" and not what.truth():
        raise what.wrong("expected true")
    below = path or file
    if below is not None:
        try:
            placed(below.text())
        except ValueError as error:
            raise below.wrong(str(error)) from None
    return Edit(
        of=tuple(one.text() for one in of.some()) if of else (),
        path=below.text() if below else "",
        does=does[0],
        value=what.node.text if hasattr(what.node, "text") else what.text(),
        place=value.place,
    )


def applied(entries: dict[str, Entry], layout: Layout, edits: tuple[Edit, ...]) -> dict[str, Entry]:
    """The entries after all edits."""
    files = _Files(entries)
    count = 0
    for edit in edits:
        for path in _paths(layout, edit):
            count += 1
            if count > _AT_MOST:
                raise edit.place.wrong(f"edits change more than {_AT_MOST} files")
            files.apply(edit, path)
    return files.entries


def _paths(layout: Layout, edit: Edit) -> Iterator[str]:
    if not edit.of:
        yield edit.path
    for name in edit.of:
        if name == "all" or name.removesuffix("s") in _KINDS:
            some = [one for one in layout.functions.values() if name in ("all", f"{one.spec.kind}s")]
        else:
            some = [named(layout, name, edit.place, kind="")]
        for one in some:
            yield f"{one.directory}/{edit.path}".rstrip("/")


class _Files:
    """Entries that are changed, and their paths in order, so that an edit need not look at all of them."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = dict(entries)
        self._order = sorted(entries)

    def apply(self, edit: Edit, path: str) -> None:
        first, last = (bisect_left(self._order, f"{path}{mark}") for mark in "/0")  # 0 is what follows / in ASCII
        below = self._order[first:last]
        if edit.does == "gone" or below:
            if path not in self.entries and not below:
                raise edit.place.wrong(f"there is no {path}")
            del self._order[first:last]
            for one in below:
                del self.entries[one]
            self._drop(path)
        if edit.does == "says":
            self._put(path, f"{edit.value}\n")
        elif edit.does == "raw":
            self._put(path, edit.value)
        elif edit.does == "points":
            self._put(path, Link(edit.value))
        elif edit.does == "fails":
            self._put(path, Failure(getattr(errno, edit.value), directory=bool(below)))

    def _drop(self, path: str) -> None:
        if path in self.entries:
            del self.entries[path]
            del self._order[bisect_left(self._order, path)]

    def _put(self, path: str, entry: Entry) -> None:
        if path not in self.entries:
            insort(self._order, path)
        self.entries[path] = entry
