"""Is a process bound well? Its CPUs, memory and NICs against the best that the machine has for its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from topo_agent.graph.nodes import Device
from topo_agent.graph.order import gpu_numbers, physical
from topo_agent.graph.pairing import Choice
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuSet, Ref

Verdict = Literal["aligned", "partly", "misaligned", "unknown"]


class Judged(NamedTuple):
    """One GPU of the process."""

    gpu: Ref
    cpus: Verdict  # aligned: it may run on near CPUs only; partly: on others too
    memory: Verdict
    nics: Verdict  # of the RDMA devices that it has open
    command: str | None  # what binds it well
    reason: str


class Where(NamedTuple):
    gpus: tuple[Judged, ...]
    how: str  # how its GPUs were told
    certain: bool

    @property
    def well(self) -> bool:
        """Nothing is known to be wrong."""
        return not any({one.cpus, one.memory, one.nics} & {"partly", "misaligned"} for one in self.gpus)


def judge(
    topology: Topology,
    gpus: Iterable[Device],
    *,
    cpus: CpuSet,
    memory: CpuSet,
    rdma: Iterable[str],
    choices: Iterable[Choice],
) -> tuple[Judged, ...]:
    """A verdict for each GPU. `memory` are the nodes that a policy binds to; empty: the kernel's default, near."""
    near = {choice.gpu: choice for choice in choices}
    return tuple(_judged(topology, gpu, cpus, memory, set(rdma), near.get(gpu.ref)) for gpu in gpus)


def _judged(
    topology: Topology, gpu: Device, cpus: CpuSet, memory: CpuSet, rdma: set[str], choice: Choice | None
) -> Judged:
    if not gpu.cpus:
        code = dict(gpu.unknown).get("cpus")
        why = f"near CPUs unknown{f' ({code.value})' if code else ''}"
        return Judged(gpu.ref, "unknown", "unknown", "unknown", None, why)
    on_cpus = _inside(cpus & topology.online_cpus, gpu.cpus)
    on_memory: Verdict = "unknown"
    if gpu.numa_node is not None:
        on_memory = _inside(memory, frozenset({gpu.numa_node})) if memory else "aligned"
    command = None
    if on_cpus != "aligned" or on_memory in ("partly", "misaligned"):
        command = (
            f"numactl --cpunodebind={gpu.numa_node} --membind={gpu.numa_node}" if gpu.numa_node is not None else None
        )
    reason = {
        "aligned": "may run on near CPUs only",
        "partly": "may run on near CPUs, and on others",
        "misaligned": "may run on no near CPU",
        "unknown": "",
    }[on_cpus]
    return Judged(gpu.ref, on_cpus, on_memory, _nics(topology, rdma, choice), command, reason)


def _inside(mine: CpuSet, near: CpuSet) -> Verdict:
    if mine and mine <= near:
        return "aligned"
    return "partly" if mine & near else "misaligned"


def _nics(topology: Topology, rdma: set[str], choice: Choice | None) -> Verdict:
    """Without an open RDMA device there is nothing to judge."""
    if not rdma or choice is None or not choice.local:
        return "unknown"
    best = {name for one in choice.local for ref in one.card.functions for name in _names(topology, ref)}
    if rdma <= best:
        return "aligned"
    return "partly" if rdma & best else "misaligned"


def _names(topology: Topology, ref: Ref) -> tuple[str, ...]:
    device = topology.device(ref)
    return device.names.rdma if device else ()


def gpus_of(
    topology: Topology,
    *,
    opened: Iterable[str] | None,
    visible: Iterable[str] | None,
    asked: Iterable[tuple[str, str]] | None,
    pci_order: bool,
) -> tuple[list[Device], str, bool]:
    """(GPUs, how they were told, is that certain): open device files, then environment, then visible device files."""
    gpus = physical(topology, "gpu")
    by_open = _with_nodes(gpus, opened or ())
    if by_open:
        return by_open, "device files that it has open", True
    for key, value in asked or ():
        found, certain = _named(topology, gpus, value, pci_order=pci_order)
        if found:
            return found, key, certain
    by_sight = _with_nodes(gpus, visible or ())
    if by_sight and len(by_sight) < len(gpus):
        return by_sight, "device files that it can see", True
    return gpus, "all GPUs: it has none open and chooses none", False


def _with_nodes(gpus: list[Device], nodes: Iterable[str]) -> list[Device]:
    names = {node.rpartition("/")[2] for node in nodes}
    return [gpu for gpu in gpus if names & set(gpu.names.nodes)]


def _named(topology: Topology, gpus: list[Device], value: str, *, pci_order: bool) -> tuple[list[Device], bool]:
    """UUIDs name a GPU for sure; numbers do where the order is PCI's, or where all GPUs are of one model."""
    equal = len({(gpu.vendor, gpu.device) for gpu in gpus}) == 1
    numbers = {str(number): ref for ref, number in gpu_numbers(topology).items()}
    found = []
    for word in value.split(","):
        wanted = word.strip()
        place = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 4 else None
        if place is not None:
            found += (
                gpus[place : place + 1]
                if pci_order or equal
                else [one for one in gpus if one.ref == numbers.get(wanted)]
            )
        elif wanted.startswith("GPU-"):
            found += [gpu for gpu in gpus if gpu.uid and gpu.uid.startswith(wanted)]
    by_number = any(word.strip().isdigit() for word in value.split(","))
    return found, not by_number or pci_order or equal
