"""Describe a random machine → its sysfs → discover → exactly that machine; and nothing that breaks ends discovery.

TOPO_AGENT_LONG=1 (make long) and CI=true take more examples. A failure prints a description that can become a fixture.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable
from random import Random

import yaml
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.described import Case, machines
from topo_agent.graph.build import build
from topo_agent.graph.nodes import Device
from topo_agent.graph.paths import all_pairs
from topo_agent.graph.topology import Topology
from topo_agent.host import TEXT_LIMIT, resolve
from topo_agent.host.paper import Entry, Link, PaperHost
from topo_agent.ids import NumaId, Ref, function_in, pci_ref
from topo_agent.scan import scan
from topo_agent.synthesis.build import from_text

LONG, CI = bool(os.environ.get("TOPO_AGENT_LONG")), bool(os.environ.get("CI"))
EXAMPLES = 20_000 if LONG else 2_000 if CI else 500

# The same examples every time, so that a change is what made a test fail; `make long` looks for new ones.
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def discovered(case: Case) -> Topology:
    note(case.text)
    return build(scan(from_text(case.text)))


def by_address(found: Topology) -> dict[str, Device]:
    return {str(device.address): device for device in found.devices or ()}


@SETTINGS
@given(machines())
def test_a_described_machine_is_discovered(case: Case) -> None:
    found, expected = discovered(case), case.expected
    disputed = {f"root:{name}" for name, nodes in expected.roots.items() if len(nodes - {None}) > 1}
    trouble = {(one.subject, one.code) for one in found.diagnostics if one.level.value != "note"}
    assert trouble == {(root, "root_numa_disputed") for root in disputed}
    _cpus(found, case)
    _memories(found, case)
    devices = by_address(found)
    assert sorted(devices) == sorted(expected.devices)
    for address, device in devices.items():
        _device(address, device, case)
    roots = {root.name: root for root in found.roots or ()}
    assert set(roots) == set(expected.roots)
    for name, nodes in expected.roots.items():
        told = nodes - {None}
        if len(told) == 1:
            assert {roots[name].numa_node} == told, name
    assert {
        (link.a.key, link.b.key if link.b else None, link.kind, link.links) for link in found.links or ()
    } == expected.links


def _cpus(found: Topology, case: Case) -> None:
    assert {cpu.id: cpu.online for cpu in found.cpus or ()} == {
        cpu: online for cpu, (online, _, _) in case.expected.cpus.items()
    }
    for cpu in found.cpus or ():
        online, package, threads = case.expected.cpus[cpu.id]
        if online:
            assert (cpu.package, cpu.threads) == (package, threads)
    packages: dict[int, set[int]] = {}
    for number, (online, package, _) in case.expected.cpus.items():
        if online:
            packages.setdefault(package, set()).add(number)
    assert {one.id: set(one.cpus) for one in found.packages or ()} == packages


def _memories(found: Topology, case: Case) -> None:
    got = {
        int(one.id): (one.cpus, one.memory_bytes, None if one.distances is None else dict(one.distances))
        for one in found.memories or ()
    }
    want = {
        node: (cpus, size, None if row is None else {NumaId(other): value for other, value in row.items()})
        for node, (cpus, size, row) in case.expected.nodes.items()
    }
    assert got == want


def _device(address: str, device: Device, case: Case) -> None:
    want = case.expected.devices[address]
    assert device.kind == want["kind"], address
    assert (device.vendor, device.device, device.class_code, device.driver) == want["identity"], address
    assert (device.parent.key if device.parent else None) == want["parent"], address
    assert (device.root.key if device.root else None) == want["root"], address
    assert (device.physfn.key if device.physfn else None) == want["physfn"], address
    assert device.numa_node == want["node"], address
    assert dict(device.sources).get("numa_node") == want["origin"], address
    assert (*device.names.netdev, *device.names.rdma, *device.names.nvme) == want["names"], address
    assert (None if device.link is None else tuple(device.link)) == want["link"], address
    assert device.names.nvml_index == want.get("index"), address
    if want["node"] is not None:
        assert device.cpus == case.expected.nodes[want["node"]][0], address
    else:
        assert dict(device.unknown)["numa_node"].value == want["reason"], address


# Nothing that breaks ends discovery

BREAKAGES = 20_000 if LONG else 2_000
ERRNOS = ("EACCES", "EIO", "EINVAL", "ENODEV")
BREAKS = ("gone", "empty", "cut", "garbage", "nul", "huge", "dangling", "looping", "directory", *ERRNOS)
_FIELDS = {  # of a Device -> what `unknown` calls it
    "class_code": "class", "vendor": "vendor_id", "device": "device_id", "subvendor": "subsystem_vendor_id",
    "subdevice": "subsystem_device_id", "numa_node": "numa_node", "parent": "parent", "root": "pcie_root",
    "link": "link", "physfn": "physfn", "sriov_total": "sriov", "sriov_enabled": "sriov",
    "iommu_group": "iommu_group", "uid": "uid", "title": "model",
}  # fmt: skip
_OPTIONAL = {  # of a Device -> the files without which it may say nothing: not every function has them
    "link": ("max_link_speed", "max_link_width"), "physfn": ("physfn",), "sriov_total": ("sriov_totalvfs",),
    "sriov_enabled": ("sriov_numvfs",), "iommu_group": ("iommu_group",), "uid": ("address", "node_guid", "serial"),
    "title": ("model",),
}  # fmt: skip
_CLASSES = re.compile(r"sys/class/(net|infiniband|nvme|drm)/([^/]+)")


@functools.lru_cache(maxsize=8)
def base(number: int) -> tuple[PaperHost, Topology, tuple[str, ...]]:
    """A small machine with everything in it, how it is discovered, and its paths."""
    host = from_text(SMALL[number])
    return host, build(scan(host)), tuple(sorted(host.entries))


SMALL = (
    """
