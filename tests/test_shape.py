"""The shape: equal for equal machines whatever they and their parts are called, another one where wiring differs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, note
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests import fixtures
from tests.described import Case, machines
from tests.machines import MACHINES, needs_machines
from tests.machines import host as recorded
from tests.paper import cpus, function, nodes, topology, two_sockets
from tests.test_cli import SMALL, answer, refused, run, text_of
from tests.test_properties import EXAMPLES, SETTINGS, Shuffled
from topo_agent import discover
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Cpu
from topo_agent.graph.build import build
from topo_agent.graph.nodes import Device, Memory
from topo_agent.graph.shape import memory_class, shape
from topo_agent.graph.topology import Topology
from topo_agent.host import Host, Json, recording
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Document, Entry, Failure, Link, PaperHost
from topo_agent.ids import CpuId, CpuSet, NumaId, PackageId, Ref, numa_ref, package_ref
from topo_agent.scan import scan
from topo_agent.synthesis.build import from_text

# labels.md §3: what Kubernetes takes as the value of a label
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
GIB = 1 << 30

T = TypeVar("T")


def of(host: Host) -> str:
    return shape(build(scan(host)))


def paper(name: str) -> PaperHost:
    host = fixtures.host(name)
    assert isinstance(host, PaperHost)
    return host


@cache
def as_it_is(name: str) -> Topology:
    return build(scan(paper(name)))


@cache
def shape_as_it_is(name: str) -> str:
    return shape(as_it_is(name))


def described(text: str) -> str:
    return of(from_text(text))


# The same machine, otherwise


_BUS = re.compile(r"(?<![0-9A-Fa-f:])([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2})(?=[:/\"\s]|$)")
_LOCATION = re.compile(r"(?m)^location_id ([0-9]+)$")
_DOMAIN = re.compile(r"(?m)^domain ([0-9]+)$")


def changed(host: PaperHost, path: Callable[[str], str], text: Callable[[str, str], str]) -> PaperHost:
    """The same machine with other paths, and other texts in its files and documents."""

    def entry(at: str, was: Entry) -> Entry:
        if isinstance(was, Link):
            return Link(path(was.target))
        return text(at, was) if isinstance(was, str) else was

    def document(was: Document) -> Document:
        found: Json = json.loads(text("", json.dumps(was))) if isinstance(was, dict) else None
        return was if found is None else found

    entries = {path(at): entry(at, was) for at, was in host.entries.items()}
    return PaperHost(entries, {name: document(was) for name, was in host.documents.items()}, source=host.source)


def other_buses(host: PaperHost, random: Random) -> PaperHost:
    """Every PCI bus has another number, and so have host bridges."""
    used: dict[int, set[int]] = {}
    for found in (one for path in host.entries for one in _BUS.finditer(path)):
        used.setdefault(int(found[1], 16), set()).add(int(found[2], 16))
    buses = {
        (domain, bus): other
        for domain, some in used.items()
        for bus, other in zip(sorted(some), random.sample(range(256), len(some)), strict=True)
    }

    def renamed(text: str) -> str:
        def one(found: re.Match[str]) -> str:
            was = int(found[2], 16)
            word = f"{buses.get((int(found[1], 16), was), was):02x}"
            return f"{found[1]}:{word.upper() if found[2].isupper() else word}"

        return _BUS.sub(one, text)

    def in_file(path: str, text: str) -> str:
        """In KFD the bus is part of a decimal number."""
        domain = int(found[1]) if (found := _DOMAIN.search(text)) else 0

        def location(found: re.Match[str]) -> str:
            was = int(found[1])
            bus = was >> 8 & 0xFF  # a partition may stand above it
            return f"location_id {was - (bus << 8) + (buses.get((domain, bus), bus) << 8)}"

        return _LOCATION.sub(location, renamed(text)) if "/kfd/" in path else renamed(text)

    return changed(host, renamed, in_file)


def other_names(host: PaperHost, _: Random) -> PaperHost:
    """Interfaces, RDMA devices and drives have other names."""
    names = {
        path.split("/")[3] for path in host.entries if re.match(r"sys/class/(net|infiniband|nvme|drm)/[^/]+", path)
    }

    def renamed(path: str) -> str:
        return "/".join(f"x{part}" if part in names - {"lo", "version"} else part for part in path.split("/"))

    return changed(host, renamed, lambda _, text: text)


_NOW: dict[str, str] = {
    "current_link_speed": "2.5 GT/s PCIe\n", "current_link_width": "1\n", "carrier": "0\n", "operstate": "down\n",
    "speed": "-1\n", "state": "1: DOWN\n", "rate": "2.5 Gb/sec (1X SDR)\n", "mtu": "9000\n",
}  # fmt: skip
_CALLED: dict[str, str] = {
    "osrelease": "9.9.9-other\n", "bios_version": "99.1\n", "product_name": "Another name\n",
    "board_name": "Another board\n", "sys_vendor": "Another vendor\n", "hostname": "another\n",
}  # fmt: skip


def saying(said: dict[str, str]) -> Callable[[PaperHost, Random], PaperHost]:
    """Files of these names say something else."""

    def other(host: PaperHost, _: Random) -> PaperHost:
        return changed(host, str, lambda path, text: said.get(path.rpartition("/")[2], text) if path else text)

    return other


def unbound(host: PaperHost, _: Random) -> PaperHost:
    """No driver is bound to anything; what it said before stays."""
    kept = {path: entry for path, entry in host.entries.items() if not path.endswith("/driver")}
    found = PaperHost(kept, host.documents, source=host.source)
    return changed(
        found, str, lambda path, text: re.sub(r"(?m)^DRIVER=.*\n", "", text) if path.endswith("uevent") else text
    )


def other_serials(host: PaperHost, _: Random) -> PaperHost:
    """UUIDs, GUIDs, serials, clusters and addresses, as a recording takes them out."""
    return recording.parse(recording.write(host))


def numbers_of_nvml(host: PaperHost, _: Random) -> PaperHost:
    """NVML counts its GPUs the other way round, and they are in another rack."""

    def other(path: str, text: str) -> str:
        if path or not text.startswith("{"):
            return text
        said = json.loads(text)
        gpus = said.get("gpus") or []
        for gpu in gpus:
            gpu["index"] = len(gpus) - 1 - gpu["index"] if isinstance(gpu.get("index"), int) else gpu.get("index")
            if isinstance(gpu.get("platform"), dict):
                gpu["platform"] |= {"chassis_serial": "1825024170029", "slot": 9, "tray": 3}
        return json.dumps(said)

    return changed(host, str, other)


OTHERWISE: dict[str, Callable[[PaperHost, Random], PaperHost]] = {
    "buses": other_buses,
    "names": other_names,
    "state": saying(_NOW),
    "called": saying(_CALLED),
    "unbound": unbound,
    "serials": other_serials,
    "numbers of NVML": numbers_of_nvml,
    "order": Shuffled,
    "kept names": lambda host, _: recording.parse(recording.write(host, keep_names=True)),
}


@pytest.mark.parametrize("how", OTHERWISE)
@pytest.mark.parametrize("name", fixtures.NAMES)
def test_the_same_machine_otherwise(name: str, how: str) -> None:
    other = OTHERWISE[how](paper(name), Random(name))  # noqa: S311
    before, after = as_it_is(name), build(scan(other))
    assert len(after.devices or ()) == len(before.devices or ())
    assert len(after.links or ()) == len(before.links or ())
    assert shape(after) == shape_as_it_is(name)


def test_these_are_other_machines_by_their_names() -> None:
    """A test of the test: what is changed is there, and seen."""
    host, random = paper("mi300x"), Random(1)  # noqa: S311
    before = build(scan(host))
    for how in ("buses", "names", "state", "called", "unbound"):
        after = build(scan(OTHERWISE[how](host, random)))
        seen = (after, after.links_now, after.ports_now)
        assert seen != (before, before.links_now, before.ports_now), how
    assert len({one.address for one in before.devices or ()} - {
        one.address for one in build(scan(other_buses(host, random))).devices or ()
    }) > 10  # fmt: skip
    tray = paper("gb200-nvl72-tray")
    for how in ("serials", "numbers of NVML"):
        assert build(scan(OTHERWISE[how](tray, random))) != build(scan(tray)), how


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_a_directory_is_the_same(name: str, common: Path) -> None:
    assert of(LiveHost(str(fixtures.tree(name, common)))) == shape_as_it_is(name)


def renumbered(found: Topology, random: Random) -> Topology:
    """NUMA nodes, packages and CPUs have other numbers, and everything is listed in another order."""
    ids = [one.id for one in found.memories or ()]
    node = {was: NumaId(now) for was, now in zip(ids, random.sample(range(1000), len(ids)), strict=True)}
    sockets = sorted({one.package for one in found.cpus or () if one.package is not None})
    package = dict(zip(sockets, map(PackageId, random.sample(range(1000), len(sockets))), strict=True))
    threads = [one.id for one in found.cpus or ()]
    cpu = dict(zip(threads, map(CpuId, random.sample(range(len(threads)), len(threads))), strict=True))

    def several(some: Iterable[int]) -> CpuSet:
        return frozenset(cpu[CpuId(one)] for one in some)

    def maybe(some: CpuSet | None) -> CpuSet | None:
        return None if some is None else several(some)

    def thread(one: Cpu) -> Cpu:
        where = None if one.package is None else package[one.package]
        return one._replace(id=cpu[one.id], package=where, threads=several(one.threads))

    def memory(one: Memory) -> Memory:
        rows = None if one.distances is None else tuple((node[other], value) for other, value in one.distances)
        return one._replace(
            ref=numa_ref(node[one.id]), id=node[one.id], cpus=maybe(one.cpus), near_cpus=maybe(one.near_cpus),
            distances=rows,
        )  # fmt: skip

    def device(one: Device) -> Device:
        near = None if one.numa_node is None else node[one.numa_node]
        return one._replace(numa_node=near, numa_nodes=tuple(node[o] for o in one.numa_nodes), cpus=maybe(one.cpus))

    return replace(
        found,
        cpus=None if found.cpus is None else _shuffled(map(thread, found.cpus), random),
        packages=None
        if found.packages is None
        else tuple(
            one._replace(ref=package_ref(package[one.id]), id=package[one.id], cpus=several(one.cpus))
            for one in found.packages
        ),
        memories=None if found.memories is None else _shuffled(map(memory, found.memories), random),
        devices=None if found.devices is None else _shuffled(map(device, found.devices), random),
        links=None if found.links is None else _shuffled(found.links, random),
        roots=None if found.roots is None else _shuffled(found.roots, random),
    )


def _shuffled(some: Iterable[T], random: Random) -> tuple[T, ...]:
    listed = [*some]
    return tuple(random.sample(listed, len(listed)))


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_other_numbers_of_nodes_packages_and_cpus(name: str) -> None:
    found = fixtures.topology(name)
    assert shape(renumbered(found, Random(name))) == shape(found)  # noqa: S311


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_settings_and_what_drivers_add(name: str) -> None:
    """Virtual functions, MIG devices, partitions, bonds: none of them changes the shape."""
    found = fixtures.topology(name)
    bare = replace(
        found,
        devices=tuple(
            one._replace(gpu=None, nic=None, nvme=None, sriov_total=None, sriov_enabled=None, board=None, title=None)
            for one in found.devices or ()
            if one.physfn is None
        ),
        migs=(),
        virtuals=(),
        caches=(),
    )
    assert shape(bare) == shape(found)


def test_virtual_functions_are_seen_and_do_not_count() -> None:
    assert any(one.physfn for one in fixtures.topology("mi300x").devices or ())
    assert described(FLEET) == described(FLEET.replace("vfs: 2", "vfs: 4"))


# Other machines


def test_a_shape_is_the_value_of_a_label() -> None:
    for name in fixtures.NAMES:
        found = shape(fixtures.topology(name))
        assert LABEL.fullmatch(found)
        assert re.fullmatch(r"[a-f][0-9a-f]{15}", found)


def test_every_fixture_has_its_own_shape() -> None:
    assert len({shape(fixtures.topology(name)) for name in fixtures.NAMES}) == len(fixtures.NAMES)


@needs_machines
def test_every_recorded_machine_has_its_own_shape() -> None:
    found = {name: of(recorded(name)) for name in MACHINES}
    assert len({*found.values()}) == len(MACHINES), found


# One node of a fleet, and what may differ from node to node. Serials and MAC addresses come from its name.
FLEET = """
schema: topo-agent/machine/v1
name: node1
machine: {vendor: Example, product: Fleet, cpu: Example CPU}
cpus: {packages: 2, cores: 8, threads: 2}
numa: {memory: 512 GiB, distance: {local: 10, other: 21}}
pci:
  - root: "10"
    node: 0
    ports:
      - switch: pex89104
        ports: [{gpu: h100, name: g0}, {gpu: h100, name: g1}, {nic: cx7, netdev: eth0, rdma: mlx5_0, vfs: 2}]
      - {switch: pex89104, ports: [{gpu: h100, name: g2}, {nic: cx7, netdev: eth1, rdma: mlx5_1}, {nvme: pm1733}]}
  - root: "80"
    node: 1
    ports:
      - {switch: pex89104, ports: [{gpu: h100, name: g3}, {nic: cx7, netdev: eth2, rdma: mlx5_2}]}
