"""Tells the cluster of findings, sparingly: an Event for each error that is new, and a condition of the Node."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import NamedTuple

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import tried
from topo_agent.daemon.keeper import Keeper
from topo_agent.daemon.log import Log
from topo_agent.daemon.own import Family
from topo_agent.host import Json
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import MANAGER, Client

CONDITION = "TopologyDegraded"

_EVENTS = "/api/v1/namespaces/default/events"  # where Events of Nodes are: a Node has no namespace
_MESSAGE = 1024  # signs: validation of events allows no more
_AT_ONCE = 16  # Events of one look at most: a machine in pieces needs no more of them


class Told(NamedTuple):
    """What of the settings is of this."""

    node: str
    events: bool
    condition: bool


class Finding(NamedTuple):
    code: str
    subjects: tuple[str, ...]
    sentence: str

    @property
    def mark(self) -> str:
        return hashlib.sha256("\0".join((self.code, *self.subjects)).encode()).hexdigest()[:16]


class Events(Keeper):
    """What the loop hands over; it returns at once."""

    def __init__(self, told: Told, connect: Callable[[], Client], log: Log) -> None:
        super().__init__("events", connect, log)
        self._told = told
        self._lock = threading.Lock()
        self._errors: tuple[Finding, ...] | None = None
        self._known: set[str] = set()  # marks of those that an Event told, for as long as they stand
        self._condition: tuple[str, str] | None = None
        self._results = {"ok": 0, "error": 0}

    def read(self, findings: str) -> None:
        """The findings of a scan, as JSON."""
        errors = tuple(
            Finding(one["code"], tuple(one["subjects"]), one["evidence"])
            for one in json.loads(findings)
            if one["severity"] == "error"
        )
        with self._lock:
            before, self._errors = self._errors, errors
        if before != errors:
            self.changed()

    def families(self) -> list[Family]:
        return tried("events", self._results)

    def session(self, client: Client) -> None:
        """Until there is trouble: nothing is watched."""
        uid = nodes.read(client, nodes.node_carrier(self._told.node)).uid
        while not self.stopping:
            with self._lock:
                errors = self._errors
            if errors is not None:
                try:
                    self._tell(client, uid, errors)
                except Trouble:
                    self._results["error"] += 1
                    raise
                self.log.well(self.subject, "the API server answers again")
            if self.event(None) == "stop":
                return

    def _tell(self, client: Client, uid: str, errors: tuple[Finding, ...]) -> None:
        self._known &= {one.mark for one in errors}
        if self._told.events:
            for one in [one for one in errors if one.mark not in self._known][:_AT_ONCE]:
                self._create(client, uid, one)
                self._known.add(one.mark)
        if self._told.condition:
            self._say(client, errors)

    def _create(self, client: Client, uid: str, one: Finding) -> None:
        """Its name is made of what it tells: an agent that was started anew does not tell it twice."""
        now = logs.now()
        regarding: dict[str, Json] = {"kind": "Node", "apiVersion": "v1", "name": self._told.node, "uid": uid}
        said: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._told.node}.{one.mark}", "namespace": "default"},
            "involvedObject": regarding,
            "reason": _reason(one.code),
            "message": f"{' '.join(one.subjects)}: {one.sentence}"[:_MESSAGE],
            "type": "Warning",
            "source": {"component": MANAGER, "host": self._told.node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            client.create(_EVENTS, said)
        except Trouble as error:
            if error.kind != "conflict":
                raise
        else:
            self._results["ok"] += 1

    def _say(self, client: Client, errors: tuple[Finding, ...]) -> None:
        codes = sorted({one.code for one in errors})
        status = "True" if errors else "False"
        message = f"topo-agent check: {', '.join(codes)}" if codes else "no finding of severity error"
        if self._condition == (status, message):
            return
        condition: dict[str, Json] = {
            "type": CONDITION,
            "status": status,
            "reason": _reason(codes[0]) if codes else "NoError",
            "message": message[:_MESSAGE],
            "lastTransitionTime": logs.now(),
            "lastHeartbeatTime": logs.now(),
        }
        said: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._told.node},
            "status": {"conditions": [condition]},
        }
        client.apply(f"{nodes.node_carrier(self._told.node).path}/status", said)
        self._condition = (status, message)
        self._results["ok"] += 1


def _reason(code: str) -> str:
    """`"gpu_not_on_bus"` -> `"GpuNotOnBus"`."""
    return "".join(word.capitalize() for word in code.split("_"))
