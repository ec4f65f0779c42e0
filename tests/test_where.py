"""`where`: which GPUs a process has, and whether it is bound well, on described machines and on this one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import topo_agent
from tests.paper import (
    AMD,
    NVIDIA,
    Files,
    cpus,
    function,
    machine,
    nodes,
    place,
    put,
    topology,
    two_sockets,
)
from topo_agent.cli import cli
from topo_agent.commands import near
from topo_agent.graph.build import build
from topo_agent.graph.chosen import gpus_of
from topo_agent.graph.nodes import Device
from topo_agent.graph.pairing import pairs
from topo_agent.graph.topology import Topology
from topo_agent.graph.where import Judged, Where, judge
from topo_agent.host import Json, Unavailable, process
from topo_agent.host.paper import PaperHost
from topo_agent.ids import CpuSet, cpulist
from topo_agent.scan import scan
from topo_agent.sources import binding

SECRET = "hunter2-9f3c"  # noqa: S105 what must never be seen


def direct(bus: int) -> str:
    return f"pci0000:{bus - 1:02x}/{bus - 1:02x}:01.0/{bus:02x}:00.0"


BUSES = (0x11, 0x21, 0x31, 0x41)  # two GPUs on each socket
NICS = (0x12, 0x32)


def uuid(bus: int) -> str:
    return f"GPU-{bus:08x}-0000-0000-0000-000000000000"


def files_of(models: Mapping[int, str]) -> Files:
    files = two_sockets()
    for index, bus in enumerate(BUSES):
        files |= put(direct(bus), {**NVIDIA, "device": models.get(bus, "0x2330"), "driver": "nvidia"}, node=index // 2)
        said = f"GPU UUID:\t {uuid(bus)}\nDevice Minor: \t {index}\n"
        files[f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information"] = said
    for number, bus in enumerate(NICS):
        # two NICs beside the first GPU of each socket, at another root port of its root
        path = f"pci0000:{bus - 2:02x}/{bus - 2:02x}:02.0/{bus:02x}:00.0"
        files |= put(path, node=number, verbs=f"mlx5_{number}")
        files |= {f"sys/class/infiniband_verbs/uverbs{number}/ibdev": f"mlx5_{number}\n"}
    return files


def box(models: Mapping[int, str] | None = None) -> Topology:
    return topology(files_of(models or {}))


def short(gpus: list[Device]) -> list[int]:
    return [gpu.address.bus for gpu in gpus]


def asked(value: str, name: str = "CUDA_VISIBLE_DEVICES", *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [(name, value), *more]


def by_environment(
    value: str, found: Topology | None = None, *, pci_order: bool = False, name: str = "CUDA_VISIBLE_DEVICES"
) -> tuple[list[int], str, bool]:
    gpus, how, certain = gpus_of(
        found or box(), opened=(), visible=None, asked=[(name, value)], pci_order=pci_order
    )  # fmt: skip
    return short(gpus), how, certain


# --- which GPUs ----------------------------------------------------------------------------------------------


def test_open_files_come_first() -> None:
    opened = ("nvidiactl", "nvidia-uvm", "nvidia2")
    gpus, how, certain = gpus_of(box(), opened=opened, visible=("nvidia0",), asked=asked("0"), pci_order=True)
    assert (short(gpus), certain) == ([0x31], True)
    assert "open" in how


def test_the_control_device_is_no_gpu() -> None:
    opened = ("nvidiactl", "nvidia-uvm", "nvidia-modeset")
    gpus, _, _ = gpus_of(box(), opened=opened, visible=None, asked=asked(uuid(0x41)), pci_order=False)
    assert short(gpus) == [0x41]


def test_the_minor_number_is_no_index() -> None:
    """/dev/nvidia3 is the GPU whose minor is 3: proc/driver/nvidia says which, and no order does."""
    files = files_of({})
    for bus, minor in zip(BUSES, (3, 2, 1, 0), strict=True):
        files[f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information"] = f"Device Minor: \t {minor}\n"
    gpus, _, _ = gpus_of(topology(files), opened=("nvidia3",), visible=None, asked=None, pci_order=False)
    assert short(gpus) == [0x11]


def test_by_uuid() -> None:
    assert by_environment(uuid(0x31)) == ([0x31], "CUDA_VISIBLE_DEVICES", True)
    assert by_environment(f"{uuid(0x41)},{uuid(0x11)}") == ([0x41, 0x11], "CUDA_VISIBLE_DEVICES", True)


def test_by_the_beginning_of_a_uuid() -> None:
    """CUDA programming guide: enough digits from the beginning to identify that GPU."""
    assert by_environment("GPU-00000031")[0] == [0x31]


def test_an_ambiguous_beginning_names_none() -> None:
    """CUDA: it must identify one GPU uniquely; else the device is invalid, and there is none."""
    assert by_environment("GPU-0000")[2] is False or by_environment("GPU-0000")[0] == []


@pytest.mark.parametrize("pci_order", [True, False])
def test_by_number_of_equal_gpus(pci_order: bool) -> None:  # noqa: FBT001 a parameter of a table
    assert by_environment("2,0", pci_order=pci_order) == ([0x31, 0x11], "CUDA_VISIBLE_DEVICES", True)


def test_by_number_of_mixed_models() -> None:
    """CUDA counts the fastest first unless told PCI_BUS_ID: which is number 1 nobody here can say."""
    mixed = box({0x41: "0x20b2"})
    assert by_environment("3", mixed, pci_order=True) == ([0x41], "CUDA_VISIBLE_DEVICES", True)
    assert by_environment("3", mixed, pci_order=False)[2] is False


def test_spaces_and_nonsense() -> None:
    assert by_environment(" 1 , 3")[0] == [0x21, 0x41]
    for value in ("GPU-ffffffff", "99", "x", "²", "9" * 5000):
        assert isinstance(by_environment(value)[0], list)


@pytest.mark.parametrize(
    ("value", "buses"),
    [
        # CUDA programming guide: "0,2,-1,1 causes devices 0 and 2 to be visible and device 1 to be invisible"
        ("0,2,-1,1", [0x11, 0x31]),
        ("-1", []),
        ("", []),
        ("1,9,0", [0x21]),
    ],
)
def test_what_is_invalid_ends_the_list(value: str, buses: list[int]) -> None:
    assert by_environment(value)[0] == buses


@pytest.mark.parametrize("value", ["none", "void"])
def test_the_container_toolkit_says_none(value: str) -> None:
    assert by_environment(value, name="NVIDIA_VISIBLE_DEVICES")[0] == []


def test_the_container_toolkit_says_all() -> None:
    assert by_environment("all", name="NVIDIA_VISIBLE_DEVICES")[0] == list(BUSES)


def test_a_mig_device_by_its_gpu() -> None:
    """CUDA programming guide: MIG-<GPU-UUID>/<GPU instance ID>/<compute instance ID>."""
    assert by_environment(f"MIG-{uuid(0x31)}/1/0")[0] == [0x31]


def test_a_mig_uuid_is_a_choice() -> None:
    _, how, certain = by_environment("MIG-5f3a1e0c-1111-2222-3333-444444444444")
    assert certain is False
    assert "chooses none" not in how


def test_a_number_inside_a_container() -> None:
    """The toolkit gave it GPU 41 alone, and CUDA's number 0 is that one; at the least this is not certain."""
    gpus, _, certain = gpus_of(
        box(), opened=(), visible=None, asked=[("CUDA_VISIBLE_DEVICES", "0"), ("NVIDIA_VISIBLE_DEVICES", uuid(0x41))],
        pci_order=True,
    )  # fmt: skip
    assert short(gpus) == [0x41] or not certain


