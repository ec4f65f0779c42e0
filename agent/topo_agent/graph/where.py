"""Is a process bound well? Its CPUs, memory and NICs against the best that the machine has for its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple, TypeVar

from topo_agent.graph.nodes import Device
from topo_agent.graph.pairing import Choice
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuSet, Ref, cpulist

Verdict = Literal["aligned", "partly", "misaligned", "unknown"]

_Item = TypeVar("_Item", int, str)


class Judged(NamedTuple):
    """One GPU of the process."""

    gpu: Ref
    cpus: Verdict  # aligned: it may run on near CPUs only; partly: on others too
    memory: Verdict
    nics: Verdict  # of the RDMA devices that it has open
    command: str | None  # what binds it well
    reason: str
    advice: tuple[str, ...] = ()  # what no command in front of the program changes


class Where(NamedTuple):
    gpus: tuple[Judged, ...]
    how: str  # how its GPUs were told
    certain: bool

    @property
    def well(self) -> bool:
        """Nothing is known to be wrong."""
        return not any({one.cpus, one.memory, one.nics} & {"partly", "misaligned"} for one in self.gpus)


class _Process(NamedTuple):
    cpus: CpuSet
    memory: CpuSet | None
    allowed: CpuSet
    rdma: set[str]


def judge(
    topology: Topology,
    gpus: Iterable[Device],
    *,
    cpus: CpuSet,
    memory: CpuSet | None,
    rdma: Iterable[str],
    choices: Iterable[Choice],
    allowed: CpuSet = frozenset(),
) -> tuple[Judged, ...]:
    """A verdict for each GPU.

    `memory` are the nodes that a policy names; empty: the kernel's default, near; None: unknown. `allowed` are those
    of its cpuset; empty: unknown.
    """
    near = {choice.gpu: choice for choice in choices}
    process = _Process(cpus & topology.online_cpus, memory, allowed, set(rdma))
    return tuple(_judged(topology, gpu, process, near.get(gpu.ref)) for gpu in gpus)


def _judged(topology: Topology, gpu: Device, process: _Process, choice: Choice | None) -> Judged:
    if not gpu.cpus:
        code = dict(gpu.unknown).get("cpus")
        why = f"near CPUs unknown{f' ({code.value})' if code else ''}"
        return Judged(gpu.ref, "unknown", "unknown", "unknown", None, why)
    on_cpus = _inside(process.cpus, gpu.cpus)
    on_memory = _memory(gpu.numa_node, process)
    best = _near_rdma(topology, choice)
    # without an open RDMA device there is nothing to judge
    on_nics = _inside(process.rdma, best) if process.rdma and best else "unknown"
    shut_out = gpu.numa_node is not None and bool(process.allowed) and gpu.numa_node not in process.allowed
    command = None
    if on_cpus != "aligned" or (on_memory in ("partly", "misaligned") and not shut_out):
        command = _command(topology, gpu, gpu.cpus, by_node=not shut_out)
    advice = []
    if shut_out:
        advice.append(f"its cpuset has no memory of node {gpu.numa_node}: cpuset.mems or the container must change")
    if on_nics in ("partly", "misaligned"):
        advice.append(f"RDMA devices near it: {', '.join(sorted(best))}; see topo-agent pairs {gpu.address} -f env")
    reason = {
        "aligned": "may run on near CPUs only",
        "partly": "may run on near CPUs, and on others",
        "misaligned": "may run on no near CPU",
        "unknown": "",
    }[on_cpus]
    return Judged(gpu.ref, on_cpus, on_memory, on_nics, command, reason, tuple(advice))


def _inside(mine: AbstractSet[_Item], near: AbstractSet[_Item]) -> Verdict:
    if mine and mine <= near:
        return "aligned"
    return "partly" if mine & near else "misaligned"


def _memory(node: int | None, process: _Process) -> Verdict:
    """The cpuset stands above every policy: it decides alone where it has only that node, or all but that one."""
    if node is None:
        return "unknown"
    near = frozenset({node})
    reach = _inside(process.allowed, near) if process.allowed else "partly"
    if reach != "partly":
        return reach
    if process.memory is None:
        return "unknown"
    return _inside(process.memory, near) if process.memory else "aligned"


def _command(topology: Topology, gpu: Device, near: CpuSet, *, by_node: bool) -> str:
    """numactl refuses a node without CPUs, and one outside the cpuset; taskset needs no node."""
    node = topology.memory(gpu.numa_node)
    if node is None or not node.cpus or not by_node:
        return f"taskset -c {cpulist(near)}"
    return f"numactl --cpunodebind={gpu.numa_node} --membind={gpu.numa_node}"


def _near_rdma(topology: Topology, choice: Choice | None) -> set[str]:
    local = choice.local if choice else ()
    return {name for one in local for ref in one.nearest for name in _names(topology, ref)}


def _names(topology: Topology, ref: Ref) -> tuple[str, ...]:
    device = topology.device(ref)
    return device.names.rdma if device else ()
