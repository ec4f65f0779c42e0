"""The process that scans for the loop: `python -m topo_agent.daemon.scanner`.

A line of JSON on stdin is a question, lines of JSON on stdout are its answers. Between two it keeps the last, so that
the same facts are not judged and written twice: another one in its place gives the same answers, but for those of a
driver that has fallen silent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import resource
import sys
import time
from collections import Counter
from typing import NamedTuple

from topo_agent.daemon import forms
from topo_agent.daemon.drivers import Lasting, NotYet
from topo_agent.diagnostics import Diagnostic, Level
from topo_agent.facts import Inventory
from topo_agent.graph.applied import Unresolved
from topo_agent.graph.fabric import Place
from topo_agent.graph.overlay import EMPTY, Overlay
from topo_agent.host import BadSource, Host, Json
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host
from topo_agent.scan import Account, scan

_LAST = Diagnostic("nvml", "nvml_stale", Level.NOTE, "the NVIDIA driver is silent: these are its last answers")


class Question(NamedTuple):
    """What the loop wants to know."""

    source: str | None = None  # None: this machine
    overlay: str | None = None
    timeout: float = 60.0  # seconds for a driver
    pairs: bool = False  # metrics of every pair of GPU and NIC, too
    again: tuple[str, ...] = ()  # "link_width:pci:0000:41:00.0": earlier readings found that link low, too
    mapping: str | None = None  # a file that says where nodes stand
    names: tuple[str, ...] = ()  # of this node, in that file
    unnamed: bool = False  # its systemUUID is still to be learned
    labels: bool = False  # what the node's labels should say
    slices: str = ""  # the devices of its ResourceSlice, too: how they say their NUMA node, "scalar" or "list"
    stale_after: float = 600.0  # seconds for which a driver's last answers stand
    first: bool = False  # nothing is known yet: what sysfs tells is worth hearing before a driver answers

    @classmethod
    def read(cls, line: str) -> Question:
        """ValueError, TypeError where it is none."""
        return cls(**json.loads(line))


class _Kept(NamedTuple):
    """What was asked and found, every field, what was answered, and how much the graph noted."""

    found: tuple[object, ...]
    answer: dict[str, Json]
    noted: Counter[tuple[str, Level]]


def main() -> None:
    kept: _Kept | None = None
    lasting = Lasting()
    modules = 0
    for line in sys.stdin:
        question = Question.read(line)
        try:
            if question.first and question.source is None:
                with contextlib.suppress(Unresolved):  # of what only a driver tells
                    _say(_answer(question, None).answer)
            kept = _answer(question, lasting, kept=kept)
            _say(kept.answer)
        except (BadSource, Unresolved, _BadOverlay) as error:
            _say({"error": str(error)})
        modules = _tidied(modules)


def _tidied(modules: int) -> int:
    """Nothing of a scan is left but what is kept. How many modules there are; `modules` are those of the last time.

    Messages of pyroute2 refer to each other in circles, a thousand objects a scan. Left to itself Python looks for such
    once they are a quarter of all that there is: after dozens of changes, and in memory that stays with the process.
    What modules brought stays anyway, so it is not looked through each time. Nothing else may be excepted: of what is
    in use now, a circle that is dropped later would never be found.
    """
    gc.collect()
    if len(sys.modules) != modules:
        gc.freeze()
    return len(sys.modules)


def _say(answer: dict[str, Json]) -> None:
    sys.stdout.write(json.dumps(answer, ensure_ascii=True, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _answer(question: Question, lasting: Lasting | None, *, kept: _Kept | None = None) -> _Kept:
    """Every form in which the agent offers the machine; `whole` once the drivers have been asked, with `lasting`."""
    started, spent = time.perf_counter(), _processor_seconds()
    patience = lasting.patience(question.timeout) if lasting else question.timeout
    host = open_host(question.source, timeout=patience)
    account = Account()
    inventory, heard = _scanned(host, account, lasting, question.stale_after)
    overlay = _overlay(question.overlay)
    # Not `==` of inventories: that is blind to what moves by itself.
    facts = (getattr(inventory, field.name) for field in dataclasses.fields(inventory))
    place = _place(question) if question.labels else None
    found = (overlay, question.pairs, question.again, question.slices, lasting is None, place, *facts)
    if kept is not None and kept.found == found:
        said, noted = kept.answer, kept.noted
    else:
        seen = forms.built(inventory, overlay)
        said = forms.forms(*seen, pairs=question.pairs, again=question.again, slices=question.slices)
        said["whole"] = lasting is not None
        # Labels of a silent driver are held: its last answers, read once more, are no second reading.
        labels = forms.labels(*seen, place) if place else {}
        if place and heard is not inventory:
            try:
                labels = forms.labels(*forms.built(heard, overlay), place)
            except Unresolved as error:  # what the overlay speaks of, only that driver tells
                labels = forms.doubted(labels, str(error))
        said["labels"] = labels
        noted = Counter(("graph", one.level) for one in {*seen[0].diagnostics}.difference(inventory.diagnostics))
    cost: dict[str, Json] = {
        "cpu_seconds": _processor_seconds() - spent,
        "files": host.files_read if isinstance(host, LiveHost) else None,
        "seconds": _phases(account, time.perf_counter() - started),
        "up": {**account.up},
        "notes": [[source, level.value, count] for (source, level), count in (account.notes + noted).items()],
    }
    age, silent = (lasting.age, lasting.silent) if lasting else (0.0, "")
    return _Kept(found, {**said, "cost": cost, "stale": age, "silent": silent}, noted)


def _scanned(host: Host, account: Account, lasting: Lasting | None, seconds: float) -> tuple[Inventory, Inventory]:
    """What is known, and what was heard just now: the same, unless a driver is silent and its last answers stand."""
    inventory = scan(lasting.around(host, seconds) if lasting else NotYet(host), readiness=True, account=account)
    if lasting is None or not lasting.age:
        return inventory, inventory
    account.up["nvml"] = False
    known = dataclasses.replace(inventory, diagnostics=tuple(sorted([*inventory.diagnostics, _LAST])))
    return known, scan(NotYet(host), readiness=True)


def _phases(account: Account, seconds: float) -> dict[str, Json]:
    """All of them together are the whole."""
    return {**account.seconds, "views": seconds - sum(account.seconds.values())}


def _place(question: Question) -> Place:
    from topo_agent.readers.mapping import place

    return place(question.mapping, question.names, unnamed=question.unnamed)


class _BadOverlay(Exception):
    """One line."""


def _overlay(path: str | None) -> Overlay:
    if path is None:
        return EMPTY
    from topo_agent.host import files
    from topo_agent.readers.overlay import BadOverlay, parse  # and PyYAML: 3 MB, where there is an overlay

    try:
        return parse(files.text(path, "an overlay (YAML)"), path)
    except (files.Unreadable, BadOverlay) as error:
        raise _BadOverlay(str(error)) from None


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    # Its own output is the answer: what a library prints must not get between.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    sys.stdout = answers
    try:
        main()
    except BrokenPipeError:  # whoever asked has been killed meanwhile
        os._exit(0)