def test_numbers_of_rocm_are_not_bus_order() -> None:
    """layouts.md §6: KFD/HIP order 75 05 65 15 f5 85 e5 95. Number 0 is 75; at the least this is not certain."""
    files = two_sockets()
    for index, bus in enumerate((0x05, 0x15, 0x65, 0x75, 0x85, 0x95, 0xE5, 0xF5)):
        files |= put(direct(bus), AMD, node=index // 4)
    gpus, _, certain = by_environment("0", topology(files), name="ROCR_VISIBLE_DEVICES")
    assert gpus == [0x75] or not certain


def test_hip_counts_what_rocr_left() -> None:
    """ROCR-Runtime filters agents before HIP sees them; an empty HIP variable is none, and then CUDA's is taken."""
    files = two_sockets()
    for bus in (0x11, 0x21):
        files |= put(direct(bus), AMD, node=0)
    graph = topology(files)
    for said, buses in (
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [0x21]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, [0x21]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}, [0x11, 0x21]),
    ):
        gpus, _, _ = gpus_of(graph, opened=(), visible=None, asked=said.items(), pci_order=False)
        assert short(gpus) == buses, said


def test_numbers_count_what_a_container_was_given() -> None:
    """CDI gives device files, and says `void` to the toolkit."""
    chosen = [("CUDA_VISIBLE_DEVICES", "1"), ("NVIDIA_VISIBLE_DEVICES", "void")]
    gpus, how, certain = gpus_of(box(), opened=(), visible=("nvidia1", "nvidia3"), asked=chosen, pci_order=True)
    assert (short(gpus), how, certain) == ([0x41], "CUDA_VISIBLE_DEVICES", True)