schema: topo-agent/machine/v1
name: small
machine: {vendor: Example, product: Small, cpu: Example CPU}
cpus: {packages: [36, 60], cores: 2, threads: 2, offline: "7"}
numa:
  bandwidth: 100000
  hugepages: {2 MiB: 4}
  extra: [{id: 4, kind: gpu, gpu: gpu1, memory: 8 GiB}, {id: 5, kind: nvm, memory: 8 GiB, near: 1}]
pci:
  - root: "10"
    node: 0
    ports:
      - switch: pex89104
        ports:
          - {gpu: h100, slot: "3"}
          - {nic: cx7, netdev: [eth0, eth1], rdma: mlx5_0, vfs: 2, msi: 2, iommu: 4}
  - root: "40"
    node: 1
    ports: [{gpu: h100}, [{nic: cx7, netdev: ib0, rdma: mlx5_1, layer: InfiniBand}, {nic: cx7, node: none}]]
  - {root: "80", node: none, ports: [nvme: pm1733, nvswitch: ls10], below: [device: aspeed]}
net: {stacked: [{bond: bond0, on: [eth0, eth1]}, {vlan: bond0.7, on: bond0, id: 7}]}
nvidia: {nvlink: {to: switches, links: 4}}
""",
    """
schema: topo-agent/machine/v1
name: other
cpus: {cores: [{count: 2, threads: 2, kind: core}, {count: 2, kind: atom, cluster: 2}], dies: 2}
numa: {nodes: 2, distance: {local: 10, package: 12}}
pci:
  - {root: "00", node: 1, ports: [{gpu: mi300x, vfs: 1}, gpu: mi300x], below: [{device: virtio-net, netdev: ens3}]}
  - root: "6f"
    below: [{device: vmd, at: "00.5", inside: {root: "10001:80", ports: [{nvme: cd6, multipath: true}]}}]
