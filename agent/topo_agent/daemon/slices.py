"""Keeps our ResourceSlice of this node: beside the slices of other drivers, and never in their way.

In mode `inventory` every device is tainted, and only functions are in it that no other driver covers, or covered
before the kubelet wiped the slices. In mode `allocatable` devices are given away, where the cluster knows that nothing
has to be prepared for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import Family, sliced
from topo_agent.daemon.keeper import Disputes, Keeper
from topo_agent.daemon.log import Log
from topo_agent.daemon.offer import DeviceData
from topo_agent.graph.covered import Covered, covered, unguarded
from topo_agent.graph.fabric import Reading
from topo_agent.graph.held import Fact, Held
from topo_agent.host import Json
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube import slices
from topo_agent.publishers.kube.client import Client, Object, Trouble, Watch
from topo_agent.publishers.kube.slices import SHARED, Dropped, Wanted
from topo_agent.views.slices import Candidate, fitted

_HOLD = 600.0  # seconds that a function counts as covered after its driver's slice went
_WIPE = 10.0  # seconds that one may take
_MEMORY = 256  # functions that are remembered at most


class Form(NamedTuple):
    """What the slice goes by."""

    node: str
    domain: str
    mode: Literal["inventory", "allocatable"]
    lists: bool  # numaNode as a list
    virtual: bool  # virtual functions, too

    @property
    def taint(self) -> str | None:
        return slices.taint(self.domain) if self.mode == "inventory" else None

    @property
    def annotation(self) -> str:
        return f"{self.domain}/covered"


class Remembered:
    """What others covered, and for how long nobody has. After a wipe nobody is missed: they may only be slow."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}  # address or UUID -> when it was covered last; infinite since a wipe
        self._wiped = float("-inf")

    def remember(self, words: Iterable[str], now: float, *, wiped: bool) -> None:
        for word in sorted(words)[:_MEMORY]:
            self._seen.setdefault(word, float("inf") if wiped else now)

    def wiped(self, now: float) -> None:
        self._wiped = now
        self._seen = dict.fromkeys(self._seen, float("inf"))

    def look(self, found: Covered, now: float) -> None:
        """One after another goes in a wipe: what is there a moment later may be about to."""
        when = now if now - self._wiped > _WIPE else float("inf")
        self._seen |= dict.fromkeys(found.addresses | found.uids, when)
        self._seen = {word: when for word, when in self._seen.items() if now - when <= _HOLD}

    def due(self) -> float:
        """When the next one is given up, if nobody covers it till then."""
        return min((when + _HOLD for when in self._seen.values()), default=float("inf"))

    @property
    def words(self) -> frozenset[str]:
        return frozenset(self._seen)

    def has(self, one: Candidate) -> bool:
        return one.address in self._seen or (one.uid is not None and one.uid in self._seen)