def test_a_container_that_sees_more_than_it_was_given() -> None:
    """A privileged one: CUDA counts all that is there."""
    every = ("nvidia0", "nvidia1", "nvidia2", "nvidia3")
    given = asked(uuid(0x41), "NVIDIA_VISIBLE_DEVICES")
    assert gpus_of(box(), opened=(), visible=every, asked=given, pci_order=True)[2] is False


def test_a_mig_device_by_numbers() -> None:
    assert by_environment("2:0", name="NVIDIA_VISIBLE_DEVICES")[0] == [0x31]


def test_a_uuid_where_not_all_are_known() -> None:
    """Without NVML and proc nobody can say that it is invalid."""
    files = files_of({})
    del files["proc/driver/nvidia/gpus/0000:31:00.0/information"]
    gpus, _, certain = by_environment(uuid(0x31), topology(files))
    assert (gpus, certain) == (list(BUSES), False)


def test_device_files_that_it_could_open() -> None:
    gpus, how, certain = gpus_of(box(), opened=(), visible=("nvidiactl", "nvidia1"), asked=(), pci_order=False)
    assert (short(gpus), certain) == ([0x21], True)
    assert "see" in how


def test_all_device_files_are_no_choice() -> None:
    visible = ("nvidia0", "nvidia1", "nvidia2", "nvidia3")
    gpus, _, certain = gpus_of(box(), opened=(), visible=visible, asked=(), pci_order=False)
    assert (short(gpus), certain) == (list(BUSES), False)


def test_what_could_not_be_read_is_not_none() -> None:
    _, how, certain = gpus_of(box(), opened=None, visible=None, asked=None, pci_order=False)
    assert certain is False
    assert "has none open" not in how


# --- the verdict ---------------------------------------------------------------------------------------------

NEAR, FAR, BOTH = frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7}), frozenset(range(8))
NODE0, NODE1 = frozenset({0}), frozenset({1})


def judged(
    process_cpus: CpuSet, memory: CpuSet = frozenset(), rdma: tuple[str, ...] = (), found: Topology | None = None
) -> Judged:
    """Of the first GPU, on node 0."""
    graph = found or box()
    first = place(graph, "0000:11:00.0")
    (one,) = judge(graph, [first], cpus=process_cpus, memory=memory, rdma=rdma, choices=pairs(graph))
    return one


@pytest.mark.parametrize(
    ("process_cpus", "memory", "rdma", "verdicts", "well"),
    [
        (NEAR, NODE0, ("mlx5_0",), ("aligned", "aligned", "aligned"), True),
        (NEAR, frozenset(), (), ("aligned", "aligned", "unknown"), True),
        (frozenset({2}), NODE0, (), ("aligned", "aligned", "unknown"), True),
        (BOTH, frozenset(), (), ("partly", "aligned", "unknown"), False),
        (FAR, frozenset(), (), ("misaligned", "aligned", "unknown"), False),
        (NEAR, NODE1, (), ("aligned", "misaligned", "unknown"), False),
        (NEAR, NODE0 | NODE1, (), ("aligned", "partly", "unknown"), False),
        (NEAR, NODE0, ("mlx5_1",), ("aligned", "aligned", "misaligned"), False),
        (NEAR, NODE0, ("mlx5_0", "mlx5_1"), ("aligned", "aligned", "partly"), False),
    ],
)
def test_verdicts(
    process_cpus: CpuSet, memory: CpuSet, rdma: tuple[str, ...], verdicts: tuple[str, str, str], well: bool  # noqa: FBT001
) -> None:  # fmt: skip
    one = judged(process_cpus, memory, rdma)
    assert (one.cpus, one.memory, one.nics) == verdicts
    assert Where((one,), "a test", certain=True).well is well


