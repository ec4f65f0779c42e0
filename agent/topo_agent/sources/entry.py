"""Entry: a directory of the host read field by field. All error handling of all sources is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from topo_agent.diagnostics import ABSENT, REFUSED, Level, Notes, Unknown, UnknownFields, errno_name
from topo_agent.host import TEXT_LIMIT, Host, resolve

T = TypeVar("T")


class Failed(Exception):
    """A device cannot be told from what its files say; the note is already written."""


class Entry:
    """One directory. `need` fails the device, `want` and `follow` fail the field, `link` follows a link by its name."""

    __slots__ = ("_listed", "_unknown", "host", "notes", "path")

    def __init__(self, host: Host, path: str, notes: Notes) -> None:
        self.host = host
        self.path = path
        self.notes = notes
        self._unknown: dict[str, Unknown] = {}
        self._listed: frozenset[str] | None = None

    @property
    def unknown(self) -> UnknownFields:
        """The fields that were asked and have no value, each with its reason."""
        return tuple(sorted(self._unknown.items()))

    def say_unknown(self, field: str, reason: Unknown) -> None:
        self._unknown[field] = reason

    def need(self, name: str, parse: Callable[[str], T]) -> T:
        """The value of a file without which there is no device."""
        path = f"{self.path}/{name}"
        try:
            return parse(self.host.text(path))
        except (OSError, ValueError) as error:
            self.notes.add(Level.LOST, self.path, "device_unreadable", f"left out: {name}: {_why(error)}")
            raise Failed from error

    def must(self, text: str, parse: Callable[[str], T]) -> T:
        """The meaning of a name without which there is no device."""
        try:
            return parse(text)
        except ValueError as error:
            self.notes.add(Level.LOST, self.path, "device_unreadable", f"left out: {error}")
            raise Failed from error

    def want(self, name: str, parse: Callable[[str], T], field: str | None = None, most: int = TEXT_LIMIT) -> T | None:
        """The value of a file, or None. Where `field` is given, None leaves its reason in `unknown`.

        A file that is simply not there gets no note: kernels differ in what they offer.
        """
        path = f"{self.path}/{name}"
        try:
            value = parse(self.host.text(path, most))
        except (OSError, ValueError) as error:
            self._failed(path, error, field)
            return None
        if field is not None:
            self._unknown.pop(field, None)
        return value

    def offered(self, name: str, parse: Callable[[str], T], field: str | None = None) -> T | None:
        """`want` for a file that only some have: where it is not listed nothing is asked, and nothing is unknown."""
        return self.want(name, parse, field) if self.has(name) else None

    def follow(self, name: str, parse: Callable[[str], T], field: str) -> T | None:
        """What a link that was listed means, by its last component; None leaves its reason in `unknown`."""
        path = f"{self.path}/{name}"
        try:
            written = self.host.link(path)
            if written is not None:
                return parse((resolve(self.path, written) or "").rpartition("/")[2])
            self.host.text(path)  # a link that is gone by now, or fails, says so; what answers is a file
        except (OSError, ValueError) as error:
            self._failed(path, error, field)
        else:
            self._failed(path, ValueError("it is no link"), field)
        return None

    def _failed(self, path: str, error: OSError | ValueError, field: str | None) -> None:
        """The note of a file without a value, and the reason of its field."""
        reason = Unknown.UNREADABLE
        if isinstance(error, ValueError):
            self.notes.add(Level.DEGRADED, path, "file_garbled", f"{error}; taken as unknown")
        elif error.errno in ABSENT:
            reason = self.absent
        else:
            reason = Unknown.NOT_PERMITTED if error.errno in REFUSED else reason
            self.notes.add(Level.DEGRADED, path, "file_unreadable", f"{errno_name(error)}; taken as unknown")
        if field is not None and (reason is not self.absent or field not in self._unknown):
            self._unknown[field] = reason  # a file that fails says more than another that is not there

    def now(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The present value of something that moves by itself. Nothing of the structure is lost without it.

        A link that is down answers EINVAL to `speed` and `carrier`: that is a note and no fault.
        """
        path = f"{self.path}/{name}"
        try:
            return parse(self.host.text(path))
        except OSError as error:
            if error.errno not in ABSENT:
                self.notes.add(Level.NOTE, path, "state_unreadable", f"{errno_name(error)}; what it is now is unknown")
        except ValueError as error:
            self.notes.add(Level.NOTE, path, "state_garbled", f"{error}; what it is now is unknown")
        return None

    def peek(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value of a file that answers only where it applies: a refusal says nothing, and gets no note."""
        try:
            return parse(self.host.text(f"{self.path}/{name}"))
        except (OSError, ValueError):
            return None

    def has(self, name: str) -> bool:
        """Is there such a name here? One listing answers for all names; a probe for each costs more."""
        if self._listed is None:
            self._listed = frozenset(self.names())
        return name in self._listed

    def link(self, name: str) -> str | None:
        """The last component of a link's target: `driver` -> "mlx5_core"."""
        target = self.target(name)
        return None if target is None else target.rpartition("/")[2]

    def target(self, name: str) -> str | None:
        """The path below the root that a link means; None without a link, or where it leaves the root."""
        written = self.written(name)
        return None if written is None else resolve(self.path, written)

    def written(self, name: str) -> str | None:
        """A link's target as it is written; None without a link, and with a note where it cannot be read."""
        try:
            return self.host.link(f"{self.path}/{name}")
        except OSError as error:
            self.notes.add(Level.DEGRADED, f"{self.path}/{name}", "link_unreadable", errno_name(error))
            return None

    def names(self, name: str = "") -> list[str]:
        """The names in this directory, or in one below it; what cannot be listed has a note and is empty."""
        path = f"{self.path}/{name}" if name else self.path
        try:
            return self.host.names(path)
        except OSError as error:
            self.notes.add(Level.DEGRADED, path, "directory_unreadable", errno_name(error))
            return []

    @property
    def absent(self) -> Unknown:
        """What it means here that a file is not there: the kernel has none, or nobody recorded it."""
        return Unknown.NOT_SUPPORTED if self.host.source.complete else Unknown.NOT_RECORDED


def members(host: Host, folder: str, notes: Notes) -> Iterator[tuple[str, Entry]]:
    """(name, entry) of everything in a class directory, where its link leads.

    Members of old or synthetic trees are plain directories: those are read in place.
    """
    place = Entry(host, folder, notes)
    for name in place.names():
        entry = _member(place, name)
        if entry is not None:
            yield name, entry


def class_members(
    host: Host, folder: str, notes: Notes, fits: Callable[[str], object] = bool
) -> Iterator[tuple[str, Entry]]:
    """`members` of a class of devices, where the kernel has links only, save those names that do not fit.

    A link that leads nowhere is a device that was unplugged; a name that is neither a link nor a directory
    with something in it is one that we lose, and gets a note.
    """
    place = Entry(host, folder, notes)
    for name in filter(fits, place.names()):
        entry, here = _member(place, name), f"{folder}/{name}"
        if entry is None:
            notes.add(Level.LOST, here, "link_unreadable", "left out: it leads out of the machine")
            continue
        if entry.path == here:  # only here: a link of the kernel costs no listing
            try:
                lost = None if host.names(here) else "neither a link nor a directory with anything in it"
            except OSError as error:
                lost = errno_name(error)
            if lost is not None:
                notes.add(Level.LOST, here, "link_unreadable", f"left out: {lost}")
                continue
        yield name, entry


def _member(place: Entry, name: str) -> Entry | None:
    written = place.written(name)
    path = f"{place.path}/{name}" if written is None else resolve(place.path, written)
    return None if path is None else Entry(place.host, path, place.notes)


def each(names: Iterable[str], read: Callable[[str], T]) -> Iterator[T]:
    """`read` of every name; a device that fails costs itself, its note is already written."""
    for name in names:
        try:
            yield read(name)
        except Failed:
            continue


def _why(error: OSError | ValueError) -> str:
    return errno_name(error) if isinstance(error, OSError) else str(error)
