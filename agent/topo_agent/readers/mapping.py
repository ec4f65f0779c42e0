"""A mapping file (CSV) -> where a node stands: rack, block and leaf.

    node,rack,block,leaf
    gpu-a-*,rack-07,block-a,leaf-3
    4c4c4544-0051-3010-8054-b4c04f565831,rack-08,block-a,

The first column is a node's name, its systemUUID, or a pattern with `*` and `?` of either; the first line says which
of the others there are. Lines that begin with # and empty ones do not count.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from topo_agent.graph.fabric import Place
from topo_agent.host import files

LEVELS = ("rack", "block", "leaf")

EXPECTED = "a mapping of nodes (CSV)"

_SIGNS = 256  # of one field
_PATTERN = re.compile(r"[A-Za-z0-9._:*?-]{1,253}", re.ASCII)
# Whole, or a pattern of one: its first dash is the ninth sign.
_OF_UUID = re.compile(r"[0-9a-f?-]{32}|[0-9a-f?-]{36}|(?![^*]{0,7}-)(?=.*\*)[0-9a-f*?-]+", re.ASCII)


class BadMapping(Exception):
    """One line: the file, the line, and what was expected."""


class Line(NamedTuple):
    """One line of the file: which nodes, and what it says of them."""

    number: int
    nodes: str
    values: Mapping[str, str]


def parse(text: str, name: str) -> tuple[Line, ...]:
    """The lines of a text that came from the file `name`; BadMapping where it does not fit."""
    rows = csv.reader(_content(text), strict=True)
    try:
        return tuple(_lines(rows, name, _numbers(text)))
    except csv.Error as error:
        raise BadMapping(f"{name}: expected {EXPECTED}: {error}") from None


def find(lines: Iterable[Line], names: Iterable[str], name: str, *, unnamed: bool = False) -> Place:
    """Where the node that has these names stands. Two lines that fit are an error: which one is meant is not known.

    `unnamed`: its systemUUID is still to be learned. Nothing is certain then where a line may be of one; where nobody
    will learn it, it is not certain that there is none.
    """
    lines, words = tuple(lines), [one.lower() for one in names if one]
    if unnamed and any(map(_of_uuid, lines)):
        return Place({}, f"a line of {name} may name the systemUUID of this node, which is not known", certain=False)
    found = [line for line in lines if any(_fits(line.nodes, word) for word in words)]
    if not found and len({*words}) < 2 and any(map(_of_uuid, lines)):
        return Place({}, f"no line of {name} names this node, and its systemUUID is not known", certain=False)
    if not found:
        return Place({}, f"no line of {name} names this node")
    if len(found) > 1:
        return Place({}, f"{name}: lines {found[0].number} and {found[1].number} both name this node", certain=False)
    return Place(found[0].values, f"{name}:{found[0].number} does not say it")


def place(path: str | None, names: Iterable[str], *, unnamed: bool = False) -> Place:
    """What the file says of a node; a file that cannot be read or does not fit says nothing for certain."""
    if not path:
        return Place({}, "no mapping is set")
    try:
        return find(parse(files.text(path, EXPECTED), path), names, path, unnamed=unnamed)
    except (files.Unreadable, BadMapping) as error:
        return Place({}, str(error), certain=False)


def _content(text: str) -> Iterator[str]:
    return (line for line in text.splitlines(keepends=True) if line.strip() and not line.lstrip().startswith("#"))


def _numbers(text: str) -> list[int]:
    return [
        number for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")
    ]


def _lines(rows: Iterator[list[str]], name: str, numbers: list[int]) -> Iterator[Line]:
    columns = [one.strip() for one in next(rows, [])]
    levels = columns[1:]
    if columns[:1] != ["node"] or not levels or len(set(levels)) < len(levels) or not set(levels) <= set(LEVELS):
        raise BadMapping(f"{name}: expected a first line such as node,{','.join(LEVELS)}")
    blocks: dict[str, tuple[str, int]] = {}
    for number, row in zip(numbers[1:], rows, strict=False):
        fields = [one.strip() for one in row]
        if len(fields) != len(columns):
            raise BadMapping(f"{name}:{number}: expected {len(columns)} fields, and these are {len(fields)}")
        if not _PATTERN.fullmatch(fields[0]):
            raise BadMapping(f"{name}:{number}: expected the name of a node, a systemUUID or a pattern")
        if any(len(one) > _SIGNS or not one.isprintable() for one in fields):
            raise BadMapping(f"{name}:{number}: expected printable names of at most {_SIGNS} signs")
        values = {level: said for level, said in zip(levels, fields[1:], strict=True) if said}
        _unique(values, blocks, name, number)
        yield Line(number, fields[0].lower(), values)


def _unique(values: Mapping[str, str], blocks: dict[str, tuple[str, int]], name: str, number: int) -> None:
    """Schedulers compare racks without their blocks: one name in two blocks would be one rack to them."""
    rack, block = values.get("rack"), values.get("block")
    if rack is None or block is None:
        return
    other, line = blocks.setdefault(rack, (block, number))
    if other != block:
        raise BadMapping(
            f"{name}:{number}: rack {rack} is in block {block}, and in {other} on line {line}:"
            " expected racks whose names differ"
        )


def _of_uuid(line: Line) -> bool:
    """May it be the UUID of a node, or a pattern of such?"""
    return bool(_OF_UUID.fullmatch(line.nodes))


def _fits(pattern: str, word: str) -> bool:
    return fnmatchcase(word, pattern) if "*" in pattern or "?" in pattern else pattern == word
