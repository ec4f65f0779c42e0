"""What the settings say of labels, and what facts make of that: for the daemon, and for commands that run once."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from topo_agent.graph.held import Fact
from topo_agent.graph.labels import keys
from topo_agent.publishers.kube import annotation
from topo_agent.publishers.kube.node import Carrier, Node, Wanted, nfd_carrier, node_carrier
from topo_agent.settings import Settings


class Settled(NamedTuple):
    """What a run of the thread goes by."""

    name: str  # of the node
    carrier: Carrier
    domain: str
    keys: Mapping[str, str]  # key of a label -> name of its reading

    @property
    def annotation(self) -> str:
        return f"{self.domain}/labels"


def node_name(settings: Settings) -> str:
    return settings.node or socket.gethostname().lower()


def settled(settings: Settings) -> Settled:
    """What they come to."""
    name = node_name(settings)
    carrier = nfd_carrier(name, settings.nfd_namespace) if settings.labels == "nfd" else node_carrier(name)
    return Settled(
        name, carrier, settings.domain, keys(settings.domain, settings.label_keys, gpu_clique=settings.gpu_clique)
    )


def wanted(settled: Settled, facts: Mapping[str, Fact]) -> Wanted:
    """The labels that some facts make, and the annotation that says where they are from."""
    said = {key: facts[name].label for key, name in settled.keys.items() if name in facts}
    memory = annotation.written({name: fact for name, fact in facts.items() if name in settled.keys.values()})
    return Wanted(said, {settled.annotation: memory} if said else {})


def remembered(settled: Settled, node: Node, time: str) -> dict[str, Fact]:
    """What earlier runs published, by our own annotation; a label of ours that it lacks counts as it stands."""
    mine = {key: name for key, name in settled.keys.items() if key in node.ours and node.labels.get(key)}
    facts = {name: Fact(node.labels[key], "label", time) for key, name in mine.items()}
    if settled.annotation in node.annotated:
        facts |= annotation.read(node.annotations.get(settled.annotation), settled.keys.values())
    return facts
