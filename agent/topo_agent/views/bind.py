"""Topology -> commands that run a program near each GPU: taskset, numactl, srun."""

from __future__ import annotations

from collections.abc import Iterator

from topo_agent.graph.nodes import Device
from topo_agent.graph.order import gpu_numbers, physical
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuSet, cpulist


def bind(topology: Topology, only: Device | None = None) -> str:
    """For each GPU what stands before a program; for all of them together one srun line, a task for each GPU.

    A GPU whose near CPUs are unknown gets a sentence and no command: a guess would bind it wrongly.
    """
    numbers = gpu_numbers(topology)
    gpus = sorted(physical(topology, "gpu"), key=lambda gpu: numbers[gpu.ref])
    chosen = [gpu for gpu in gpus if only is None or gpu.ref == only.ref]
    if not chosen:
        return "# no GPU here\n"
    lines = [line for gpu in chosen for line in (*_one(topology, gpu, numbers[gpu.ref]), "")]
    return "\n".join([*lines, *(_together(gpus) if only is None else ())]) + ("\n" if only is None else "")


def _one(topology: Topology, gpu: Device, number: int) -> Iterator[str]:
    name = f"# GPU{number} {gpu.address}"
    if not gpu.cpus:
        reason = dict(gpu.unknown).get("cpus")
        yield f"{name}: near CPUs unknown{f' ({reason.value})' if reason else ''}, nothing to bind to"
        return
    yield f"{name}, {f'NUMA node {gpu.numa_node}' if gpu.numa_node is not None else 'NUMA node unknown'}"
    yield f"taskset -c {cpulist(gpu.cpus)}"
    if gpu.numa_node is not None:
        yield f"numactl --cpunodebind={gpu.numa_node}{_membind(topology, gpu)}"
    yield f"srun --cpu-bind=mask_cpu:{mask(gpu.cpus)}"


def _membind(topology: Topology, gpu: Device) -> str:
    """Nothing for a node without memory: the program would not start."""
    memory = topology.memory(gpu.numa_node)
    return "" if memory is not None and memory.memory_bytes == 0 else f" --membind={gpu.numa_node}"


def _together(gpus: list[Device]) -> Iterator[str]:
    known = [gpu.cpus for gpu in gpus if gpu.cpus]
    if len(known) == len(gpus) > 1:
        yield f"# one task for each GPU, task 0 on GPU{0} and so on"
        yield f"srun --ntasks-per-node={len(gpus)} --cpu-bind=mask_cpu:{','.join(map(mask, known))}"


def mask(cpus: CpuSet) -> str:
    """CPUs as Slurm wants them: `{0, 1, 32}` -> `"0x100000003"`."""
    return hex(sum(1 << cpu for cpu in cpus))
