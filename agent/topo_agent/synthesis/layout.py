"""Functions of a description -> functions with addresses: buses as given, or numbered depth first as firmware does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from topo_agent.ids import PciAddress
from topo_agent.synthesis.fields import Place
from topo_agent.synthesis.functions import NOWHERE, Function, Root, Vfs

FUNCTIONS_AT_MOST = 16_384
ROOTS_AT_MOST = 1024
GPUS_AT_MOST = 256  # drivers say of every two how they are connected


@dataclass(kw_only=True)
class Placed:
    """A function in its place."""

    address: PciAddress
    spec: Function
    path: str  # below sys/devices
    parent: Placed | None
    root: str  # where its host bridge is, below sys/devices
    node: int
    secondary: int | None = None  # the buses below a bridge
    subordinate: int | None = None
    physfn: Placed | None = None
    vfs: list[Placed] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return f"sys/devices/{self.path}"


@dataclass(kw_only=True)
class Bridge:
    """A host bridge, and the inner one of a VMD, in its place."""

    path: str
    domain: int
    bus: int
    last: int
    node: int


@dataclass
class Layout:
    functions: dict[PciAddress, Placed] = field(default_factory=dict)
    bridges: list[Bridge] = field(default_factory=list)
    names: dict[str, Placed] = field(default_factory=dict)
    places: dict[str, Placed] = field(default_factory=dict)  # by address as it is written

    def of(self, kind: str) -> Iterator[Placed]:
        """The functions of one kind in bus order, without virtual ones."""
        return (one for one in self.functions.values() if one.spec.kind == kind and one.physfn is None)


_NO_VFS = Vfs(count=0, total=0, offset=1, stride=1, ids=(0, 0), klass=0, driver=None, node=None)


def layout(roots: tuple[Root, ...]) -> Layout:
    """Every function of every root. Wrong where two are in one place, or buses do not nest."""
    maker = _Maker()
    for root in roots:
        maker.root(root, root.prefix, None)
    maker.name()
    return maker.found


class _Maker:
    def __init__(self) -> None:
        self.found = Layout()
        self._taken: dict[tuple[int, int], Bridge] = {}

    def root(self, root: Root, prefix: str, above: Placed | None) -> None:
        path = f"{prefix}/pci{root.domain:04x}:{root.bus:02x}".lstrip("/")
        node = above.node if above is not None and root.node == NOWHERE else root.node
        bridge = Bridge(path=path, domain=root.domain, bus=root.bus, last=root.bus, node=node)
        self.found.bridges.append(bridge)
        if len(self.found.bridges) > ROOTS_AT_MOST:
            raise root.place.wrong(f"more than {ROOTS_AT_MOST} roots")
        bridge.last = self.bus(root.below, root.domain, root.bus, path, above, (path, node), first=1)
        for other in self.found.bridges:
            if (
                other is not bridge
                and other.domain == bridge.domain
                and other.bus <= bridge.last
                and bridge.bus <= other.last
            ):
                raise root.place.wrong(
                    f"its buses {bridge.bus:02x}-{bridge.last:02x} and those of {other.path.rpartition('/')[2]}, "
                    f"{other.bus:02x}-{other.last:02x}, are in part the same"
                )

    def bus(
        self,
        specs: tuple[Function, ...],
        domain: int,
        bus: int,
        path: str,
        parent: Placed | None,
        root: tuple[str, int],
        *,
        first: int,
    ) -> int:
        """Place what is on one bus, and all below it; the last bus that was used. `first`: the first device."""
        last, ranges = bus, list[tuple[int, int]]()
        free = [first, 0]
        for spec in specs:
            device, number = spec.at or (free[0], free[1])
            free = _next(parent, device, number)
            made = self.function(spec, PciAddress(domain, bus, device, number), path, parent, root)
            last = max([last, *(one.address.bus for one in made.vfs)])
            if spec.bridge:
                made.secondary = last + 1 if spec.inner is None else spec.inner
                if made.secondary > 0xFF or made.secondary <= bus:
                    raise spec.place.wrong(f"bus {made.secondary:02x} below bus {bus:02x}: buses do not nest")
                made.subordinate = self.bus(spec.below, domain, made.secondary, made.path, made, root, first=0)
                for low, high in ranges:
                    if low <= made.subordinate and made.secondary <= high:
                        raise spec.place.wrong(
                            f"its buses {made.secondary:02x}-{made.subordinate:02x} and those of a neighbour, "
                            f"{low:02x}-{high:02x}, are in part the same: buses do not nest"
                        )
                ranges.append((made.secondary, made.subordinate))
                last = max(last, made.subordinate)
            if spec.inside is not None:
                self.root(spec.inside, made.path, made)
        return last

    def function(
        self, spec: Function, address: PciAddress, path: str, parent: Placed | None, root: tuple[str, int]
    ) -> Placed:
        if address.function > 7 or address.device > 31:
            raise spec.place.wrong("no place is left on its bus; say `at`")
        node = spec.node if spec.node is not None else parent.node if parent is not None else root[1]
        made = Placed(address=address, spec=spec, path=f"{path}/{address}", parent=parent, root=root[0], node=node)
        self.add(made, spec.place)
        for number in range(spec.vfs.count if spec.vfs else 0):
            made.vfs.append(self.vf(made, number, path))
        return made

    def vf(self, physfn: Placed, number: int, path: str) -> Placed:
        """drivers/pci/iov.c pci_iov_virtfn_devfn: PF + offset + stride * number, on the next bus where that is over."""
        vfs = physfn.spec.vfs or _NO_VFS
        place = physfn.address.bus << 8 | physfn.address.device << 3 | physfn.address.function
        place += vfs.offset + vfs.stride * number
        if place > 0xFFFF:
            raise physfn.spec.place.wrong("its virtual functions go beyond the last bus")
        address = PciAddress(physfn.address.domain, place >> 8, place >> 3 & 0x1F, place & 7)
        node = physfn.node if vfs.node is None else vfs.node
        made = replace(physfn, address=address, path=f"{path}/{address}", node=node, physfn=physfn, vfs=[])
        self.add(made, physfn.spec.place)
        return made

    def add(self, made: Placed, place: Place) -> None:
        if made.address in self.found.functions:
            raise place.wrong(f"two functions at {made.address}")
        self.found.functions[made.address] = made
        if len(self.found.functions) > FUNCTIONS_AT_MOST:
            raise place.wrong(f"more than {FUNCTIONS_AT_MOST} functions")

    def name(self) -> None:
        """Names of functions: those given, and gpu0, nic0, … for the others of each kind in bus order."""
        found = self.found
        found.functions = dict(sorted(found.functions.items()))
        found.places = {str(at): one for at, one in found.functions.items()}
        gpus = [*found.of("gpu")]
        if len(gpus) > GPUS_AT_MOST:
            raise gpus[GPUS_AT_MOST].spec.place.wrong(f"more than {GPUS_AT_MOST} GPUs")
        for one in found.functions.values():
            given = one.spec.name
            if given is not None and one.physfn is None:
                if given in found.names:
                    raise one.spec.place.wrong(f"two functions are called {given!r}")
                found.names[given] = one
        for kind in ("gpu", "nic", "nvme", "nvswitch"):
            for number, one in enumerate(found.of(kind)):
                found.names.setdefault(f"{kind}{number}", one)


def _next(parent: Placed | None, device: int, number: int) -> list[int]:
    """Where the next function goes: below a port to the same device, on any other bus to the next one."""
    if parent is not None and parent.spec.kind == "port":
        return [device, number + 1]
    if parent is not None and parent.spec.several:
        return [device + (number == 7), (number + 1) % 8]
    return [device + 1, 0]
