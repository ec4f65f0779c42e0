"""The files that the daemon keeps: topology.json and the history in the state directory, metrics for a collector.

A full disk costs a file and a sentence, until a later scan.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Callable, Iterable

from topo_agent.daemon.counts import Counts
from topo_agent.daemon.log import Log
from topo_agent.host import Json
from topo_agent.publishers import files
from topo_agent.publishers.metrics import exposition
from topo_agent.publishers.state import State
from topo_agent.settings import Settings

_OF_STATE = ("state_dir", "state_mode", "state_group", "history")


class Written:
    """Each of them is written whole, or stays as it was."""

    def __init__(self, settings: Settings, log: Log, counts: Counts) -> None:
        self._settings, self._log, self._counts = settings, log, counts
        self._state = self._opened()
        self._missing: set[str] = set()  # "state", "history": to be tried again

    def forget(self) -> None:
        """Nothing is known. What an earlier run left was true then, perhaps before the machine was off."""
        self.machine(None, changed=True)
        self.metrics(None)

    def go_by(self, settings: Settings) -> None:
        """Other settings from now on."""
        changed = {
            name for name in (*_OF_STATE, "textfile") if getattr(settings, name) != getattr(self._settings, name)
        }
        self._leave(changed)
        self._settings = settings
        if not changed.isdisjoint(_OF_STATE):
            self._state = self._opened()
        self._leave(changed)
        if not changed.isdisjoint(_OF_STATE):
            self._missing.add("state")

    def _leave(self, changed: set[str]) -> None:
        """Files in the last place would be kept right by nobody, and what is in a new one is of an earlier run."""
        if "state_dir" in changed:
            self.machine(None, changed=True)
        if "textfile" in changed:
            self.metrics(None)

    def machine(self, topology: str | None, *, changed: bool) -> None:
        """topology.json, where it is another one or could not be written; no file where nothing is known."""
        if changed or "state" in self._missing:
            self._write("state", lambda: self._state.topology(topology))
        if "history" in self._missing:
            self._write("history", lambda: self._state.changed(()))

    def changes(self, entries: Iterable[dict[str, Json]]) -> None:
        """What the history has more of now."""
        kept = [*entries]
        self._write("history", lambda: self._state.changed(kept))

    def metrics(self, families: list[Json] | None) -> None:
        """For the textfile collector of node_exporter; no file where nothing is known."""
        self._write("textfile", lambda: self._collected(families))

    def _collected(self, families: list[Json] | None) -> None:
        path = self._settings.textfile
        if path and families is not None:
            files.replace(path, exposition(families, "text/plain")[0].decode(), mode=0o644)
        elif path and os.path.exists(path):
            os.unlink(path)

    def _opened(self) -> State:
        chosen = self._settings
        group = self._group(chosen.state_group)
        return State(chosen.state_dir, mode=chosen.state_mode, group=group, changes=chosen.history)

    def _group(self, name: str) -> int | None:
        """By name or number; files of a group that is not here are of the program's own, and that is said."""
        if not name or name.isdigit():
            return int(name) if name else None
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            self._log.trouble("settings", f"state-group: there is no group {name} here")
            return None

    def _write(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self._missing.add(what)
            self._counts.files_failed += 1
            self._log.once(what, f"cannot be written: {error.strerror or error} ({error.filename or 'a file'})")
        else:
            self._missing.discard(what)
            self._log.well(what, "can be written again")