def test_the_far_side_of_a_card_on_two_sockets_is_far() -> None:
    """Socket Direct exists so that each socket uses its own function (traps 80: one card in two domains)."""
    files = two_sockets()
    for domain, node, name in (("0003", 0, "mlx5_0"), ("0033", 1, "mlx5_1")):
        files |= put(f"pci{domain}:00/00:00.0/01:00.0", node=node, verbs=name, board="0200:0000:0000:0009")
        files |= put(f"pci{domain[:3]}4:00/00:00.0/01:00.0", NVIDIA, node=node)
    graph = topology(files)
    gpu = place(graph, "0004:01:00.0")
    verdicts = [
        judge(graph, [gpu], cpus=NEAR, memory=NODE0, rdma=(name,), choices=pairs(graph))[0].nics
        for name in ("mlx5_0", "mlx5_1")
    ]
    assert verdicts == ["aligned", "misaligned"]


def test_each_gpu_for_itself() -> None:
    graph = box()
    gpus = [place(graph, f"0000:{bus:02x}:00.0") for bus in BUSES]
    said = judge(graph, gpus, cpus=NEAR, memory=frozenset(), rdma=(), choices=pairs(graph))
    assert [one.cpus for one in said] == ["aligned", "aligned", "misaligned", "misaligned"]


def test_the_command() -> None:
    assert judged(FAR).command == "numactl --cpunodebind=0 --membind=0"
    assert judged(NEAR, NODE1).command == "numactl --cpunodebind=0 --membind=0"
    assert judged(NEAR, NODE0).command is None


def test_the_command_where_only_cpus_are_known() -> None:
    """Two of four nodes are near by local_cpulist: there is no one node, and CPUs to bind to."""
    files = cpus({0: range(4), 1: range(4, 8)}) | nodes({node: (node * 2, node * 2 + 1) for node in range(4)})
    files |= function("0000:11:00.0", under="pci0000:10", files={"local_cpulist": "0-3\n"}, **NVIDIA)
    one = judged(frozenset({6}), found=topology(files))
    assert one.cpus == "misaligned"
    assert one.command is not None
    assert "taskset -c 0-3" in one.command


def test_offline_cpus_do_not_count() -> None:
    """Cpus_allowed_list names possible CPUs, those that are gone among them."""
    assert judged(NEAR | {8, 9, 63}).cpus == "aligned"


def test_unknown_is_no_verdict() -> None:
    files = two_sockets() | put(direct(0x11), NVIDIA, node=-1)
    one = judged(FAR, found=topology(files))
    assert (one.cpus, one.memory, one.nics, one.command) == ("unknown", "unknown", "unknown", None)
    assert "firmware_silent" in one.reason
    assert Where((one,), "a test", certain=True).well


# --- what /proc says -----------------------------------------------------------------------------------------


def document(**more: Json) -> dict[str, Json]:
    """Of a process with nothing special."""
    said: dict[str, Json] = {
        "name": "train", "allowed_cpus": "0-3", "allowed_memory": "0-1", "environment": {}, "files": [],
        "device_nodes": [], "memory_policies": {"default": 120},
    }  # fmt: skip
    return {**said, **more}


def read(**more: Json) -> binding.Binding:
    return binding.read(machine(files_of({})), document(**more))


