"""How far apart two devices are: hops, class in the words of nvidia-smi and of NCCL, bandwidth, and how sure.

NVIDIA/nccl src/graph/paths.cc and nvml.h (nvmlGpuTopologyLevel_t) define the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from topo_agent.graph.hops import SCOPE, Hops
from topo_agent.graph.nodes import Device
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

ORDER = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""

# NCCL src/graph/topo.cc ncclTopoFlattenBcmSwitches: base-mode Broadcom switches show two levels for one chip.
# vendor, device, subvendor, subdevice; the last 12 bits do not count.
_BROADCOM_GEN4 = 0x1000C0101000A000
_BROADCOM_GEN5_PARENT, _BROADCOM_GEN5_CHILD = 0x1000C03010000000, 0x1000C03010001000


class Path(NamedTuple):
    """Between two devices, a < b. `bytes_per_second` is of maxima, one direction; None where a link does not tell."""

    a: Ref
    b: Ref
    class_: str  # NV<n>, PIX, PXB, PHB, NODE, SYS
    nccl_class: str
    certain: bool
    via: tuple[Ref, ...]
    bottleneck: Ref | None
    bytes_per_second: int | None
    reason: str

    @property
    def rank(self) -> int:
        """0 is nearest: the place of the class in ORDER."""
        return ORDER.index("NV" if self.class_.startswith("NV") else self.class_)


class Paths:
    """The distances of one topology. Chains are walked once, pairs are compared as often as asked."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.hops = Hops(topology)
        self._direct, self._switched = _nvlinks(topology)

    def between(self, one: Device, other: Device) -> Path:
        """The path between two different functions; a virtual function stands where its own path says."""
        a, b = sorted((one, other), key=lambda device: device.ref)
        mine, yours = self.hops.chain(a.ref), self.hops.chain(b.ref)
        common = _common(mine, yours)
        via: tuple[Ref, ...]
        if a.address.card == b.address.card:
            class_, nccl, certain, reason, via = "PIX", "PIX", True, "functions of one card", ()
        elif common == 0:
            class_, certain, reason = self._apart(a, b, len(mine) == len(yours) == 2)
            nccl, via = ("PHB" if class_ == "NODE" else class_), (*mine[-2::-1], *yours[:-1])
        else:
            class_, certain, reason = self._together(mine, yours, common)
            nccl, via = self._nccl(a.ref, b.ref), _via(mine, yours, common)
        lost = next((one for one in (a, b) if "parent" in dict(one.unknown)), None)
        if lost is not None and certain and class_ != "PIX":
            certain, reason = False, f"what {lost.address} hangs below is unknown"
        nvlinks = self._nvlink(a.ref, b.ref)
        if nvlinks:
            class_, nccl, certain, reason = f"NV{nvlinks}", "NVL", True, f"{nvlinks} active NVLinks"
        bottleneck, rate = (None, None) if nvlinks else self.hops.narrowest((*mine[common:], *yours[common:]))
        return Path(
            a=a.ref,
            b=b.ref,
            class_=class_,
            nccl_class=nccl,
            certain=certain,
            via=via,
            bottleneck=bottleneck,
            bytes_per_second=rate,
            reason=reason,
        )

    def _together(self, mine: tuple[Ref, ...], yours: tuple[Ref, ...], common: int) -> tuple[str, bool, str]:
        """Below one host bridge. Two root ports of one bridge share nothing but that bridge."""
        deepest = mine[common - 1]
        if common == 1:
            flat = self.topology.machine.virtual and len(mine) == len(yours) == 2
            if flat:
                return "PHB", False, f"{deepest.key} of a virtual machine, which may show none of the real switches"
            return "PHB", True, f"common host bridge {deepest.key}"
        bridge = self.topology.device(deepest)
        if bridge is None or bridge.kind != "bridge":
            return "PHB", True, f"common bus below {deepest.key}"
        level = "PIX" if max(len(mine), len(yours)) - common - 1 <= 1 else "PXB"
        return (
            level,
            True,
            f"common switch {deepest.key}" if bridge.role != "root_port" else f"common port {deepest.key}",
        )

    def _apart(self, a: Device, b: Device, bare: bool) -> tuple[str, bool, str]:  # noqa: FBT001 a fact of both
        """Below different host bridges: one memory, or two; doubt is said and not decided."""
        if a.numa_node is None or b.numa_node is None:
            unknown = a if a.numa_node is None else b
            why = dict(unknown.unknown).get("numa_node")
            return "SYS", False, f"NUMA node of {unknown.address} unknown" + (f" ({why.value})" if why else "")
        assumed = any(dict(one.sources).get("numa_node") == "assumed" for one in (a, b))
        if a.numa_node == b.numa_node and bare and self.topology.machine.virtual:
            return "NODE", False, f"a virtual machine with a root for each device, both near NUMA node {a.numa_node}"
        if a.numa_node == b.numa_node:
            return (
                "NODE",
                not assumed,
                f"both near NUMA node {a.numa_node}" + (" (assumed: the only one)" if assumed else ""),
            )
        packages = {self._package(node) for node in (a.numa_node, b.numa_node)}
        same = len(packages) == 1 and None not in packages
        return "SYS", True, f"NUMA nodes {a.numa_node} and {b.numa_node}" + (", one package" if same else "")

    def _package(self, node: int) -> Ref | None:
        memory = next((one for one in self.topology.memories or () if one.id == node), None)
        return self.topology.parent(memory.ref) if memory else None

    def _nccl(self, a: Ref, b: Ref) -> str:
        """As NCCL sees it: a switch is its upstream port, one between two devices is PIX, more are PXB."""
        mine, yours = self._switches(a), self._switches(b)
        if not set(mine) & set(yours):
            return "PHB"
        return "PIX" if mine[0] == yours[0] else "PXB"

    def _switches(self, ref: Ref) -> tuple[Ref, ...]:
        """The upstream ports above a function, nearest first, Broadcom's second level folded into the first."""
        above = (self.topology.device(one) for one in self.hops.from_root(ref)[-3:0:-2])
        ports = [one for one in above if one is not None and one.kind == "bridge"]
        return tuple(
            port.ref
            for place, port in enumerate(ports)
            if place + 1 == len(ports) or not _flattened(ports[place + 1], port)
        )

    def _nvlink(self, a: Ref, b: Ref) -> int:
        """Active NVLinks between two GPUs, directly or through switches that both are on."""
        one, other = (
            device.gpu.fabric if (device := self.topology.device(ref)) and device.gpu else None for ref in (a, b)
        )
        if one is not None and other is not None and one != other:
            return 0  # two partitions of one fabric do not reach each other
        return self._direct.get((a, b)) or min(self._switched.get(a, 0), self._switched.get(b, 0))


