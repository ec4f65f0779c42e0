"""PCI functions -> roots and devices: who hangs below whom, and near which memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from topo_agent.diagnostics import Level, Notes, Unknown, UnknownFields
from topo_agent.facts import Inventory, PciDevice
from topo_agent.graph import kinds, standard
from topo_agent.graph.locality import Near, Places, decide, siblings
from topo_agent.graph.nodes import BridgeRole, Device, DeviceKind, Memory, Origin, Package, Root
from topo_agent.graph.overlay import Overlay
from topo_agent.ids import CpuSet, PciAddress, Ref, pci_ref

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)


def read(
    inventory: Inventory,
    packages: tuple[Package, ...],
    memories: tuple[Memory, ...] | None,
    online: CpuSet,
    notes: Notes,
    overlay: Overlay,
) -> tuple[tuple[Root, ...] | None, tuple[Device, ...] | None]:
    """The roots and devices of an inventory; (None, None) where it has no PCI."""
    if inventory.pci is None:
        return None, None
    bus = _Bus(inventory, inventory.pci, packages, memories, online, notes, overlay)
    return tuple(bus.roots()), tuple(bus.devices())


def place(path: str) -> tuple[str | None, list[PciAddress]]:
    """(name of the root, functions from the root down) of a path below sys/devices.

    `"sys/devices/pci0000:6f/0000:6f:00.5/pci10001:80/10001:84:00.0"` -> `("pci0000:6f", [0000:6f:00.5,
    10001:84:00.0])`: the inner bus of a VMD controller is no root. What stands before the root (a VMBus, a
    platform) is part of its name.
    """
    parts = path.removeprefix("sys/devices/").split("/")
    for index, part in enumerate(parts):
        if _ROOT.fullmatch(part):
            return "/".join(parts[: index + 1]), list(_addresses(parts[index + 1 :]))
    return None, []


def _addresses(parts: list[str]) -> Iterator[PciAddress]:
    for part in parts:
        if not _ROOT.fullmatch(part):
            try:
                yield PciAddress.parse(part)
            except ValueError:  # something that is no function stands between: it hides nothing we need
                continue


class _Bus:
    def __init__(
        self,
        inventory: Inventory,
        devices: tuple[PciDevice, ...],
        packages: tuple[Package, ...],
        memories: tuple[Memory, ...] | None,
        online: CpuSet,
        notes: Notes,
        overlay: Overlay,
    ) -> None:
        self.facts = {device.address: device for device in devices}
        self.memories = {memory.id: memory for memory in memories or ()}
        self.places = Places(self.memories if memories is not None else None, online)
        self.notes = notes
        self.overlay = overlay
        self.silence = Unknown.NOT_SUPPORTED if inventory.source.complete else Unknown.NOT_RECORDED
        self.bus_cpus = {bus.root.removeprefix("sys/devices/"): bus.cpus for bus in inventory.buses}
        self.gpu_cpus = {gpu.function: gpu.near_cpus for gpu in inventory.gpus if gpu.near_cpus}
        self.slots: dict[tuple[int, int, int | None], str] = {
            (slot.domain, slot.bus, slot.device): slot.name for slot in inventory.slots
        }
        self.root_names: dict[PciAddress, str] = {}
        self.orphans: set[PciAddress] = set()  # something is above them, and it is not on the bus
        self.chains: dict[PciAddress, list[PciAddress]] = {}  # the functions above, nearest first
        for address, device in self.facts.items():
            root, functions = place(device.path)
            above = functions[-2::-1]
            self.chains[address] = [one for one in above if self._holds(one, device)]
            if above and not self.chains[address]:
                self.orphans.add(address)
            if root is not None:
                self.root_names[address] = root
        parents = {address: chain[0] for address, chain in self.chains.items() if chain}
        self.kinds: dict[PciAddress, DeviceKind] = {one.address: kinds.kind(one) for one in devices}
        self.roles: Mapping[PciAddress, BridgeRole] = kinds.roles(self.facts, self.kinds, parents)
        self.near = {address: self._near(device) for address, device in self.facts.items()}
        self.siblings = {node: siblings(node, self.memories, packages) for node in self.memories}

    def _holds(self, above: PciAddress, device: PciDevice) -> bool:
        """Is a function that a path names on the bus, and above? A path in circles names some that are not."""
        known = self.facts.get(above)
        return known is not None and known.path != "" and device.path.startswith(f"{known.path}/")

    def devices(self) -> Iterator[Device]:
        for address, device in self.facts.items():
            yield self._device(address, device)

    def roots(self) -> Iterator[Root]:
        """Every root, placed by its own `cpulistaffinity`, or where all functions right below it agree."""
        tops: dict[str, list[PciAddress]] = {}
        for address, root in self.root_names.items():
            tops.setdefault(root, [])
            if not self.chains[address] and address not in self.orphans:
                tops[root].append(address)
        for name in sorted(tops, key=_root_order):
            near = self._root_near(name, tops[name])
            yield Root(
                ref=_root_ref(name),
                name=name,
                numa_node=near.numa_node,
                cpus=near.cpus,
                sources=_origin(near),
                unknown=_unknown_place(near),
            )

    def _root_near(self, name: str, tops: list[PciAddress]) -> Near:
        operator = self.places.by_firmware(self.overlay.roots.get(name), "operator")
        if operator is not None:
            return operator
        told = {self.near[top].numa_node: self.near[top] for top in tops if self.near[top].numa_node is not None}
        if len(told) > 1:
            self.notes.add(
                Level.CONFLICT,
                f"root:{name}",
                "root_numa_disputed",
                f"functions right below it name the NUMA nodes {', '.join(map(str, sorted(told)))}",  # type: ignore[type-var]
            )
            return Near(None, None, None, Unknown.CONTRADICTS)
        by_bus = self.places.by_cpus(self.bus_cpus.get(name), "cpulist")
        silence = next((self.near[top].reason for top in tops if self.near[top].reason), None) or self.silence
        return decide([*told.values(), by_bus, self.places.only()], silence)

    def _near(self, device: PciDevice) -> Near:
        """The chain of answers, first hit wins: operator, own file, a bridge above, CPU lists, the only node."""
        silence = dict(device.unknown).get("numa_node", self.silence)
        own = self.places.by_firmware(device.numa_node, "firmware")
        if own is not None and own.reason is Unknown.CONTRADICTS:
            self.notes.add(
                Level.CONFLICT,
                str(pci_ref(device.address)),
                "numa_node_absent",
                f"numa_node says {device.numa_node}, which is not an online node",
            )
        return decide(self._answers(device, own), silence)

    def _answers(self, device: PciDevice, own: Near | None) -> Iterable[Near | None]:
        yield self.places.by_firmware(self.overlay.roots.get(self.root_names.get(device.address, "")), "operator")
        yield own
        for bridge in self.chains[device.address]:
            above = self.facts.get(bridge)
            if above is not None and above.numa_node is not None:
                yield self.places.by_firmware(above.numa_node, "bridge")
                break
        physfn = self.facts.get(device.physfn) if device.physfn is not None else None
        if physfn is not None:
            yield self.places.by_firmware(physfn.numa_node, "firmware")  # a VF is where its PF is
        yield self.places.by_cpus(device.local_cpus, "cpulist")
        yield self.places.by_cpus(self.bus_cpus.get(self.root_names.get(device.address, "")), "cpulist")
        yield self.places.by_cpus(self.gpu_cpus.get(device.address), "nvml")
        yield self.places.only()

    def _device(self, address: PciAddress, device: PciDevice) -> Device:
        near, chain, root = self.near[address], self.chains[address], self.root_names.get(address)
        node = near.numa_node
        return Device(
            ref=pci_ref(address),
            kind=self.kinds[address],
            role=self.roles.get(address),
            address=address,
            class_code=device.class_code,
            vendor=device.vendor,
            device=device.device,
            subvendor=device.subvendor,
            subdevice=device.subdevice,
            driver=device.driver,
            parent=pci_ref(chain[0]) if chain else None,
            root=None if root is None else _root_ref(root),
            numa_node=node,
            numa_nodes=() if node is None else self.siblings.get(node, (node,)),
            cpus=near.cpus,
            link=device.link,
            physfn=None if device.physfn is None else pci_ref(device.physfn),
            sriov_total=device.sriov_total,
            sriov_enabled=device.sriov_enabled,
            iommu_group=device.iommu_group,
            slot=self._slot(address, chain),
            standard=standard.of(device),
            sources=_origin(near),
            unknown=_unknown(device, near, root, orphan=address in self.orphans),
        )

    def _slot(self, address: PciAddress, chain: list[PciAddress]) -> str | None:
        """The label of the slot that a function sits in: its own, or that of the nearest function above it."""
        places = [place for one in (address, *chain) for place in (one.card, (one.domain, one.bus, None))]
        return next((self.slots[place] for place in places if place in self.slots), None)


def _origin(near: Near) -> tuple[tuple[str, Origin], ...]:
    return () if near.origin is None else (("numa_node" if near.numa_node is not None else "cpus", near.origin),)


def _unknown_place(near: Near) -> UnknownFields:
    """Why there is no node, and no CPUs: a node whose CPUs are not told is near nobody that we know."""
    found = {} if near.reason is None else {"numa_node": near.reason}
    if near.cpus is None:
        found["cpus"] = near.reason or Unknown.NOT_RECORDED
    return tuple(sorted(found.items()))


def _unknown(device: PciDevice, near: Near, root: str | None, *, orphan: bool) -> UnknownFields:
    found = {name: reason for name, reason in device.unknown if name != "numa_node"} | dict(_unknown_place(near))
    if root is None:
        found["pcie_root"] = Unknown.NOT_RECORDED
    if root is None or orphan:
        found["parent"] = Unknown.NOT_RECORDED
    return tuple(sorted(found.items()))


def _root_ref(name: str) -> Ref:
    return Ref("root", name)


def _root_order(name: str) -> tuple[int, int, str]:
    domain, _, bus = name.rpartition("/")[2].removeprefix("pci").partition(":")
    return int(domain, 16), int(bus, 16), name