nvidia: {nvlink: {pairs: [[g0, g1, 4], [g2, g3, 4]]}}
"""

EQUAL = {
    "name": ("name: node1", "name: node2"),
    "bus numbers": ('root: "10"', 'root: "06"'),
    "domain": ('root: "80"', 'root: "0003:80"'),
    "order of ports": (
        "[{gpu: h100, name: g2}, {nic: cx7, netdev: eth1, rdma: mlx5_1}, {nvme: pm1733}]",
        "[{nvme: pm1733}, {nic: cx7, netdev: eth1, rdma: mlx5_1}, {gpu: h100, name: g2}]",
    ),
    "names": ("netdev: eth1, rdma: mlx5_1", "netdev: enp23s0, rdma: rocep23s0"),
    "numbering of CPUs": ("threads: 2}", "threads: 2, numbering: siblings-adjacent}"),
    "ids of packages": ("packages: 2", "packages: [36, 60]"),
    "ids of nodes": ("numa: {", "numa: {ids: [0, 1], "),
    "memory": ("512 GiB", "510 GiB"),
    "slot": ("{nvme: pm1733}", '{nvme: pm1733, slot: "7"}'),
    "trained down": ("{nvme: pm1733}", "{nvme: pm1733, now: 2.5x1}"),
    "virtual functions": (", vfs: 2", ""),
    "MIG": ("nvidia: {", "nvidia: {mig: {g0: 7}, "),
    "order of NVML": ("nvidia: {", "nvidia: {order: [g3, g2, g1, g0], "),
    "rack": ("nvidia: {", "nvidia: {platform: {slot: 5, tray: 4}, "),
    "NVLinks that are down": ("{pairs:", "{down: {g0: 4}, pairs:"),
    "disks": ("{nvme: pm1733}", "{nvme: pm1733, namespaces: 4}"),
    "driver": ("{nvme: pm1733}", "{nvme: pm1733, driver: none}"),
    "bond": ("nvidia:", "net: {stacked: [{bond: bond0, on: [eth1, eth2]}]}\nnvidia:"),
    "huge pages": ("numa: {", "numa: {hugepages: {2 MiB: 512}, "),
    "a node that the port tells": ("{nvme: pm1733}", "{nvme: pm1733, node: none}"),
    "a node that a GPU's driver made": ("numa: {", "numa: {extra: [{id: 7, kind: gpu, gpu: g0, memory: 96 GiB}], "),
    "an empty node": ("numa: {", "numa: {extra: [{id: 7, kind: empty}], "),
    "IOMMU": ("{nvme: pm1733}", "{nvme: pm1733, iommu: 9}"),
}

OTHER: dict[str, tuple[str, ...]] = {
    "a GPU under another switch": (
        "{gpu: h100, name: g1}, ", "", "{gpu: h100, name: g3}", "{gpu: h100, name: g1}, {gpu: h100, name: g3}",
    ),
    "a GPU under another switch of the root": (
        "{gpu: h100, name: g1}, ", "", "{gpu: h100, name: g2}", "{gpu: h100, name: g1}, {gpu: h100, name: g2}",
    ),
    "a GPU and a NIC in exchange": (
        "{gpu: h100, name: g1}, ", "", "{gpu: h100, name: g3}", "{gpu: h100, name: g1}",
        "{nic: cx7, netdev: eth2, rdma: mlx5_2}", "{gpu: h100, name: g3}", "{nic: cx7, netdev: eth0",
        "{nic: cx7, netdev: eth2, rdma: mlx5_2}, {nic: cx7, netdev: eth0",
    ),
    "a NIC missing": (", {nic: cx7, netdev: eth2, rdma: mlx5_2}", ""),
    "an NVMe drive more": ("{nvme: pm1733}", "{nvme: pm1733}, {nvme: pm1733}"),
    "half the width": ("{nvme: pm1733}", "{nvme: pm1733, link: 16x2}"),
    "half the speed": ("{nvme: pm1733}", "{nvme: pm1733, link: 8x4}"),
    "no link told": ("{nvme: pm1733}", "{nvme: pm1733, link: none}"),
    "another GPU model": ("{gpu: h100, name: g3}", "{gpu: h200, name: g3}"),
    "another maker's card": ("{nvme: pm1733}", '{nvme: pm1733, subsystem: "1028:1234"}'),
    "another distance": ("other: 21", "other: 32"),
    "distances not told": ("distance: {local: 10, other: 21}", "distance: none"),
    "one distance": ("distance: {local: 10, other: 21}", "distance: [[10, 21], [20, 10]]"),
    "another node of a root": ('"80"\n    node: 1', '"80"\n    node: 0'),
    "a node unknown": ('"80"\n    node: 1', '"80"\n    node: none'),
    "another node of one device": ("{nvme: pm1733}", "{nvme: pm1733, node: 1}"),
    "one socket": ("packages: 2, cores: 8", "packages: 1, cores: 16"),
    "more cores": ("cores: 8", "cores: 16"),
    "no second threads": ("threads: 2", "threads: 1"),
    "one CPU offline": ("threads: 2}", 'threads: 2, offline: "7"}'),
    "two nodes to a package": ("numa: {memory: 512 GiB", "numa: {nodes: 4, memory: 256 GiB"),
    "one node": ("numa: {memory", "numa: {nodes: 1, memory"),
    "no NUMA": ("numa: {memory: 512 GiB, distance: {local: 10, other: 21}}", "numa: none"),
    "a DIMM that failed": ("512 GiB", "480 GiB"),
    "less memory in one node": ("memory: 512 GiB", "memory: [512 GiB, 256 GiB]"),
    "memory behind CXL": ("numa: {", "numa: {extra: [{id: 7, kind: cxl, memory: 64 GiB, near: [0]}], "),
    "another processor": ("cpu: Example CPU", "cpu: Example CPU 2"),
    "a virtual machine": ("cpu: Example CPU}", "cpu: Example CPU, hypervisor: true}"),
    "fewer NVLinks": ("[g2, g3, 4]", "[g2, g3, 3]"),
    "other pairs": ("[g0, g1, 4], [g2, g3, 4]", "[g0, g2, 4], [g1, g3, 4]"),
    "NVLink not told": ("nvidia: {", "nvidia: {unavailable: not_permitted, "),
    "faster NVLink": ("{pairs:", "{mbps: 50000, pairs:"),
    "NVLink to hidden switches": ("{pairs: [[g0, g1, 4], [g2, g3, 4]]}", "{to: hidden, links: 4}"),
    "one pair linked": (", [g2, g3, 4]", ""),
    "an empty port": ("{nvme: pm1733}", "{nvme: pm1733}, {port: }"),
    "no switch": ("{switch: pex89104, ports: [{gpu: h100, name: g3}, {nic: cx7, netdev: eth2, rdma: mlx5_2}]}",
                  "{gpu: h100, name: g3}\n      - {nic: cx7, netdev: eth2, rdma: mlx5_2}"),
    "two functions of one card": ("[{gpu: h100, name: g3}, {nic: cx7, netdev: eth2, rdma: mlx5_2}]",
                                  "[{gpu: h100, name: g3}, [{nic: cx7, netdev: eth2, rdma: mlx5_2}, {nic: cx7}]]"),
    "a device of another class": ("{nvme: pm1733}", "{nvme: pm1733}, {device: aspeed}"),
}  # fmt: skip


def _edited(edits: tuple[str, ...]) -> str:
    """FLEET with the first text of each two replaced by the second."""
    text = FLEET
    for was, now in zip(edits[::2], edits[1::2], strict=True):
        assert was in text, was
        text = text.replace(was, now)
    return text


@pytest.mark.parametrize("what", EQUAL)
def test_two_nodes_of_one_fleet(what: str) -> None:
    assert described(_edited(EQUAL[what])) == described(FLEET)


@pytest.mark.parametrize("what", OTHER)
def test_another_machine(what: str) -> None:
    assert described(_edited(OTHER[what])) != described(FLEET)


def test_all_these_machines_differ() -> None:
    found = {what: described(_edited(OTHER[what])) for what in OTHER} | {"": described(FLEET)}
    assert len({*found.values()}) == len(found), sorted(found.items(), key=lambda one: one[1])


# Each fact by itself


def with_device(found: Topology, name: str, **said: object) -> Topology:
    """The same topology where the device of this interface, or GPU of this number, says something else."""
    (one,) = [
        one
        for one in found.devices or ()
        if name in (*one.names.netdev, *one.names.nvme, f"gpu{one.names.nvml_index}") and one.physfn is None
    ]
    other = one._replace(**said)  # type: ignore[arg-type]
    return replace(found, devices=tuple(other if each.ref == one.ref else each for each in found.devices or ()))


def with_memory(found: Topology, node: int, **said: object) -> Topology:
    memories = (one._replace(**said) if one.id == node else one for one in found.memories or ())  # type: ignore[arg-type]
    return replace(found, memories=tuple(memories))


def with_link(found: Topology, **said: object) -> Topology:
    first, *rest = found.links or ()
    return replace(found, links=(first._replace(**said), *rest))  # type: ignore[arg-type]


UNKNOWN = {"numa_node": None, "numa_nodes": (), "cpus": None}

ALONE: dict[str, Callable[[Topology], Topology]] = {
    "nothing": lambda found: found,
    "a GPU whose node nobody knows": lambda found: with_device(found, "gpu0", **UNKNOWN),
    "a GPU near two nodes": lambda found: with_device(found, "gpu0", **UNKNOWN | {"cpus": found.online_cpus}),
    "a drive whose node nobody knows": lambda found: with_device(found, "nvme0", **UNKNOWN),
    "a GPU whose parent nobody knows": lambda found: with_device(
        found, "gpu0", parent=None, unknown=(("parent", Unknown.NOT_RECORDED),)
    ),
    "a GPU right below its root": lambda found: with_device(found, "gpu0", parent=None),
    "a link that nobody can read": lambda found: with_device(
        found, "nvme0", link=None, unknown=(("link", Unknown.UNREADABLE),)
    ),
    "no link": lambda found: with_device(found, "nvme0", link=None),
    "another class": lambda found: with_device(found, "nvme0", class_code=0x010800),
    "memory of another kind": lambda found: with_memory(found, 0, kind="hbm"),
    "CPUs of a node not told": lambda found: with_memory(found, 0, cpus=None),
    "a distance to itself": lambda found: with_memory(found, 0, distances=((NumaId(0), 11), (NumaId(1), 21))),
    "one row of distances not told": lambda found: with_memory(found, 0, distances=None),
    "NVLink told, and none there": lambda found: replace(found, links=()),
    "NVLink not told": lambda found: replace(found, links=None),
    "twice the links, each half as fast": lambda found: with_link(found, links=8),
    "a weight": lambda found: with_link(found, weight=15),
    "xGMI": lambda found: with_link(found, kind="xgmi"),
    "a peer that is not seen": lambda found: with_link(found, b=None, peer="unknown"),
    "a switch that is not seen": lambda found: with_link(found, b=None, peer="switch"),
    "a switch that is not on the bus": lambda found: with_link(found, b=Ref("pci", "0000:ff:00.0"), peer="switch"),
    "PCI not told": lambda found: replace(found, devices=None, roots=None, links=None),
    "no PCI": lambda found: replace(found, devices=(), roots=(), links=None),
    "memory not told": lambda found: replace(found, memories=None),
    "CPUs not told": lambda found: replace(found, cpus=None),
    "virtual": lambda found: replace(found, machine=found.machine._replace(virtual=True)),
    "virtual or not, nobody knows": lambda found: replace(found, machine=found.machine._replace(virtual=None)),
}


def test_each_fact_counts() -> None:
    found = build(scan(from_text(FLEET)))
    shapes = {what: shape(change(found)) for what, change in ALONE.items()}
    assert len({*shapes.values()}) == len(shapes), sorted(shapes.items(), key=lambda one: one[1])


def test_what_nvml_says_of_a_place_does_not_count() -> None:
    """It is cut to the CPUs that whoever asks may use."""
    found = build(scan(from_text(FLEET)))
    silent, told = (
        shape(with_device(found, "gpu0", **said)) for said in (UNKNOWN, {"sources": (("numa_node", "nvml"),)})
    )
    assert told == silent


def test_which_node_reaches_memory_best() -> None:
    """HMAT may say so where distances do not."""
    cxl = "{id: 7, kind: cxl, memory: 64 GiB, near: [0], distance: 20, far: 20}"
    text = FLEET.replace("numa: {", f"numa: {{extra: [{cxl}], ")
    found = build(scan(from_text(text)))
    first, second = (shape(with_memory(found, 7, near_cpus=(found.memories or ())[node].cpus)) for node in (0, 1))
    assert len({shape(found), first, second}) == 3  # equal distances: near both


def test_functions_of_one_card() -> None:
    """Two functions of one device, and two devices, on one bus."""
    nics = '[{{nic: x550, at: "1d.0"}}, {{nic: x550, at: "{}"}}]'
    one, two = (
        described(FLEET.replace("node: 1", f"node: 1\n    below: {nics.format(place)}")) for place in ("1d.1", "1e.0")
    )
    assert one != two


RING = """
schema: topo-agent/machine/v1
name: ring
cpus: {packages: 1, cores: 8}
pci: [{make: {root: "$(root)", node: 0, ports: [gpu: h100]}, each: {root: [10, 20, 30, 40, 50, 60, 70, 80]}}]
nvidia: {nvlink: {pairs: PAIRS}}
"""


def linked(pairs: Iterable[tuple[int, int]]) -> str:
    return described(RING.replace("PAIRS", "[" + ", ".join(f"[gpu{a}, gpu{b}, 2]" for a, b in pairs) + "]"))


def ring(*members: int) -> list[tuple[int, int]]:
    return [*pairwise((*members, members[0]))]


def test_two_rings_are_no_ring() -> None:
    """Eight equal GPUs with two equal links each: whoever looks at neighbours alone does not see the difference."""
    assert linked(ring(*range(8))) == linked(ring(0, 2, 4, 6, 1, 3, 5, 7))
    assert linked(ring(0, 1, 2, 3) + ring(4, 5, 6, 7)) == linked(ring(0, 2, 4, 6) + ring(1, 3, 5, 7))
    whole, halves, uneven = ring(*range(8)), ring(0, 1, 2, 3) + ring(4, 5, 6, 7), ring(0, 1, 2) + ring(3, 4, 5, 6, 7)
    assert len({*map(linked, (whole, halves, uneven))}) == 3


def test_a_cube_is_no_pair_of_meshes() -> None:
    """Three links each: a cube (MI250X), two meshes of four, and a ring with its diagonals."""
    cube = [(a, b) for a in range(8) for b in range(a) if (a ^ b) in (1, 2, 4)]
    meshes = [(a, b) for a in range(8) for b in range(a) if a // 4 == b // 4]
    diagonals = ring(*range(8)) + [(a, a + 4) for a in range(4)]
    assert [len(pairs) for pairs in (cube, meshes, diagonals)] == [12, 12, 12]
    assert len({*map(linked, (cube, meshes, diagonals))}) == 3


def test_a_ring_of_sockets() -> None:
    """Distances alone: eight nodes in one ring, and in two."""

    def sockets(near: list[tuple[int, int]]) -> str:
        rows = {
            a: [10 if a == b else 20 if (a, b) in near or (b, a) in near else 30 for b in range(8)] for a in range(8)
        }
        places = {number: [number] for number in range(8)}
        return shape(topology(cpus(places) | nodes(places, rows)))

    assert sockets(ring(*range(8))) == sockets(ring(0, 2, 4, 6, 1, 3, 5, 7))
    assert sockets(ring(*range(8))) != sockets(ring(0, 1, 2, 3) + ring(4, 5, 6, 7))


def test_which_gpu_is_linked_to_which_counts_by_their_place() -> None:
    """Two switches with two GPUs each: links within a switch, or from one to the other."""
    text = RING.replace("root: [10, 20, 30, 40, 50, 60, 70, 80]", "root: [10, 20]")
    text = text.replace("ports: [gpu: h100]", "ports: [{switch: pex89104, ports: [gpu: h100, gpu: h100]}]")
    within, across, crossed = (
        described(text.replace("PAIRS", pairs))
        for pairs in ("[[gpu0, gpu1, 2], [gpu2, gpu3, 2]]", "[[gpu0, gpu2, 2], [gpu1, gpu3, 2]]",
                      "[[gpu0, gpu3, 2], [gpu1, gpu2, 2]]")
    )  # fmt: skip
    assert across == crossed
    assert within != across


# Memory


@pytest.mark.parametrize(
    ("told", "installed"),
    [
        (503.99, 512),  # MemTotal of the nodes of a Dell XE9680 with 2 TiB (recorded)
        (464.44, 480),  # a Grace of a GB200 with 480 GB of LPDDR5X (recorded)
        (1127.0, 1152),  # 12 DIMMs of 96 GiB
        (125.6, 128),
        (62.5, 64),
        (1510.0, 1536),
        (62.8, 64),
        (31.2, 32),
        (15.6, 16),
        (7.6, 8),
    ],
)
def test_memory_is_what_is_installed(told: float, installed: int) -> None:
    assert memory_class(int(told * GIB)) == installed * GIB


@pytest.mark.parametrize("dimm", [16, 32, 64, 128])
@pytest.mark.parametrize("count", range(1, 17))
def test_every_number_of_dimms_is_a_class(dimm: int, count: int) -> None:
    """With up to 1 GiB and 1 % less than what page descriptors leave; and none is taken for one DIMM less."""
    size = count * dimm * GIB
    left = size - size // 64
    assert {memory_class(left), memory_class(left - size // 100)} == {size}
    assert size <= 64 * GIB or memory_class(left - GIB) == size


def test_memory_that_is_not_there() -> None:
    assert memory_class(0) == 0
    assert memory_class(1) == 4 * GIB


# Unknown is a value of its own


def test_what_is_not_told_is_another_shape() -> None:
    whole = function("0000:17:00.0", under="pci0000:16", numa_node="0\n")
    files = two_sockets() | whole
    place = "sys/devices/pci0000:16/0000:17:00.0"
    broken = Failure(5)
    less = {path: entry for path, entry in files.items() if not path.startswith("sys/devices/system/cpu")}
    link = {f"{place}/max_link_speed": "32.0 GT/s PCIe\n", f"{place}/max_link_width": "16\n"}
    found = {
        "all": files,
        "no PCI": two_sockets(),
        "no node": two_sockets() | function("0000:17:00.0", under="pci0000:16", numa_node="-1\n"),
        "no CPUs": less,
        "nothing": {},
        "no vendor": files | {f"{place}/uevent": broken, f"{place}/vendor": broken},
        "its link": files | link,
        "no width": files | link | {f"{place}/max_link_width": broken},
        "no distances": {path: entry for path, entry in files.items() if "distance" not in path},
        "no memory": {path: entry for path, entry in files.items() if "meminfo" not in path},
        "no packages": {path: entry for path, entry in files.items() if "physical_package" not in path},
        "no siblings": {path: entry for path, entry in files.items() if "siblings" not in path},
    }
    shapes = {name: shape(topology(one)) for name, one in found.items()}
    assert len({*shapes.values()}) == len(shapes), shapes


# Random machines

FEWER = examples(SETTINGS, max_examples=max(EXAMPLES // 4, 100))


@FEWER
@given(machines(), st.randoms(use_true_random=False))
def test_order_and_numbers_of_random_machines(case: Case, random: Random) -> None:
    note(case.text)
    host = from_text(case.text)
    found = build(scan(host))
    assert shape(renumbered(found, random)) == shape(found)
    assert of(other_buses(host, random)) == shape(found)


@FEWER
@given(machines(), st.data())
def test_one_part_less_of_a_random_machine(case: Case, data: st.DataObject) -> None:
    """A leaf taken away, moved to another parent, or with a link of another width."""
    note(case.text)
    found = build(scan(from_text(case.text)))
    devices = found.devices or ()
    leaves = [one for one in devices if one.physfn is None and not found.children(one.ref)]
    if not leaves:
        return
    leaf = data.draw(st.sampled_from(leaves))
    family = [one for one in devices if leaf.ref not in (one.ref, one.physfn)]
    note(f"without {leaf.address}")
    links = None if found.links is None else tuple(one for one in found.links if leaf.ref not in (one.a, one.b))
    assert shape(replace(found, devices=tuple(family), links=links)) != shape(found)
    narrow = leaf._replace(link=type(leaf.link)(2.5, 1)) if leaf.link else leaf._replace(subvendor=1, subdevice=2)
    assert shape(replace(found, devices=(*family, narrow))) != shape(found)


# The command


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Three recordings of the small machine and its twin, one of another machine, and what is no machine."""
    (tmp_path / "a.topo").write_text(text_of(SMALL), encoding="utf-8")
    for name in ("b.topo", "c.topo"):
        other = recording.parse(text_of(SMALL))
        text = "".join(f"{line}\n" for line in recording.lines(other_buses(other, Random(name))))  # noqa: S311
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "other.topo").write_text(text_of(two_sockets()), encoding="utf-8")
    (tmp_path / "broken.topo").write_text("# topo-agent recording v1\n@recording {}\nsys/x ? y\n", encoding="utf-8")
    return tmp_path


