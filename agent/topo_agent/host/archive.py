"""A tar archive of a machine, read in one stream into memory: nothing is ever unpacked to disk.

What hwloc-gather-topology writes has one top folder, other archives have none: the root is the folder that
holds sys/. An archive is untrusted: sizes and counts are bounded, and no name or link leads out of the root.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from topo_agent.host import TEXT_LIMIT, BadSource, Source
from topo_agent.host.paper import TARGET_AT_MOST, Entry, Link, PaperHost, placed

FILE_AT_MOST = 512 << 20  # the archive itself
BYTES_AT_MOST = 1 << 30  # what comes out of the decompressor; each small file of a tar costs 1 KiB
MEMBERS_AT_MOST = 500_000
TEXT_AT_MOST = 256 << 20

EXPECTED = "expected a directory, a recording, or a tar archive (.tar, .gz, .bz2, .xz) of the sys/ of a machine"
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError, ValueError, OverflowError, RecursionError)

XZ_MEMORY_AT_MOST = 128 << 20  # `xz -9`, the most that it has by itself, needs 65 MiB to unpack

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 16
# A header may say that gigabytes of header follow, and tarfile would read them into memory at once.
_HEADERS_AT_MOST = 1 << 20
# An extended header (pax) that is longer than a block, and all of these. tarfile of Python before 3.10.15, 3.11.10 and
# 3.12.6 takes the square of one's length (CVE-2024-6232): an hour for a mebibyte. Two paths of a machine fit in 8 KiB.
_EXTENDED_AT_MOST = 8 << 10
_ALL_EXTENDED_AT_MOST = 1 << 20
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


@contextmanager
def unpacked(path: str, most: int = FILE_AT_MOST) -> Iterator[Readable]:
    """The bytes of a file, decompressed if its first bytes say so; BadSource when they cannot be had."""
    try:
        with _plain(path, most) as file:
            yield _decompressed(file)
    except DAMAGED as error:
        raise BadSource(f"{path}: {EXPECTED}; {_why(error)}") from None


def read(path: str) -> PaperHost:
    """The machine in an archive; BadSource names the file and what was expected."""
    with unpacked(path) as file:
        entries = _inside(_entries(file))
        if not any(name.startswith("sys/") for name in entries):
            raise BadSource(f"{path}: {EXPECTED}; this archive holds no sys/")
        return PaperHost(entries, source=Source(kind="archive", complete=False))


def _plain(path: str, most: int) -> IO[bytes]:
    # O_NONBLOCK: a FIFO must not wait for somebody who writes.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and 0 < about.st_size <= most:
        return file
    file.close()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    raise ValueError(f"it has more than {most >> 20} MiB" if about.st_size else "it is empty")


def _decompressed(file: IO[bytes]) -> Readable:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    return _Xz(file) if magic == b"\xfd7zXZ\0" else file


class _Xz:
    """The streams of an xz file, one after another. `lzma.LZMAFile` allocates whatever dictionary a header asks for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream: lzma.LZMADecompressor | None = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_AT_MOST)

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all where it is negative; nothing at the end."""
        parts, rest = [], size
        while rest and (data := self._some(rest)):
            parts.append(data)
            rest = rest - len(data) if size >= 0 else -1
        return b"".join(parts)

    def _some(self, most: int) -> bytes:
        """Bytes that are there, or nothing at the end; EOFError in the middle of a stream."""
        while self._stream is not None:
            stream = self._stream
            if stream.eof:
                # Padding is zeros in fours (xz-file-format.txt 2.2).
                more = (stream.unused_data or self._file.read(_CHUNK)).lstrip(b"\0")
                while not more and (chunk := self._file.read(_CHUNK)):
                    more = chunk.lstrip(b"\0")
                self._stream = self._new() if more else None
                data = self._stream.decompress(more, most) if self._stream is not None else b""
            else:
                more = self._file.read(_CHUNK) if stream.needs_input else b""
                if stream.needs_input and not more:
                    raise EOFError("the compressed file ends before its end-of-stream marker")
                data = stream.decompress(more, most)
            if data:
                return data
        return b""


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes, and remembers the last block it gave."""

    def __init__(self, file: Readable) -> None:
        self.file = file
        self.given = 0
        self.limit = _HEADERS_AT_MOST
        self.last = b""

    def read(self, size: int = -1, /) -> bytes:
        data = self.file.read(size)
        self.given += len(data)
        self.last = data or self.last
        if self.given > self.limit:
            raise ValueError("it unpacks to more than a machine can be")
        return data


