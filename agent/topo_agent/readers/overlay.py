"""An operator's overlay (YAML) -> Overlay. docs/schema/overlay.json describes it.

roots: {"pci0000:15": 0}                      # NUMA node of a host bridge
roles: {mlx5_4: storage, eno1: management}    # what a NIC is for
pairs: {gpu0: [mlx5_0, mlx5_1]}               # the NICs of a GPU
data_direct: {"0000:07:00.0": mlx5_0}         # the NIC that a Data Direct function works for
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TypeVar

from topo_agent.graph.overlay import ROLES, Overlay, Role
from topo_agent.ids import NumaId
from topo_agent.synthesis.nodes import Items, Map, Node, Scalar, Wrong, parsed

T = TypeVar("T")

_PARTS = ("roots", "roles", "pairs", "data_direct")


class BadOverlay(Exception):
    """One line: file, line, field, and what was expected."""


def parse(text: str, name: str) -> Overlay:
    """The overlay of a text that came from the file `name`; BadOverlay where it does not fit."""
    try:
        return _overlay(parsed(text), name)
    except Wrong as error:
        raise BadOverlay(f"{name}: {error}") from None


def _overlay(document: Map, name: str) -> Overlay:
    for key, node in document.entries.items():
        if key not in _PARTS:
            raise Wrong(node.lines, key, f"expected one of {', '.join(_PARTS)}{_near(key, _PARTS)}")
    return Overlay(
        roots=_part(document, "roots", _numa),
        roles=_part(document, "roles", _role),
        pairs=_part(document, "pairs", _names),
        data_direct=_part(document, "data_direct", _name),
        where={
            f"{part}.{key}": f"{name}:{node.lines[0]}"
            for part in _PARTS
            for key, node in _entries(document, part).items()
        },
    )


def _entries(document: Map, part: str) -> dict[str, Node]:
    node = document.entries.get(part)
    if node is None or (isinstance(node, Scalar) and node.null):
        return {}
    if not isinstance(node, Map):
        raise Wrong(node.lines, part, "expected a map of names")
    return node.entries


def _part(document: Map, part: str, read: Callable[[Node, str], T]) -> dict[str, T]:
    return {key: read(node, f"{part}.{key}") for key, node in _entries(document, part).items()}


def _numa(node: Node, field: str) -> NumaId:
    text = node.text if isinstance(node, Scalar) else ""
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise Wrong(node.lines, field, "expected the number of a NUMA node")
    return NumaId(int(text))


def _role(node: Node, field: str) -> Role:
    text = node.text if isinstance(node, Scalar) else ""
    for role in ROLES:
        if text == role:
            return role
    raise Wrong(node.lines, field, f"expected one of {', '.join(ROLES)}{_near(text, ROLES)}")


def _names(node: Node, field: str) -> tuple[str, ...]:
    if not isinstance(node, Items) or not all(isinstance(one, Scalar) for one in node.items):
        raise Wrong(node.lines, field, "expected a list of NICs, such as [mlx5_0]")
    return tuple(one.text for one in node.items if isinstance(one, Scalar))


def _name(node: Node, field: str) -> str:
    if not isinstance(node, Scalar) or node.null:
        raise Wrong(node.lines, field, "expected a NIC, such as mlx5_0")
    return node.text


def _near(word: str, words: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {found[0]}?" if found else ""