def test_the_shape_of_one_machine(desk: Path) -> None:
    one, twin, other = (answer("shape", "--from", str(desk / f"{name}.topo")) for name in ("a", "b", "other"))
    assert re.fullmatch(r"[a-f][0-9a-f]{15}\n", one)
    assert one == twin != other
    assert json.loads(answer("shape", "--from", str(desk / "a.topo"), "-f", "json")) == {"shape": one.strip()}
    assert one.strip() == shape(discover(str(desk / "a.topo")))


def test_the_shape_of_this_machine() -> None:
    assert LABEL.fullmatch(answer("shape").strip())


def test_many_machines_are_grouped(desk: Path) -> None:
    one, other = (shape(discover(str(desk / name))) for name in ("a.topo", "other.topo"))
    files = [str(desk / name) for name in ("other.topo", "a.topo", "b.topo", "c.topo")]
    lines = answer("shape", *files).splitlines()
    assert [line.split() for line in lines] == [
        ["SHAPE", "COUNT", "FILES"], [one, "3", *files[1:]], [other, "1", files[0]],
    ]  # fmt: skip
    assert json.loads(answer("shape", *files, "-f", "json")) == [
        {"shape": one, "count": 3, "files": files[1:]}, {"shape": other, "count": 1, "files": files[:1]},
    ]  # fmt: skip
    assert [line.split() for line in answer("shape", files[0]).splitlines()][1:] == [[other, "1", files[0]]]