class _State:
    """What one session knows of the cluster."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.slices: dict[str, Object] = {}
        self.classes: dict[str, Object] = {}
        self.refused: str | None = None  # by the server, for as long as the session lasts
        self.annotated = ""


class Slices(Keeper):
    """What the loop hands over; all of it returns at once."""

    def __init__(self, form: Form, connect: Callable[[], Client], log: Log) -> None:
        super().__init__("slices", connect, log)
        self._form = form
        self._lock = threading.Lock()  # of the next three
        self._candidates: tuple[Candidate, ...] | None = None
        self._held = Held()
        self._settled = False  # readings have agreed at least once
        self._remembered = Remembered()
        self._generation = 0
        self._results = {"ok": 0, "conflict": 0, "denied": 0, "error": 0}
        self.cut: dict[str, int] = {}
        self.why_held: str | None = None

    def read(self, devices: Iterable[DeviceData], readings: Mapping[str, Reading], now: float) -> None:
        """What a scan found."""
        found = tuple(
            one for one in (Candidate(*device) for device in devices) if self._form.virtual or not one.virtual
        )
        with self._lock:
            before = (self._candidates, self._held.published, self._settled)
            self._candidates = found
            self._held.read({name: one for name, one in readings.items() if name in SHARED}, now, logs.now())
            self._settled = self._settled or not self._held.undecided
            after = (self._candidates, self._held.published, self._settled)
        if before != after:
            self.changed()

    @property
    def undecided(self) -> bool:
        with self._lock:
            return self._held.undecided

    def families(self) -> list[Family]:
        return sliced(self._results, self.cut, self.why_held)

    def session(self, client: Client) -> None:
        if slices.minor(client) < slices.SINCE:
            self._hold(f"{client.host}: slices need Kubernetes 1.{slices.SINCE}, where device taints are kept")
            raise Trouble("refused", self.why_held or "")
        node = nodes.read(client, nodes.node_carrier(self._form.node))
        state = _State(node.uid)
        mine, version = slices.listed(client.get(slices.SLICES, field=f"spec.nodeName={self._form.node}"))
        classes, classed = slices.listed(client.get(slices.CLASSES))
        state.slices = {slices.about(one, "name"): one for one in mine}
        state.classes = {slices.about(one, "name"): one for one in classes}
        state.annotated = node.annotations.get(self._form.annotation, "")
        self._begin(state)
        self._settle(client, state)
        accept = "application/json"
        of_slices = self.watch(
            client, slices.SLICES, field=f"spec.nodeName={self._form.node}", version=version, accept=accept
        )
        of_classes = self.watch(client, slices.CLASSES, field="", version=classed, accept=accept)
        self.log.well(self.subject, "the API server answers again")
        self._watch_both(client, state, of_slices, of_classes)

    def _begin(self, state: _State) -> None:
        """The memory of earlier runs: what stood in our slice, and what others covered."""
        ours = [one for one in state.slices.values() if slices.driver(one) == self._form.domain]
        self._generation = max([self._generation, *map(slices.generation, ours)])
        with self._lock:
            self._held.remember(_shared(ours))
        words = state.annotated.split(",") if state.annotated else []
        self._remembered.remember(words, time.monotonic(), wiped=not ours)

    def _watch_both(self, client: Client, state: _State, of_slices: Watch, of_classes: Watch) -> None:
        disputes, due = Disputes(), None
        while not self.stopping:
            rest = min((one for one in (due, self._remembered.due()) if one is not None), default=None)
            event = self.event(None if rest == float("inf") else rest)
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
            if (
                watch is of_slices
                and gone is not None
                and (slices.driver(gone) == self._form.domain or not state.slices)
            ):
                self._remembered.wiped(time.monotonic())
                state.uid = nodes.read(client, nodes.node_carrier(self._form.node)).uid
            if due is None and said["type"] != "BOOKMARK":
                due = time.monotonic() + disputes.patience(time.monotonic()) if self._differs(state) else None

    # What should be

    def _differs(self, state: _State) -> bool:
        want, current, stale, why = self._plan(state)
        if why is not None or want is None:
            return current is not None or bool(stale)
        return bool(stale) or current is None or not slices.same(current, want)

    def _plan(self, state: _State) -> tuple[Wanted | None, Object | None, list[Object], str | None]:
        """(what it should be, what it is, others of ours, why it is held back)."""
        form, now = self._form, time.monotonic()
        others = covered(state.slices.values(), by_others_than=form.domain)
        self._remembered.look(others, now)
        ours = slices.ours(state.slices.values(), form.domain)
        name = slices.name_of(form.node, form.domain)
        current = next((one for one in ours if slices.about(one, "name") == name), None)
        stale = [one for one in ours if one is not current]
        with self._lock:
            candidates, facts, settled = self._candidates, self._held.published, self._settled
        if candidates is None or not settled:
            return None, None, [], None  # nothing is known yet: what stands is left
        shared = {word: facts[name].raw for name, word in SHARED.items() if name in facts}
        left = [one for one in candidates if not self._remembered.has(one)]
        fit = fitted(left, shared, taint=form.taint)
        self.cut = fit.cut
        want = Wanted(form.node, state.uid, form.domain, fit.devices, form.mode == "allocatable")
        return want if fit.devices else None, current, stale, self._why_held(state)

    def _why_held(self, state: _State) -> str | None:
        open_ = unguarded(state.classes.values())
        if open_:
            some = ", ".join(open_[:3]) + (f" and {len(open_) - 3} more" if len(open_) > 3 else "")
            return slices.OPEN.format(some)
        return state.refused

    def _settle(self, client: Client, state: _State) -> None:
        want, current, stale, why = self._plan(state)
        for one in stale:
            slices.delete(client, one)
            state.slices.pop(slices.about(one, "name"), None)
        if why is not None:
            self._hold(why)
        elif self.why_held is not None:
            self.why_held = None
            self.log.well("slices held", "slices are published again")
        if why is not None or want is None:
            if current is not None:
                slices.delete(client, current)
                state.slices.pop(slices.about(current, "name"), None)
        elif current is None or not slices.same(current, want):
            self._write(client, state, want, current)
        self._annotate(client, state)

    def _write(self, client: Client, state: _State, want: Wanted, current: Object | None) -> None:
        try:
            said = slices.write(client, want, current, last=self._generation)
        except Dropped as error:
            self._results["error"] += 1
            state.refused = str(error)
            self._hold(state.refused)
            return
        except Trouble as error:
            self._results[{"conflict": "conflict", "forbidden": "denied"}.get(error.kind, "error")] += 1
            if error.kind != "refused":
                raise
            lists = "; slice-numa = list needs the feature gate DRAListTypeAttributes" if self._form.lists else ""
            state.refused = f"{error}{lists}"
            self._hold(state.refused)
            return
        self._results["ok"] += 1
        self._generation = slices.generation(said)
        state.slices[want.name] = said
        self.log.note("slices", f"{len(want.devices)} devices of node {want.node} published as {want.driver}")

    def _annotate(self, client: Client, state: _State) -> None:
        """What others cover is remembered at the Node: after a boot their slices are gone, and ours comes first."""
        text = ",".join(sorted(self._remembered.words)[:_MEMORY])
        if text == state.annotated:
            return
        annotations: dict[str, Json] = {self._form.annotation: text} if text else {}
        about: dict[str, Json] = {"name": self._form.node, "uid": state.uid, "annotations": annotations}
        said: Object = {"apiVersion": "v1", "kind": "Node", "metadata": about}
        client.apply(nodes.node_carrier(self._form.node).path, said, manager=nodes.OF_SLICES)
        state.annotated = text

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


def _shared(ours: Iterable[Object]) -> dict[str, Fact]:
    """What our own slice said for all of its devices."""
    found: dict[str, Fact] = {}
    for one in ours:
        spec = one.get("spec")
        devices = spec.get("devices") if isinstance(spec, dict) else None
        for device in devices if isinstance(devices, list) else ():
            attributes = device.get("attributes") if isinstance(device, dict) else None
            for name, word in SHARED.items():
                value = attributes.get(word) if isinstance(attributes, dict) else None
                text = value.get("string") if isinstance(value, dict) else None
                if isinstance(text, str) and text:
                    found[name] = Fact(text, "slice", logs.now())
    return found
