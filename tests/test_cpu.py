"""CPUs of small machines: numbering, siblings, and files that lie, fail or are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.paper import CPU, Files, cpus, inventory, listed, machine, mask, topology
from topo_agent.diagnostics import Notes, Unknown
from topo_agent.facts import Cpu, Inventory
from topo_agent.scan import scan
from topo_agent.sources import cpu


def by_id(found: Inventory) -> dict[int, Cpu]:
    assert found.cpus is not None
    assert len({one.id for one in found.cpus}) == len(found.cpus)
    return {one.id: one for one in found.cpus}


def packages(found: Inventory) -> dict[int, int | None]:
    return {number: one.package for number, one in by_id(found).items() if one.online}


def codes(found: Inventory) -> set[str]:
    return {one.code for one in found.diagnostics}


def test_no_cpus_recorded() -> None:
    assert inventory({"sys/bus/pci/devices": None}).cpus is None


def test_threads_cores_and_packages() -> None:
    found = inventory(cpus({0: range(4), 1: range(4, 8)}, threads=2))
    assert packages(found) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    assert by_id(found)[6].threads == {6, 7}
    assert by_id(found)[7].core == 1
    assert not found.diagnostics
    built = topology(cpus({0: range(4), 1: range(4, 8)}, threads=2))
    assert built.cores == 4
    assert [str(one.ref) for one in built.packages or ()] == ["pkg:0", "pkg:1"]
    cores = [[sorted(core) for core in one.cores or ()] for one in built.packages or ()]
    assert cores == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_round_robin_numbering() -> None:
    """Traps 16: the XE9680 deals its CPUs out in turn."""
    found = inventory(cpus({0: range(0, 128, 2), 1: range(1, 128, 2)}))
    assert {number: package for number, package in packages(found).items() if package != number % 2} == {}


@pytest.mark.parametrize(("first", "second"), [(60, 84), (0, 268435456), (36, 3180)])
def test_package_ids_are_opaque(first: int, second: int) -> None:
    """Traps 17 (AWS p6e-gb200: 60 and 84) and 18 (Arm: 268435456)."""
    built = topology(cpus({first: range(2), second: range(2, 4)}))
    assert [one.id for one in built.packages or ()] == [first, second]


def test_package_minus_one_is_unknown() -> None:
    """Traps 18: Arm servers whose firmware has no PPTT."""
    found = inventory(cpus({-1: range(4)}))
    assert packages(found) == dict.fromkeys(range(4))
    assert {one.unknown for one in found.cpus or ()} == {(("package", Unknown.FIRMWARE_SILENT),)}
    assert topology(cpus({-1: range(4)})).packages is None


def test_one_package_of_two_is_unknown() -> None:
    found = inventory(cpus({-1: range(4), 1: range(4, 8)}))
    assert packages(found) == {**dict.fromkeys(range(4)), **dict.fromkeys(range(4, 8), 1)}


def test_offline_cpus_have_no_place() -> None:
    """Traps 12, 13: hwloc offline-cpu0-node0, where CPU 0 has no topology directory."""
    found = by_id(inventory(cpus({0: [4, 6, 8], 1: [5, 7]}, offline=[0, 1, 2, 3])))
    assert {number for number, one in found.items() if not one.online} == {0, 1, 2, 3}
    assert found[0].package is None
    assert found[0].unknown == ()  # does not apply
    assert found[4].package == 0


def test_lists_that_still_name_offline_cpus() -> None:
    """Traps 12."""
    files = cpus({0: [1, 2, 3]}, threads=3, offline=[0])
    for number in (1, 2, 3):
        files |= {
            f"{CPU}/cpu{number}/topology/core_siblings_list": "0-3\n",
            f"{CPU}/cpu{number}/topology/thread_siblings_list": "0-3\n",
            f"{CPU}/cpu{number}/topology/core_siblings": "f\n",
        }
    found = inventory(files)
    assert packages(found) == {1: 0, 2: 0, 3: 0}
    assert by_id(found)[1].threads == {1, 2, 3}


def test_online_with_a_gap_and_a_nul() -> None:
    """Traps 1 and 15: ASUS ESC8000A, online 0-238,240-255."""
    files = cpus({0: [0, 1, 3]}, offline=[2]) | {f"{CPU}/online": "0-1,3\n\0"}
    assert {number for number, one in by_id(inventory(files)).items() if one.online} == {0, 1, 3}


def test_no_online_file() -> None:
    """Kernels before 2.6.29 have none: every directory is a CPU."""
    files = cpus({0: range(2)})
    del files[f"{CPU}/online"]
    assert packages(inventory(files)) == {0: 0, 1: 0}


def test_other_directories_beside_the_cpus() -> None:
    files = cpus({0: range(2)}) | {
        f"{CPU}/cpufreq": None,
        f"{CPU}/cpuidle": None,
        f"{CPU}/cpu": None,
        f"{CPU}/cpu-1": None,
    }
    assert set(by_id(inventory(files))) == {0, 1}


@pytest.mark.parametrize(
    "name",
    [
        "cpu٣",
        "cpu3x",
        "cpu07",
    ],
)
def test_names_that_no_kernel_gives(name: str) -> None:
    """Traps 24: what a name is must be matched before it is converted."""
    files = cpus({0: range(8)}) | {f"{CPU}/{name}": None}
    del files[f"{CPU}/online"]
    assert [one.id for one in inventory(files).cpus or ()] == list(range(8))


def masks_only(files: Files) -> Files:
    return {path: entry for path, entry in files.items() if not path.endswith("_list")}


def test_masks_where_there_are_no_lists() -> None:
    """Linux before 2.6.25: hwloc 96em64t-4n4d3ca2co has masks only (performance.md, section 3)."""
    of = {0: [*range(64)], 1: [*range(64, 96)]}
    found = inventory(masks_only(cpus(of, threads=2)))
    assert packages(found) == {**dict.fromkeys(of[0], 0), **dict.fromkeys(of[1], 1)}
    assert by_id(found)[95].threads == {94, 95}


def test_new_names_win_over_old_ones() -> None:
    """Documentation/admin-guide/cputopology.rst: core_siblings is the deprecated name of package_cpus."""
    files = cpus({0: range(4)})
    for number in range(4):
        files[f"{CPU}/cpu{number}/topology/package_cpus_list"] = "0-3\n"
        files[f"{CPU}/cpu{number}/topology/core_cpus_list"] = listed({number // 2 * 2, number // 2 * 2 + 1})
    assert {one.threads for one in inventory(files).cpus or ()} == {frozenset({0, 1}), frozenset({2, 3})}


def test_dies_and_clusters() -> None:
    files = cpus({0: range(4)})
    for number in range(4):
        files[f"{CPU}/cpu{number}/topology/die_id"] = f"{number // 2}\n"
        files[f"{CPU}/cpu{number}/topology/die_cpus_list"] = listed({number // 2 * 2, number // 2 * 2 + 1})
        files[f"{CPU}/cpu{number}/topology/cluster_id"] = "65535\n"  # arm64 without clusters
        files[f"{CPU}/cpu{number}/topology/cluster_cpus_list"] = f"{number}\n"
    found = inventory(files).cpus or ()
    assert [one.die for one in found] == [0, 0, 1, 1]
    assert [one.cluster for one in found] == [None] * 4


def test_hybrid_cores() -> None:
    """arch/x86/events/intel/core.c: each kind of core is a PMU with its own `cpus`."""
    files = cpus({0: range(4)}) | {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2-3\n"}
    assert [one.kind for one in inventory(files).cpus or ()] == ["cpu_core", "cpu_core", "cpu_atom", "cpu_atom"]


def test_capacities() -> None:
    files = cpus({0: range(2)}) | {f"{CPU}/cpu0/cpu_capacity": "446\n", f"{CPU}/cpu1/cpu_capacity": "1024\n"}
    assert [one.capacity for one in inventory(files).cpus or ()] == [446, 1024]


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("name", ["physical_package_id", "core_id", "thread_siblings_list", "core_siblings_list"])
def test_a_file_that_fails_costs_its_own_package(name: str, number: int) -> None:
    costs_its_own_package(name, number)


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("name", ["die_id", "cluster_id"])
def test_a_file_that_fails_costs_its_own_die(name: str, number: int) -> None:
    costs_its_own_package(name, number)


def costs_its_own_package(name: str, number: int) -> None:
    """A field fails: None and a note. The other CPUs keep theirs, whichever number the failing one has."""
    files = cpus({0: range(4), 1: range(4, 8)})
    for one in range(8):
        files[f"{CPU}/cpu{one}/topology/die_id"] = "0\n"
        files[f"{CPU}/cpu{one}/topology/die_cpus_list"] = listed(range(4) if one < 4 else range(4, 8))
        files[f"{CPU}/cpu{one}/topology/cluster_id"] = f"{one // 2}\n"
        files[f"{CPU}/cpu{one}/topology/cluster_cpus_list"] = listed({one // 2 * 2, one // 2 * 2 + 1})
    whole = by_id(inventory(files))
    found = by_id(scan(machine(files).failing(f"{CPU}/cpu{number}/topology/{name}", "EIO")))
    # Those that share the number with it may be told by it alone; nobody else may be touched.
    others = [one for one in whole if one // 4 != number // 4]
    for field in ("package", "die", "cluster", "core", "threads"):
        assert [getattr(found[one], field) for one in others] == [getattr(whole[one], field) for one in others]


@pytest.mark.parametrize("number", range(8))
def test_an_unreadable_package_is_noted(number: int) -> None:
    files = cpus({0: range(4), 1: range(4, 8)})
    path = f"{CPU}/cpu{number}/topology/physical_package_id"
    found = scan(machine(files).failing(path, "EIO"))
    if by_id(found)[number].package is None:
        assert by_id(found)[number].unknown == (("package", Unknown.UNREADABLE),)
        assert path in {one.subject for one in found.diagnostics}
    else:
        assert by_id(found)[number].package == number // 4


def lying(number: int, lie: Mapping[str, str]) -> Files:
    return cpus({0: range(4), 1: range(4, 8)}) | {
        f"{CPU}/cpu{number}/topology/{name}": text for name, text in lie.items()
    }


def others_know(found: Inventory, liars: Iterable[int]) -> None:
    said = packages(found)
    assert {one: said[one] for one in said if one not in liars} == {one: one // 4 for one in said if one not in liars}
    for one in liars:
        assert said[one] in (None, one // 4), "never wrong"


@pytest.mark.parametrize("number", range(8))
def test_siblings_that_only_one_cpu_denies(number: int) -> None:
    """CPU `number` says that it is alone in its package: what the other package is does not depend on it."""
    found = inventory(lying(number, {"core_siblings_list": f"{number}\n", "core_siblings": mask({number})}))
    others_know(found, [one for one in range(8) if one // 4 == number // 4])


FIRST_ASKED = [0, 4]
"""The first CPU of each package: the one that is asked for all."""


@pytest.mark.parametrize(
    "number",
    list(range(8)),
)
def test_a_package_id_that_contradicts_the_siblings(number: int) -> None:
    """CPU `number` carries the id of the other package, while its siblings name it: it alone is in doubt."""
    others_know(inventory(lying(number, {"physical_package_id": f"{1 - number // 4}\n"})), [number])


@pytest.mark.parametrize(
    "number",
    list(range(8)),
)
def test_a_package_id_that_nobody_else_has(number: int) -> None:
    others_know(inventory(lying(number, {"physical_package_id": "7\n"})), [number])


@pytest.mark.parametrize("number", [0, 4])
def test_a_mask_that_contradicts_its_list(number: int) -> None:
    """Neither can be believed: the package of that CPU is unknown, and said to contradict; the other is whole."""
    found = inventory(lying(number, {"core_siblings": mask({number})}))
    others_know(found, [one for one in range(8) if one // 4 == number // 4])
    assert by_id(found)[number].unknown == (("package", Unknown.CONTRADICTS),)
    assert "package_disputed" in codes(found)


def test_two_cores_that_claim_one_thread() -> None:
    files = cpus({0: range(4)}, threads=2)
    files[f"{CPU}/cpu2/topology/thread_siblings_list"] = "1-3\n"
    found = inventory(files)
    assert by_id(found)[0].threads == {0, 1}
    assert by_id(found)[2].threads == {2}
    assert "core_disputed" in codes(found)


@pytest.mark.parametrize("name", ["physical_package_id", "core_siblings_list", "thread_siblings_list", "core_id"])
@pytest.mark.parametrize("text", ["", "\0", "(efault)", "Unknown", "9" * 70, "0-4294967295", "-5"])
def test_garbage_never_ends_the_scan(name: str, text: str) -> None:
    """Traps 24, 25: one CPU of another package says rubbish."""
    found = inventory(lying(4, {name: text}))
    assert {one: packages(found)[one] for one in range(4)} == dict.fromkeys(range(4), 0)
    assert "source_failed" not in codes(found)


@given(st.lists(st.sampled_from(range(4)), min_size=1, max_size=24), st.sampled_from([1, 2]))
def test_described_and_found_again(deal: list[int], threads: int) -> None:
    """Any dealing of CPUs to packages is found as it was described."""
    of: dict[int, list[int]] = {}
    for number, package in enumerate(deal):
        of.setdefault(package, []).append(number)
    found = inventory(cpus(of, threads=threads))
    assert packages(found) == dict(enumerate(deal))
    assert not found.diagnostics


def test_files_are_read_for_leaders_only() -> None:
    """performance.md, section 4: the topology of 64 two-threaded cores costs files for each core and not each CPU."""
    host = machine(cpus({0: range(64), 1: range(64, 128)}, threads=2))
    asked: list[str] = []
    answer = host.text

    def text(path: str, most: int = 65536) -> str:
        asked.append(path)
        return answer(path, most)

    host.text = text  # type: ignore[method-assign]
    assert len(cpu.read(host, Notes()) or ()) == 128
    names = [path.rpartition("/")[2] for path in asked]
    assert names.count("physical_package_id") == 4  # of each package the first CPU, and the last as its witness
    assert names.count("thread_siblings_list") == 64


def test_caches_where_asked_for() -> None:
    files = cpus({0: range(4)})
    for number in range(4):
        index = f"{CPU}/cpu{number}/cache/index3"
        files |= {f"{index}/level": "3\n", f"{index}/type": "Unified\n", f"{index}/size": "260M\n"}
        files |= {f"{index}/shared_cpu_list": "0-3\n", f"{CPU}/cpu{number}/cache/uevent": ""}
    assert inventory(files).caches is None
    (cache,) = scan(machine(files), caches=True).caches or ()
    assert (cache.level, cache.type, cache.size_bytes, cache.cpus) == (3, "Unified", 260 * 2**20, frozenset(range(4)))


def test_a_cache_directory_that_fails_costs_itself() -> None:
    files = cpus({0: range(2)})
    for number in range(2):
        index = f"{CPU}/cpu{number}/cache/index0"
        files |= {f"{index}/level": "1\n", f"{index}/type": "Data\n", f"{index}/shared_cpu_list": f"{number}\n"}
    found = scan(machine(files).failing(f"{CPU}/cpu0/cache", "EACCES"), caches=True)
    assert [one.cpus for one in found.caches or ()] == [{1}]


def test_a_capacity_that_fails_costs_itself() -> None:
    files = cpus({0: range(2)}) | {f"{CPU}/cpu{number}/cpu_capacity": "1024\n" for number in range(2)}
    found = scan(machine(files).failing(f"{CPU}/cpu0/cpu_capacity", "EIO"))
    assert [one.capacity for one in found.cpus or ()] == [None, 1024]
