"""Topology -> devices of a ResourceSlice (resource.k8s.io/v1), with the standard attributes and facts of our own.

The standard ones are what upstream's helper would publish and nothing else; ours have bare names, which belong to the
domain of the driver. What is not known is left out: there is no empty value and no -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from topo_agent.facts import PcieLink
from topo_agent.graph import standard
from topo_agent.graph.hops import Hops
from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.order import physical
from topo_agent.graph.paths import Paths
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.ids import Ref
from topo_agent.views import names

STANDARD = "resource.kubernetes.io/"
PHYSICAL = "physicalFunction"
KINDS: tuple[DeviceKind, ...] = ("gpu", "nic", "nvme")
NumaForm = Literal["scalar", "list"]

# resource.k8s.io/v1 types.go: DeviceAttributeMaxValueLength, ResourceSliceMaxAttributeValuesPerDevice,
# ResourceSliceMaxDevicesWithTaintsOrConsumesCountersOrListTypeAttributes, ResourceSliceMaxDevices.
_BYTES, _VALUES, _FEW, _MANY = 64, 48, 64, 128

# Transfers per second of one lane -> generation (PCI Express Base Specification).
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


class Candidate(NamedTuple):
    """One device, and by what other drivers may know it."""

    address: str
    uid: str | None
    name: str
    attributes: dict[str, Json]

    @property
    def virtual(self) -> bool:
        return PHYSICAL in self.attributes


class Fitted(NamedTuple):
    """As much as the API takes, and what had to go: how many values, list elements and devices."""

    devices: list[Json]
    cut: dict[str, int]


def candidates(topology: Topology, *, numa: NumaForm = "scalar") -> tuple[Candidate, ...]:
    """GPUs, NICs and NVMe drives in this order, each kind in bus order, virtual functions among them."""
    paths = Paths(topology)
    found = [one for kind in KINDS for one in topology.of_kind(kind)]
    return tuple(
        Candidate(
            str(one.address), one.uid, name_of(str(one.address)), dict(_attributes(topology, paths, one, numa))
        )
        for one in found
    )  # fmt: skip


def name_of(address: str) -> str:
    """`"0000:3b:00.0"` -> `"pci-0000-3b-00-0"`: a DNS label, in the form of dranet."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def fitted(
    found: Iterable[Candidate], shared: Mapping[str, str], *, taint: str | None = None
) -> Fitted:  # fmt: skip
    """The devices of a slice: `shared` are further attributes of all of them, `taint` the key of a taint on each.

    What is too long or too much is cut from the end, so that the same machine is cut the same way.
    """
    cut = {"values": 0, "elements": 0, "devices": 0}
    devices: list[Json] = []
    lists = False
    for one in found:
        said: dict[str, Json] = {}
        for name, value in {**one.attributes, **shared}.items():
            written, lost = attribute(value)
            said[name] = written
            cut["elements" if isinstance(value, list) else "values"] += lost
            lists = lists or isinstance(value, list)
        device: dict[str, Json] = {"name": one.name, "attributes": said}
        if taint is not None:
            device["taints"] = [{"key": taint, "value": "true", "effect": "NoSchedule"}]
        devices.append(device)
    most = _FEW if lists or taint is not None else _MANY
    cut["devices"] = max(len(devices) - most, 0)
    return Fitted(devices[:most], cut)


def attribute(value: Json) -> tuple[dict[str, Json], int]:
    """`7` -> `{"int": 7}`, and how much was cut."""
    if isinstance(value, bool):
        return {"bool": value}, 0
    if isinstance(value, int):
        return {"int": value}, 0
    if isinstance(value, list):
        kept = value[: _VALUES // 2]  # the other half is for everything else
        return {"ints": kept}, len(value) - len(kept)
    text = str(value)
    short = text.encode()[:_BYTES].decode("utf-8", "ignore")
    return {"string": short}, int(short != text)


def _attributes(topology: Topology, paths: Paths, one: Device, numa: NumaForm) -> Iterator[tuple[str, Json]]:
    said = one.standard
    if said.pci_bus_id is not None:
        yield f"{STANDARD}pciBusID", said.pci_bus_id
    if said.pcie_root is not None:
        yield f"{STANDARD}pcieRoot", said.pcie_root
    if said.numa_node is not None:
        wanted: Json = said.numa_node
        if numa == "list":
            wanted = [*standard.numa_nodes(said.numa_node, topology.standard_nodes)]
        yield f"{STANDARD}numaNode", wanted
    yield "kind", one.kind
    model = names.model(one.vendor, one.device)
    if model is not None:
        yield "model", f"{names.vendor(one.vendor)} {model}"
    if one.physfn is not None and (pf := topology.device(one.physfn)) is not None:
        yield PHYSICAL, str(pf.address)
    switches = paths.hops.switches_above(one.ref)
    if switches:
        yield "switch", str(switches[-1].address)
        yield "nearestSwitch", str(switches[0].address)
    link = _link(topology, paths.hops, one)
    if link is not None and link.max_gts in _GENERATIONS and link.max_width:
        yield "maxLinkGeneration", _GENERATIONS[link.max_gts]
        yield "maxLinkWidth", link.max_width
    if one.kind in ("gpu", "nic"):
        yield from _nearest(topology, paths, one)


def _link(topology: Topology, hops: Hops, one: Device) -> PcieLink | None:
    """The link to the slot or the board: of an AMD GPU, that of its outermost bridge. A virtual function has none."""
    end = topology.device(hops.link_end(one.ref)) if one.link is not None else None
    return end.link if end is not None else None


def _nearest(topology: Topology, paths: Paths, one: Device) -> Iterator[tuple[str, Json]]:
    """The nearest GPU of a NIC, the nearest NIC of a GPU: its class, and which one if there is only one so near.

    Functions of one card count as one. A distance that is not certain is none.
    """
    other: DeviceKind = "nic" if one.kind == "gpu" else "gpu"
    end = topology.device(one.physfn) if one.physfn is not None else one
    found = [(paths.between(end, peer), peer) for peer in physical(topology, other)] if end is not None else []
    if not found or not all(path.certain for path, _ in found):
        return
    best = min(path.rank for path, _ in found)
    near = [(path, peer) for path, peer in found if path.rank == best]
    word = "Nic" if other == "nic" else "Gpu"
    yield f"nearest{word}Path", near[0][0].class_
    if len({_card(peer) for _, peer in near}) == 1:
        yield f"nearest{word}", str(near[0][1].address)


def _card(one: Device) -> str | Ref:
    return one.board or one.ref
