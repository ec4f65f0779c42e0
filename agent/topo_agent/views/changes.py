"""Two documents `topo-agent/v1` of one machine -> what changed in its structure, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from topo_agent.host import Json, as_array, as_objects
from topo_agent.views.text import clean

Kind = Literal["added", "removed", "numa", "link_max", "path", "changed"]

KINDS: tuple[Kind, ...] = ("added", "removed", "numa", "link_max", "path", "changed")

_PARTS = ("packages", "numa", "roots", "devices")
_NUMA = ("numa_node", "numa_nodes", "cpus")
_FOLLOWS = ("standard", "sources", "unknown")  # says again, or says why, what another field says

Thing = Mapping[str, Json]


class Change(NamedTuple):
    kind: Kind
    sentence: str  # "removed pci:0000:41:00.0 (nic mlx5_2)"


def changes(before: Mapping[str, Json], after: Mapping[str, Json]) -> list[Change]:
    """Of the structure only; state and diagnostics are passed over."""
    found: list[Change] = []
    for part in _PARTS:
        were, are = _by_id(before, part), _by_id(after, part)
        found += [Change("removed", f"removed {_called(one)}") for key, one in were.items() if key not in are]
        found += [Change("added", f"added {_called(one)}") for key, one in are.items() if key not in were]
        for key, one in were.items():
            if key in are:
                found += _differences(one, are[key])
    return [*found, *_pairs(before, after, "links", "kind"), *_pairs(before, after, "paths", "class")]


def _by_id(document: Mapping[str, Json], part: str) -> dict[str, Thing]:
    return {str(one.get("id")): one for one in as_objects(document.get(part))}


def _differences(before: Thing, after: Thing) -> Iterator[Change]:
    """One sentence for each field that is another one now."""
    for field in sorted({*before, *after} - {*_FOLLOWS}):
        was, now = before.get(field), after.get(field)
        if was != now:
            kind: Kind = "numa" if field in _NUMA else "link_max" if field == "link" else "changed"
            yield Change(kind, f"{_called(after)}: {field} was {_text(was)}, is {_text(now)}")


def _pairs(before: Mapping[str, Json], after: Mapping[str, Json], part: str, word: str) -> Iterator[Change]:
    """Links and paths between two that were both there before and are now."""
    were, are = _by_ends(before, part), _by_ends(after, part)
    kept = _by_id(before, "devices").keys() & _by_id(after, "devices").keys()
    between = [ends for ends in were.keys() | are.keys() if {*ends} <= {*kept, "None"}]
    other = sorted(ends for ends in between if were.get(ends) != are.get(ends))
    for a, b in other[:3]:
        was, now = (_word(of.get((a, b)), word) for of in (were, are))
        yield Change("path", f"{part.removesuffix('s')} {a} to {b}: was {was}, is {now}")
    if len(other) > 3:
        yield Change("path", f"{len(other) - 3} more {part} differ")


def _by_ends(document: Mapping[str, Json], part: str) -> dict[tuple[str, str], Thing]:
    """What is between two ends, without the sentence that gives the reason."""
    told = [{key: said for key, said in one.items() if key != "reason"} for one in as_objects(document.get(part))]
    return {(str(one.get("a")), str(one.get("b"))): one for one in told}


def _word(thing: Thing | None, word: str) -> str:
    if thing is None:
        return "none"
    said = str(thing.get(word))
    return f"{said}, {thing['links']} of them" if thing.get("links") else said


def _called(thing: Thing) -> str:
    """ "pci:0000:41:00.0 (nic mlx5_2)": the id, and what people call it."""
    names = thing.get("names")
    words = [str(thing["kind"])] if thing.get("kind") else []
    if isinstance(names, dict):
        words += [str(name) for kind in ("netdev", "rdma", "nvme") for name in as_array(names.get(kind))]
    return clean(f"{thing.get('id')}" + (f" ({' '.join(words)})" if words else ""))


def _text(said: Json) -> str:
    if isinstance(said, dict):
        return clean(", ".join(f"{key} {value}" for key, value in said.items()))
    if isinstance(said, list):
        return clean(" ".join(map(str, said)))
    return "unknown" if said is None else clean(str(said))