def test_a_process() -> None:
    said = read(environment={"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                files=["nvidia1", "infiniband/uverbs0"], memory_policies={"bind:0": 3, "default": 9})  # fmt: skip
    assert (said.name, said.cpus, said.memory) == ("train", NEAR, frozenset({0, 1}))
    assert said.opened == ("nvidia1", "infiniband/uverbs0")
    assert (said.asked, said.pci_order) == ((("CUDA_VISIBLE_DEVICES", "1"),), True)
    assert (said.bound_memory, said.hidden) == (NODE0, ())
    assert dict(said.uverbs) == {"uverbs0": "mlx5_0", "uverbs1": "mlx5_1"}


def test_the_order_that_cuda_counts_in() -> None:
    assert read(environment={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}).pci_order is False
    assert read().pci_order is False


@pytest.mark.parametrize(
    ("policies", "bound"),
    [
        ({"bind:0-1": 3}, {0, 1}), ({"bind:0": 1, "bind:1": 1}, {0, 1}), ({"bind=static:1": 2}, {1}),
        ({"default": 9}, set()), ({"bind:": 1}, set()), ({"bind:x": 1, "bind:0": 1}, {0}),
    ],
)  # fmt: skip
def test_bound_memory(policies: dict[str, Json], bound: set[int]) -> None:
    """mm/mempolicy.c mpol_to_str: bind:0-1, bind=static:1."""
    assert read(memory_policies=policies).bound_memory == frozenset(bound)


@pytest.mark.parametrize("policy", ["interleave:0-1", "weighted interleave:0-1", "prefer:1", "prefer (many):0-1"])
def test_other_policies_are_policies(policy: str) -> None:
    """What is told to go to node 1 is not the kernel's default."""
    bound = read(memory_policies={policy: 120}).bound_memory
    assert bound is not None
    assert 1 in bound


def test_policies_of_numa_maps() -> None:
    """fs/proc/task_mmu.c show_numa_map; two words of mm/mempolicy.c mpol_to_str have a space of their own."""
    text = """\
55d0c0a00000 default file=/usr/bin/python3 mapped=42 active=0 N0=42 kernelpagesize_kB=4
7f1a00000000 prefer (many):0-1 anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f1b00000000 weighted interleave:0-1 anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4
7f1c00000000 bind=static:1 heap anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f1d00000000 bind=static:1
7f1e00000000 prefer:0 anon=1
"""
    assert process.policies(text) == {
        "default": 1, "prefer (many):0-1": 1, "weighted interleave:0-1": 1, "bind=static:1": 2, "prefer:0": 1,
    }  # fmt: skip


@pytest.mark.parametrize("key", ["environment", "files", "device_nodes", "memory_policies"])
def test_what_is_refused_is_said(key: str) -> None:
    refused: dict[str, Json] = {key: {"error": "EACCES"}}
    said = read(**refused)
    assert len(said.hidden) == 1
    assert said.hidden[0].endswith("EACCES")


def test_a_process_without_cpus_is_none() -> None:
    with pytest.raises(ValueError, match=r"."):
        binding.read(machine({}), document(allowed_cpus=""))
    with pytest.raises(ValueError, match=r"."):
        binding.read(machine({}), None)


# --- the command, on a described machine ---------------------------------------------------------------------


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`described(["-f", "json"], allowed_cpus="4-7")`: status and output of `where` about such a process."""
    host: PaperHost = machine(files_of({}))
    monkeypatch.setattr(topo_agent, "discover", lambda *_, **__: build(scan(host)))
    monkeypatch.setattr(near, "host", lambda *_, **__: host)
    output = tmp_path / "out"

    def run(arguments: list[str], **said: Json) -> tuple[int, str]:
        monkeypatch.setattr(process, "ask", lambda _: document(**said))
        done = CliRunner().invoke(cli, ["where", "-o", str(output), *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, output.read_text(encoding="utf-8") if output.exists() else ""

    return run


GPU0: dict[str, Json] = {"files": ["nvidiactl", "nvidia0", "infiniband/uverbs0"]}


def test_well_bound(described: Callable[..., tuple[int, str]]) -> None:
    status, text = described([], **GPU0, memory_policies={"bind:0": 9})
    assert status == 0
    assert text.splitlines() == [
        "train: CPUs 0-3; GPUs by device files that it has open",
        "GPU0 11:00.0: CPUs aligned, memory aligned, NICs aligned: may run on near CPUs only",
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"allowed_cpus": "4-7"},
        {"allowed_cpus": "0-7"},
        {"memory_policies": {"bind:1": 9}},
        {"files": ["nvidia0", "infiniband/uverbs1"]},
        {"files": ["nvidia0", "nvidia2"]},
    ],
)
def test_badly_bound(said: dict[str, Json], described: Callable[..., tuple[int, str]]) -> None:
    status, text = described([], **{**GPU0, **said})
    assert status == 1
    assert "misaligned" in text or "partly" in text


def test_a_cpuset_of_the_far_memory(described: Callable[..., tuple[int, str]]) -> None:
    assert described([], **GPU0, allowed_memory="1")[0] == 1


def test_no_command_that_the_cpuset_refuses(described: Callable[..., tuple[int, str]]) -> None:
    """numactl --membind of a node outside the cpuset fails."""
    _, text = described([], **GPU0, allowed_memory="1", allowed_cpus="4-7")
    assert "taskset -c 0-3" in text
    assert "numactl" not in text
    assert "cpuset has no memory of node 0" in text
    assert described([], **GPU0, allowed_memory="0", memory_policies={"error": "EACCES"})[0] == 0


def test_a_policy_that_could_not_be_read_is_unknown(described: Callable[..., tuple[int, str]]) -> None:
    _, text = described(["-f", "json"], **GPU0, memory_policies={"error": "EACCES"})
    assert [gpu["memory"] for gpu in json.loads(text)["gpus"]] == ["unknown"]


def test_far_nics_have_advice(described: Callable[..., tuple[int, str]]) -> None:
    _, text = described([], files=["nvidia0", "infiniband/uverbs1"])
    assert "mlx5_0" in text


def test_hidden_parts_are_said(described: Callable[..., tuple[int, str]]) -> None:
    refused: dict[str, Json] = {"error": "EACCES"}
    status, text = described([], environment=refused, files=refused, device_nodes=refused)
    assert status == 1  # all GPUs are looked at, and CPUs 0-3 are far from two of them
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("not readable: ")] == [
        "not readable: environment: EACCES", "not readable: open files: EACCES", "not readable: device nodes: EACCES",
    ]  # fmt: skip
    assert "(not certain)" in lines[0]


def test_in_json(described: Callable[..., tuple[int, str]]) -> None:
    status, text = described(["-f", "json"], **GPU0, allowed_cpus="4-7")
    said = json.loads(text)
    assert status == 1
    assert said == {
        "well": False, "allowed_cpus": "4-7", "gpus_by": "device files that it has open", "certain": True,
        "gpus": [{"gpu": "pci:0000:11:00.0", "cpus": "misaligned", "memory": "aligned", "nics": "aligned",
                  "reason": "may run on no near CPU", "command": "numactl --cpunodebind=0 --membind=0"}],
        "hidden": [],
    }  # fmt: skip


def test_a_name_does_not_reach_the_terminal_as_it_is(described: Callable[..., tuple[int, str]]) -> None:
    """A process chooses its name: prctl(PR_SET_NAME)."""
    _, text = described([], **GPU0, name="\x1b[31mred")
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in described([], **GPU0, name="x" * 300)[1].splitlines())


def test_where_takes_no_recording(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["where", "--from", str(tmp_path)]).exit_code == 2


# --- real processes of this machine --------------------------------------------------------------------------


@contextmanager
def started(*around: str, files: tuple[int, ...] = (), env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process that waits, with this environment and nothing else in it, and with these files open."""
    command = [*around, sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env or {}, pass_fds=files) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == b"\n"  # it has been started, and opens nothing any more
            yield child.pid
        finally:
            child.kill()


def ask(pid: int) -> dict[str, Json]:
    said = process.ask(pid)
    assert isinstance(said, dict)
    return said


def test_only_the_variables_that_choose_gpus_are_read() -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "3", "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    others = {"AWS_SECRET_ACCESS_KEY": SECRET, "CUDA_VISIBLE_DEVICES_TOKEN": SECRET}
    others["X"] = f"CUDA_VISIBLE_DEVICES={SECRET}"
    with started(env=chosen | others) as pid:
        said = ask(pid)
        assert said["environment"] == chosen
        assert SECRET not in json.dumps(said)
        for form in ("text", "json"):
            done = subprocess.run(
                [sys.executable, "-m", "topo_agent", "where", "--pid", str(pid), "-f", form, "-v"],
                capture_output=True, text=True, check=False, timeout=120,
                env={**os.environ, "PYTHONPATH": str(Path(topo_agent.__file__).parents[1])},
            )  # fmt: skip
            assert done.returncode in (0, 1), done.stderr
            assert SECRET not in done.stdout + done.stderr


def test_the_cpus_of_a_real_process() -> None:
    mine = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if taskset is None:
        pytest.skip("no taskset here")
    with started(taskset, "-c", str(mine[-1])) as pid:
        assert ask(pid)["allowed_cpus"] == str(mine[-1])
    with started() as pid:
        assert ask(pid)["allowed_cpus"] == cpulist(mine)


def test_a_real_process_that_is_bound_badly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine has no GPU and perhaps one node: its CPUs are put on paper as two, a GPU near the first."""
    mine = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if taskset is None or len(mine) < 2:
        pytest.skip("this takes two CPUs and taskset")
    first, rest = mine[:1], mine[1:]
    files = cpus({0: first, 1: rest}) | nodes({0: first, 1: rest}) | put(direct(0x11), NVIDIA, node=0)
    monkeypatch.setattr(topo_agent, "discover", lambda *_, **__: topology(files))
    for cpu, status in ((first[0], 0), (rest[-1], 1)):
        with started(taskset, "-c", str(cpu)) as pid:
            output = tmp_path / "out"
            done = CliRunner().invoke(cli, ["where", "--pid", str(pid), "-o", str(output)])
            text = output.read_text(encoding="utf-8")
            assert done.exit_code == status, text
            assert ("misaligned" in text) is bool(status)
            assert ("numactl --cpunodebind=0 --membind=0" in text) is bool(status)


def test_device_files_of_a_real_process(tmp_path: Path) -> None:
    """By where a descriptor leads: a file that is only called nvidia0, and /dev/null, are no GPUs."""
    (tmp_path / "dev").mkdir()
    with (tmp_path / "dev/nvidia0").open("w", encoding="utf-8") as one, Path(os.devnull).open("rb") as other:  # noqa: SIM117
        with started(files=(one.fileno(), other.fileno())) as pid:
            assert str(tmp_path / "dev/nvidia0") in {os.readlink(f"/proc/{pid}/fd/{fd.name}")
                                                     for fd in Path(f"/proc/{pid}/fd").iterdir()}  # fmt: skip
            assert ask(pid)["files"] == []


def test_hidden_parts_of_a_real_process() -> None:
    """Of another user's process: what the kernel refuses comes back as such."""
    if os.geteuid() != 0:
        pytest.skip("this takes a process of another user: run as root")
    code = (
        "import json, os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "from topo_agent.host import process; print(json.dumps(process.ask(int(sys.argv[1]))))"
    )
    with started(env={"CUDA_VISIBLE_DEVICES": "0"}) as pid:
        done = subprocess.run([sys.executable, "-c", f"from topo_agent.host import process\n{code}", str(pid)],
                              capture_output=True, text=True, check=True, timeout=60,
                              env={"PYTHONPATH": str(Path(topo_agent.__file__).parents[1])})  # fmt: skip
    said = json.loads(done.stdout)
    assert said["environment"] == said["files"] == {"error": "EACCES"}
    assert said["allowed_cpus"] == cpulist(os.sched_getaffinity(0))
    hidden = binding.read(machine({}), said).hidden
    assert {"environment: EACCES", "open files: EACCES"} <= set(hidden)


def test_no_such_process(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        process.ask(2**22 + 5)
    done = CliRunner().invoke(cli, ["where", "--pid", str(2**22 + 5), "-o", str(tmp_path / "out")])
    assert done.exit_code == 3
    assert done.stdout == ""


def test_zombies_are_no_trouble() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        said = ask(child.pid)
        assert said["environment"] in ({}, {"error": "ESRCH"}, {"error": "EACCES"})
        assert said["allowed_cpus"]
