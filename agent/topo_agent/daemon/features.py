"""Labels by way of nfd-worker: a file of features that it reads every minute. Its own lines are the memory."""

from __future__ import annotations

import os
from collections.abc import Mapping

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import published
from topo_agent.daemon.log import Log
from topo_agent.daemon.named import Named
from topo_agent.daemon.own import Family
from topo_agent.graph.fabric import Reading
from topo_agent.graph.held import Fact, Held
from topo_agent.host import files as texts
from topo_agent.publishers import files

_MOST = 64 << 10  # bytes: nfd-worker passes over longer ones


class Features:
    """What the loop asks of whoever publishes labels (`daemon.kube.Labels`), without a cluster and without a thread."""

    def __init__(self, path: str, name: str, keys: Mapping[str, str], log: Log) -> None:
        self._path, self._keys, self._log = path, keys, log
        # Without the systemUUID: no API server is asked for it, and the kernel tells it to root alone.
        self.named = Named(name, "")
        self._held = Held()
        self._results = {"ok": 0, "error": 0}
        self._written = self._found()
        said = self._there
        mine = {name: said[key] for key, name in keys.items() if said.get(key)}
        self._held.remember({name: Fact(value, "file", logs.now()) for name, value in mine.items()})

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """The file stays: what it says is true until somebody knows better."""

    @property
    def undecided(self) -> bool:
        return self._held.undecided

    def read(self, readings: Mapping[str, Reading], now: float) -> None:
        self._held.read(readings, now, logs.now())
        facts = self._held.published
        said = {key: facts[name].label for key, name in self._keys.items() if name in facts}
        text = "".join(f"{key}={value}\n" for key, value in sorted(said.items()))
        if text == self._written:
            return
        try:
            files.replace(self._path, text, mode=0o644)
        except OSError as error:
            self._log.once("labels", f"{self._path}: cannot be written: {error.strerror}")
            self._results["error"] += 1
        else:
            self._written = text
            self._results["ok"] += 1
            self._log.well("labels", f"{self._path}: can be written again")

    def failed(self, why: str, now: float) -> None:
        self._held.failed(why, now)

    def families(self) -> list[Family]:
        return published("nfd_file", self._results, self._held.standing(self._keys), self._there)

    @property
    def _there(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._written.splitlines() if "=" in line)

    def _found(self) -> str:
        if not os.path.exists(self._path):
            return ""
        try:
            return texts.text(self._path, "features", _MOST)
        except texts.Unreadable as error:
            self._log.once("labels", str(error))
            return ""
