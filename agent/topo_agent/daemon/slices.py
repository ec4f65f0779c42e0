"""Keeps our ResourceSlice of this node: beside the slices of other drivers, and never in their way.

In mode `inventory` every device is tainted, and only functions are in it that no other driver covers, or covered
before the kubelet wiped the slices. In mode `allocatable` devices are given away, where the cluster knows that nothing
has to be prepared for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import sliced
from topo_agent.daemon.covering import Covering
from topo_agent.daemon.keeper import Disputes, Keeper
from topo_agent.daemon.log import Log
from topo_agent.daemon.named import Named
from topo_agent.daemon.offer import DeviceData
from topo_agent.daemon.own import Family
from topo_agent.daemon.planned import Form, Found, Plan, State, plan
from topo_agent.daemon.remembered import Remembered
from topo_agent.graph.fabric import Reading
from topo_agent.graph.held import Fact
from topo_agent.host import Json
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube import slices
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import Client
from topo_agent.publishers.kube.slices import Wanted
from topo_agent.publishers.kube.watching import Watch

_SOON = 0.2  # seconds after which what others changed in theirs is looked at: one change seldom comes alone


class Slices(Keeper):
    """What the loop hands over; all of it returns at once."""

    def __init__(self, form: Form, connect: Callable[[], Client], log: Log) -> None:
        super().__init__("slices", connect, log)
        self._form = form
        self._found = Found(virtual=form.virtual)
        self._remembered = Remembered()
        self._covering = Covering(form.memory, form.domain, log)
        self._generation = 0
        self._stands: bool | None = None  # our slice, as far as we know: when it is gone, somebody took it
        self._recalled = False  # what earlier runs kept of others is in _remembered
        self._results = {"ok": 0, "conflict": 0, "denied": 0, "error": 0}
        self.cut: dict[str, int] = {}
        self.why_held: str | None = None
        self.named = Named(form.node)

    def read(self, devices: Iterable[DeviceData], readings: Mapping[str, Reading], now: float) -> None:
        """What a scan found."""
        if self._found.read(devices, readings, now):
            self.changed()

    def carrier_made(self) -> None:
        """The object that has the labels is a new one: what is kept at it has to be kept again."""
        self._covering.made_anew()
        self.changed()

    @property
    def undecided(self) -> bool:
        return self._found.undecided

    def families(self) -> list[Family]:
        return sliced(self._results, self.cut, self.why_held)

    def findings(self) -> list[Json]:
        """What is wrong with it, as `check` says it of a machine."""
        why = self.why_held
        if why is None:
            return []
        advice = "Give the DeviceClass a selector for its driver, or set slice-mode to off (docs/kubernetes.md)."
        return [
            {
                "code": "slice_held",
                "severity": "warning",
                "subjects": [f"node:{self._form.node}"],
                "evidence": f"the ResourceSlice is held back: {why}",
                "advice": advice,
            }
        ]

    def session(self, client: Client) -> None:
        node = nodes.read(client, nodes.node_carrier(self._form.node), whole=self.named.unnamed)
        self.named.learn(node.system_uuid or "")
        if slices.minor(client) < slices.SINCE:
            self.why_held = slices.TOO_OLD.format(client.host)
            raise Trouble("refused", f"held back: {self.why_held}")
        state = State(node.uid)
        mine, version = slices.listed(client.get(slices.SLICES, field=f"spec.nodeName={self._form.node}"))
        classes, classed = slices.listed(client.get(slices.CLASSES))
        state.slices = {slices.about(one, "name"): one for one in mine}
        state.classes = {slices.about(one, "name"): one for one in classes}
        self._begin(state, self._covering.read(client, node))
        self._settle(client, state)
        accept = "application/json"
        of_slices = self.watch(
            client, slices.SLICES, field=f"spec.nodeName={self._form.node}", version=version, accept=accept
        )
        of_classes = self.watch(client, slices.CLASSES, field="", version=classed, accept=accept)
        self.log.well(self.subject, "the API server answers again")
        self._watch_both(client, state, of_slices, of_classes)

    def _begin(self, state: State, words: frozenset[str] | None) -> None:
        """The memory of earlier runs: what stood in our slice, and what others covered."""
        ours = [one for one in state.slices.values() if slices.driver(one) == self._form.domain]
        self._generation = max([self._generation, *map(slices.generation, ours)])
        self._found.remember({name: Fact(text, "slice", logs.now()) for name, text in slices.shared(ours).items()})
        if self._stands and not ours:
            self._remembered.wiped(time.monotonic())
        self._recall(words, wiped=not ours)
        self._stands = bool(ours)

    def _recall(self, words: frozenset[str] | None, *, wiped: bool) -> None:
        """Once, as soon as it can be read: from then on it is this run that keeps it."""
        if words is not None and not self._recalled:
            self._remembered.remember(words, time.monotonic(), wiped=wiped)
            self._recalled = True

    def _watch_both(self, client: Client, state: State, of_slices: Watch, of_classes: Watch) -> None:
        disputes, due = Disputes(), None
        while not self.stopping:
            rest = min(math.inf if due is None else due, self._remembered.due())
            event = self.event(None if rest == math.inf else rest)
            if event == "stop":
                return
            if event is None or event == "changed":
                due = None
                self._settle(client, state)
                continue
            watch, said = event
            if watch not in (of_slices, of_classes):
                continue
            if said is None:
                return  # the server ended it: everything is read again
            if isinstance(said, Trouble):
                raise said
            gone = _taken(state.slices if watch is of_slices else state.classes, said)
            if watch is of_slices and gone is not None and self._wiped(state, gone):
                self._remembered.wiped(time.monotonic())
                node = nodes.read(client, nodes.node_carrier(self._form.node))  # it may be another Node by now
                state.uid = node.uid
                self._covering.read(client, node)
            due = self._due(state, said, due, disputes)

    def _due(self, state: State, event: Object, due: float | None, disputes: Disputes) -> float | None:
        """When it is to be put right. Only over our own slice is there somebody to be patient with."""
        found = None if event["type"] == "BOOKMARK" else self._plan(state)
        if found is None or not found.differs:
            return due
        now = time.monotonic()
        if not self._is_ours(event["object"]):
            return min(due or math.inf, now + _SOON)
        return now + disputes.patience(now) if due is None else due

    def _wiped(self, state: State, gone: Object) -> bool:
        """Is it more than one driver that went? Ours is never taken away by a driver that goes."""
        return bool(self._stands) if self._is_ours(gone) else not state.slices

    def _is_ours(self, one: Json) -> bool:
        """Our slice itself; there is no other of our driver, or not for long."""
        return isinstance(one, dict) and slices.about(one, "name") == self._form.name

    # What should be

    def _plan(self, state: State) -> Plan | None:
        found = plan(self._form, state, self._found, self._remembered, time.monotonic())
        if found is not None:
            self._tell_cut(found.cut)
        return found

    def _tell_cut(self, cut: Mapping[str, int]) -> None:
        """A slice that does not hold everything is told once, and in a metric."""
        self.cut = {**cut}
        lost = ", ".join(f"{count} {what}" for what, count in cut.items() if count)
        if lost:
            self.log.once("slices cut", f"{lost} do not fit into one ResourceSlice")
        else:
            self.log.well("slices cut", "everything fits again")

    def _settle(self, client: Client, state: State) -> None:
        planned = self._plan(state)
        if planned is None:
            return
        for one in planned.stale:
            slices.delete(client, one)
            state.slices.pop(slices.about(one, "name"), None)
        if planned.why is not None:
            self._hold(planned.why)
        elif self.why_held is not None:
            self.why_held = None
            self.log.well("slices held", "slices are held back no more")
        if planned.why is not None or not planned.want.devices:
            self._withdraw(client, state, planned.current)
        elif planned.current is None or not slices.same(planned.current, planned.want):
            self._write(client, state, planned.want, planned.current)
        else:
            self._stands = True
        self._keep_covered(client)

    def _withdraw(self, client: Client, state: State, current: Object | None) -> None:
        self._stands = False  # before it goes: that it is gone is no news then
        if current is not None:
            slices.delete(client, current)
            state.slices.pop(slices.about(current, "name"), None)
            self.log.note("slices", f"withdrawn from node {self._form.node}")

    def _write(self, client: Client, state: State, want: Wanted, current: Object | None) -> None:
        try:
            said = slices.write(client, want, current, last=self._generation)
        except Trouble as error:
            self._results[{"conflict": "conflict", "forbidden": "denied"}.get(error.kind, "error")] += 1
            if error.kind != "refused":
                raise
            state.refused = want, str(error)
            self._hold(str(error))
            self._withdraw(client, state, current)  # what it said is true no more
            return
        self._results["ok"] += 1
        self._stands = True
        self._generation = slices.generation(said)
        state.slices[want.name] = said
        self.log.note("slices", f"{len(want.devices)} devices of node {want.node} published as {want.driver}")

    def _keep_covered(self, client: Client) -> None:
        self._recall(self._covering.again(client), wiped=False)
        self._covering.keep(client, self._remembered.words, self._found.words)

    def _hold(self, why: str) -> None:
        self.why_held = why
        self.log.once("slices held", f"held back: {why}")


def _taken(known: dict[str, Object], event: Object) -> Object | None:
    """Take an event into what is known; the object that is gone by it."""
    one = event["object"]
    if event["type"] == "BOOKMARK" or not isinstance(one, dict):
        return None
    name = slices.about(one, "name")
    if event["type"] == "DELETED":
        known.pop(name, None)
        return one
    known[name] = one
    return None
