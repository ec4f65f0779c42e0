"""A page and what was asked -> head and body of an HTTP response, in bytes."""

from __future__ import annotations

import functools
import gzip
import hashlib
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from topo_agent.publishers.request import Request

METHODS = ("GET", "HEAD")

_WORTH = 512  # bytes; less than that is not made shorter
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Page(NamedTuple):
    """What is at a path. `type` is its media type: "text/html; charset=utf-8"."""

    status: int
    type: str
    body: bytes


def plain(status: int) -> Page:
    """What is to be said of a status, where there is no page."""
    return Page(status, "text/plain; charset=utf-8", f"{status} {_phrase(status)}\n".encode())


def refusal(status: int) -> tuple[bytes, bytes]:
    """The answer to a request that could not be understood; the connection ends with it."""
    return _whole(plain(status), {}, keep=False, head=False)


def response(page: Page, request: Request, *, keep: bool) -> tuple[bytes, bytes]:
    """The answer: compressed, without its body, or only that nothing has changed, as the request has it."""
    headers: dict[str, str] = {}
    packed = len(page.body) >= _WORTH and takes_gzip(request.headers.get("accept-encoding", ""))
    if page.status == HTTPStatus.OK:
        headers["ETag"] = tag = _tag(page.body, packed=packed)
        if _is_one_of(tag, request.headers.get("if-none-match", "")):
            return _head(HTTPStatus.NOT_MODIFIED, headers, keep=keep), b""
    if packed:
        headers["Content-Encoding"] = "gzip"
        page = page._replace(body=_packed(page.body))
    return _whole(page, headers, keep=keep, head=request.method == "HEAD")


def takes_gzip(accepted: str) -> bool:
    """`"gzip;q=0, *"` -> False: RFC 9110, 12.5.3, where a name goes before the asterisk."""
    weights: dict[str, bool] = {}
    for one in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        zero = any(part.startswith("q=") and not part[2:].strip("0.") for part in parameters)
        weights[name] = not zero
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


def _tag(body: bytes, *, packed: bool) -> str:
    """Strong: equal tags are equal bytes, so the compressed page has one of its own."""
    return f'"{_digest(body)}-gzip"' if packed else f'"{_digest(body)}"'


def _is_one_of(tag: str, known: str) -> bool:
    """Weak comparison (RFC 9110, 13.1.2): a cache on the way may have weakened it."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in known.split(","))


@functools.lru_cache(maxsize=8)
def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


@functools.lru_cache(maxsize=8)
def _packed(body: bytes) -> bytes:
    """The same page for many clients is compressed once. No time of day in it: equal pages are equal bytes."""
    return gzip.compress(body, compresslevel=6, mtime=0)


def _whole(page: Page, headers: Mapping[str, str], *, keep: bool, head: bool) -> tuple[bytes, bytes]:
    said = {"Content-Type": page.type, "Content-Length": str(len(page.body)), **headers}
    if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
        said["Allow"] = ", ".join(METHODS)
    if page.type.startswith("text/html"):
        said["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'"
    return _head(page.status, said, keep=keep), b"" if head else page.body


def _head(status: int, headers: Mapping[str, str], *, keep: bool) -> bytes:
    said = {
        "Date": _date(time.time()),
        **headers,
        "Cache-Control": "no-cache",
        "Vary": "Accept, Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
        "Connection": "keep-alive" if keep else "close",
    }
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in said.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _date(now: float) -> str:
    """`0` -> `"Thu, 01 Jan 1970 00:00:00 GMT"`, in no locale."""
    at = time.gmtime(now)
    day = f"{_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year}"
    return f"{day} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"
