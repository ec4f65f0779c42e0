"""Which NIC for which GPU, and why: role, path class, bandwidth at most, then one to one by PCI address.

The ranking is structure: a port that is down now is marked by the views, and not ranked lower. Ties are told
as ties; an index is never a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from topo_agent.graph import cards
from topo_agent.graph.applied import SILENT, Resolved
from topo_agent.graph.cards import Card
from topo_agent.graph.kinds import is_data_direct
from topo_agent.graph.matching import assign
from topo_agent.graph.nodes import Device
from topo_agent.graph.order import gpu_numbers, physical
from topo_agent.graph.paths import ORDER, Path, Paths
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

Confidence = Literal["high", "medium", "low", "operator"]


_NCCL_ORDER = ("NVL", "PIX", "PXB", "PHB", "SYS")  # NVIDIA/nccl src/graph/topo.h: it has no NODE


class Ranked(NamedTuple):
    """One card as seen from one GPU: by its nearest function."""

    card: Card
    path: Path
    nearest: tuple[Ref, ...]  # its functions that are as near as any of it: not the far side of Socket Direct
    distance: int | None  # SLIT distance between the two NUMA nodes, where the class leaves it open
    bridges: int


class Choice(NamedTuple):
    """The cards of one GPU. `local` are all of the best rank; `chosen` is what one-to-one assignment leaves."""

    gpu: Ref
    local: tuple[Ranked, ...]
    chosen: tuple[Ranked, ...]
    ranking: tuple[Ranked, ...]  # every candidate, nearest first
    left_out: tuple[Card, ...]  # cards of another role
    shared: bool  # a chosen card is another GPU's too
    confidence: Confidence
    reason: str
    missing: tuple[str, ...]  # facts that are unknown and would make it surer, or change it
    nccl_differs: str | None  # what NCCL would choose instead, and why


def pairs(
    topology: Topology, operator: Resolved = SILENT, *, kind: Literal["nic", "nvme"] = "nic"
) -> tuple[Choice, ...]:
    """A choice for each physical GPU, in the order of gpu0, gpu1, …"""
    found = cards.nics(topology, operator) if kind == "nic" else cards.drives(topology)
    candidates = [card for card in found if card.role == "compute"]
    numbers = gpu_numbers(topology)
    gpus = sorted(physical(topology, "gpu"), key=lambda gpu: numbers[gpu.ref])
    paths = Paths(topology)
    rankings = {gpu.ref: _ranking(topology, paths, gpu, candidates) for gpu in gpus}
    local = {ref: _best(ranking) for ref, ranking in rankings.items()}
    chosen = assign({ref: [(one.card.ref, one.bridges) for one in best] for ref, best in local.items()}, _groups(local))
    choices = []
    for gpu in gpus:
        picked = tuple(one for one in local[gpu.ref] if one.card.ref in chosen[gpu.ref])
        choice = _choice(paths, gpu, local[gpu.ref], picked, rankings[gpu.ref], found)
        wanted = operator.pairs.get(gpu.ref) if kind == "nic" else None
        every = () if wanted is None else _ranking(topology, paths, gpu, found)
        choices.append(_by_operator(choice, wanted, every))
    uses = [one.card.ref for choice in choices for one in choice.chosen]
    return tuple(
        choice._replace(shared=any(uses.count(one.card.ref) > 1 for one in choice.chosen)) for choice in choices
    )


def _ranking(topology: Topology, paths: Paths, gpu: Device, candidates: Iterable[Card]) -> tuple[Ranked, ...]:
    ranked = [_seen_from(topology, paths, gpu, card) for card in candidates]
    return tuple(sorted(ranked, key=lambda one: (*_key(one, ranked), one.bridges, one.card.ref)))


def _seen_from(topology: Topology, paths: Paths, gpu: Device, card: Card) -> Ranked:
    functions = [device for ref in card.functions if (device := topology.device(ref)) is not None]
    seen = [(_way(paths, gpu, function, card), function) for function in functions]
    path, function = min(seen, key=lambda pair: (pair[0].rank, len(pair[0].via), pair[1].ref))
    nearest = tuple(other.ref for way, other in seen if way.rank == path.rank)
    return Ranked(
        card, path, nearest, _distance(topology, gpu, function) if path.class_ == "SYS" else None, len(path.via)
    )


def _way(paths: Paths, gpu: Device, function: Device, card: Card) -> Path:
    """The path of the data: from the card's Data Direct function where that is nearer."""
    path, engine = paths.between(gpu, function), paths.topology.device(card.data_direct)
    if engine is None:
        return path
    direct = paths.between(gpu, engine)
    if direct.rank >= path.rank:
        return path
    return direct._replace(reason=f"through Data Direct {engine.address}: {direct.reason}")


def _distance(topology: Topology, gpu: Device, function: Device) -> int | None:
    memory = topology.memory(gpu.numa_node)
    return dict(memory.distances or ()).get(function.numa_node) if memory and function.numa_node is not None else None


