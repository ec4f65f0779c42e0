"""Where a server listens, as users write it: `127.0.0.1:19738`, `[::1]:19738`, `unix:/run/topo-agent/http`."""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST_PATH = 107
"""Bytes of a Unix socket: sun_path holds 108, one of them NUL (include/uapi/linux/un.h)."""

_UNIX = "unix:"
_TCP = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)(?P<zone>%(?=[^\]]{1,15}\])\w[\w-]*(?:\.[\w-]+)*)?\]"  # IFNAMSIZ: 16 with its NUL
    r"|(?P<name>(?:[\w-]{1,63}\.)*[\w-]{1,63}\.?)):(?P<port>[0-9]{1,5})",  # RFC 1035, 2.3.4: 63 signs between dots
    re.ASCII,
)


class Address(NamedTuple):
    """A host (a name or an address) and a port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""  # a Unix socket, and then host and port mean nothing

    def __str__(self) -> str:
        if self.path:
            return _UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """`"[::1]:19738"` -> `Address("::1", 19738)`; ValueError where it is none. Port 0 is any that is free."""
    if text.startswith(_UNIX):
        return Address("", 0, _path(text[len(_UNIX) :]))
    found = _TCP.fullmatch(text)
    if not found or int(found["port"]) > 65535 or not _is_host(found["six"]):
        raise ValueError("expected HOST:PORT, [IPV6]:PORT or unix:/PATH")
    host = found["name"] or found["six"] + (found["zone"] or "")
    return Address(host, int(found["port"]))


def _is_host(six: str | None) -> bool:
    """Is it an address of IPv6, where it should be one?"""
    import socket

    try:
        return six is None or bool(socket.inet_pton(socket.AF_INET6, six))
    except OSError:
        return False


def _path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or not path.isprintable():
        raise ValueError("expected an absolute path behind unix:")
    if len(path.encode()) > LONGEST_PATH:
        raise ValueError(f"expected a path of at most {LONGEST_PATH} bytes behind unix:")
    return path