def test_groups_of_one_size_are_in_the_order_given(desk: Path) -> None:
    for names in (("a.topo", "other.topo"), ("other.topo", "a.topo")):
        files = [str(desk / name) for name in names]
        assert [line.split()[-1] for line in answer("shape", *files).splitlines()[1:]] == files


def test_a_directory_and_an_archive_are_machines_too(desk: Path, tmp_path: Path) -> None:
    assert run("synth", str(desk / "a.topo"), "-o", str(tmp_path / "root")).returncode == 0
    assert len(answer("shape", str(desk / "a.topo"), str(tmp_path / "root")).splitlines()) == 2


def test_a_bad_file_costs_itself(desk: Path, tmp_path: Path) -> None:
    """As with grep: the others are answered, and the status tells of the trouble."""
    files = [str(desk / name) for name in ("a.topo", "broken.topo", "b.topo")]
    done = run("shape", *files, "-o", str(tmp_path / "out"))
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"topo-agent: {files[1]}: ")
    assert (tmp_path / "out").read_text(encoding="utf-8") == run("shape", *files).stdout == answer(
        "shape", files[0], files[2]
    )  # fmt: skip


def test_only_bad_files_are_no_answer(desk: Path, tmp_path: Path) -> None:
    said = refused(run("shape", str(desk / "broken.topo"), "-o", str(tmp_path / "out")))
    assert "broken.topo" in said
    assert not (tmp_path / "out").exists()


def test_files_or_from(desk: Path) -> None:
    done = run("shape", str(desk / "a.topo"), "--from", str(desk / "b.topo"))
    assert (done.returncode, done.stdout) == (2, "")


def test_lost_facts_of_one_of_many(desk: Path) -> None:
    (desk / "less.topo").write_text(
        text_of(SMALL | {"sys/devices/pci0000:16/0000:1b:00.0/numa_node": Failure(5)}), encoding="utf-8"
    )
    files = [str(desk / name) for name in ("a.topo", "less.topo")]
    strict = run("shape", *files, "--strict", "-v")
    assert strict.returncode == 4
    assert strict.stdout == answer("shape", *files)
    assert [line for line in strict.stderr.splitlines() if "numa_node" in line and files[1] in line]
    assert run("shape", files[0], "--strict").returncode == 0
    assert run("shape", *files, str(desk / "broken.topo"), "--strict").returncode == 3
