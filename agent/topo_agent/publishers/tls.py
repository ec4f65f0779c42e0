"""Certificates -> what a server needs to speak TLS."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    import ssl


class Tls(NamedTuple):
    """Files (PEM). With a CA for clients, a client without a certificate of that CA is turned away."""

    certificate: str
    key: str
    client_ca: str = ""


def context(tls: Tls) -> ssl.SSLContext:
    """OSError whose text names the file."""
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
