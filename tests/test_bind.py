"""`pairs -f bind`: text that the real commands accept, and CPUs that are those of the machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest

from tests.paper import NIC, NODE, NVIDIA, Files, answers, cpus, grown, nodes, nvml, place, topology, two_sockets
from topo_agent.graph.topology import Topology
from topo_agent.views.bind import bind, mask


def two(first: str = "0", second: str = "1", base: Files | None = None) -> Files:
    files = dict(two_sockets() if base is None else base)
    files |= grown("pci0000:16/16:01.0/17:00.0", NVIDIA, numa_node=f"{first}\n")
    return files | grown("pci0000:96/96:01.0/97:00.0", NVIDIA, numa_node=f"{second}\n")


def blocks(text: str) -> dict[str, list[str]]:
    """Name of the GPU -> its commands, from the comment that stands before them."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# GPU"):
            found[line.split()[1]] = []
        elif line and not line.startswith("#") and "--ntasks" not in line:
            found[list(found)[-1]].append(line)
    return found


def listed(text: str) -> set[int]:
    """`"0-2,8"` -> {0, 1, 2, 8}, by nothing of ours."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def masked(text: str) -> set[int]:
    """`"0x5"` -> {0, 2}."""
    assert text.startswith("0x")
    return {bit for bit, sign in enumerate(f"{int(text, 16):b}"[::-1]) if sign == "1"}


def test_commands_of_each_gpu() -> None:
    assert blocks(bind(topology(two()))) == {
        "GPU0": ["taskset -c 0-3", "numactl --cpunodebind=0 --membind=0", "srun --cpu-bind=mask_cpu:0xf"],
        "GPU1": ["taskset -c 4-7", "numactl --cpunodebind=1 --membind=1", "srun --cpu-bind=mask_cpu:0xf0"],
    }


@pytest.mark.parametrize("some", [{0}, {1, 33}, set(range(64, 128)) | {255}, set(range(0, 2048, 3))])
def test_masks(some: set[int]) -> None:
    assert masked(mask(frozenset(some))) == some


def test_every_form_means_the_same_cpus() -> None:
    """Traps 15, 16: gaps and numbering that is not contiguous; 200 CPUs, one of them offline."""
    odd = {0: range(0, 200, 2), 1: [cpu for cpu in range(1, 200, 2) if cpu != 39]}
    found = topology(two(base=cpus(odd, offline=[39]) | nodes(odd)))
    for number, commands in enumerate(blocks(bind(found)).values()):
        taskset, _, srun = (shlex.split(command)[-1] for command in commands)
        assert listed(taskset) == masked(srun.rpartition(":")[2]) == set(odd[number])


def test_one_line_for_all_tasks() -> None:
    """Task n is on GPU n: the masks are in index order, which is not bus order here."""
    documents = nvml(answers("0000:97:00.0", 0), answers("0000:17:00.0", 1))
    text = bind(topology(two(), documents=documents))
    (line,) = (line for line in text.splitlines() if "--ntasks" in line)
    assert line == "srun --ntasks-per-node=2 --cpu-bind=mask_cpu:0xf0,0xf"
    assert text.index("# GPU0 0000:97:00.0") < text.index("# GPU1 0000:17:00.0")


def test_one_gpu_alone() -> None:
    found = topology(two())
    assert list(blocks(bind(found, place(found, "0000:97:00.0")))) == ["GPU1"]
    assert "--ntasks" not in bind(found, place(found, "0000:97:00.0"))


def only_comments(text: str) -> bool:
    return all(not line or line.startswith("#") for line in text.splitlines())


def test_unknown_is_a_sentence_and_no_command() -> None:
    """A guess would bind it wrongly; and no srun line for all, in which masks would slip to other tasks."""
    text = bind(topology(two("-1", "-1")))
    assert only_comments(text)
    assert text.count("unknown (firmware_silent)") == 2
    mixed = bind(topology(two("-1", "1")))
    assert blocks(mixed)["GPU0"] == []
    assert len(blocks(mixed)["GPU1"]) == 3
    assert "--ntasks" not in mixed


def test_no_gpu() -> None:
    text = bind(topology(two_sockets() | grown("pci0000:16/17:00.0", NIC)))
    assert text
    assert only_comments(text)


def test_a_node_without_memory() -> None:
    """Traps 21: two-node Threadripper, node 0 has CPUs and no memory. mbind(2): EINVAL where the nodemask "contains no
    memory", and `numactl --membind` ends with it."""
    files = two() | {f"{NODE}/node0/meminfo": "Node 0 MemTotal:       0 kB\n"}
    commands = blocks(bind(topology(files)))
    assert "taskset -c 0-3" in commands["GPU0"]
    assert not [command for command in commands["GPU0"] if "--membind=0" in command]
    assert "numactl --cpunodebind=1 --membind=1" in commands["GPU1"]


def here() -> Topology:
    """One package and one node of the CPUs that this process may use, so that the commands can be run."""
    allowed = os.sched_getaffinity(0)
    return topology(two("0", "0", cpus({0: allowed}) | nodes({0: allowed})))


@pytest.mark.skipif(shutil.which("taskset") is None, reason="no taskset here")
def test_taskset_accepts_it() -> None:
    """util-linux; and the CPUs it binds to are the ones meant, as the child's kernel tells."""
    command = next(line for line in blocks(bind(here()))["GPU0"] if line.startswith("taskset"))
    child = [*shlex.split(command), "grep", "Cpus_allowed_list", "/proc/self/status"]
    done = subprocess.run(child, check=True, capture_output=True, text=True)
    assert listed(done.stdout.split()[-1]) == os.sched_getaffinity(0)


@pytest.mark.skipif(shutil.which("numactl") is None, reason="no numactl here")
def test_numactl_accepts_it() -> None:
    command = next(line for line in blocks(bind(here()))["GPU0"] if line.startswith("numactl"))
    subprocess.run([*shlex.split(command), "true"], check=True)
