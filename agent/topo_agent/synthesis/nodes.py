"""YAML text -> a tree whose every part knows its line. Bounded, and nothing in it is ever a Python object.

Made from the events of the parser and not by its composer, so that depth, size and what aliases multiply are
counted while they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

BYTES_AT_MOST = 256 << 10  # the longest description of a machine known has 8 KiB
NODES_AT_MOST = 200_000
DEPTH_AT_MOST = 32
WORD_AT_MOST = 4096
_TOLD_AT_MOST = 400

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML was built with libyaml


class Wrong(Exception):
    """What does not fit in a description: the lines (the innermost first), the field, and one sentence."""

    def __init__(self, lines: tuple[int, ...], field: str, message: str) -> None:
        super().__init__(message)
        self.lines = lines
        self.field = field

    def __str__(self) -> str:
        used = "".join(f", used at line {line}" for line in self.lines[1:])
        where = f"line {self.lines[0]}{used}: " if self.lines else ""
        return f"{where}{_clipped(self.field) + ': ' if self.field else ''}{_clipped(str(self.args[0]))}"


def _clipped(text: str) -> str:
    """Names are what their writer likes, as long as he likes, and stand inside each other; a message is one line."""
    text = "".join(sign if sign.isprintable() else "?" for sign in text)
    return text if len(text) <= _TOLD_AT_MOST else f"{text[: _TOLD_AT_MOST // 2]}…{text[-_TOLD_AT_MOST // 2 :]}"


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str
    plain: bool  # written without quotes
    lines: tuple[int, ...]

    @property
    def null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Node, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Map:
    entries: dict[str, Node]
    lines: tuple[int, ...]


Node = Scalar | Items | Map


def parsed(text: str) -> Map:
    """The one document of a text; Wrong with the line where it is no YAML, or YAML that no description needs."""
    if len(text) > BYTES_AT_MOST:
        raise Wrong((), "", f"a description has at most {BYTES_AT_MOST >> 10} KiB")
    try:
        found = _Tree(iter(yaml.parse(text, Loader=_LOADER))).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Wrong((mark.line + 1,) if mark else (), "", f"no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise Wrong((), "", f"no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, Map):
        raise Wrong(found.lines, "", "a description is a map of fields")
    return found


class _Tree:
    def __init__(self, events: Iterator[Any]) -> None:
        self.events = events
        self.anchors: dict[str, tuple[Node, int]] = {}  # with how many nodes each has
        self.count = 0

    def document(self) -> Node:
        found: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise Wrong((_line(event),), "", "a description is one document")
                found = self._node(next(self.events), 0)
        if found is None:
            raise Wrong((), "", "a description is a map of fields, and this holds nothing")
        return found

    def _node(self, event: Any, depth: int) -> Node:
        """Goes down with the text, at most DEPTH_AT_MOST levels."""
        line = _line(event)
        before = self.count
        self._more(1, line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise Wrong((line,), "", f"*{event.anchor} is not there, or holds itself")
            node, size = self.anchors[event.anchor]
            self._more(size, line)
            return node
        if depth > DEPTH_AT_MOST:
            raise Wrong((line,), "", f"nested more than {DEPTH_AT_MOST} deep")
        if event.tag is not None and (event.tag != "!" or not isinstance(event, yaml.ScalarEvent)):
            raise Wrong((line,), "", f"{event.tag[:40]}: a description has no tags")
        made: Node
        if isinstance(event, yaml.ScalarEvent):
            if len(event.value) > WORD_AT_MOST:
                raise Wrong((line,), "", f"a text of more than {WORD_AT_MOST} characters")
            made = Scalar(event.value, not event.style, (line,))
        elif isinstance(event, yaml.SequenceStartEvent):
            made = Items(tuple(self._items(depth)), (line,))
        else:
            made = Map(self._entries(depth), (line,))
        if event.anchor is not None:
            self.anchors[event.anchor] = made, self.count - before
        return made

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, Scalar):
                raise Wrong(key.lines, "", "a field's name is a word")
            if key.text in found:
                raise Wrong(key.lines, key.text[:40], "is there twice")
            found[key.text] = self._node(next(self.events), depth + 1)
        return found

    def _more(self, count: int, line: int) -> None:
        self.count += count
        if self.count > NODES_AT_MOST:
            raise Wrong((line,), "", f"more than {NODES_AT_MOST} values")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
