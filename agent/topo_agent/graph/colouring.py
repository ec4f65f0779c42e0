"""Graphs of things, and whether two of them are the same: a certificate for each, equal for equal ones.

Each thing is coloured by what it is, then again and again by what it was and by the colours of what it is joined to,
until no more are told apart. That alone takes two rings of four for one of eight, so it is done again with each thing
singled out that looks like another. Of graphs that differ, only strongly regular ones pass this too, and the smallest
two of those have sixteen things each.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from topo_agent.ids import Ref


class Graph:
    """Things with a label, and joints whose two ends each have a word for the other."""

    def __init__(self) -> None:
        self.labels: dict[Ref, str] = {}
        self.joints: dict[Ref, list[tuple[str, Ref]]] = {}
        self.meshed: set[Ref] = set()  # where joints may run in circles: NUMA nodes, ends of links

    def add(self, ref: Ref, *label: object) -> None:
        self.labels[ref] = hashed(*label)
        self.joints.setdefault(ref, [])

    def join(self, one: Ref, other: Ref, label: object, back: object) -> None:
        """What nobody tells of is a thing all the same: a link may lead to a function that is not on the bus."""
        for here, there, word in ((one, other, label), (other, one, back)):
            if here not in self.labels:
                self.add(here, "not told", here.kind)
            self.joints[here].append((repr(word), there))


def hashed(*parts: object) -> str:
    """Of numbers, texts, None, and tuples and lists of such: their `repr` is the same everywhere."""
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()


def certificate(graph: Graph) -> list[tuple[str, str]]:
    """Equal for equal graphs, in whatever order things were added."""
    colours = _refined(graph, graph.labels)
    times = Counter(colours.values())

    def seen_from(ref: Ref) -> str:
        if times[colours[ref]] == 1 or ref not in graph.meshed:
            return ""
        return hashed(sorted(_refined(graph, {**colours, ref: hashed(colours[ref], "this one")}).values()))

    return sorted((colour, seen_from(ref)) for ref, colour in colours.items())


def _refined(graph: Graph, colours: dict[Ref, str]) -> dict[Ref, str]:
    """Colours that tell apart whatever joints tell apart."""
    while True:
        finer = {
            ref: hashed(colour, sorted((word, colours[other]) for word, other in graph.joints[ref]))
            for ref, colour in colours.items()
        }
        if len({*finer.values()}) == len({*colours.values()}):
            return finer
        colours = finer
