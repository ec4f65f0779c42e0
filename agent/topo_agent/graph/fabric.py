"""Where a node stands among others: rack, block, leaf, NVLink domain and clique. Evidence -> what it amounts to.

Every source gives a reading for each level that it knows of. A reading is known (a value), none (it is certain that
there is no value) or unsure, which is never a reason to change anything that was published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from topo_agent.diagnostics import Unknown
from topo_agent.facts import FabricState
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import physical
from topo_agent.graph.topology import Topology

Level = Literal["nvlink-clique", "nvlink-domain", "rack", "block", "leaf"]
Standing = Literal["known", "none", "unsure"]

_NVIDIA = 0x10DE
GIVEN_AWAY = frozenset({"vfio-pci", "nvgrace_gpu_vfio_pci", "nvidia-vgpu-vfio"})  # the GPU is in a virtual machine


class Reading(NamedTuple):
    """One fact of one moment. `raw` is the value as its source says it, `reason` why there is none."""

    standing: Standing
    raw: str | None
    source: str  # "nvml", "mapping", "pci"
    reason: str = ""


class Place(NamedTuple):
    """Where the operator says that a node stands: names by level; `why` he does not, and `certain` if that is so."""

    values: Mapping[str, str]
    why: str = ""
    certain: bool = True


def known(raw: str, source: str) -> Reading:
    return Reading("known", raw, source)


def none(source: str, reason: str) -> Reading:
    return Reading("none", None, source, reason)


def unsure(source: str, reason: str) -> Reading:
    return Reading("unsure", None, source, reason)


def decide(evidence: Iterable[tuple[Level, Reading]]) -> dict[Level, Reading]:
    """Level -> the reading that counts. The first source that knows wins; one that is unsure holds the later back,
    for its last good value may differ from theirs.
    """
    found: dict[Level, Reading] = {}
    for level, reading in evidence:
        if level not in found or found[level].standing == "none":
            found[level] = reading
    return found


def nvlink(topology: Topology) -> tuple[tuple[Level, Reading], ...]:
    """NVLink domain and clique by the strict rule: every NVIDIA GPU of the bus answers, is attached, and agrees.

    The clique id alone is not unique, so the clique is named with its domain (NVIDIA/k8s-dra-driver-gpu issue 377). A
    fabric that is up and has no cluster (nothing but zeros) is an HGX board: certainly none.
    """
    gpus = nvidia(topology)
    if topology.devices is None:
        return _both(unsure("nvml", "no PCI functions are recorded"))
    if not gpus:
        return _both(none("nvml", "no NVIDIA GPU is here"))
    silent = [gpu for gpu in gpus if gpu.names.nvml_index is None]
    if silent:
        return _both(unsure("nvml", f"the NVIDIA driver says nothing of {_some(silent)}"))
    states = dict(topology.fabrics_now)
    for gpu in gpus:
        trouble = _not_attached(gpu, states.get(gpu.ref))
        if trouble:
            return _both(unsure("nvml", f"{gpu.address}: {trouble}"))
    fabrics = {_fabric(gpu) for gpu in gpus}
    if fabrics == {None}:
        return _both(none("nvml", "the fabric is up and has no cluster"))
    clusters = {fabric.rpartition(".")[0] if fabric else None for fabric in fabrics}
    if len(clusters) > 1:
        return _both(unsure("nvml", "the GPUs name different NVLink clusters"))
    cluster = next(iter(clusters)) or ""
    domain = known(cluster, "nvml")
    cliques = {fabric for fabric in fabrics if fabric}
    if len(cliques) > 1:
        return ("nvlink-domain", domain), ("nvlink-clique", unsure("nvml", "the GPUs name different cliques"))
    return ("nvlink-domain", domain), ("nvlink-clique", known(next(iter(cliques)), "nvml"))


def nvidia(topology: Topology) -> list[Device]:
    """The NVIDIA GPUs that no virtual machine has."""
    return [gpu for gpu in physical(topology, "gpu") if gpu.vendor == _NVIDIA and gpu.driver not in GIVEN_AWAY]


def gfd_clique(topology: Topology) -> Reading:
    """What NVIDIA's GPU feature discovery would write as `nvidia.com/gpu.clique`.

    Rule of NVIDIA/k8s-device-plugin internal/lm/imex.go: GPUs that are not attached are passed over, an error of any
    GPU is none of all, and more than one cluster or clique is no label.
    """
    gpus = [gpu for gpu in physical(topology, "gpu") if gpu.vendor == _NVIDIA and gpu.names.nvml_index is not None]
    if not gpus:
        return unsure("nvml", "the NVIDIA driver names no GPU")
    states = dict(topology.fabrics_now)
    for gpu in gpus:
        if gpu.ref not in states and _why(gpu) is not None:
            return unsure("nvml", f"{gpu.address}: the question for its fabric failed")
    attached = {fabric for gpu in gpus if (fabric := _fabric(gpu)) is not None}
    if not attached:
        waiting = [gpu for gpu in gpus if _not_attached(gpu, states.get(gpu.ref))]
        if waiting:
            return unsure("nvml", f"{_some(waiting)}: the fabric is not up")
        return none("nvml", "the fabric is up and has no cluster")
    if len(attached) > 1:
        return unsure("nvml", "the GPUs name different clusters or cliques")
    return known(next(iter(attached)), "nvml")


def _both(reading: Reading) -> tuple[tuple[Level, Reading], ...]:
    return ("nvlink-domain", reading), ("nvlink-clique", reading)


def _fabric(gpu: Device) -> str | None:
    return gpu.gpu.fabric if gpu.gpu is not None else None


def _why(gpu: Device) -> Unknown | None:
    return dict(gpu.unknown).get("fabric") or (dict(gpu.gpu.unknown).get("fabric") if gpu.gpu is not None else None)


def _not_attached(gpu: Device, now: FabricState | None) -> str | None:
    """Why a GPU does not count as attached to a fabric that is up; None where it does, with a cluster or without."""
    if _fabric(gpu) is not None:
        return None
    why = _why(gpu)
    if why is not None:
        return f"its fabric is unknown ({why.value})"
    if now is None or now.state is None:
        return "it tells of no fabric"
    if now.state != "completed":
        return {"in_progress": "its fabric is in progress", "not_started": "its fabric is not started"}.get(
            now.state, "it says that it has no fabric"
        )
    return None


def _some(gpus: list[Device]) -> str:
    first = str(gpus[0].address)
    return first if len(gpus) == 1 else f"{first} and {len(gpus) - 1} more"


def mapped(place: Place) -> tuple[tuple[Level, Reading], ...]:
    """What the operator's mapping says."""
    levels: tuple[Level, ...] = ("rack", "block", "leaf")
    otherwise = none if place.certain else unsure
    return tuple(
        (level, known(place.values[level], "mapping") if level in place.values else otherwise("mapping", place.why))
        for level in levels
    )
