"""An address -> a socket that listens on it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import NamedTuple

from topo_agent.publishers.addresses import Address

_BACKLOG = 128
_UNREAD = 128 << 10  # bytes that the kernel keeps for a client that does not read; by itself it would go up to 4 MiB
_UNIX_MODE = 0o660


class Listener(NamedTuple):
    """A socket that listens, and which file it is, if it is one."""

    socket: socket.socket
    address: Address
    file: tuple[int, int] | None = None  # device and inode

    def close(self) -> None:
        """A socket's file goes with it, unless it is somebody else's by now."""
        self.socket.close()
        if self.file is not None:
            with contextlib.suppress(OSError):
                if _identity(self.address.path) == self.file:
                    os.unlink(self.address.path)


def listen(address: Address) -> Listener:
    """OSError whose text names the address."""
    try:
        return _unix(address) if address.path else _tcp(address)
    except OSError as error:
        said = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {said}") from None


def _tcp(address: Address) -> Listener:
    """On the first address of a name that can be had."""
    failure: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # What is accepted has these, too. The end of a page waits for nothing.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 may be asked for beside [::]
            listener.bind(place)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return Listener(listener, address._replace(port=listener.getsockname()[1]))
        except OSError as error:
            listener.close()
            failure = error
    raise failure or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


def _unix(address: Address) -> Listener:
    _remove_stale(address.path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the socket's mode without the umask's bits (unix_bind in net/unix/af_unix.c): it is never wider.
        os.fchmod(listener.fileno(), _UNIX_MODE)
        listener.bind(address.path)
        os.chmod(address.path, _UNIX_MODE)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return Listener(listener, address, _identity(address.path))
    except OSError:
        listener.close()
        raise


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """A socket on which nobody answers is what a server that was killed leaves behind. Nothing else is removed."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "something is there that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # somebody is there, and busy
    raise OSError(errno.EADDRINUSE, "somebody answers there already")