def all_pairs(topology: Topology) -> Iterator[Path]:
    """Every pair of GPUs, NICs and NVMe drives: physical functions only, for a virtual one is on the same card."""
    paths = Paths(topology)
    physical = [device for device in topology.of_kind(*SCOPE) if device.physfn is None]
    for one, other in combinations(sorted(physical, key=lambda device: device.ref), 2):
        yield paths.between(one, other)


def _common(mine: tuple[Ref, ...], yours: tuple[Ref, ...]) -> int:
    count = 0
    for left, right in zip(mine[:-1], yours[:-1], strict=False):
        if left != right:
            break
        count += 1
    return count


def _via(mine: tuple[Ref, ...], yours: tuple[Ref, ...], common: int) -> tuple[Ref, ...]:
    """Everything between two devices, from the first to the second."""
    return (*mine[-2 : common - 1 : -1], mine[common - 1], *yours[common:-1])


def _flattened(parent: Device, child: Device) -> bool:
    above, below = _identity(parent), _identity(child)
    if above == below == _BROADCOM_GEN4:
        return True
    return above == _BROADCOM_GEN5_PARENT and below == _BROADCOM_GEN5_CHILD


def _identity(device: Device) -> int | None:
    ids = (device.vendor, device.device, device.subvendor, device.subdevice)
    if any(one is None for one in ids):
        return None
    vendor, part, subvendor, subpart = (one or 0 for one in ids)
    return (vendor << 48 | part << 32 | subvendor << 16 | subpart) & ~0xFFF


def _nvlinks(topology: Topology) -> tuple[dict[tuple[Ref, Ref], int], dict[Ref, int]]:
    """Active NVLinks between pairs of GPUs, and of each GPU to switches."""
    direct: dict[tuple[Ref, Ref], int] = {}
    switched: dict[Ref, int] = {}
    for a, b, peer, active in topology.nvlinks_now:
        if peer == "gpu" and b is not None:
            direct[a, b] = active
        elif peer == "switch":
            gpu = a if b is None or _is_gpu(topology, a) else b
            switched[gpu] = switched.get(gpu, 0) + active
    return direct, switched


def _is_gpu(topology: Topology, ref: Ref) -> bool:
    device = topology.device(ref)
    return device is not None and device.kind == "gpu"
