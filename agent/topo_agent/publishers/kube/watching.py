"""An open watch: events of the API server as they come."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from topo_agent.publishers.kube.answers import MOST, Kind, Object, Trouble, short


class Watch:
    """Events of an open watch, as they come; it ends when the server ends it, and with Trouble when it breaks off."""

    def __init__(self, answer: Any, troubled: Callable[[Exception], Trouble], over: Callable[[], None]) -> None:
        self._answer, self._troubled, self._over = answer, troubled, over
        self._closed = False

    def events(self) -> Iterator[Object]:
        """`{"type": "MODIFIED", "object": {…}}`; an event of type ERROR is Trouble."""
        rest = b""
        for chunk in self._chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MOST:
                raise Trouble("server", "an event does not end")
            for line in lines:
                if line.strip():
                    yield _event(line)
        if rest.strip():
            raise Trouble("unreachable", "the watch broke off in an event")

    def _chunks(self) -> Iterator[bytes]:
        try:
            yield from self._answer.stream(1 << 16, decode_content=True)
        except Exception as error:  # noqa: BLE001 closed by another thread in mid-reading, urllib3 fails in many ways
            raise self._troubled(error) from None

    def close(self) -> None:
        """Also from another thread: the one that reads ends."""
        if not self._closed:
            self._closed = True
            self._over()
        with contextlib.suppress(Exception):
            self._answer.shutdown()  # urllib3 2.3
        with contextlib.suppress(Exception):
            self._answer.close()


def _event(line: bytes) -> Object:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise Trouble("server", "an event is no JSON") from None
    if not isinstance(said, dict) or not isinstance(said.get("object"), dict):
        raise Trouble("server", "an event has no object")
    if said.get("type") == "ERROR":
        status = said["object"]
        kind: Kind = "gone" if status.get("code") == 410 else "server"
        raise Trouble(kind, short(status.get("message", "the watch failed")))
    return said
