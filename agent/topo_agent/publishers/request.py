"""An HTTP request, read strictly and bounded -> Request. Bodies are for POST, where it is taken at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

LINE = 8192
"""Bytes of the request line or of one header, its end included."""

_HEADERS = 100  # as many as http.client takes
_HEAD = 32 << 10  # bytes of all headers of a request
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[!-~]+")
_VERSION = re.compile(rb"HTTP/1\.[0-9]")


class Lines(Protocol):
    """What io.BufferedReader does."""

    def readline(self, size: int, /) -> bytes: ...

    def read(self, size: int, /) -> bytes: ...


class Refused(Exception):
    """A request that gets `status`, and then the connection ends: nobody knows where the next one would begin."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Request(NamedTuple):
    """What was asked for. `keep`: the client may ask again on this connection."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case; several of one name are joined by ", "
    keep: bool
    body: bytes = b""


def read(lines: Lines, most: int = 0) -> Request | None:
    """The next request; None where the client has gone. Refused, and OSError of the connection.

    `most`: bytes of the body of a POST; 0 where none is taken.
    """
    line = _line(lines, 414)
    if line == b"":
        line = _line(lines, 414)  # RFC 9112, 2.2: one empty line before a request is passed over
    if line is None:
        return None
    method, path, version = _request_line(line)
    headers = _headers(lines)
    if headers is None:
        return None
    if version == b"HTTP/1.1" and "host" not in headers:
        raise Refused(400)
    body = b""
    if _has_body(headers):
        if method != "POST" or not most:
            raise Refused(413 if method in ("GET", "HEAD") else 405)
        length = headers.get("content-length", "").lstrip("0")
        if "transfer-encoding" in headers or not length:
            raise Refused(411)
        if len(length) > len(str(most)) or int(length) > most:
            raise Refused(413)
        body = lines.read(int(length))
        if len(body) < int(length):
            return None
    options = {one.strip().lower() for one in headers.get("connection", "").split(",")}
    return Request(method, path, headers, version != b"HTTP/1.0" and "close" not in options, body)


def _has_body(headers: Mapping[str, str]) -> bool:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refused(400)
    return "transfer-encoding" in headers or bool(length.strip("0"))


def _line(lines: Lines, too_long: int) -> bytes | None:
    """Without its end, which is CR LF or LF; None where the connection ends before it."""
    line = lines.readline(LINE + 1)
    if len(line) > LINE:
        raise Refused(too_long)
    if not line.endswith(b"\n"):
        return None
    return line[:-2] if line.endswith(b"\r\n") else line[:-1]


def _request_line(line: bytes) -> tuple[str, str, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise Refused(400)
    method, target, version = words
    if not _VERSION.fullmatch(version):
        raise Refused(505 if re.fullmatch(rb"HTTP/[0-9](\.[0-9])?", version) else 400)
    path = re.sub(r"^https?://[^/?#]*(?=[/?])", "", target.decode("ascii"), flags=re.IGNORECASE)
    path = path.partition("?")[0]
    if not path.startswith("/"):
        raise Refused(400)
    return method.decode("ascii"), path, version


def _headers(lines: Lines) -> dict[str, str] | None:
    found: dict[str, str] = {}
    size = 0
    for _ in range(_HEADERS + 1):
        line = _line(lines, 431)
        if line is None:
            return None
        if line == b"":
            return found
        size += len(line)
        if size > _HEAD:
            raise Refused(431)
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or b"\0" in value or b"\r" in value:
            raise Refused(400)
        key, said = name.decode("ascii").lower(), value.decode("latin-1").strip(" \t")
        if key in found and key in ("host", "content-length"):
            raise Refused(400)
        found[key] = f"{found[key]}, {said}" if key in found else said
    raise Refused(431)
