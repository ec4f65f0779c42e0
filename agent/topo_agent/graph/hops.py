"""What is between a host bridge and a function: the hops, their links, and which of them are none."""

from __future__ import annotations

from topo_agent.facts import PcieLink
from topo_agent.graph.bandwidth import of_link
from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.order import physical
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

SCOPE: tuple[DeviceKind, ...] = ("gpu", "nic", "nvme")
"""What paths are between."""

_AMD_VENDORS = frozenset({0x1002, 0x1022})

# Red Hat (QEMU) and VMware make ports of software only. The parts are those of Intel and Texas Instruments that QEMU
# copies, and real in some machines: hw/pci-bridge/ioh3420.c, xio3130_upstream.c, xio3130_downstream.c.
_EMULATOR_VENDORS = frozenset({0x1B36, 0x15AD})
_COPIED_PORTS = frozenset({(0x8086, 0x3420), (0x104C, 0x8232), (0x104C, 0x8233)})
_LEAST = PcieLink(2.5, 1)


class Hops:
    """Of one topology; each chain is walked once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._whole: dict[Ref, tuple[Ref, ...]] = {}
        self._short: dict[Ref, tuple[Ref, ...]] = {}
        self._outer: dict[Ref, Ref] = {}
        self._behind: dict[Ref, int] = {}

    def chain(self, ref: Ref) -> tuple[Ref, ...]:
        """From the host bridge down to the function, without the bridges inside an AMD GPU; (ref,) if unknown."""
        if ref not in self._short:
            whole = self.from_root(ref)
            self._short[ref] = self._without_internal(whole)
        return self._short[ref]

    def from_root(self, ref: Ref) -> tuple[Ref, ...]:
        """The same with every bridge."""
        if ref not in self._whole:
            self._whole[ref] = (*reversed(tuple(self._topology.ancestors(ref))), ref)
        return self._whole[ref]

    def switches_above(self, ref: Ref) -> list[Device]:
        """The PCIe switches above a function by their upstream ports, nearest first.

        Equal last ones have no root between them. The switch inside an AMD GPU is none: nothing else is below it.
        """
        above = (self._topology.device(one) for one in reversed(self.chain(ref)[:-1]))
        return [port for port in above if port is not None and port.role == "upstream_port"]

    def switches(self) -> list[Device]:
        """Every PCIe switch by its upstream port, in bus order. A GPU's own bridges are none."""
        inside = {self.link_end(gpu.ref) for gpu in physical(self._topology, "gpu")}
        ports = (one for one in self._topology.of_kind("bridge") if one.role == "upstream_port")
        return [one for one in ports if one.ref not in inside]

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
        device = self._topology.device(self.link_end(ref))
        if device is not None and device.physfn is not None:
            device = self._topology.device(device.physfn)
        if device is None:
            return None
        above = self._topology.device(device.parent)
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
        return port.vendor in _EMULATOR_VENDORS or (bool(self._topology.machine.virtual) and (copied or least))

    def narrowest(self, hops: tuple[Ref, ...]) -> tuple[Ref | None, int | None]:
        """The slowest link among those above some functions; nothing where one of them does not tell.

        Of equally slow ones it is the one that most devices share: that is where they meet.
        """
        rates: list[tuple[int, int, Ref]] = []
        for hop in hops:
            device = self._topology.device(hop)
            if device is None or not has_link(device):
                continue
            rate = self.rate(hop)
            if rate is None:
                return None, None
            rates.append((rate, -self._sharers(hop), self.link_end(hop)))
        rate, _, bottleneck = min(rates, default=(None, 0, None))
        return bottleneck, rate

    def _without_internal(self, chain: tuple[Ref, ...]) -> tuple[Ref, ...]:
        """A discrete AMD GPU is an endpoint behind a switch of its own: one upstream and one downstream port."""
        if len(chain) < 4:
            return chain
        *_, upper, lower, ref = chain
        outer, inner, gpu = (self._topology.device(one) for one in (upper, lower, ref))
        if gpu is None or gpu.kind != "gpu" or outer is None or inner is None or {outer.kind, inner.kind} != {"bridge"}:
            return chain
        amd = all(one.vendor in _AMD_VENDORS for one in (outer, inner, gpu))
        alone = self._topology.children(upper) == (lower,) and all(
            child == ref or self._belongs(child, gpu) for child in self._topology.children(lower)
        )
        if not (amd and alone):
            return chain
        self._outer[ref] = upper
        return (*chain[:-3], ref)

    def _belongs(self, ref: Ref, gpu: Device) -> bool:
        """A virtual function of a GPU, wherever it is, or another function of the same card (its audio)."""
        device = self._topology.device(ref)
        if device is None or device.kind == "nic":
            return False
        whole = self._topology.device(gpu.physfn) or gpu
        return whole.ref in (ref, device.physfn) or device.address.card == whole.address.card

    def _sharers(self, ref: Ref) -> int:
        """How many GPUs, NICs and drives are at or below a function."""
        if ref not in self._behind:
            found = (self._topology.device(one) for one in (ref, *self._topology.below(ref)))
            self._behind[ref] = sum(one is not None and one.kind in SCOPE and one.physfn is None for one in found)
        return self._behind[ref]


def has_link(device: Device) -> bool:
    """Is there a link above it? Above a root or downstream port are a host bridge and the inside of a switch."""
    return device.role not in ("root_port", "downstream_port")
