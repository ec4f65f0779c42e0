"""What our ResourceSlice should be: of what scans found, what other drivers cover, and what the cluster takes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from topo_agent.daemon import log as logs
from topo_agent.daemon.offer import DeviceData
from topo_agent.daemon.remembered import Remembered
from topo_agent.graph.covered import covered, unguarded
from topo_agent.graph.fabric import Reading
from topo_agent.graph.held import Fact, Held
from topo_agent.publishers.kube import slices
from topo_agent.publishers.kube.answers import Object
from topo_agent.publishers.kube.node import Carrier
from topo_agent.publishers.kube.slices import SHARED, Wanted
from topo_agent.views.slices import Candidate, fitted


class Form(NamedTuple):
    """What the slice goes by."""

    node: str
    domain: str
    mode: Literal["inventory", "allocatable"]
    virtual: bool  # virtual functions, too
    memory: Carrier  # where it is kept what others cover

    @property
    def taint(self) -> str | None:
        return slices.taint(self.domain) if self.mode == "inventory" else None

    @property
    def name(self) -> str:
        """Of the slice."""
        return slices.name_of(self.node, self.domain)


class State:
    """What one session knows of the cluster."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.slices: dict[str, Object] = {}
        self.classes: dict[str, Object] = {}
        self.refused: tuple[Wanted, str] | None = None  # what the server does not take, and why


class Found:
    """What scans found, from the loop to the thread that publishes it."""

    def __init__(self, *, virtual: bool) -> None:
        self._virtual = virtual
        self._lock = threading.Lock()
        self._candidates: tuple[Candidate, ...] | None = None
        self._held = Held()
        self._settled = False  # readings have agreed at least once

    def read(self, devices: Iterable[DeviceData], readings: Mapping[str, Reading], now: float) -> bool:
        """Is it another thing than before?"""
        found = tuple(one for one in (Candidate(*device) for device in devices) if self._virtual or not one.virtual)
        with self._lock:
            before = (self._candidates, self._held.published, self._settled)
            self._candidates = found
            self._held.read({name: one for name, one in readings.items() if name in SHARED}, now, logs.now())
            self._settled = self._settled or not self._held.undecided
            return before != (self._candidates, self._held.published, self._settled)

    def remember(self, facts: Mapping[str, Fact]) -> None:
        """What every device said in the slice of an earlier run."""
        with self._lock:
            self._held.remember(facts)

    @property
    def undecided(self) -> bool:
        with self._lock:
            return self._held.undecided

    @property
    def settled(self) -> tuple[tuple[Candidate, ...], Mapping[str, str]] | None:
        """Devices, and what all of them say; None while nothing is known yet."""
        with self._lock:
            candidates, facts, settled = self._candidates, self._held.published, self._settled
        if candidates is None or not settled:
            return None
        return candidates, {word: facts[name].raw for name, word in SHARED.items() if name in facts}

    @property
    def words(self) -> frozenset[str | None]:
        """Addresses and UUIDs of all devices."""
        with self._lock:
            candidates = self._candidates or ()
        return frozenset(word for one in candidates for word in (one.address, one.uid))


class Plan(NamedTuple):
    """What there should be, and what there is."""

    want: Wanted
    current: Object | None
    stale: list[Object]  # others of our driver
    why: str | None  # it is held back
    cut: Mapping[str, int]  # what does not fit

    @property
    def differs(self) -> bool:
        if self.why is not None or not self.want.devices:
            return self.current is not None or bool(self.stale)
        return bool(self.stale) or self.current is None or not slices.same(self.current, self.want)


def plan(form: Form, state: State, found: Found, remembered: Remembered, now: float) -> Plan | None:
    """None while nothing is known yet: what stands is left."""
    remembered.look(covered(state.slices.values(), by_others_than=form.domain), now)
    settled = found.settled
    if settled is None:
        return None
    candidates, shared = settled
    fit = fitted([one for one in candidates if not remembered.has(one)], shared, taint=form.taint)
    want = Wanted(form.node, state.uid, form.domain, fit.devices, form.mode == "allocatable")
    ours = slices.ours(state.slices.values(), form.domain)
    current = next((one for one in ours if slices.about(one, "name") == form.name), None)
    return Plan(want, current, [one for one in ours if one is not current], _why_held(state, want), fit.cut)


def _why_held(state: State, want: Wanted) -> str | None:
    open_ = unguarded(state.classes.values())
    if open_:
        some = ", ".join(open_[:3]) + (f" and {len(open_) - 3} more" if len(open_) > 3 else "")
        return slices.OPEN.format(some)
    refused = state.refused
    return refused[1] if refused is not None and refused[0] == want else None
