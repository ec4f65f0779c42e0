"""Packages, dies, clusters, cores, threads, and how firmware numbers them -> sys/devices/system/cpu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from topo_agent.ids import CpuSet, cpulist
from topo_agent.synthesis.fields import CPUS_AT_MOST, Place, Value
from topo_agent.synthesis.tree import Tree

_CPU = "sys/devices/system/cpu"
_SCHEMES = ("cores-first", "siblings-adjacent", "round-robin-packages", "round-robin-nodes")
_PMUS = {"core": "cpu_core", "atom": "cpu_atom", "lowpower": "cpu_lowpower"}  # arch/x86/events/intel/core.c


@dataclass(frozen=True, slots=True)
class Thread:
    """One logical CPU, in the order of packages, dies, nodes and cores."""

    package: int  # its id, not its place
    rank: int  # which package
    die: int
    cluster: int
    node: int  # which node of the machine
    seat: int  # which node of its package
    core: int  # within its package
    place: int  # within its node
    thread: int
    kind: str | None
    capacity: int | None
    cpu: int = -1


@dataclass(frozen=True, slots=True)
class Cores:
    count: int
    threads: int
    cluster: int
    kind: str | None
    capacity: int | None


@dataclass(frozen=True, kw_only=True)
class Cpus:
    """What a description says of CPUs."""

    packages: tuple[int, ...]
    dies: int
    cores: tuple[Cores, ...]
    clustered: bool
    numbering: str
    lists: tuple[tuple[int, ...], ...]  # of cores or nodes, where the numbers are written down
    offline: CpuSet
    possible: int | None
    old_names: bool
    place: Place

    @classmethod
    def read(cls, value: Value) -> Cpus:
        said = value.fields(
            "packages", "dies", "cores", "threads", "cluster", "numbering", "offline", "possible", "old_names"
        )
        numbering, lists = _numbering(said.get("numbering"))
        threads, cluster = said.get("threads"), said.get("cluster")
        groups = said["cores"].items() if said["cores"].is_list else ()
        plain = 0 if groups else said["cores"].count(1, CPUS_AT_MOST)
        usual = Cores(plain, threads.count(1, 8) if threads else 1, cluster.count(1, 64) if cluster else 0, None, None)
        cores = tuple(_group(one, usual) for one in groups) or (usual,)
        dies, offline, possible, old = (said.get(name) for name in ("dies", "offline", "possible", "old_names"))
        found = cls(
            packages=_packages(said.get("packages")),
            dies=dies.count(1, 64) if dies else 1,
            cores=cores,
            clustered=any(one.cluster for one in cores),
            numbering=numbering,
            lists=lists,
            offline=frozenset(offline.cpus()) if offline else frozenset(),
            possible=possible.count(1, CPUS_AT_MOST) if possible else None,
            old_names=old.truth() if old else False,
            place=value.place,
        )
        if len(found.packages) * sum(one.count * one.threads for one in cores) > CPUS_AT_MOST:
            raise value.wrong(f"more than {CPUS_AT_MOST} CPUs")
        return found


def _packages(value: Value | None) -> tuple[int, ...]:
    """A number of packages, or their ids."""
    if value is None:
        return (0,)
    if not value.is_list:
        return tuple(range(value.count(1, 64)))
    ids = tuple(one.count(0, (1 << 31) - 1) for one in value.items())
    if len(set(ids)) < len(ids) or not ids:
        raise value.wrong("expected different ids of packages")
    return ids


def _group(value: Value, usual: Cores) -> Cores:
    said = value.fields("count", "threads", "cluster", "kind", "capacity")
    threads, cluster, kind, capacity = (said.get(name) for name in ("threads", "cluster", "kind", "capacity"))
    return Cores(
        said["count"].count(1, CPUS_AT_MOST),
        threads.count(1, 8) if threads else usual.threads,
        cluster.count(1, 64) if cluster else usual.cluster,
        kind.choice(*_PMUS) if kind else None,
        capacity.count(1, 1024) if capacity else None,
    )


def _numbering(value: Value | None) -> tuple[str, tuple[tuple[int, ...], ...]]:
    if value is None or not value.is_map:
        return (value.choice(*_SCHEMES) if value else _SCHEMES[0]), ()
    said = value.fields("cores", "nodes")
    name = "cores" if value.has("cores") else "nodes"
    lists: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for one in said[name].items():  # told at the first that repeats: each word may stand for thousands
        lists.append(one.cpus())
        twice = next((cpu for cpu in lists[-1] if cpu in seen), None)
        if twice is not None:
            raise said[name].wrong(f"CPU {twice} is there twice")
        seen.update(lists[-1])
    return name, tuple(lists)


def threads(spec: Cpus, nodes: int) -> tuple[Thread, ...]:
    """Every CPU with its number, offline ones too; `nodes` are shared out evenly."""
    bare = list(_bare(spec, nodes))
    order: dict[str, Callable[[Thread], tuple[int, ...]]] = {
        "cores-first": lambda one: (one.thread, one.rank, one.core),
        "siblings-adjacent": lambda one: (one.rank, one.core, one.thread),
        "round-robin-packages": lambda one: (one.thread, one.core, one.rank),
        "round-robin-nodes": lambda one: (one.thread, one.place, one.seat, one.rank),
    }
    if spec.lists:
        return tuple(_listed(spec, bare))
    return tuple(replace(one, cpu=cpu) for cpu, one in enumerate(sorted(bare, key=order[spec.numbering])))


def _bare(spec: Cpus, nodes: int) -> Iterator[Thread]:
    per_package = sum(one.count for one in spec.cores)
    total, packages = per_package * len(spec.packages), len(spec.packages)
    seats = max(nodes // packages, 1)
    if nodes > total or (nodes % packages and packages % nodes):
        raise spec.place.wrong(f"{nodes} NUMA nodes cannot be shared out over {packages} packages; list their CPUs")
    within: dict[int, int] = {}
    for rank, package in enumerate(spec.packages):
        core = cluster = 0
        for group in spec.cores:
            for number in range(group.count):
                node = (rank * per_package + core) * nodes // total
                cluster += bool(number) and bool(group.cluster) and number % group.cluster == 0
                place = within[node] = within.get(node, -1) + 1
                die = core * spec.dies // per_package
                for thread in range(group.threads):
                    yield Thread(
                        package, rank, die, cluster, node, node % seats, core, place, thread, group.kind, group.capacity
                    )
                core += 1
            cluster += 1


def _listed(spec: Cpus, bare: list[Thread]) -> Iterator[Thread]:
    groups: dict[tuple[int, ...], list[Thread]] = {}
    for one in bare:
        key = (one.rank, one.core) if spec.numbering == "cores" else (one.node,)
        groups.setdefault(key, []).append(one)
    wrong = spec.place.wrong(f"the numbering lists {len(spec.lists)} {spec.numbering}, and there are {len(groups)}")
    if len(groups) != len(spec.lists):
        raise wrong
    for members, listed in zip(groups.values(), spec.lists, strict=True):
        if len(members) != len(listed):
            raise spec.place.wrong(
                f"the numbering has {len(listed)} CPUs ({cpulist(listed)}) where there are {len(members)}"
            )
        ordered = sorted(members, key=lambda one: (one.thread, one.rank, one.core))
        yield from (replace(one, cpu=cpu) for one, cpu in zip(ordered, listed, strict=True))


def write(tree: Tree, spec: Cpus, found: tuple[Thread, ...]) -> None:
    """drivers/base/{cpu,topology}.c. An offline CPU has no topology."""
    every, online = {one.cpu for one in found}, [one for one in found if one.cpu not in spec.offline]
    numbers = {one.cpu for one in online}
    tree.write(
        _CPU,
        online=cpulist(numbers),
        present=cpulist(every),
        possible=f"0-{tree.possible - 1}" if tree.possible > 1 else 0,
    )
    tree.write(_CPU, offline=cpulist(set(range(tree.possible)) - numbers), kernel_max=8191)
    for cpu in sorted(every):
        tree.link(f"sys/bus/cpu/devices/cpu{cpu}", f"{_CPU}/cpu{cpu}")
        tree.directory(f"{_CPU}/cpu{cpu}")
        if cpu:  # x86 cannot put CPU 0 to sleep
            tree.write(f"{_CPU}/cpu{cpu}", online=int(cpu in numbers))
    shared = _Shared(online)
    for one in online:
        path = f"{_CPU}/cpu{one.cpu}/topology"
        tree.write(path, physical_package_id=one.package, core_id=one.core)
        tree.cpus(path, "thread_siblings", "thread_siblings_list", shared.of((one.rank, one.core)))
        tree.cpus(path, "core_siblings", "core_siblings_list", shared.of((one.rank,)))
        if not spec.old_names:
            tree.write(path, die_id=one.die, cluster_id=one.cluster if spec.clustered else None)
            tree.cpus(path, "core_cpus", "core_cpus_list", shared.of((one.rank, one.core)))
            tree.cpus(path, "die_cpus", "die_cpus_list", shared.of((one.rank, one.die, -1)))
            tree.cpus(path, "package_cpus", "package_cpus_list", shared.of((one.rank,)))
            if spec.clustered:
                tree.cpus(path, "cluster_cpus", "cluster_cpus_list", shared.of((one.rank, one.cluster, -2)))
        tree.write(f"{_CPU}/cpu{one.cpu}", cpu_capacity=one.capacity)
    for kind, pmu in _PMUS.items():
        members = {one.cpu for one in online if one.kind == kind}
        if members:
            tree.write(f"sys/devices/{pmu}", cpus=cpulist(members))


class _Shared:
    """The CPUs of each package, core, die and cluster."""

    def __init__(self, online: Iterable[Thread]) -> None:
        self._members: dict[tuple[int, ...], set[int]] = {}
        for one in online:
            for key in ((one.rank,), (one.rank, one.core), (one.rank, one.die, -1), (one.rank, one.cluster, -2)):
                self._members.setdefault(key, set()).add(one.cpu)

    def of(self, key: tuple[int, ...]) -> set[int]:
        return self._members[key]