def _key(one: Ranked, among: Iterable[Ranked]) -> tuple[int, int, int]:
    """Class, then NUMA distance, then bandwidth; what is not known of all is no reason for any."""
    same = [other for other in among if other.path.rank == one.path.rank]
    far = one.distance if one.distance is not None and all(other.distance is not None for other in same) else 0
    rates = [other.path.bytes_per_second for other in same]
    fast = one.path.bytes_per_second if None not in rates else None
    return one.path.rank, far, -(fast or 0)


def _best(ranking: tuple[Ranked, ...]) -> tuple[Ranked, ...]:
    best = min((_key(one, ranking) for one in ranking), default=None)
    return tuple(one for one in ranking if _key(one, ranking) == best)


def _groups(local: Mapping[Ref, tuple[Ranked, ...]]) -> list[list[Ref]]:
    """GPUs that compete for cards: those of one path class whose best cards meet, directly or through others."""
    groups: list[tuple[int, set[Ref], list[Ref]]] = []
    for gpu, best in local.items():
        if best:
            rank, wanted, members = best[0].path.rank, {one.card.ref for one in best}, [gpu]
            apart = []
            for other in groups:
                if other[0] == rank and other[1] & wanted:
                    wanted |= other[1]
                    members = [*other[2], *members]
                else:
                    apart.append(other)
            groups = [*apart, (rank, wanted, members)]
    return [members for _, _, members in groups]


def _choice(
    paths: Paths,
    gpu: Device,
    local: tuple[Ranked, ...],
    chosen: tuple[Ranked, ...],
    ranking: tuple[Ranked, ...],
    found: Iterable[Card],
) -> Choice:
    left_out = tuple(card for card in found if card.role != "compute")
    if not ranking:
        reason = f"every card here has another role: {_roles(left_out)}" if left_out else "no card here"
        return Choice(gpu.ref, (), (), (), left_out, shared=False, confidence="high", reason=reason, missing=(),
                      nccl_differs=None)  # fmt: skip
    best = local[0].path
    return Choice(
        gpu=gpu.ref,
        local=local,
        chosen=chosen,
        ranking=ranking,
        left_out=left_out,
        shared=False,
        confidence=_confidence(paths.topology, gpu, local[0]),
        reason=best.reason if local[0].distance is None else f"{best.reason}, distance {local[0].distance}",
        missing=tuple(_missing(paths, gpu, ranking)),
        nccl_differs=_nccl(local, ranking),
    )


def _roles(left_out: Iterable[Card]) -> str:
    return ", ".join(dict.fromkeys(card.role for card in left_out))


def _confidence(topology: Topology, gpu: Device, one: Ranked) -> Confidence:
    path = one.path
    ends = (gpu, topology.device(one.card.ref))
    by_operator = any(end is not None and ("numa_node", "operator") in end.sources for end in ends)
    through = one.card.data_direct in (path.a, path.b)
    if not path.certain or path.class_ == "SYS" or (by_operator and path.class_ == "NODE") or through:
        return "low"
    return "high" if path.class_ in ("PIX", "PXB") else "medium"


def _missing(paths: Paths, gpu: Device, ranking: tuple[Ranked, ...]) -> Iterable[str]:
    """What nobody told, and what knowing it would do."""
    topology = paths.topology
    claimed = {one.card.data_direct for one in ranking}
    for engine in topology.of_kind("other"):
        near = is_data_direct(engine) and paths.between(gpu, engine).class_ in ("PIX", "PXB")
        if near and engine.ref not in claimed:
            yield f"the NIC of Data Direct function {engine.address}: an overlay that names it would rank it first"
    if gpu.numa_node is None and all(ORDER[one.path.rank] in ("NODE", "SYS") for one in ranking):
        yield f"the NUMA node of {gpu.address}: an overlay for its root would rank NICs of that node first"
    unknown = sum(not one.path.certain for one in ranking)
    if unknown and gpu.numa_node is not None:
        yield f"the NUMA node of {unknown} {'card' if unknown == 1 else 'cards'}"
    if topology.default_routes is None:
        yield "which NIC carries the default route"
    if all(one.path.bytes_per_second is None for one in ranking):
        yield "link speeds: cards of one class count as equal"


def _nccl(local: tuple[Ranked, ...], ranking: tuple[Ranked, ...]) -> str | None:
    """NCCL ranks bandwidth before class: told only where all bandwidths are known and its set is another one."""
    rates = [one.path.bytes_per_second or 0 for one in ranking]
    if not all(rates):
        return None
    fastest = [one for one in ranking if one.path.bytes_per_second == max(rates)]
    best = min(_NCCL_ORDER.index(one.path.nccl_class) for one in fastest)
    theirs = {one.card.ref for one in fastest if _NCCL_ORDER.index(one.path.nccl_class) == best}
    if theirs == {one.card.ref for one in local}:
        return None
    return f"NCCL takes the fastest path before the nearest: {', '.join(ref.key for ref in sorted(theirs))}"


def _by_operator(choice: Choice, said: tuple[Ref, ...] | None, every: tuple[Ranked, ...]) -> Choice:
    """`every` are all cards of the machine: the operator may name one of another role."""
    if said is None:
        return choice
    chosen = tuple(one for one in every if set(one.card.functions) & set(said))
    return choice._replace(chosen=chosen, confidence="operator", reason="the overlay says so")
