"""The process that scans for the loop: `python -m topo_agent.daemon.scanner`.

A line of JSON on stdin is a question, lines of JSON on stdout are its answers. Between two it keeps the last, so that
the same facts are not judged and written twice: another one in its place gives the same answers.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import sys
import time
from typing import Literal, NamedTuple

from topo_agent.facts import Inventory
from topo_agent.graph import checks, pairing
from topo_agent.graph.applied import Resolved, Unresolved, resolve
from topo_agent.graph.build import build
from topo_agent.graph.fabric import Place
from topo_agent.graph.overlay import EMPTY, Overlay
from topo_agent.graph.topology import Topology
from topo_agent.host import BadSource, Host, Json, Unavailable
from topo_agent.host.opening import open_host
from topo_agent.scan import scan
from topo_agent.views import findings, matrix, metrics, summary, tree
from topo_agent.views.document import as_json, document

_WIDTH = 100  # columns
_LINKS = ("link_width", "link_speed")


class Question(NamedTuple):
    """What the loop wants to know."""

    source: str | None = None  # None: this machine
    overlay: str | None = None
    timeout: float = 60.0  # seconds for a driver
    pairs: bool = False  # metrics of every pair of GPU and NIC, too
    again: tuple[str, ...] = ()  # "link_width:pci:0000:41:00.0": earlier readings found that link low, too
    mapping: str | None = None  # a file that says where nodes stand
    names: tuple[str, ...] = ()  # of this node, in that file
    labels: bool = False  # what the node's labels should say
    slices: str = ""  # the devices of its ResourceSlice, too: how they say their NUMA node, "scalar" or "list"
    first: bool = False  # nothing is known yet: what sysfs tells is worth hearing before a driver answers

    @classmethod
    def read(cls, line: str) -> Question:
        """ValueError, TypeError where it is none."""
        return cls(**json.loads(line))


class _NotYet:
    """A machine without what its drivers say, as long as they are being asked."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.source, self.text, self.names, self.link = host.source, host.text, host.names, host.link

    def document(self, name: str) -> Json:
        if name == "nvml":
            raise Unavailable("timeout", "the NVIDIA driver is still being asked")
        return self._host.document(name)


class _Kept(NamedTuple):
    """What was asked and found, every field, and what was answered."""

    found: tuple[object, ...]
    answer: dict[str, Json]


def main() -> None:
    kept: _Kept | None = None
    modules = 0
    for line in sys.stdin:
        question = Question.read(line)
        try:
            if question.first and question.source is None:
                _say(_answer(question, quick=True).answer)
            kept = _answer(question, quick=False, kept=kept)
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


def _answer(question: Question, *, quick: bool, kept: _Kept | None = None) -> _Kept:
    """Every form in which the agent offers the machine; `whole` once the drivers have been asked."""
    started, spent = time.perf_counter(), _processor_seconds()
    host = open_host(question.source, timeout=question.timeout)
    inventory = scan(_NotYet(host) if quick else host, readiness=True)
    overlay = _overlay(question.overlay)
    # Not `==` of inventories: that is blind to what moves by itself.
    facts = (getattr(inventory, field.name) for field in dataclasses.fields(inventory))
    place = _place(question) if question.labels else None
    found = (overlay, question.pairs, question.again, question.slices, quick, place, *facts)
    if kept is not None and kept.found == found:
        forms = kept.answer
    else:
        forms = _forms(inventory, overlay, question, place) | {"whole": not quick}
    cost: dict[str, Json] = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": _processor_seconds() - spent,
    }
    return _Kept(found, {**forms, "cost": cost})


def _forms(inventory: Inventory, overlay: Overlay, question: Question, place: Place | None) -> dict[str, Json]:
    topology = build(inventory, overlay)
    operator = resolve(overlay, topology) if overlay is not EMPTY else Resolved()
    choices = pairing.pairs(topology, operator)
    found = checks.findings(topology, choices, frozenset(question.again))
    said = document(topology)
    return {
        "digest": said["digest"],
        "topology": as_json(said),
        "findings": json.dumps(findings.as_data(found), indent=2, ensure_ascii=False) + "\n",
        "families": metrics.families(topology, choices, found, pairs=question.pairs),
        "problems": sum(one.severity != "info" for one in found),
        "low": [f"{one.code}:{subject}" for one in found if one.code in _LINKS for subject in one.subjects],
        "matrix": matrix.matrix(topology),
        "tree": tree.tree(topology, width=_WIDTH),
        "status": ", ".join(summary.counts(topology)),
        "labels": {} if place is None else _labels(topology, choices, place),
        "devices": _devices(topology, question) if question.slices else [],
    }


def _devices(topology: Topology, question: Question) -> list[Json]:
    from topo_agent.views.slices import candidates

    numa: Literal["scalar", "list"] = "list" if question.slices == "list" else "scalar"
    return [[*one] for one in candidates(topology, numa=numa)]


def _labels(topology: Topology, choices: tuple[pairing.Choice, ...], place: Place) -> dict[str, Json]:
    from topo_agent.graph.readings import readings

    return {name: [*reading] for name, reading in readings(topology, choices, place).items()}


def _place(question: Question) -> Place:
    from topo_agent.readers.mapping import place

    return place(question.mapping, question.names)


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
