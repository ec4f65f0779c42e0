"""What is known of the machine, by the scans so far, and who is told: pages, files, the log, metrics, publishers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

from topo_agent.daemon import log as logs
from topo_agent.daemon.counts import Cost, Counts
from topo_agent.daemon.log import Log
from topo_agent.daemon.notify import Notify
from topo_agent.daemon.offer import Offer, Seen
from topo_agent.daemon.own import single
from topo_agent.daemon.publisher import Publisher, Slices
from topo_agent.daemon.written import Written
from topo_agent.graph.fabric import Reading
from topo_agent.host import Json
from topo_agent.settings import Settings
from topo_agent.views.changes import changes


class Known:
    """What was good stays, marked as stale, for `stale-after` once scans fail; then nothing is known any more.

    Times are of the monotonic clock.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        log: Log,
        offer: Offer,
        counts: Counts,
        labels: Publisher | None,
        slices: Slices | None,
        findings: Callable[[str], None],
        notify: Notify,
    ) -> None:
        self._settings, self._log, self._offer, self._counts = settings, log, offer, counts
        self._labels, self._slices, self._findings, self._notify = labels, slices, findings, notify
        self._good = time.monotonic()  # when a scan succeeded last
        self._failing: float | None = None  # since when none does
        self._told: Seen | None = None  # the last whole answer, also of a machine that is unknown by now
        self._written = Written(settings, log, counts)

    def go_by(self, settings: Settings) -> None:
        """Other settings from now on."""
        self._settings = settings
        self._written.go_by(settings)

    @property
    def question(self) -> dict[str, Json]:
        """What is needed of a scan besides the machine."""
        publishers = [one for one in (self._labels, self._slices) if one is not None]
        names = [*dict.fromkeys(name for one in publishers for name in one.named.names)]
        return {
            "names": [*names],
            "unnamed": len(names) < 2 and any(one.named.unnamed for one in publishers),
            "labels": bool(publishers),
            "slices": self._settings.slice_numa if self._slices or self._settings.dranet_socket else "",
            "first": self._offer.seen is None,
        }

    @property
    def undecided(self) -> bool:
        """Would another scan soon decide something?"""
        return any(one is not None and one.undecided for one in (self._labels, self._slices))

    def begin(self) -> None:
        """Nothing is known yet, whatever an earlier run has left."""
        self._written.forget()

    def took(self, seen: Seen, now: float) -> None:
        """A scan brought this."""
        before = self._offer.seen
        if seen.whole:
            self._good = now
            self._counts.scanned(Cost(**seen.cost), time.time())
            self._publish(seen, now)
        self._offer.seen, self._offer.stale_since, self._failing = seen, None, None
        self._heard(seen, now)
        self._notify.say("READY=1", f"STATUS={_status(seen)}")
        self._collect(seen)
        # What a driver adds to the first look is in the file, and no change of the machine.
        changed = before is None or not before.whole or not seen.same_structure(before)
        changed = changed or bool(seen.stale) != bool(before and before.stale)
        self._written.machine(seen.topology, changed=changed)
        if before is None:
            self._log.note("topology", _status(seen), digest=seen.digest)
        if seen.whole:
            if self._told is not None and not seen.same_structure(self._told):
                self._tell(self._told, seen)
            self._told = seen
            # Last: who sees these sees what the scan brought.
            self._counts.scans["ok"] += 1
            self._log.well("scan", "scans succeed again")

    def _collect(self, seen: Seen) -> None:
        """The file for a textfile collector."""
        self._written.metrics([*seen.families, single("topo_agent_stale", int(self._counts.stale))])

    def _heard(self, seen: Seen, now: float) -> None:
        """A driver that is silent: as long as its last answers stand they are stale, and that is said."""
        self._counts.stale = bool(seen.stale)
        if seen.stale:
            self._offer.stale_since, self._offer.why = now - seen.stale, f"the NVIDIA driver is silent: {seen.silent}"
        if not seen.whole:
            return
        if not seen.silent:
            there = seen.cost.get("up", {}).get("nvml")
            self._log.well("driver", "it answers again" if there else "there is none any more")
        elif seen.stale:
            self._log.once("driver", "silent: its last answers stand", because=seen.silent)
        else:
            self._log.once("driver", "silent: what it would say is unknown", because=seen.silent)

    def _publish(self, seen: Seen, now: float) -> None:
        readings = {name: Reading(*reading) for name, reading in seen.labels.items()}
        if self._labels is not None:
            self._labels.read(readings, now)
        if self._slices is not None:
            self._slices.read(seen.devices, readings, now)
        self._findings(seen.findings)

    def _tell(self, before: Seen, seen: Seen) -> None:
        found = changes(json.loads(before.topology), json.loads(seen.topology))
        entries: list[dict[str, Json]] = []
        for change in found:
            self._counts.changes[change.kind] += 1
            entries.append({"time": logs.now(), "kind": change.kind, "what": change.sentence})
        if found:
            self._counts.generation += 1
            self._counts.last_change = time.time()
            self._written.changes(entries)
        for change in found:
            self._log.note("topology", change.sentence, kind=change.kind, digest=seen.digest)

    def failed(self, why: str, how: str, now: float) -> None:
        """A scan brought nothing: `how` is error or given_up."""
        self._counts.stale = self._offer.seen is not None
        self._offer.why = why
        if self._failing is None:
            self._failing = now
            silent = self._offer.stale_since  # a driver, before this
            self._offer.stale_since = self._good if silent is None else min(silent, self._good)
            if self._offer.seen is not None:
                self._collect(self._offer.seen)
        if self._labels is not None:
            self._labels.failed(why, now)
        self._counts.failed(how)
        self._log.once("scan", why)

    def stale_at(self) -> float:
        """When the last good facts are too old to be kept."""
        if self._failing is None or self._offer.seen is None:
            return math.inf
        return self._failing + self._settings.stale_after

    def forget(self) -> None:
        """Nothing is known any more: an old fact is no fact."""
        self._log.trouble("stale", f"unknown since {self._settings.stale_after:g} s: {self._offer.why}")
        self._written.forget()
        self._counts.stale = False
        self._offer.seen = None


def _status(seen: Seen) -> str:
    """One line that tells the story."""
    problems = f"; {seen.problems} {'finding' if seen.problems == 1 else 'findings'}" if seen.problems else ""
    return seen.status + problems
