"""The state directory: topology.json for workloads and prologs, and the last changes, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable

from topo_agent.host import Json
from topo_agent.publishers import files

TOPOLOGY, HISTORY = "topology.json", "history.jsonl"

_HISTORY_BYTES = 4 << 20


class State:
    """Files in one directory, each replaced whole. OSError where they cannot be written: the old ones stay.

    Without a directory ("") nothing is written.
    """

    def __init__(self, directory: str, *, mode: int = 0o644, group: int | None = None, changes: int = 100) -> None:
        """The directory is made if need be; what it holds of earlier changes is kept, at most `changes` of them."""
        self._directory, self._mode, self._group = directory, mode, group
        self._changes = changes
        self._history: deque[dict[str, Json]] | None = None  # not read yet
        self._fresh: list[dict[str, Json]] = []  # not in it yet

    def topology(self, text: str | None) -> None:
        """The document, or none where nothing is known any more."""
        path = os.path.join(self._directory, TOPOLOGY)
        if text is not None:
            self._write(TOPOLOGY, text)
        elif self._directory and os.path.exists(path):
            os.unlink(path)

    def changed(self, entries: Iterable[dict[str, Json]]) -> None:
        """`{"time": "2026-05-04T03:02:01Z", "kind": "removed", "what": "removed pci:0000:41:00.0 (nic eth0)"}`."""
        self._fresh += entries
        if self._history is None:
            self._history = deque(history(self._directory) if self._directory else (), maxlen=self._changes)
        self._history.extend(self._fresh)
        self._fresh.clear()
        lines = (json.dumps(one, ensure_ascii=False) for one in self._history)
        self._write(HISTORY, "".join(f"{line}\n" for line in lines))

    def _write(self, name: str, text: str) -> None:
        if not self._directory:
            return
        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        files.replace(os.path.join(self._directory, name), text, mode=self._mode, group=self._group)


def history(directory: str) -> list[dict[str, Json]]:
    """The changes that are kept in a state directory, oldest first; a line that is none is passed over."""
    try:
        with open(os.path.join(directory, HISTORY), encoding="utf-8", errors="replace") as file:
            lines = file.read(_HISTORY_BYTES).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for line in lines:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found
