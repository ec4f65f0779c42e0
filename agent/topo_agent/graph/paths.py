"""How far apart two devices are: hops, class in the words of nvidia-smi and of NCCL, bandwidth, and how sure.

NVIDIA/nccl src/graph/paths.cc and nvml.h (nvmlGpuTopologyLevel_t) define the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from topo_agent.facts import PcieLink
from topo_agent.graph.bandwidth import of_link
from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

SCOPE: tuple[DeviceKind, ...] = ("gpu", "nic", "nvme")

ORDER = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""

_AMD_VENDORS = frozenset({0x1002, 0x1022})

# Red Hat (QEMU) and VMware make ports of software only. The parts are those of Intel and Texas Instruments that QEMU
# copies, and real in some machines: hw/pci-bridge/ioh3420.c, xio3130_upstream.c, xio3130_downstream.c.
_EMULATOR_VENDORS = frozenset({0x1B36, 0x15AD})
_COPIED_PORTS = frozenset({(0x8086, 0x3420), (0x104C, 0x8232), (0x104C, 0x8233)})
_LEAST = PcieLink(2.5, 1)

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
        self._whole: dict[Ref, tuple[Ref, ...]] = {}
        self._short: dict[Ref, tuple[Ref, ...]] = {}
        self._outer: dict[Ref, Ref] = {}
        self._behind: dict[Ref, int] = {}
        self._direct, self._switched = _nvlinks(topology)

    def between(self, one: Device, other: Device) -> Path:
        """The path between two different functions; a virtual function stands where its own path says."""
        a, b = sorted((one, other), key=lambda device: device.ref)
        mine, yours = self.chain(a.ref), self.chain(b.ref)
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
        bottleneck, rate = (None, None) if nvlinks else self._narrowest((*mine[common:], *yours[common:]))
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

    def chain(self, ref: Ref) -> tuple[Ref, ...]:
        """From the host bridge down to the function, without the bridges inside an AMD GPU; (ref,) if unknown."""
        if ref not in self._short:
            whole = self._from_root(ref)
            self._short[ref] = self._without_internal(whole)
        return self._short[ref]

    def _from_root(self, ref: Ref) -> tuple[Ref, ...]:
        if ref not in self._whole:
            self._whole[ref] = (*reversed(tuple(self.topology.ancestors(ref))), ref)
        return self._whole[ref]

    def _without_internal(self, chain: tuple[Ref, ...]) -> tuple[Ref, ...]:
        """A discrete AMD GPU is an endpoint behind a switch of its own: one upstream and one downstream port."""
        if len(chain) < 4:
            return chain
        *_, upper, lower, ref = chain
        outer, inner, gpu = (self.topology.device(one) for one in (upper, lower, ref))
        if gpu is None or gpu.kind != "gpu" or outer is None or inner is None or {outer.kind, inner.kind} != {"bridge"}:
            return chain
        amd = all(one.vendor in _AMD_VENDORS for one in (outer, inner, gpu))
        alone = self.topology.children(upper) == (lower,) and all(
            child == ref or self._belongs(child, gpu) for child in self.topology.children(lower)
        )
        if not (amd and alone):
            return chain
        self._outer[ref] = upper
        return (*chain[:-3], ref)

    def _belongs(self, ref: Ref, gpu: Device) -> bool:
        """A virtual function of a GPU, wherever it is, or another function of the same card (its audio)."""
        device = self.topology.device(ref)
        if device is None or device.kind == "nic":
            return False
        whole = self.topology.device(gpu.physfn) or gpu
        return whole.ref in (ref, device.physfn) or device.address.card == whole.address.card

    def link_end(self, ref: Ref) -> Ref:
        """The function whose link is the one above `ref`: of an AMD GPU, its outermost bridge's.

        The link between that bridge and the GPU is inside the package and always says x16.
        """
        self.chain(ref)
        return self._outer.get(ref, ref)

    def rate(self, ref: Ref) -> int | None:
        """Bytes per second at most of the link above a function; None where neither end tells, or the port is emulated.

        The link of a virtual function is its physical function's.
        """
        device = self.topology.device(self.link_end(ref))
        if device is not None and device.physfn is not None:
            device = self.topology.device(device.physfn)
        if device is None:
            return None
        above = self.topology.device(device.parent)
        if self.emulated(device, above):
            return None
        return of_link(device.link, above.link if above else None)

    def emulated(self, device: Device, port: Device | None) -> bool:
        """Is the port above a device made of software, so that its link says nothing true?

        Told by its maker, also where nothing tells that a machine is virtual (ARM). In a virtual machine by its part
        too, or by the least link there is above a device that can more: hypervisors leave it at that.
        """
        if port is None:
            return False
        copied = (port.vendor, port.device) in _COPIED_PORTS
        least = port.link == _LEAST and device.link is not None and device.link != _LEAST
        return port.vendor in _EMULATOR_VENDORS or (bool(self.topology.machine.virtual) and (copied or least))

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
        above = (self.topology.device(one) for one in self._from_root(ref)[-3:0:-2])
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

    def _narrowest(self, hops: tuple[Ref, ...]) -> tuple[Ref | None, int | None]:
        """The slowest link among those above some functions; nothing where one of them does not tell.

        Of equally slow ones it is the one that most devices share: that is where they meet.
        """
        rates: list[tuple[int, int, Ref]] = []
        for hop in hops:
            device = self.topology.device(hop)
            if device is None or device.role in ("root_port", "downstream_port"):
                continue  # above these are a host bridge and the inside of a switch: no link
            rate = self.rate(hop)
            if rate is None:
                return None, None
            rates.append((rate, -self._sharers(hop), self.link_end(hop)))
        rate, _, bottleneck = min(rates, default=(None, 0, None))
        return bottleneck, rate

    def _sharers(self, ref: Ref) -> int:
        """How many GPUs, NICs and drives are at or below a function."""
        if ref not in self._behind:
            found = (self.topology.device(one) for one in (ref, *self.topology.below(ref)))
            self._behind[ref] = sum(one is not None and one.kind in SCOPE and one.physfn is None for one in found)
        return self._behind[ref]


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