def _members() -> type[tarfile.TarInfo]:
    """The members of one archive, whose extended headers are bounded before tarfile looks into them."""
    long = 0

    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            nonlocal long
            member = super().frombuf(buf, encoding, errors)
            if member.type in _EXTENDED and member.size > _BLOCK:
                long += member.size
                if member.size > _EXTENDED_AT_MOST or long > _ALL_EXTENDED_AT_MOST:
                    raise ValueError("its extended headers are more than a machine can need")
            return member

    return Member


def _entries(file: Readable) -> dict[str, Entry]:
    """Every entry of an archive by its path; names that lead out of the root are skipped."""
    entries: dict[str, Entry] = {}
    stream = _Bounded(file)
    kept = 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK * 20, tarinfo=_members()) as archive:
        for count, member in enumerate(archive):
            vars(archive)["members"].clear()  # before Python 3.13 a stream keeps them all, a kilobyte each
            # Where tarfile expects the next header. It passes over the data of types that it does not know, too, and
            # where that is far behind the end of the file, it reads nothing until it has come there.
            end = archive.offset
            stream.limit = min(end + _HEADERS_AT_MOST, BYTES_AT_MOST)
            if end > BYTES_AT_MOST or count >= MEMBERS_AT_MOST or kept > TEXT_AT_MOST:
                raise ValueError("it unpacks to more than a machine can be")
            kept += _keep(entries, archive, member)
        _ended(stream, archive.offset)
    return entries


def _keep(entries: dict[str, Entry], archive: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    """Put one member where it belongs; the bytes that it costs. Devices, FIFOs and hostile names cost nothing."""
    path = _path(member.name)
    if path is None:
        return 0
    if member.isdir():
        entries.setdefault(path, None)
    elif member.issym():
        if member.linkname and len(member.linkname) <= TARGET_AT_MOST and "\0" not in member.linkname:
            entries[path] = Link(member.linkname)
    elif member.islnk():
        earlier = entries.get(_path(member.linkname) or "")
        if earlier is not None:
            entries[path] = earlier
    elif member.isreg():
        data = archive.extractfile(member)
        entries[path] = text = data.read(TEXT_LIMIT) if data else b""
        return len(path) + len(text)
    return len(path)


def _path(name: str) -> str | None:
    """`"./top/sys/"` -> `"top/sys"`; None for a name that does not stay below the root."""
    try:
        return placed("/".join(part for part in name.removeprefix("./").rstrip("/").split("/") if part != "."))
    except ValueError:
        return None


def _inside(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The entries below the folder that holds sys/, which may be the top."""
    tops = {path.partition("/sys/")[0] for path in entries if "/sys/" in path} - {"proc"}
    if any(path.startswith("sys/") for path in entries) or not tops:
        return entries
    top = min(tops, key=lambda path: (path.count("/"), path)) + "/"
    return {path[len(top) :]: entry for path, entry in entries.items() if path.startswith(top)}


def _ended(stream: _Bounded, offset: int) -> None:
    """A tar ends with a block of zeros where the next header would be; tarfile takes any end for an end."""
    behind = stream.given - offset
    last = stream.last[len(stream.last) - behind :] if 0 <= behind <= len(stream.last) else b""
    if len(last) < _BLOCK or any(last[:_BLOCK]):
        raise ValueError("it is cut off or damaged")
    while stream.read(1 << 16):  # the checksum of the compressed file comes last
        pass


def _why(error: BaseException) -> str:
    """One line: `it is cut off` rather than the words of whoever found out."""
    if isinstance(error, (EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, gzip.BadGzipFile)):
        return f"this one is cut off, damaged, or something else ({error})".replace("\n", " ")
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
