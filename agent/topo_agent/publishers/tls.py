"""Certificates -> what a server needs to speak TLS."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    import ssl


class Tls(NamedTuple):
    """Files (PEM). With a CA for clients, a client without a certificate of that CA is turned away."""

    certificate: str
    key: str
    client_ca: str = ""


class Certificates:
    """What the files hold now: certificates are replaced while the server runs, long before they expire."""

    def __init__(self, tls: Tls, told: Callable[[str | None], None] = lambda _: None) -> None:
        """OSError as of `context`. `told` hears of every change: None, or what is wrong with the new ones."""
        self._tls, self._told = tls, told
        self._used = _identities(tls)
        self._context = context(tls)
        self._wrong: str | None = None  # what was told last

    def context(self) -> ssl.SSLContext:
        """For the next connection. While a new certificate and its key do not fit yet, the last that did stay."""
        found = _identities(self._tls)
        if found != self._used:
            try:
                self._context, self._used, wrong = context(self._tls), found, None
            except OSError as error:  # tried again with every connection: it may be a right that is still to be given
                wrong = error.strerror or str(error)
            if wrong is None or wrong != self._wrong:
                self._told(wrong)
            self._wrong = wrong
        return self._context


def _identities(tls: Tls) -> tuple[tuple[int, ...] | None, ...]:
    """Other ones once a file is replaced or written to, or a link on the way to it is."""
    return tuple(_identity(path) for path in tls if path)


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def context(tls: Tls) -> ssl.SSLContext:
    """OSError whose text names the file and, where OpenSSL has one, its reason."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    for path in filter(None, tls):
        with _named(path), open(path, "rb"):
            pass  # OpenSSL does not tell which file it could not open
    with _named(f"{tls.certificate} with {tls.key}"):
        made.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")  # or it would ask on the terminal
    if tls.client_ca:
        with _named(tls.client_ca):
            made.load_verify_locations(tls.client_ca)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise OSError(error.errno, f"{what}: cannot be used for TLS: {error.strerror or error}") from None


def wrapped(made: ssl.SSLContext, plain: socket.socket) -> socket.socket:
    """The same connection, before its handshake. `plain` is empty then."""
    return made.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)


def shake_hands(connection: socket.socket) -> None:
    """OSError where it fails, at the connection's own time-out."""
    cast("ssl.SSLSocket", connection).do_handshake()


def say_goodbye(connection: socket.socket) -> None:
    """Tell the client that the data ends here, and wait for nothing."""
    with contextlib.suppress(OSError, ValueError):
        connection.settimeout(0)
        cast("ssl.SSLSocket", connection).unwrap()
