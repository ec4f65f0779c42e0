"""sys/devices/system/cpu -> Cpu: packages, dies, clusters, cores and threads.

Files are read for the first CPU of each group that no other CPU has named yet; all members are then
known. A machine with 128 CPUs in 64 cores costs some 140 files instead of 800.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from topo_agent.diagnostics import Level, Notes, Unknown, UnknownFields
from topo_agent.facts import Cache, Cpu
from topo_agent.host import Host
from topo_agent.ids import CpuId, CpuSet, PackageId, cpulist
from topo_agent.sources import entry as entries
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry

_ROOT = "sys/devices/system/cpu"
_HYBRID = ("cpu_core", "cpu_atom", "cpu_lowpower")  # arch/x86/events/intel/core.c

# Newest name first; the old ones are still there on every kernel.
_THREADS = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PACKAGES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
_DIES = ("die_cpus_list", "die_cpus")
_CLUSTERS = ("cluster_cpus_list", "cluster_cpus")


def read(host: Host, notes: Notes) -> tuple[Cpu, ...] | None:
    """Every CPU that has a directory, in order; None where the host says nothing of CPUs."""
    ids = sorted(cpu for name in Entry(host, _ROOT, notes).names() if (cpu := parse.numbered(name, "cpu")) is not None)
    if not ids:
        return None
    listed = Entry(host, _ROOT, notes).want("online", parse.cpulist)
    online = frozenset(ids) if listed is None else listed & frozenset(ids)
    topology = _Topology(host, notes, online)
    packages, disputed = topology.packages()
    dies, clusters = topology.numbers("die_id", _DIES), topology.numbers("cluster_id", _CLUSTERS)
    threads = topology.threads()
    cores = topology.core_ids(threads)
    kinds = _kinds(host, notes)
    capacities = _capacities(host, notes, sorted(online))
    return tuple(
        Cpu(
            id=CpuId(cpu),
            online=cpu in online,
            package=packages.get(cpu),
            die=dies.get(cpu),
            cluster=clusters.get(cpu),
            core=cores.get(cpu),
            threads=threads.get(cpu, frozenset()),
            kind=kinds.get(cpu),
            capacity=capacities.get(cpu),
            unknown=_why_no_package(topology, cpu, packages, disputed) if cpu in online else (),
        )
        for cpu in ids
    )


def caches(host: Host, notes: Notes, cpus: Iterable[Cpu]) -> tuple[Cache, ...]:
    """Every cache once, by level, type and CPUs. Costs dozens of files for each CPU: only where asked for."""
    online = frozenset(cpu.id for cpu in cpus if cpu.online)
    found: dict[Cache, None] = {}
    for cpu in sorted(online):
        for name, entry in entries.members(host, f"{_ROOT}/cpu{cpu}/cache", notes):
            cache = _cache(entry, online) if name.startswith("index") else None
            if cache is not None:
                found[cache] = None
    return tuple(found)


def _cache(entry: Entry, online: CpuSet) -> Cache | None:
    level, kind = entry.want("level", parse.count), entry.want("type", parse.clean)
    shared = entry.want("shared_cpu_list", parse.cpulist) or entry.want("shared_cpu_map", parse.cpumask)
    if level is None or kind is None or not shared:
        return None
    return Cache(level=level, type=kind, size_bytes=entry.want("size", parse.size), cpus=shared & online)


class _Topology:
    """The topology directories of the online CPUs."""

    def __init__(self, host: Host, notes: Notes, online: CpuSet) -> None:
        self.host = host
        self.notes = notes
        self.online = online

    def entry(self, cpu: int) -> Entry:
        return Entry(self.host, f"{_ROOT}/cpu{cpu}/topology", self.notes)

    def packages(self) -> tuple[dict[int, PackageId], CpuSet]:
        """CPU -> package, and the CPUs whose package is disputed.

        A package is believed if the CPUs that carry its id and the CPUs that its members list are the
        same. On doubt every CPU is asked, so that the answer does not depend on who was asked first.
        """
        placed: dict[int, PackageId] = {}
        for package, members in self._leaders(_PACKAGES, "physical_package_id"):
            if package is None or members & placed.keys() or package in placed.values():
                return self._packages_by_everybody()
            witness = self.entry(max(members)).want("physical_package_id", parse.decimal)
            if witness != package or not self._masks_agree(min(members), members):
                return self._packages_by_everybody()
            placed.update(dict.fromkeys(members, PackageId(package)))
        return placed, frozenset()

    def _packages_by_everybody(self) -> tuple[dict[int, PackageId], CpuSet]:
        carriers: dict[int, set[int]] = {}
        lists: dict[int, CpuSet] = {}
        for cpu in sorted(self.online):
            package = self.entry(cpu).want("physical_package_id", parse.decimal)
            if package is not None and package >= 0:
                carriers.setdefault(package, set()).add(cpu)
            lists[cpu] = self._listed(cpu, _PACKAGES) or frozenset()
        torn = {cpu for cpu in self.online if not self._masks_agree(cpu, lists[cpu])}
        believed = {package: _believed(members, lists, torn) for package, members in carriers.items()}
        outside = self.online - frozenset[int]().union(*believed.values())
        placed: dict[int, PackageId] = {}
        for package, members in sorted(believed.items()):
            if all(lists[cpu] - members <= outside for cpu in members):
                placed.update(dict.fromkeys(members, PackageId(package)))
        disputed = frozenset[int]().union(*carriers.values()) - placed.keys()
        if disputed:
            self.notes.add(
                Level.CONFLICT,
                f"{_ROOT}/cpu{min(disputed)}/topology",
                "package_disputed",
                f"the package ids and sibling lists of CPUs {cpulist(disputed)} contradict; their package is unknown",
            )
        return placed, disputed

    def _masks_agree(self, cpu: int, listed: CpuSet) -> bool:
        masks = (self.entry(cpu).want(name, parse.cpumask) for name in ("package_cpus", "core_siblings"))
        return all(mask is None or not listed or mask & self.online == listed for mask in masks)

    def threads(self) -> dict[int, CpuSet]:
        """CPU -> the online CPUs of its core, itself included; nothing for a CPU that does not tell."""
        found: dict[int, CpuSet] = {}
        for cpu in sorted(self.online):
            if cpu in found:
                continue
            members = self._listed(cpu, _THREADS)
            if members is None:
                continue
            members |= {cpu}
            if members & found.keys():
                self.notes.add(
                    Level.CONFLICT,
                    f"{_ROOT}/cpu{cpu}/topology",
                    "core_disputed",
                    f"lists {cpulist(members)} as one core, of which others say they are another",
                )
                members = frozenset({cpu})
            found.update(dict.fromkeys(members, members))
        return found

    def core_ids(self, threads: dict[int, CpuSet]) -> dict[int, int]:
        found: dict[int, int] = {}
        for members in dict.fromkeys(threads.values()):
            core = self.entry(min(members)).want("core_id", parse.decimal)
            if core is not None and core >= 0:
                found.update(dict.fromkeys(members, core))
        return found

    def numbers(self, name: str, files: tuple[str, ...]) -> dict[int, int]:
        """CPU -> die_id or cluster_id; empty where the first CPU that can be read has none, for then no CPU has."""
        found: dict[int, int] = {}
        for number, members in self._leaders(files, name):
            if number is None and not found and not self._fails(min(members), name):
                return {}
            if number is not None and number != 0xFFFF:  # arm64 prints a missing cluster id as 65535
                found.update(dict.fromkeys(members, number))
        return found

    def _fails(self, cpu: int, name: str) -> bool:
        """Is the file there and does not answer?"""
        entry = self.entry(cpu)
        return entry.want(name, parse.decimal, name) is None and dict(entry.unknown)[name] is not entry.absent

    def _leaders(self, files: tuple[str, ...], name: str) -> Iterator[tuple[int | None, CpuSet]]:
        """(number, members) for the first CPU of each group; -1 is no number. Lists that are missing stay missing."""
        seen: set[int] = set()
        for cpu in sorted(self.online):
            if cpu in seen:
                continue
            number = self.entry(cpu).want(name, parse.decimal)
            members = self._listed(cpu, files)
            if members is None:
                files = ()
                members = frozenset({cpu})
            seen |= members | {cpu}
            yield (number if number is not None and number >= 0 else None), members

    def _listed(self, cpu: int, files: tuple[str, ...]) -> CpuSet | None:
        entry = self.entry(cpu)
        for name in files:
            read: Callable[[str], CpuSet] = parse.cpulist if name.endswith("_list") else parse.cpumask
            members = entry.want(name, read)
            if members:
                return members & self.online  # old lists name offline CPUs as well
        return None


def _believed(carriers: set[int], lists: dict[int, CpuSet], torn: set[int]) -> CpuSet:
    """Of the CPUs that carry one package id, those whose sibling lists agree, if they are more than half of all these.

    Nobody, where one of them says two things at once (its list and its mask differ). Without lists the id decides.
    """
    if carriers & torn:
        return frozenset()
    common, _ = Counter(lists[cpu] for cpu in sorted(carriers)).most_common(1)[0]
    agreeing = frozenset(cpu for cpu in carriers if lists[cpu] == common and (not common or cpu in common))
    return agreeing if 2 * len(agreeing) > max(len(carriers), len(common)) else frozenset()


def _why_no_package(topology: _Topology, cpu: int, packages: dict[int, PackageId], disputed: CpuSet) -> UnknownFields:
    if cpu in packages:
        return ()
    if cpu in disputed:
        return (("package", Unknown.CONTRADICTS),)
    entry = topology.entry(cpu)
    answer = entry.want("physical_package_id", parse.decimal, "package")
    return entry.unknown if answer is None else (("package", Unknown.FIRMWARE_SILENT),)


def _kinds(host: Host, notes: Notes) -> dict[int, str]:
    found: dict[int, str] = {}
    for name in _HYBRID:
        for cpu in Entry(host, f"sys/devices/{name}", notes).want("cpus", parse.cpulist) or ():
            found[cpu] = name
    return found


def _capacities(host: Host, notes: Notes, online: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for cpu in online:
        entry = Entry(host, f"{_ROOT}/cpu{cpu}", notes)
        capacity = entry.want("cpu_capacity", parse.count, "capacity")
        if capacity is not None:
            found[cpu] = capacity
        elif dict(entry.unknown)["capacity"] is entry.absent:
            break  # not an architecture that tells it
    return found
