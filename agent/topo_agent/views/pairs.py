"""Choices of NICs or drives for GPUs -> a table, plain data, and environment variables for each local rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from topo_agent.graph.nodes import Device, NicPort, PortState
from topo_agent.graph.order import gpu_numbers, labels
from topo_agent.graph.pairing import Choice, Ranked
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.ids import Ref
from topo_agent.views import table
from topo_agent.views.devices import Row
from topo_agent.views.fields import present
from topo_agent.views.text import clean, fit
from topo_agent.views.units import byte_rate

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_COLUMNS = ("gpu", "address", "nearest", "names", "class", "bandwidth", "sure", "also", "why")


def as_table(topology: Topology, choices: Sequence[Choice], width: int) -> str:
    """One line a GPU, then what is shared, left out and unknown, each said once."""
    called = labels(topology)
    rows = [_row(topology, choice, called) for choice in choices]
    lines = [fit(line, width) for line in table.table(rows, _COLUMNS).splitlines()]
    return "\n".join([*lines, *_remarks(topology, choices, called, width), ""])


def _row(topology: Topology, choice: Choice, called: dict[Ref, str]) -> Row:
    best = choice.chosen[0].path if choice.chosen else None
    picked = {one.card.ref for one in choice.chosen}
    return {
        "gpu": called[choice.gpu],
        "address": _address(choice.gpu),
        "nearest": _cards(choice.chosen, called),
        "names": " ".join(name for one in choice.chosen for name in _names(topology, one)),
        "class": best.class_ if best else "",
        "bandwidth": byte_rate(best.bytes_per_second) if best and best.bytes_per_second else "",
        "sure": choice.confidence,
        "also": _cards((one for one in choice.local if one.card.ref not in picked), called),
        "why": choice.reason,
    }


def _cards(ranked: Iterable[Ranked], called: dict[Ref, str]) -> str:
    """The nearest functions of each card joined by `+`: "NIC2+NIC3 NIC4"."""
    return " ".join("+".join(called[ref] for ref in one.nearest) for one in ranked)


def _names(topology: Topology, ranked: Ranked) -> Iterator[str]:
    for ref in ranked.nearest:
        device = topology.device(ref)
        if device is not None:
            yield from device.names.rdma or device.names.netdev or device.names.nvme[1:] or device.names.nvme


def _remarks(topology: Topology, choices: Sequence[Choice], called: dict[Ref, str], width: int) -> Iterator[str]:
    said = [*_shared(choices, called), *_down(topology, choices, called), *_left_out(choices, called)]
    said += [f"not known: {one}" for one in dict.fromkeys(one for choice in choices for one in choice.missing)]
    said += [f"{called[choice.gpu]}: {choice.nccl_differs}" for choice in choices if choice.nccl_differs]
    if said:
        yield ""
    for line in said:
        yield fit(line, width)


def _shared(choices: Sequence[Choice], called: dict[Ref, str]) -> Iterator[str]:
    users: dict[Ref, list[str]] = {}
    for choice in choices:
        for one in choice.chosen:
            users.setdefault(one.card.ref, []).append(called[choice.gpu])
    for ref, gpus in users.items():
        if len(gpus) > 1:
            yield f"shared: {called[ref]} by {' '.join(gpus)}"


def _down(topology: Topology, choices: Sequence[Choice], called: dict[Ref, str]) -> Iterator[str]:
    """Ports that are down now are marked and not ranked lower."""
    for ref in dict.fromkeys(ref for choice in choices for one in choice.chosen for ref in one.nearest):
        device = topology.device(ref)
        for port, now in _ports(topology, device) if device else ():
            if now.up is False:
                yield f"down now: {called[ref]} {port.rdma or port.netdev or ''}"


def _left_out(choices: Sequence[Choice], called: dict[Ref, str]) -> Iterator[str]:
    for card in choices[0].left_out if choices else ():
        yield f"left out: {'+'.join(called[ref] for ref in card.functions)} ({card.role}: {card.reason})"


def _ports(topology: Topology, device: Device) -> list[tuple[NicPort, PortState]]:
    now = dict(topology.ports_now).get(device.ref, ())
    return list(zip(device.nic.ports, now, strict=False)) if device.nic else []


def as_data(choices: Iterable[Choice]) -> list[Json]:
    """The part `pairs` of the document."""
    return [_choice(choice) for choice in choices]


def _choice(choice: Choice) -> dict[str, Json]:
    best = choice.local[0].path if choice.local else None
    said: dict[str, Json] = {
        "gpu": str(choice.gpu),
        "chosen": _refs(choice.chosen),
        "local": _refs(choice.local),
        "shared": choice.shared,
        "confidence": choice.confidence,
        "reason": choice.reason,
        "missing": [*choice.missing],
        "ranking": [_ranked(one) for one in choice.ranking],
        "left_out": [
            {"functions": [str(ref) for ref in card.functions], "role": card.role, "reason": card.reason}
            for card in choice.left_out
        ],
    }
    return said | present(
        {
            "class": best.class_ if best else None,
            "bytes_per_second": best.bytes_per_second if best else None,
            "nccl_differs": choice.nccl_differs,
        }
    )


def _refs(ranked: Iterable[Ranked]) -> list[Json]:
    """Of every card the functions to use: not the far side of one that sits on two sockets."""
    return [str(ref) for one in ranked for ref in one.nearest]


def _ranked(one: Ranked) -> dict[str, Json]:
    path = one.path
    said: dict[str, Json] = {
        "functions": [str(ref) for ref in one.card.functions],
        "nearest": [str(ref) for ref in one.nearest],
        "class": path.class_,
        "nccl_class": path.nccl_class,
        "certain": path.certain,
        "bridges": one.bridges,
        "reason": path.reason,
    }
    return said | present({"numa_distance": one.distance, "bytes_per_second": path.bytes_per_second})


def as_environment(topology: Topology, choices: Sequence[Choice]) -> str:
    """A shell fragment that sets NCCL, UCX and NVSHMEM variables by local rank; rank n is GPU n.

    A port that is down now is left out, and that is said.
    """
    numbers, called = gpu_numbers(topology), labels(topology)
    lines = ["# rank n of this node runs on GPU n; to be read by the shell of each rank"]
    lines += [clean(f"# {line}") for line in _down(topology, choices, called)]
    every = [port for choice in choices for port in _usable(topology, choice)]
    lines += _nccl(list(dict.fromkeys(every)))
    lines.append('case "${LOCAL_RANK:-${SLURM_LOCALID:-${OMPI_COMM_WORLD_LOCAL_RANK:-}}}" in')
    for choice in choices:
        ports = list(_usable(topology, choice))
        if ports:
            devices = ",".join(ports)
            # NVSHMEM looks at its list only where it is told to map by hand (its environment variables, NVSHMEM docs).
            nvshmem = f"NVSHMEM_ENABLE_NIC_PE_MAPPING=1 NVSHMEM_HCA_LIST={devices}"
            lines.append(f"{numbers[choice.gpu]}) export UCX_NET_DEVICES={devices} {nvshmem} ;;")
        else:
            lines.append(clean(f"# {called[choice.gpu]}: no RDMA port to name ({choice.reason})"))
    return "\n".join([*lines, "esac", ""])


def _nccl(ports: list[str]) -> list[str]:
    """NCCL chooses for each GPU itself; it is told which ports there are. `=` makes names exact."""
    return [f"export NCCL_IB_HCA='={','.join(ports)}'"] if ports else []


def _usable(topology: Topology, choice: Choice) -> Iterator[str]:
    """`mlx5_0:1` for each RDMA port that is not down, of the functions of the chosen cards that are nearest.

    A name that no kernel gives is left out: this text is read by a shell.
    """
    for one in choice.chosen:
        for ref in one.nearest:
            device = topology.device(ref)
            for port, now in _ports(topology, device) if device else ():
                if port.rdma and now.up is not False and _NAME.fullmatch(port.rdma):
                    yield f"{port.rdma}:{port.rdma_port or 1}"


def _address(ref: Ref) -> str:
    return ref.key.removeprefix("0000:")
