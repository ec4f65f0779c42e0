"""Findings: what is wrong with a machine or cannot be known of it, each with a stable code, evidence and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from topo_agent.graph.nodes import Device
from topo_agent.graph.order import physical
from topo_agent.graph.pairing import Choice
from topo_agent.graph.paths import Paths
from topo_agent.graph.topology import Topology

Severity = Literal["info", "warning", "error"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
"""Least first. `info` is worth knowing and nothing to mend."""


class Finding(NamedTuple):
    """One code, for one subject or for several that are equal in it."""

    code: str
    severity: Severity
    subjects: tuple[str, ...]  # ids of the document, or paths below the root of the machine
    evidences: tuple[str, ...]  # one for each subject
    advice: str

    @property
    def evidence(self) -> str:
        """What is told of all: the first subject's."""
        return self.evidences[0]


class Seen(NamedTuple):
    """What a check saw of one subject. `alike`: subjects with the same word are told together."""

    subject: str
    evidence: str
    severity: Severity
    alike: str = ""


class Machine:
    """A topology with what several checks need of it, worked out once."""

    def __init__(self, topology: Topology, choices: tuple[Choice, ...], again: frozenset[str] = frozenset()) -> None:
        """`again`: `CODE:SUBJECT` of links that earlier readings found low, too."""
        self.again = again
        self.topology = topology
        self.choices = choices
        self.paths = Paths(topology)
        self.hops = self.paths.hops
        self.gpus = physical(topology, "gpu")
        self.nics = physical(topology, "nic")
        self.drives = physical(topology, "nvme")
        self.links_now = dict(topology.links_now)
        self.with_cpus = [memory for memory in topology.memories or () if memory.cpus]
        self.switches = self.hops.switches()

    @property
    def devices(self) -> list[Device]:
        """What people care about: GPUs, NICs and drives."""
        return [*self.gpus, *self.nics, *self.drives]


def together(code: str, advice: str, seen: Iterable[Seen]) -> Iterator[Finding]:
    """One finding for all that a check saw alike."""
    groups: dict[tuple[Severity, str], list[Seen]] = {}
    for one in seen:
        groups.setdefault((one.severity, one.alike), []).append(one)
    for (severity, _), same in groups.items():
        subjects, evidences = tuple(one.subject for one in same), tuple(one.evidence for one in same)
        yield Finding(code, severity, subjects, evidences, advice)
