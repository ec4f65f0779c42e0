"""Random machines: hypothesis strategies that make a whole description, and what must be found in it.

What is expected is noted while the description is made, from the same draws; nothing of the program is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml
from hypothesis import strategies as st

NOWHERE = "none"

# part -> (vendor, device, class, driver); typed from docs/machines.md's sources once more
_GPUS = {
    "h100": (0x10DE, 0x2330, 0x030200, "nvidia"),
    "a100": (0x10DE, 0x20B0, 0x030200, "nvidia"),
    "mi210": (0x1002, 0x740F, 0x038000, "amdgpu"),
    "mi300a": (0x1002, 0x74A0, 0x120000, "amdgpu"),
}
_NICS = {"cx7": (0x15B3, 0x1021, 0x020000, "mlx5_core"), "e810": (0x8086, 0x1592, 0x020000, "ice")}
_VFS = {"cx7": (0x15B3, 0x101E, 0x020000, "mlx5_core"), "e810": (0x8086, 0x1889, 0x020000, "ice")}
_NVME = (0x144D, 0xA824, 0x010802, "nvme")
_SWITCHES = {"pex89104": (0x1000, 0xC030), "pex88096": (0x1000, 0xC010)}
_ROOT_PORT = (0x8086, 0x352A)
_VMD = (0x8086, 0x28C0, 0x010400, "vmd")
_OTHER = (0x8086, 0x1234, 0x088000, None)
_LINKS = {"h100": (32.0, 16), "mi300a": (32.0, 16), "cx7": (32.0, 16), "pm1733": (16.0, 4)}
_KINDS = {"gpu": "gpu", "nic": "nic", "nvme": "nvme", "device": "other", "bridge": "bridge"}

Address = str
Identity = tuple[int, int, int, str | None]


@dataclass
class Expected:
    """What discovery has to find: all of it, and nothing else."""

    cpus: dict[int, tuple[bool, int, frozenset[int]]] = field(default_factory=dict)  # online, package, threads
    nodes: dict[int, tuple[frozenset[int], int, dict[int, int] | None]] = field(default_factory=dict)
    devices: dict[Address, dict[str, Any]] = field(default_factory=dict)
    roots: dict[str, set[int | None]] = field(default_factory=dict)  # nodes of the functions right below
    links: set[tuple[Address, Address | None, str, int | None]] = field(default_factory=set)


@dataclass
class Case:
    description: dict[str, Any]
    expected: Expected

    @property
    def text(self) -> str:
        return yaml.safe_dump(self.description, sort_keys=False, width=160)


class _Maker:
    """One machine, drawn part by part."""

    def __init__(self, draw: st.DrawFn, *, explicit: bool) -> None:
        self.draw = draw
        self.explicit = explicit  # every bus number is written down
        self.found = Expected()
        self.online: frozenset[int] = frozenset()
        self.with_cpus: list[int] = []
        self.memories: dict[int, int] = {}  # node without CPUs -> the one it is near
        self.gpus: list[tuple[str, Address, str]] = []  # name, address, driver
        self.names = 0
        self.edits: list[dict[str, Any]] = []
        self.tops: dict[str, list[int | None]] = {}  # root -> the nodes of the functions right below it

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def maybe(self) -> bool:
        return self.draw(st.booleans())

    # CPUs and memory

    def cpus(self) -> dict[str, Any]:
        packages = sorted(self.draw(st.sets(st.sampled_from([0, 1, 36, 60, 84, 8442]), min_size=1, max_size=2)))
        cores, threads = self.number(1, 3), self.number(1, 2)
        scheme = self.draw(st.sampled_from(["cores-first", "siblings-adjacent", "round-robin-packages", "cores"]))
        seats = [(package, core, thread) for package in packages for core in range(cores) for thread in range(threads)]
        order = {
            "cores-first": sorted(seats, key=lambda seat: (seat[2], seat[0], seat[1])),
            "siblings-adjacent": seats,
            "round-robin-packages": sorted(seats, key=lambda seat: (seat[2], seat[1], seat[0])),
        }.get(scheme) or self.draw(st.permutations(seats))
        numbers = {seat: cpu for cpu, seat in enumerate(order)}
        offline = {numbers[packages[-1], 0, 1]} if threads == 2 and self.maybe() else set[int]()
        for seat, cpu in numbers.items():
            siblings = {numbers[seat[0], seat[1], thread] for thread in range(threads)} - offline
            self.found.cpus[cpu] = cpu not in offline, seat[0], frozenset(siblings)
        self.online = frozenset(numbers.values()) - offline
        self.seats = {cpu: seat for seat, cpu in numbers.items()}
        self.packages, self.cores = packages, cores
        said: dict[str, Any] = {"packages": packages, "cores": cores, "threads": threads, "numbering": scheme}
        if scheme == "cores":
            lists = [
                [numbers[package, core, thread] for thread in range(threads)]
                for package in packages
                for core in range(cores)
            ]
            said["numbering"] = {"cores": [",".join(map(str, one)) for one in lists]}
        if offline:
            said["offline"] = ",".join(map(str, sorted(offline)))
        return said

    def numa(self) -> dict[str, Any]:
        count = self.draw(
            st.sampled_from(sorted({1, len(self.packages)} | ({len(self.packages) * 2} if self.cores == 2 else set())))
        )
        ids = sorted(self.draw(st.sets(st.integers(0, 9), min_size=count, max_size=count)))
        said: dict[str, Any] = {"ids": ids, "nodes": count}
        total = len(self.packages) * self.cores
        held: dict[int, set[int]] = {node: set() for node in ids}
        for cpu, (package, core, _) in self.seats.items():
            held[ids[(self.packages.index(package) * self.cores + core) * count // total]].add(cpu)
        self.with_cpus = ids
        sizes = dict(zip(ids, self.draw(st.lists(st.integers(1, 64), min_size=count, max_size=count)), strict=True))
        said["memory"] = [f"{size} GiB" for size in sizes.values()]
        rule = {"local": 10, "package": self.number(11, 15), "other": self.number(16, 40)}
        told = self.maybe()
        said["distance"] = rule if told else "none"
        if told and self.maybe():
            near, node = self.draw(st.sampled_from(ids)), self.draw(st.sampled_from([20, 21]))
            said["extra"] = [{"id": node, "kind": "plain", "memory": "8 GiB", "near": near, "distance": 17, "far": 28}]
            self.memories[node] = near
            sizes[node] = 8
        every = sorted([*ids, *self.memories])
        for node in every:
            row = {other: self.distance(rule, held, node, other) for other in every} if told else None
            self.found.nodes[node] = frozenset(held.get(node, ())) & self.online, sizes[node] << 30, row
        return said

    def distance(self, rule: dict[str, int], held: dict[int, set[int]], a: int, b: int) -> int:
        if a == b:
            return 10
        for one, other in ((a, b), (b, a)):
            if one in self.memories:
                return 17 if other == self.memories[one] else 28
        packages = [{self.seats[cpu][0] for cpu in held[node]} for node in (a, b)]
        return rule["package"] if packages[0] & packages[1] else rule["other"]

    def near(self, chain: list[int | None], local: int | None = None) -> tuple[int | None, str | None]:
        """(node, origin) of a function whose own numa_node file and those above it say `chain`, own first.

        `local`: the node whose CPUs its local_cpulist has, where that is not all CPUs.
        """
        for place, node in enumerate(chain):
            if node is not None:
                return self.memories.get(node, node), "bridge" if place else "firmware"
        for node in (local, self.root_node):
            if node is not None and self.found.nodes[node][0] != self.online:
                return node, "cpulist"
        only = [node for node in self.found.nodes if self.found.nodes[node][0] == self.online]
        if len(self.found.nodes) == 1 and only:
            return only[0], "assumed"
        return None, None

    def node(self, *, memories: bool = False) -> int | str:
        choice: list[int | str] = [*self.with_cpus, NOWHERE, *(self.memories if memories else ())]
        return self.draw(st.sampled_from(choice))

    # PCI

    def pci(self) -> list[dict[str, Any]]:
        buses = sorted(self.draw(st.sets(st.sampled_from(["00", "40", "80", "c0"]), min_size=0, max_size=2)))
        domains = self.draw(st.lists(st.sampled_from([0, 1, 0x10001]), min_size=len(buses), max_size=len(buses)))
        return [self.root(domain, int(bus, 16)) for bus, domain in zip(buses, domains, strict=True)]

    def root(self, domain: int, bus: int) -> dict[str, Any]:
        node = self.node()
        prefix = "LNXSYSTM:00/VMBUS:00/one" if self.draw(st.integers(0, 4)) == 4 else ""
        said: dict[str, Any] = {"root": f"{domain:04x}:{bus:02x}", "node": node}
        if prefix:
            said["prefix"] = prefix
        self.domain = domain
        self.root_name = f"{prefix}/pci{domain:04x}:{bus:02x}".lstrip("/")
        self.root_node = None if node == NOWHERE else int(node)
        self.tops[self.root_name] = []
        self.last = bus
        below: list[dict[str, Any]] = []
        for device in range(1, self.number(1, 4)):
            if not self.draw(st.integers(0, 7)):
                below.append(self.vmd(bus, device))
            elif self.maybe():
                below.append(self.endpoint(bus, device, 0, [], [self.root_node]))
            else:
                below.append(self.port(bus, device, 0, [], [self.root_node], _ROOT_PORT, depth=0))
        if below:
            self.found.roots[self.root_name] = set(self.tops[self.root_name])
        return {**said, "below": below}

    def vmd(self, bus: int, device: int) -> dict[str, Any]:
        """An endpoint with a domain of its own below it; what is in there hangs below the outer root."""
        said: dict[str, Any] = {"device": "vmd", "at": f"{device:02x}.0"}
        chain = self.chain(said, [self.root_node], memories=False)
        address = self.add((bus, device, 0), chain[:1], [], _VMD, "device")
        outer, last = self.domain, self.last
        self.names += 1
        self.domain, self.last = 0x20000 + self.names, 0x80
        inner = self.port(0x80, 7, 0, [address], chain, _ROOT_PORT, depth=1)
        said["inside"] = {"root": f"{self.domain:x}:80", "below": [inner]}
        self.domain, self.last = outer, last
        return said

    def add(
        self,
        at: tuple[int, int, int],
        chain: list[int | None],
        above: list[Address],
        what: Identity,
        kind: str,
    ) -> Address:
        """One function: its description's fields, and what is expected of it."""
        address = f"{self.domain:04x}:{at[0]:02x}:{at[1]:02x}.{at[2]}"
        node, origin = self.near(chain)
        self.found.devices[address] = {
            "kind": _KINDS[kind], "identity": what, "parent": above[-1] if above else None, "root": self.root_name,
            "node": node, "origin": origin, "physfn": None, "names": (), "link": None, "reason": "firmware_silent",
        }  # fmt: skip
        if not above:
            self.tops[self.root_name].append(node)
        return address

    def chain(self, said: dict[str, Any], above: list[int | None], *, memories: bool) -> list[int | None]:
        """What the numa_node files say, own first; a function without a node of its own has that of what is above."""
        if not self.draw(st.integers(0, 3 if above[0] is not None else 1)):
            said["node"] = self.node(memories=memories)
            own = None if said["node"] == NOWHERE else int(said["node"])
        else:
            own = above[0]
        return [own, *above]

    def bus_below(self, said: dict[str, Any], field: str) -> int:
        """The next bus, or one further on: that must be written down."""
        gap = self.draw(st.sampled_from([0, 0, 0, 1, 3]))
        self.last += 1 + gap
        if gap or self.explicit:
            said[field] = f"{self.last:02x}"
        return self.last

    def port(
        self,
        bus: int,
        device: int,
        function: int,
        above: list[Address],
        chain: list[int | None],
        ids: tuple[int, int],
        *,
        depth: int,
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"port": None, "at": f"{device:02x}.{function}"}
        own = self.chain(said, chain, memories=False)
        address = self.add(
            (bus, device, function), own[: len(above) + 1], above, (*ids, 0x060400, "pcieport"), "bridge"
        )
        self.found.devices[address]["link"] = (16.0, 16) if ids == _SWITCHES["pex88096"] else (32.0, 16)
        secondary = self.bus_below(said, "inner")
        what = self.draw(st.sampled_from(["nothing", "endpoint", "endpoint", "two", "switch"]))
        here = [*above, address]
        if what == "switch" and depth < 2:
            said["below"] = [self.switch(secondary, here, own, depth=depth)]
        elif what != "nothing":
            said["below"] = [
                self.endpoint(secondary, 0, number, here, own) for number in range(2 if what == "two" else 1)
            ]
        return said

    def switch(self, bus: int, above: list[Address], chain: list[int | None], *, depth: int) -> dict[str, Any]:
        part = self.draw(st.sampled_from(sorted(_SWITCHES)))
        said: dict[str, Any] = {"switch": part, "at": "00.0"}
        own = self.chain(said, chain, memories=False)
        address = self.add(
            (bus, 0, 0), own[: len(above) + 1], above, (*_SWITCHES[part], 0x060400, "pcieport"), "bridge"
        )
        self.found.devices[address]["link"] = (32.0, 16) if part == "pex89104" else (16.0, 16)
        inner = self.bus_below(said, "inner")
        several = self.maybe()
        places = [(0, number) if several else (number, 0) for number in range(self.number(1, 3))]
        ports = [self.port(inner, *at, [*above, address], own, _SWITCHES[part], depth=depth + 1) for at in places]
        return {**said, "ports": ports}

    def endpoint(
        self, bus: int, device: int, function: int, above: list[Address], chain: list[int | None]
    ) -> dict[str, Any]:
        # A GPU is function 0: NVML names no function, and a KFD partition may look like another one.
        kind = self.draw(st.sampled_from(["nic", "nvme", "device", *(["gpu"] if not function else [])]))
        said: dict[str, Any] = {}
        part, what = self.part(kind)
        said[kind] = part
        said["at"] = f"{device:02x}.{function}"
        own = self.chain(said, chain, memories=True)
        address = self.add((bus, device, function), own[: len(above) + 1], above, what, kind)
        expected = self.found.devices[address]
        expected["link"] = _LINKS.get(part, (16.0, 16))
        if kind == "device" or not self.draw(st.integers(0, 3)):
            said["link"] = "none"
            expected["link"] = None
        self.names += 1
        if kind == "gpu":
            said |= {"name": f"g{self.names}", "nodes": "none"}
            self.gpus.append((f"g{self.names}", address, what[3] or ""))
        elif kind == "nic":
            self.nic(said, address, above, part)
        elif kind == "nvme":
            said |= {"controller": f"nvme{self.names}"}
            spaces = self.number(0, 2)
            said["namespaces"] = spaces
            expected["names"] = (f"nvme{self.names}", *(f"nvme{self.names}n{number + 1}" for number in range(spaces)))
        if expected["link"] is not None and self.maybe():
            said["now"] = "2.5x1"
        self.silence(said, address, own, above)
        return said

    def silence(self, said: dict[str, Any], address: Address, chain: list[int | None], above: list[Address]) -> None:
        """Sometimes numa_node is not there or says -1, and local_cpulist still tells."""
        own = chain[0]
        same = len(chain) > 1 and chain[1] == own
        does = self.draw(st.sampled_from(["says", "gone", *["nothing"] * (6 if same else 1)]))
        if does == "nothing" or own not in self.with_cpus or "vfs" in said:
            return
        self.edits.append({"of": address, "file": "numa_node", **({"says": -1} if does == "says" else {"gone": True})})
        expected = self.found.devices[address]
        before, node = expected["node"], self.near([None, *chain[1 : len(above) + 1]], own)
        expected["node"], expected["origin"] = node
        expected["reason"] = "firmware_silent" if does == "says" else "not_supported"
        if not above:
            self.tops[self.root_name].remove(before)
            self.tops[self.root_name].append(node[0])

    def part(self, kind: str) -> tuple[str, Identity]:
        if kind == "gpu":
            return self.draw(st.sampled_from(sorted(_GPUS.items())))
        if kind == "nic":
            return self.draw(st.sampled_from(sorted(_NICS.items())))
        return ("pm1733", _NVME) if kind == "nvme" else ("8086:1234", _OTHER)

    def nic(self, said: dict[str, Any], address: Address, above: list[Address], part: str) -> None:
        netdevs = [f"eth{self.names}", *([f"eth{self.names}d1"] if self.maybe() else [])]
        said |= {"netdev": netdevs, "rdma": f"mlx5_{self.names}"}
        self.found.devices[address]["names"] = (*netdevs, f"mlx5_{self.names}")
        count = self.draw(st.sampled_from([0, 0, 1, 3]))
        if count:
            bus, rest = address.rpartition(":")[0], address.rpartition(":")[2]
            # On a root bus apart by device, and never on the next bus: that may be somebody's.
            offset = 16 + 8 * (len(self.found.devices) % 8) if above else 64 + 24 * int(rest[:2], 16)
            said["vfs"] = {"count": count, "total": 8, "offset": offset}
            place = int(rest[:2], 16) * 8 + int(rest[3]) + offset
            for number in range(count):
                name = f"{bus}:{(place + number) >> 3:02x}.{(place + number) & 7}"
                self.found.devices[name] = {
                    **self.found.devices[address], "identity": _VFS[part], "physfn": address, "names": (), "link": None,
                }  # fmt: skip

    # Links between GPUs

    def nvidia(self) -> dict[str, Any] | None:
        ours = [(name, address) for name, address, driver in self.gpus if driver == "nvidia"]
        if not ours or self.maybe():
            return None
        said: dict[str, Any] = {"proc": self.maybe(), "order": self.draw(st.permutations([name for name, _ in ours]))}
        if len(ours) > 1 and self.maybe():
            links = self.number(1, 6)
            said["nvlink"] = {"pairs": [[ours[0][0], ours[1][0], links]]}
            low, high = sorted((ours[0][1], ours[1][1]))
            self.found.links.add((low, high, "nvlink", links))
        elif self.maybe():
            links = self.number(1, 6)
            said["nvlink"] = {"to": "hidden", "links": links}
            self.found.links |= {(address, None, "nvlink", links) for _, address in ours}
        for index, name in enumerate(said["order"]):
            self.found.devices[dict(ours)[name]]["index"] = index
        return said

    def amd(self) -> dict[str, Any] | None:
        ours = sorted(address for _, address, driver in self.gpus if driver == "amdgpu")
        if not ours or self.maybe():
            return None
        hives = self.draw(st.sampled_from(["all", "none"]))
        if hives == "all":
            self.found.links |= {(a, b, "xgmi", None) for a in ours for b in ours if a < b}
        return {"hives": hives, "partitions": self.draw(st.sampled_from([1, 2])), "partition_in": "top"}


@st.composite
def machines(draw: st.DrawFn, *, explicit: bool = False) -> Case:
    """A small machine of any shape."""
    maker = _Maker(draw, explicit=explicit)
    description: dict[str, Any] = {"schema": "topo-agent/machine/v1", "name": "random"}
    description["cpus"] = maker.cpus()
    description["numa"] = maker.numa()
    description["pci"] = maker.pci()
    drivers = {"nvidia": maker.nvidia(), "amd": maker.amd()}
    description |= {name: said for name, said in drivers.items() if said is not None}
    if maker.edits:
        description["edits"] = maker.edits
    return Case(description, maker.found)
