"""A part of a description -> a typed value; whatever does not fit is told with its line and field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from topo_agent.synthesis.expand import near
from topo_agent.synthesis.nodes import Items, Map, Node, Scalar, Wrong

CPUS_AT_MOST = 8192  # as sources/parse.py: the largest NR_CPUS of any architecture
_SIZE = re.compile(r"([0-9]{1,12})(?: ?([KMGT])iB)?", re.ASCII)
_LINK = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)x([0-9]{1,2})", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6})/([0-9]{1,6}))?)?", re.ASCII)
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})", re.ASCII)
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a description."""

    lines: tuple[int, ...]
    field: str

    def wrong(self, message: str) -> Wrong:
        return Wrong(self.lines, self.field, message)


@dataclass(frozen=True, slots=True)
class Value:
    """One value, whatever it is."""

    node: Node
    field: str

    @property
    def place(self) -> Place:
        return Place(self.node.lines, self.field)

    def wrong(self, message: str) -> Wrong:
        return self.place.wrong(message)

    @property
    def null(self) -> bool:
        return isinstance(self.node, Scalar) and self.node.null

    @property
    def is_map(self) -> bool:
        return isinstance(self.node, Map)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, Items)

    def of(self, text: str) -> Value:
        """A part of this one's text, with its place."""
        return Value(Scalar(text, True, self.node.lines), self.field)

    def text(self) -> str:
        if not isinstance(self.node, Scalar) or self.node.null:
            raise self.wrong("expected a text")
        return self.node.text

    def word(self) -> str:
        """The raw text of a scalar, as it is compared with words: `none`, `all`; "" for anything else."""
        return self.node.text if isinstance(self.node, Scalar) else ""

    def name(self) -> str:
        """A name that can be one component of a path."""
        text = self.text()
        if not _NAME.fullmatch(text):
            raise self.wrong(f"{text[:40]!r} is no name")
        return text

    def count(self, least: int = 0, most: int = 1 << 40) -> int:
        text = self.node.text if isinstance(self.node, Scalar) else ""
        if not text.isascii() or not text.isdigit() or len(text) > 14 or not least <= int(text) <= most:
            raise self.wrong(f"expected a number from {least} to {most}")
        return int(text)

    def hexadecimal(self, bits: int) -> int:
        found = _HEX.fullmatch(self.word())
        if not found or int(found[1], 16) >> bits:
            raise self.wrong(f"expected a hexadecimal number of at most {bits} bits")
        return int(found[1], 16)

    def truth(self) -> bool:
        word = self.word().lower()
        if word not in _TRUE | _FALSE:
            raise self.wrong("expected true or false")
        return word in _TRUE

    def choice(self, *words: str) -> str:
        if self.word() not in words:
            raise self.wrong(f"expected {' or '.join(words)}{near(self.word(), words)}")
        return self.word()

    def size(self) -> int:
        """Bytes: `"64 GiB"` -> 68719476736, `"0"` -> 0."""
        found = _SIZE.fullmatch(self.word())
        if not found:
            raise self.wrong("expected a size such as 64 GiB")
        return int(found[1]) << {None: 0, "K": 10, "M": 20, "G": 30, "T": 40}[found[2]]

    def ids(self) -> tuple[int, int]:
        """`10de:2330` -> (0x10de, 0x2330)."""
        first, colon, second = self.word().partition(":")
        if not colon or not all(_HEX.fullmatch(part) and len(part) == 4 for part in (first, second)):
            raise self.wrong("expected two ids such as 10de:2330")
        return int(first, 16), int(second, 16)

    def link(self) -> tuple[float, int] | None:
        """`32x16` -> (32.0, 16): GT/s and lanes; `none` is no link."""
        if self.word() == "none":
            return None
        found = _LINK.fullmatch(self.word())
        if not found or float(found[1]) not in (2.5, 5, 8, 16, 32, 64) or int(found[2]) not in (1, 2, 4, 8, 12, 16, 32):
            raise self.wrong("expected GT/s and lanes such as 32x16, or none")
        return float(found[1]), int(found[2])

    def cpus(self) -> tuple[int, ...]:
        """CPUs in the order in which they are written: `0-3,8` -> (0, 1, 2, 3, 8), `0-12:1/4` -> (0, 4, 8, 12)."""
        found: dict[int, None] = {}
        text = self.node.text if isinstance(self.node, Scalar) else "?"
        for part in text.split(",") if text and not self.null else ():
            matched = _RANGE.fullmatch(part.strip())
            if not matched:
                raise self.wrong("expected CPUs such as 0-3,8 or 0-124:1/4")
            first, last = int(matched[1]), int(matched[2] or matched[1])
            used, group = int(matched[3] or 1), int(matched[4] or 1)
            if not first <= last < CPUS_AT_MOST or not 0 < used <= group:
                raise self.wrong(f"{part.strip()} is no range of CPUs below {CPUS_AT_MOST}")
            more = [cpu for cpu in range(first, last + 1) if (cpu - first) % group < used]
            twice = next((cpu for cpu in more if cpu in found), None)
            if twice is not None:
                raise self.wrong(f"CPU {twice} is there twice")
            found.update(dict.fromkeys(more))
        return tuple(found)

    def items(self) -> tuple[Value, ...]:
        """The items of a list."""
        if not isinstance(self.node, Items):
            raise self.wrong("expected a list")
        return tuple(Value(item, f"{self.field}[{place}]") for place, item in enumerate(self.node.items))

    def some(self) -> tuple[Value, ...]:
        """The items of a list, or the one thing that stands instead of it; nothing for null."""
        return self.items() if self.is_list else () if self.null else (self,)

    def fields(self, *known: str) -> Fields:
        """The fields of a map, of which it has no others."""
        if not isinstance(self.node, Map):
            raise self.wrong("expected a map of fields")
        for key, value in self.node.entries.items():
            if key not in known:
                raise Value(value, self.below(key)).wrong(f"unknown field{near(key, known)}")
        return Fields(self)

    def pairs(self) -> Iterator[tuple[str, Value]]:
        """The keys and values of a map whose keys anybody may choose."""
        if not isinstance(self.node, Map):
            raise self.wrong("expected a map")
        for key, value in self.node.entries.items():
            yield key, Value(value, self.below(key))

    def has(self, key: str) -> bool:
        """Is there such a field here?"""
        return isinstance(self.node, Map) and key in self.node.entries

    def below(self, key: str) -> str:
        return f"{self.field}.{key}" if self.field else key


class Fields:
    """The fields of one map."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._entries = value.node.entries if isinstance(value.node, Map) else {}

    @property
    def place(self) -> Place:
        return self.value.place

    def __getitem__(self, key: str) -> Value:
        if key not in self._entries:
            raise self.value.wrong(f"the field {key!r} is missing")
        return Value(self._entries[key], self.value.below(key))

    def get(self, key: str) -> Value | None:
        """None where it is absent; a field that is there and empty is a null."""
        return self[key] if key in self._entries else None
