"""Topology -> the matrix that `nvidia-smi topo -m` prints: a word for every pair, affinities, and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topo_agent.graph.nodes import Device, DeviceKind
from topo_agent.graph.order import gpu_numbers, labels, physical
from topo_agent.graph.paths import Path, Paths
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref, cpulist
from topo_agent.views.text import clean

_LEGEND = """
  X    = the device itself
  SYS  = across NUMA nodes
  NODE = across PCIe host bridges of one NUMA node
  PHB  = across one PCIe host bridge
  PXB  = across several PCIe switches, and no host bridge
  PIX  = across one PCIe switch at most
  NV#  = over # NVLinks
"""


def matrix(topology: Topology, kinds: Sequence[DeviceKind] = ("gpu", "nic")) -> str:
    """Tab-separated, with the columns CPU Affinity, NUMA Affinity and GPU NUMA ID, then the legends.

    Words that rest on an unknown are listed at the end, with the reason.
    """
    called = {ref: clean(name).replace(" ", "_") for ref, name in labels(topology).items()}
    numbers = gpu_numbers(topology)
    devices = sorted(physical(topology, *kinds), key=lambda one: (kinds.index(one.kind), numbers.get(one.ref, 0)))
    if not devices:
        return f"no device of kind {', '.join(kinds)} here\n"
    paths = Paths(topology)
    found = {
        frozenset((a.ref, b.ref)): paths.between(a, b)
        for place, a in enumerate(devices)
        for b in devices[place + 1 :]
    }  # fmt: skip
    header = ["", *(called[device.ref] for device in devices), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    with_affinity = "gpu" if any(device.kind == "gpu" for device in devices) else None
    lines = ["\t".join(header)]
    for device in devices:
        words = [_word(found, device.ref, other.ref) for other in devices]
        affinity = _affinity(topology, device) if with_affinity in (None, device.kind) else []
        lines.append("\t".join([called[device.ref], *words, *affinity]))
    return "\n".join([*lines, "", "Legend:", _LEGEND, *_nic_legend(devices, called), *_doubts(list(found.values()))])


# nvml.h nvmlGpuP2PStatus_t, in the words of nvidia-smi topo -p2p
_STATUS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
_STATUS_LEGEND = """
  X    = the device itself
  OK   = allowed
  CNS  = the chipset does not support it
  GNS  = the GPU does not support it
  TNS  = the topology does not support it
  DR   = disabled by a setting of the driver
  NS   = not supported
  U    = unknown, to the driver or to us
"""


def peer_access(topology: Topology, capability: str) -> str:
    """The matrix of `nvidia-smi topo -p2p`: what the driver lets each two GPUs do with each other's memory."""
    called = labels(topology)
    numbers = gpu_numbers(topology)
    gpus = sorted(physical(topology, "gpu"), key=lambda one: numbers[one.ref])
    if not gpus:
        return "no device of kind gpu here\n"
    if not topology.peer_access:
        return "no driver tells what GPUs may do with each other's memory here\n"
    found = {frozenset((said.a, said.b)): dict(said.status).get(capability) for said in topology.peer_access}
    lines = ["\t".join(["", *(called[gpu.ref] for gpu in gpus)])]
    for gpu in gpus:
        words = [
            " X " if gpu is other else _status(found.get(frozenset((gpu.address, other.address)))) for other in gpus
        ]
        lines.append("\t".join([called[gpu.ref], *words]))
    return "\n".join([*lines, "", f"Legend ({capability}):", _STATUS_LEGEND])


def _status(code: int | None) -> str:
    return _STATUS[code] if code is not None and 0 <= code < len(_STATUS) else "U"


def _word(found: dict[frozenset[Ref], Path], one: Ref, other: Ref) -> str:
    return " X " if one == other else found[frozenset((one, other))].class_


def _affinity(topology: Topology, device: Device) -> list[str]:
    """N/A is unknown, or a node without memory, as nvidia-smi prints it."""
    memory = topology.memory(device.numa_node)
    empty = memory is not None and memory.memory_bytes == 0
    own = device.gpu.memory_node if device.gpu else None
    return [
        "N/A" if device.cpus is None else cpulist(device.cpus),
        "N/A" if device.numa_node is None or empty else str(device.numa_node),
        "N/A" if own is None else str(own),
    ]


def _nic_legend(devices: Sequence[Device], called: dict[Ref, str]) -> Iterator[str]:
    nics = [device for device in devices if device.kind == "nic"]
    if nics:
        yield "NIC Legend:"
        yield ""
        for nic in nics:
            yield clean(f"  {called[nic.ref]}: {' '.join((*nic.names.rdma, *nic.names.netdev, str(nic.address)))}")
        yield ""


def _doubts(paths: Sequence[Path]) -> Iterator[str]:
    reasons: dict[tuple[str, str], int] = {}
    for path in paths:
        if not path.certain:
            reasons[path.class_, path.reason] = reasons.get((path.class_, path.reason), 0) + 1
    if reasons:
        yield "Not certain:"
        yield ""
        for (word, reason), count in sorted(reasons.items()):
            yield f"  {word} in {count} {'pair' if count == 1 else 'pairs'}: {reason}"
        yield ""
