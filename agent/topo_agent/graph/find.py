"""The names that users type -> the node that they mean."""

from __future__ import annotations

import difflib

from topo_agent.graph.nodes import Device, Virtual
from topo_agent.graph.order import gpu_numbers, nic_numbers
from topo_agent.graph.topology import Topology
from topo_agent.ids import PciAddress, Ref, pci_ref


class NoSuchDevice(Exception):
    """Unknown or ambiguous; the message is one line with the near names."""


def find(topology: Topology, text: str) -> Ref:
    """What a name means: an id of the document, an interface, an RDMA device, a drive, the UUID of a GPU or of a MIG
    device or its unique beginning, gpu0, a PCI address, or a short one (`1b:00.0`) where only one domain has it.
    """
    word = text.strip()
    found = list(dict.fromkeys(_matches(topology, word)))
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchDevice(f"{text!r} is ambiguous: {', '.join(map(str, found))}")
    near = difflib.get_close_matches(word, _names(topology), n=3, cutoff=0.6)
    raise NoSuchDevice(f"no device {text!r} here" + (f"; near: {', '.join(near)}" if near else ""))


def _matches(topology: Topology, word: str) -> list[Ref]:
    called = _called(topology)
    if word in called:
        return called[word]
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
        short = [device.ref for device in topology.devices or () if str(device.address).split(":", 1)[1] == lowered]
        return short or _by_beginning(called, word)
    return [exact] if exact in topology.nodes else []


def _by_beginning(called: dict[str, list[Ref]], word: str) -> list[Ref]:
    """A UUID may be cut: `GPU-5f3a`, `MIG-5f3a`."""
    if not word.startswith(("GPU-", "MIG-")):
        return []
    return sorted({ref for name, refs in called.items() if name.startswith(word) for ref in refs})


def _called(topology: Topology) -> dict[str, list[Ref]]:
    """Everything that people call a device by: interfaces, RDMA devices, drives, UUIDs, gpu0."""
    found: dict[str, list[Ref]] = {}
    everything: tuple[Device | Virtual, ...] = (*(topology.devices or ()), *topology.virtuals)
    for one in everything:
        names = (*one.names.netdev, *one.names.rdma, *one.names.nvme, *one.names.nvme_path, *one.names.block)
        for name in (*names, *one.names.nodes, *((one.uid,) if one.uid else ())):
            found.setdefault(name, []).append(one.ref)
    for mig in topology.migs:
        if mig.uid:
            found.setdefault(mig.uid, []).append(mig.ref)
    for ref, number in gpu_numbers(topology).items():
        found.setdefault(f"gpu{number}", []).append(ref)
        found.setdefault(f"GPU{number}", []).append(ref)
    for ref, number in nic_numbers(topology).items():
        found.setdefault(f"NIC{number}", []).append(ref)
    return found


def _names(topology: Topology) -> list[str]:
    devices = [str(device.address) for device in topology.devices or ()]
    return [*_called(topology), *map(str, topology.nodes), *devices, *(name.split(":", 1)[1] for name in devices)]
