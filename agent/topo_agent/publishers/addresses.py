"""Where a server listens, as users write it: `127.0.0.1:19738`, `[::1]:19738`, `unix:/run/topo-agent/http`."""

from __future__ import annotations

import re
from typing import NamedTuple

_UNIX = "unix:"
_LONGEST_PATH = 107  # sun_path holds 108 bytes, one of them NUL: include/uapi/linux/un.h
_TCP = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[0-9A-Za-z._-]+)):(?P<port>[0-9]{1,5})", re.ASCII
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
    if not found or int(found["port"]) > 65535:
        raise ValueError("expected HOST:PORT, [IPV6]:PORT or unix:/PATH")
    return Address(found["six"] or found["name"], int(found["port"]))


def _path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or not path.isprintable():
        raise ValueError("expected an absolute path behind unix:")
    if len(path.encode()) > _LONGEST_PATH:
        raise ValueError(f"expected a path of at most {_LONGEST_PATH} bytes behind unix:")
    return path
