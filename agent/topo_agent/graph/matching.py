"""Cards to GPUs, one to one where there are enough: a stable matching, by bridges between and PCI addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topo_agent.ids import Ref

Wishes = Mapping[Ref, Sequence[tuple[Ref, int]]]
"""GPU -> (card, bridges between) of its best rank."""


def assign(wishes: Wishes, groups: Iterable[Sequence[Ref]]) -> dict[Ref, frozenset[Ref]]:
    """GPU -> its cards. Where n cards stand for m GPUs, each GPU gets n // m of them; fewer are shared evenly."""
    found: dict[Ref, frozenset[Ref]] = dict.fromkeys(wishes, frozenset())
    for group in groups:
        members = sorted(group)
        cards = {card for gpu in members for card, _ in wishes[gpu]}
        each = len(cards) // len(members)
        found |= _one_to_one(wishes, members, each) if each else _evenly(wishes, members)
    return found


def _one_to_one(wishes: Wishes, gpus: Sequence[Ref], each: int) -> dict[Ref, frozenset[Ref]]:
    """Gale and Shapley, several cards a GPU.

    A card prefers the GPU fewer bridges away, then the one with fewer other cards to go to, then the lower address.
    """
    ranked = {gpu: sorted((bridges, card) for card, bridges in wishes[gpu]) for gpu in gpus}
    held: dict[Ref, tuple[int, int, Ref]] = {}
    asked = dict.fromkeys(gpus, 0)
    while True:
        owners = [gpu for _, _, gpu in held.values()]
        wanting = [gpu for gpu in gpus if owners.count(gpu) < each and asked[gpu] < len(ranked[gpu])]
        if not wanting:
            break
        gpu = wanting[0]
        bridges, card = ranked[gpu][asked[gpu]]
        asked[gpu] += 1
        offer = (bridges, len(ranked[gpu]), gpu)
        held[card] = min(held.get(card, offer), offer)
    found = {gpu: frozenset(card for card, (_, _, owner) in held.items() if owner == gpu) for gpu in gpus}
    # One whose only best cards went to others shares the nearest of them: a far card of its own is no gain.
    return {gpu: cards or frozenset({ranked[gpu][0][1]}) for gpu, cards in found.items()}


def _evenly(wishes: Wishes, gpus: Sequence[Ref]) -> dict[Ref, frozenset[Ref]]:
    """Fewer cards than GPUs: each takes the least used of its own, the lowest address first."""
    load: dict[Ref, int] = {}
    found = {}
    for gpu in gpus:
        card = min(wishes[gpu], key=lambda wish: (load.get(wish[0], 0), wish[1], wish[0]))[0]
        load[card] = load.get(card, 0) + 1
        found[gpu] = frozenset({card})
    return found
