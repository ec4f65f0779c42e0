"""A machine that can be asked: live, below a root directory, or on paper. The only folder that does I/O."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def as_object(said: Json) -> dict[str, Json]:
    """An object that others wrote; an empty one where it is something else."""
    return said if isinstance(said, dict) else {}


def as_array(said: Json) -> list[Json]:
    """An array that others wrote; an empty one where it is something else."""
    return said if isinstance(said, list) else []


def as_objects(said: Json) -> list[dict[str, Json]]:
    """The objects of an array that others wrote, without what else is in it."""
    return [one for one in as_array(said) if isinstance(one, dict)]


TEXT_LIMIT = 64 * 1024
"""Bytes read of one file unless the caller asks for fewer: a sysfs attribute is at most a page,
and a list of CPUs or a /proc file that matters here is shorter than this."""

LINKS_AT_MOST = 40
"""Links followed on the way to one file, as the kernel: fs/namei.c MAXSYMLINKS."""

DOCUMENT_LIMIT = 16 << 20
"""Bytes of one document: the answers of a driver for eight GPUs are some 100 KiB."""

DOCUMENTS = ("process", "nvml", "netlink")
"""The documents that a host may be asked for."""

Kind = Literal["live", "directory", "recording", "archive", "imported"]


class Unavailable(Exception):
    """A document that this host cannot give; `reason` is one of the codes of `diagnostics.Unknown`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class BadSource(Exception):
    """What `--from` names is not a machine: one line that names the file and what was expected."""


class Source(NamedTuple):
    """How a host came to know what it says.

    `complete` means that a file which is absent is absent on the machine too, so that "not there" is an
    answer of the kernel and not of whoever made the copy.
    """

    kind: Kind
    complete: bool
    redacted: bool = False
    privileged: bool | None = None  # could the asker read what only root may? None: not recorded
    scope: Literal["host", "container"] | None = None  # None: not recorded


class Host(Protocol):
    """A machine that can be asked. A recorded one answers as the live one did.

    Paths are relative to the root of the machine ("sys/bus/pci/devices"); an absolute path or one with
    ".." is refused with ValueError. No answer ever comes from outside the root.
    """

    @property
    def source(self) -> Source: ...

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        """The first `most` bytes of a file, undecodable bytes replaced; OSError as the kernel says it."""
        ...

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; a missing directory is empty; other trouble is OSError."""
        ...

    def link(self, path: str) -> str | None:
        """Where a symbolic link points, as written; None when there is no link of that name."""
        ...

    def document(self, name: str) -> Json:
        """The answers of something that is not a file; Unavailable(reason) when it cannot be asked."""
        ...


class Through:
    """Another host; a subclass asks its documents otherwise."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.source, self.text, self.names, self.link = host.source, host.text, host.names, host.link

    def document(self, name: str) -> Json:
        return self._host.document(name)


class Watch(Protocol):
    """Who is told while a host waits for an answer, and of what the answer cost."""

    def waiting(self, what: str) -> None:
        """Called again and again while it waits: "asking the NVIDIA driver … GPU 3 of 8"."""
        ...

    def done(self) -> None:
        """It no longer waits."""
        ...

    def remark(self, sentence: str) -> None:
        """Something that nobody lost anything by, and that is no fact of the machine: how long a driver took."""
        ...


class Silent:
    """A Watch that keeps it to itself."""

    def waiting(self, what: str) -> None:
        pass

    def done(self) -> None:
        pass

    def remark(self, sentence: str) -> None:
        pass


def checked(path: str) -> str:
    """The path itself, if it stays below the root; ValueError otherwise.

    `Path("/fixture") / "/sys"` is `/sys`: an absolute path would read the live machine.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not a path below the root of a machine")
    return path


def resolve(directory: str, target: str) -> str | None:
    """The path that `target` means when a link in `directory` holds it; None if it leaves the root.

    Lexical, as relative sysfs links allow: ("sys/bus/pci/devices", "../../../devices/pci0000:00/0000:00:1f.0/")
    -> "sys/devices/pci0000:00/0000:00:1f.0". An absolute target is one from the root of that machine.
    """
    parts = [] if target.startswith("/") else [part for part in directory.split("/") if part]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