amd: {partitions: 2}
""",
)


NOWHERE = Link("../nowhere/at/all")


def broken(host: PaperHost, path: str, how: str) -> PaperHost:
    """The same machine, with one path broken in one way."""
    if how in ERRNOS:
        return host.failing(path, how)
    if how == "gone":
        return host.without(path)
    old = host.entries[path]
    text = old if isinstance(old, str) else "x\n"
    said: dict[str, Entry] = {
        "empty": "", "cut": text[: len(text) // 2], "garbage": "\x01{]\ufffd ½ -\n", "nul": text.rstrip() + "\0\0\n",
        "huge": "9" * 400 + "\n", "dangling": NOWHERE, "looping": Link(path.rpartition("/")[2]),
        "directory": None,
    }  # fmt: skip
    rest = {at: it for at, it in host.entries.items() if at != path and not at.startswith(f"{path}/")}
    return PaperHost({**rest, path: said[how]}, host.documents, source=host.source)


class Vanishing(PaperHost):
    """A machine of which one directory is pulled out after some answers: ENODEV, as from a device that is gone."""

    def __init__(self, host: PaperHost, path: str, after: int) -> None:
        super().__init__(host.entries, host.documents, source=host.source)
        self._gone, self._left = path, after

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        self._count(path)
        return super().text(path, most)

    def names(self, path: str) -> list[str]:
        try:
            self._count(path)
        except OSError:
            return []
        return super().names(path)

    def link(self, path: str) -> str | None:
        try:
            self._count(path)
        except OSError:
            return None
        return super().link(path)

    def _count(self, path: str) -> None:
        if path == self._gone or path.startswith(f"{self._gone}/"):
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENODEV, "No such device", path)


def owner(path: str, before: Topology) -> Device | None:
    """The function in whose directory a path is, if it is in one and not that directory itself."""
    if not path.startswith("sys/devices/"):
        return None
    address = function_in(path.rpartition("/")[0])
    return None if address is None else before.device(pci_ref(address))


def check(before: Topology, after: Topology, host: PaperHost, paths: list[str], gone: set[str]) -> None:
    """What may change when some paths break: their functions, what is below or belongs to them; nothing else.

    `gone` are the paths that are simply not there any more.
    """
    were, are = by_address(before), by_address(after)
    listed = {name for name in host_names(host) if name in were}
    told = " ".join(f"{one.subject} {one.message}" for one in after.diagnostics)
    for name in listed - are.keys():
        assert name in told, f"{name} vanished without a note"
    for path in paths:
        member = _CLASSES.fullmatch(path)
        if member and path not in gone and host.entries[path] != NOWHERE:
            assert member[2] not in every_name(before) - every_name(after) or path in told, f"{path} without a note"
    owners = [owner(path, before) for path in paths]
    touched = {ref for one in owners if one is not None for ref in related(one, before)}
    for name, device in were.items():
        now = are.get(name)
        if now is None:
            continue
        if all(one is not None for one in owners) and device.ref not in touched:
            assert now == device, f"{name} changed"
        for field, code in _FIELDS.items():
            if getattr(device, field) is not None and getattr(now, field) is None:
                if field in {"subvendor", "subdevice"} or absent(field, name, paths, gone):
                    continue  # a function without a subsystem is no function that fails to tell it
                assert code in dict(now.unknown), f"{name}: {field} is unknown without a reason"


def related(one: Device, before: Topology) -> set[Ref]:
    """The functions that may change when a file of this one breaks."""
    card = {other.ref for other in before.devices or () if other.board is not None and other.board == one.board}
    family = {other.ref for other in before.devices or () if other.physfn == one.ref}
    own = {one.ref, *before.below(one.ref), *before.ancestors(one.ref)}
    return own | card | family | ({one.physfn} if one.physfn else set())


def every_name(found: Topology) -> set[str]:
    called = [*(one.names for one in found.devices or ()), *(one.names for one in found.virtuals)]
    return {name for one in called for names in (one.netdev, one.rdma, one.nvme, one.nodes) for name in names}


def absent(field: str, name: str, paths: list[str], gone: set[str]) -> bool:
    """May a function say nothing of a field? Its file is gone; or it is itself broken, or a class link or KFD node."""
    if field not in _OPTIONAL:
        return False
    if any(path.endswith(f"/{name}") for path in paths):
        return True
    if field in {"uid", "title"} and any(path.startswith("sys/class/") or "/kfd" in path for path in {*paths, *gone}):
        return True
    if field == "uid" and any(f"{path.rpartition('/')[0]}/type" in gone for path in gone if path.endswith("/uevent")):
        return True  # a folder of class net with neither of the two is no interface
    lost = (path.rpartition("/") for path in gone)
    return any(file in _OPTIONAL[field] and str(function_in(folder)) == name for folder, _, file in lost)


def host_names(host: PaperHost) -> list[str]:
    try:
        return host.names("sys/bus/pci/devices")
    except OSError:
        return []


@settings(SETTINGS, max_examples=BREAKAGES)
@given(st.data())
def test_whatever_breaks_costs_itself_only(data: st.DataObject) -> None:
    host, before, paths = base(data.draw(st.integers(0, len(SMALL) - 1)))
    chosen = data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True))
    done: list[str] = []
    for path in chosen:
        if path in host.entries:
            how = data.draw(st.sampled_from(BREAKS))
            note(f"{path}: {how}")
            host = broken(host, path, how)
            done.append(path)
    check(before, build(scan(host)), host, done, {*paths} - {*host.entries})


@settings(SETTINGS, max_examples=BREAKAGES // 4)
@given(st.data())
def test_a_device_that_goes_while_it_is_read(data: st.DataObject) -> None:
    host, before, _ = base(data.draw(st.integers(0, len(SMALL) - 1)))
    devices = sorted(by_address(before))
    address = data.draw(st.sampled_from(devices))
    target = host.link(f"sys/bus/pci/devices/{address}") or ""
    path = resolve("sys/bus/pci/devices", target) or ""
    vanishing = Vanishing(host, path, data.draw(st.integers(0, 40)))
    gone = {one for one in host.entries if one.startswith(f"{path}/")}
    check(before, build(scan(vanishing)), host, [f"{path}/anything"], gone)


# The same machine under other names is the same machine


class Shuffled(PaperHost):
    """A host whose directories are listed in another order."""

    def __init__(self, host: PaperHost, random: Random) -> None:
        super().__init__(host.entries, host.documents, source=host.source)
        self._random = random

    def names(self, path: str) -> list[str]:
        found = super().names(path)
        self._random.shuffle(found)
        return found


@settings(SETTINGS, max_examples=max(EXAMPLES // 4, 100))
@given(machines(), st.randoms(use_true_random=False))
def test_the_order_of_directories_does_not_matter(case: Case, random: Random) -> None:
    note(case.text)
    host = from_text(case.text)
    assert build(scan(Shuffled(host, random))) == build(scan(host))


def wiring(found: Topology, places: Callable[[str], str] = str, names: Callable[[str], str] = str) -> list[object]:
    """All that does not depend on what a function or an interface is called, with other names for both."""

    def at(ref: Ref | None) -> str | None:
        return None if ref is None else places(ref.key)

    devices = [
        (
            at(one.ref), one.kind, one.role, one.vendor, one.device, one.driver, at(one.parent), at(one.root),
            one.numa_node, one.numa_nodes, one.cpus, one.link, at(one.physfn), one.sriov_enabled, one.names.nvml_index,
            tuple(sorted(names(name) for name in one.names.netdev)), one.names.rdma, one.names.nvme, one.sources,
            one.unknown, places(one.board) if one.board else None,
        )
        for one in found.devices or ()
    ]  # fmt: skip
    links = [(at(one.a), at(one.b), one.kind, one.peer, one.links) for one in found.links or ()]
    paths = [(at(one.a), at(one.b), one.class_, one.nccl_class) for one in all_pairs(found)]
    roots = [(at(one.ref), one.numa_node, one.sources) for one in found.roots or ()]
    return [devices, links, paths, roots, found.cpus, found.memories]


@settings(SETTINGS, max_examples=max(EXAMPLES // 4, 100))
@given(machines(explicit=True), st.data())
def test_other_bus_numbers_are_the_same_machine(case: Case, data: st.DataObject) -> None:
    """Buses keep their order and get other numbers."""
    text = case.text
    buses = sorted({int(bus, 16) for bus in _BUS.findall(text)})
    more = data.draw(st.lists(st.integers(0, 2), min_size=len(buses), max_size=len(buses)))
    other, last = {}, -1
    for bus, gap in zip(buses, more, strict=True):
        other[bus] = last = max(last + 1, bus) + gap
    if last > 0xFF:
        return

    def renamed(word: str) -> str:
        return _PLACE.sub(lambda found: f"{found[1]}{other[int(found[2], 16)]:02x}", word)

    changed = _BUS.sub(lambda found: f"{found[0][:-2]}{other[int(found[1], 16)]:02x}", text)
    changed = _OF.sub(lambda found: renamed(found[0]), changed)
    note(f"{text}\n{changed}")
    first, second = build(scan(from_text(text))), build(scan(from_text(changed)))
    assert wiring(first, renamed) == wiring(second)


_BUS = re.compile(r"(?:inner: '?|root: '?[0-9a-f]{4,8}:)([0-9a-f]{2})", re.ASCII)
_OF = re.compile(r"of: .*")
_PLACE = re.compile(r"([0-9a-f]{4,8}:)([0-9a-f]{2})", re.ASCII)


@settings(SETTINGS, max_examples=max(EXAMPLES // 4, 100))
@given(machines())
def test_other_names_of_interfaces_are_the_same_machine(case: Case) -> None:
    changed = case.text.replace("eth", "zz")
    note(f"{case.text}\n{changed}")
    first, second = build(scan(from_text(case.text))), build(scan(from_text(changed)))
    assert wiring(first, names=lambda name: name.replace("eth", "zz")) == wiring(second)


@settings(SETTINGS, max_examples=max(EXAMPLES // 4, 100))
@given(machines())
def test_one_device_more_changes_no_other(case: Case) -> None:
    note(case.text)
    more = {
        **case.description,
        "pci": [*case.description["pci"], {"root": "ffff:00", "below": [{"device": "1b36:0001"}]}],
    }
    first = build(scan(from_text(case.text)))
    second = build(scan(from_text(yaml.safe_dump(more))))
    devices = [one for one in second.devices or () if one.address.domain != 0xFFFF]
    assert devices == list(first.devices or ())
    assert len(second.devices or ()) == len(devices) + 1
    assert (second.cpus, second.memories, second.links) == (first.cpus, first.memories, first.links)
    assert list(all_pairs(second)) == list(all_pairs(first))
