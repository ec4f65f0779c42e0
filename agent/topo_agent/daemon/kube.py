"""The thread that keeps this node's labels as they should be, at the API server. The loop never waits for it.

It reads the Node once, writes when something differs, and then only watches: the Node of this machine and no other.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import published
from topo_agent.daemon.keeper import LASTING, Disputes, Keeper
from topo_agent.daemon.log import Log
from topo_agent.daemon.named import Named
from topo_agent.daemon.own import Family
from topo_agent.daemon.settled import Settled, remembered, wanted
from topo_agent.graph.fabric import Reading
from topo_agent.graph.held import Held
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import Client
from topo_agent.publishers.kube.node import Node, Wanted
from topo_agent.publishers.kube.watching import Watch

_ASK = 300.0  # seconds after which a Node is asked again that did not say its systemUUID

HOLD = 600.0
"""Seconds that a published value may be in doubt before that is told."""


class Labels(Keeper):
    """What the loop hands over and asks for; all of it returns at once."""

    def __init__(self, settled: Settled, connect: Callable[[], Client], log: Log) -> None:
        super().__init__("labels", connect, log)
        self._settled = settled
        self._held = Held()
        self._lock = threading.Lock()  # of _held, and of what follows
        self._remembered = False  # what earlier runs published is in _held
        self._began = False  # there is a reading: what is held is more than a memory
        self.named = Named(settled.name)
        self._ask = math.inf  # when its Node is asked again for the systemUUID
        self.made: Callable[[], None] = lambda: None
        """Hears that the object that has the labels was made, by this thread."""
        self._results = {"ok": 0, "conflict": 0, "denied": 0, "error": 0}
        self.disputed: frozenset[str] = frozenset()
        self._there: Mapping[str, str] = {}  # labels that the server has, as far as we know

    def read(self, readings: Mapping[str, Reading], now: float) -> None:
        """What a scan found."""
        with self._lock:
            before = self._held.published
            self._held.read(readings, now, logs.now())
            after, first, self._began = self._held.published, not self._began, True
            doubted = [*self._held.doubted(now, HOLD)]
        for name, why in doubted:
            self.log.once(f"label {name}", f"kept, and not confirmed for {HOLD / 60:g} minutes: {why}")
        for name in after.keys() - dict(doubted).keys():
            self.log.well(f"label {name}", "confirmed again")
        if first or before != after:
            self.changed()

    def failed(self, why: str, now: float) -> None:
        """A scan that brought nothing; the log has its line of that."""
        with self._lock:
            self._held.failed(why, now)

    @property
    def undecided(self) -> bool:
        """Would another scan soon decide something?"""
        with self._lock:
            return self._held.undecided

    def families(self) -> list[Family]:
        with self._lock:
            standing = self._held.standing(self._settled.keys)
        sink = "node_labels" if self._settled.carrier.kind == "Node" else "node_feature"
        return published(sink, self._results, standing, self._there, self.disputed & self._there.keys())

    # The thread

    def session(self, client: Client) -> None:
        """From one reading of the Node on, until it has to be read again."""
        node = self._read(client)
        self._learn_uuid(client, node)
        self._remember(node)
        node = self._settle(client, node)
        disputes = Disputes()
        while not self.stopping:
            began, watch = time.monotonic(), self._watch(client, node)
            self.log.well(self.subject, "the API server answers again")
            node = self._until_it_ends(client, node, watch, disputes)
            if time.monotonic() - began < LASTING and not self.stopping:
                raise Trouble("unreachable", f"{client.host}: watches end as soon as they have begun")

    def _read(self, client: Client) -> Node:
        try:
            node = nodes.read(client, self._settled.carrier, whole=self.named.unnamed)
        except Trouble as error:
            if error.kind == "not_found":
                self._there = {}
            raise
        self._there = node.labels
        return node

    def _learn_uuid(self, client: Client, node: Node) -> None:
        """Asked until it is known: before, a mapping with such names says nothing for certain."""
        if not self.named.unnamed:
            return
        self._ask = time.monotonic() + _ASK
        uuid = nodes.system_uuid(client, node, self._settled.name)
        if uuid is None:
            self.log.once("labels uuid", f"Node {self._settled.name} cannot be asked for its systemUUID")
        else:
            self.log.well("labels uuid", f"Node {self._settled.name} says its systemUUID")
            self.named.learn(uuid)

    def _watch(self, client: Client, node: Node) -> Watch:
        carrier = node.carrier
        field = f"metadata.name={carrier.name}"
        return self.watch(client, carrier.collection, field=field, version=node.version, accept=carrier.accept)

    def _until_it_ends(self, client: Client, node: Node, watch: Watch, disputes: Disputes) -> Node:
        """Settle what changes. The Node as it was last, where the watch only ended; Trouble where it broke off."""
        due: float | None = None
        while not self.stopping:
            event = self.event(min(due or math.inf, self._ask) if self.named.unnamed else due)
            if event == "stop":
                break
            if time.monotonic() >= self._ask:  # whatever came: bookmarks do every minute
                self._learn_uuid(client, node)
            if event is None or event == "changed":
                node, due = self._settle(client, node), None
                continue
            heard, said = event
            if heard is not watch:
                continue  # an earlier one
            if said is None:
                break
            if isinstance(said, Trouble):
                raise said
            node = self._seen(node, said)
            self._tell(node, self._wanted())
            if due is None and not nodes.satisfied(node, self._wanted()):
                due = time.monotonic() + disputes.patience(time.monotonic())
        return node

    def _seen(self, node: Node, event: Object) -> Node:
        """The Node after an event. One that was deleted is waited for: an object of that name may come again."""
        said = nodes.of(event["object"], node.carrier)  # type: ignore[arg-type] # Watch has looked
        if event["type"] == "BOOKMARK":
            return node._replace(version=said.version)
        if event["type"] == "DELETED" or said.uid != node.uid:
            self._there = {}
            raise Trouble("gone", f"{node.carrier.kind} {node.carrier.name} was deleted or made anew")
        self._there = said.labels
        return said._replace(system_uuid=node.system_uuid)

    def _remember(self, node: Node) -> None:
        """Once: what is taken back meanwhile, and cannot be written, must not come back from there."""
        if not self._remembered:
            with self._lock:
                self._held.remember(remembered(self._settled, node, logs.now()))
            self._remembered = True

    def _wanted(self) -> Wanted:
        with self._lock:
            facts = self._held.published
        return wanted(self._settled, facts)

    def _settle(self, client: Client, node: Node) -> Node:
        """Written where something differs. Before the first scan there is only the memory, and that stands already."""
        with self._lock:
            if not self._began:
                return node
        want = self._wanted()
        self._tell(node, want)
        if nodes.satisfied(node, want):
            return node
        try:
            fresh = nodes.apply(client, node, want)
        except Trouble as error:
            self._results[{"conflict": "conflict", "forbidden": "denied"}.get(error.kind, "error")] += 1
            raise
        self._there = fresh.labels
        self._results["ok"] += 1
        if not node.uid:
            self.made()
        self.log.note("labels", f"{len(want.labels)} labels of {node.carrier.kind} {node.carrier.name} published")
        return fresh._replace(system_uuid=node.system_uuid)

    def _tell(self, node: Node, want: Wanted) -> None:
        """What others say otherwise is told once, and left."""
        found = {key for key, text in want.labels.items() if node.others(key) and node.labels[key] != text}
        for key in sorted(found):
            who = ", ".join(sorted(node.others(key)))
            self.log.once(f"label {key}", f"{who} says {node.labels[key]}, and we would say {want.labels[key]}: left")
        for key in sorted(self.disputed - found):
            self.log.well(f"label {key}", "nobody says otherwise any more")
        self.disputed = frozenset(found)
