"""The names that users type -> the node that they mean."""

from __future__ import annotations

import difflib

from topo_agent.graph.topology import Topology
from topo_agent.ids import PciAddress, Ref, pci_ref


class NoSuchDevice(Exception):
    """Unknown or ambiguous; the message is one line with the near names."""


def find(topology: Topology, text: str) -> Ref:
    """An id of the document, a PCI address, or a short one (`1b:00.0`) where only one domain has it."""
    word = text.strip()
    found = _matches(topology, word)
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchDevice(f"{text!r} is ambiguous: {', '.join(map(str, found))}")
    near = difflib.get_close_matches(word, _names(topology), n=3, cutoff=0.6)
    raise NoSuchDevice(f"no device {text!r} here" + (f"; near: {', '.join(near)}" if near else ""))


def _matches(topology: Topology, word: str) -> list[Ref]:
    kind, colon, key = word.partition(":")
    if colon and Ref(kind, key) in topology.nodes:
        return [Ref(kind, key)]
    root = Ref("root", word)
    if root in topology.nodes:
        return [root]
    try:
        exact = pci_ref(PciAddress.parse(word))
    except ValueError:
        lowered = word.lower()
        return [device.ref for device in topology.devices or () if str(device.address).split(":", 1)[1] == lowered]
    return [exact] if exact in topology.nodes else []


def _names(topology: Topology) -> list[str]:
    devices = [str(device.address) for device in topology.devices or ()]
    return [*map(str, topology.nodes), *devices, *(name.split(":", 1)[1] for name in devices)]
