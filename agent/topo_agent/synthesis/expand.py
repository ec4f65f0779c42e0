"""Repetition -> what it stands for: templates with parameters, lists that run side by side, ranges.

    - {use: rail, each: {root: [15, 3d], node: [0, 1]}, with: {speed: 400}}
    - {make: {nvme: pm1733, controller: "nvme$(index)"}, each: {slot: 1-4}}

An item of a list that has `use` or `make` becomes the items of the template, once for each row. `$(name)` is
replaced by the value of a parameter, whatever it is; inside other text, by its text; `$(name+1)` counts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from topo_agent.synthesis.nodes import DEPTH_AT_MOST, NODES_AT_MOST, WORD_AT_MOST, Items, Map, Node, Scalar, Wrong

_PARAMETER = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)([+-][0-9]{1,6})?\)", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})", re.ASCII)
_ROWS_AT_MOST = 4096
_INSIDE_AT_MOST = 8
_LETTERS_AT_MOST = 8 << 20  # of all texts that parameters make
_NEAR_AT_MOST = (
    64,
    1000,
)  # letters and words: difflib's worst case is cubic in the one, and it looks at all of the other
_CALL = ("use", "make", "each", "with")

Arguments = Mapping[str, Node]


def expanded(document: Map) -> Map:
    """The same document without `templates`, and without anything that stands for something else."""
    templates = document.entries.get("templates", Map({}, document.lines))
    if not isinstance(templates, Map):
        raise Wrong(templates.lines, "templates", "expected names, each with what it stands for")
    maker = _Maker(templates.entries)
    rest = {name: node for name, node in document.entries.items() if name != "templates"}
    return Map({name: maker.node(node, None, name) for name, node in rest.items()}, document.lines)


class _Maker:
    def __init__(self, templates: Mapping[str, Node]) -> None:
        self.templates = templates
        self.parameters = {name: frozenset(_parameters(body)) for name, body in templates.items()}
        self.stack: list[str] = []
        self.calls: tuple[int, ...] = ()  # the lines from which the template that is being filled in was used
        self.count = 0
        self.letters = 0
        self.depth = 0

    def node(self, node: Node, arguments: Arguments | None, field: str) -> Node:
        self._more(1, node.lines + self.calls, field)
        self.depth += 1
        if self.depth > 2 * DEPTH_AT_MOST:  # each template is as deep as a description, and they hold each other
            raise Wrong(node.lines + self.calls, field, f"templates nest more than {2 * DEPTH_AT_MOST} deep")
        made = self._node(node, arguments, field)
        self.depth -= 1
        return made

    def _more(self, count: int, lines: tuple[int, ...], field: str) -> None:
        self.count += count
        if self.count > NODES_AT_MOST:
            raise Wrong(lines, field, f"templates make more than {NODES_AT_MOST} values")

    def _node(self, node: Node, arguments: Arguments | None, field: str) -> Node:
        if isinstance(node, Scalar):
            return self.scalar(node, arguments, field)
        lines = node.lines + self.calls
        if isinstance(node, Map):
            if "use" in node.entries or "make" in node.entries:
                raise Wrong(lines, field, "`use` and `make` stand in lists")
            return Map(
                {key: self.node(value, arguments, f"{field}.{key}") for key, value in node.entries.items()}, lines
            )
        items: list[Node] = []
        for place, item in enumerate(node.items):
            here = f"{field}[{place}]"
            if isinstance(item, Map) and ("use" in item.entries or "make" in item.entries):
                items.extend(self.call(item, arguments, here))
            else:
                items.append(self.node(item, arguments, here))
        return Items(tuple(items), lines)

    def scalar(self, node: Scalar, arguments: Arguments | None, field: str) -> Node:
        lines = node.lines + self.calls
        if arguments is None or "$(" not in node.text:
            if "$(" in node.text and arguments is None:
                raise Wrong(lines, field, f"{node.text[:40]!r}: a parameter outside of a template")
            return Scalar(node.text, node.plain, lines)
        whole = _PARAMETER.fullmatch(node.text)
        if whole and not whole[2]:
            return self.argument(whole[1], arguments, lines, field)

        def said(found: re.Match[str]) -> str:
            value = self.argument(found[1], arguments, lines, field)
            if not isinstance(value, Scalar):
                raise Wrong(lines, field, f"{found[0]} is a list or a map, and stands inside a text")
            if not found[2]:
                return value.text
            if not value.text.isascii() or not value.text.isdigit() or len(value.text) > 9:
                raise Wrong(lines, field, f"{found[0]}: {value.text[:40]!r} is no number to count from")
            return str(int(value.text) + int(found[2]))

        text = self.joined(_PARAMETER.sub(said, node.text) if self.short(node, arguments) else None, lines, field)
        if "$(" in text:
            raise Wrong(lines, field, f"{node.text[:40]!r}: expected $(name), or $(name+1)")
        return Scalar(text, node.plain, lines)

    def argument(self, name: str, arguments: Arguments, lines: tuple[int, ...], field: str) -> Node:
        if name not in arguments:
            raise Wrong(lines, field, f"$({name}) has no value{near(name, arguments)}")
        value = arguments[name]
        # One node in many places is small here, and as large as all of them to whoever goes through the tree.
        todo: list[tuple[Node, int]] = [(value, self.depth)]
        while todo:
            node, depth = todo.pop()
            self._more(1, lines, field)
            if depth > 2 * DEPTH_AT_MOST:
                raise Wrong(lines, field, f"templates nest more than {2 * DEPTH_AT_MOST} deep")
            if not isinstance(node, Scalar):
                below = node.items if isinstance(node, Items) else node.entries.values()
                todo.extend((one, depth + 1) for one in below)
        return value

    @staticmethod
    def short(node: Scalar, arguments: Arguments) -> bool:
        """Whether the text stays within WORD_AT_MOST: asked before it is made, a thousand times as long maybe."""
        values = (arguments.get(found[1]) for found in _PARAMETER.finditer(node.text))
        return sum(len(one.text) for one in values if isinstance(one, Scalar)) <= WORD_AT_MOST

    def joined(self, text: str | None, lines: tuple[int, ...], field: str) -> str:
        """The text with its parameters filled in, if it and all of them together are of a sane length."""
        if text is None or len(text) > WORD_AT_MOST:
            raise Wrong(lines, field, f"parameters make a text of more than {WORD_AT_MOST} characters")
        self.letters += len(text)
        if self.letters > _LETTERS_AT_MOST:
            raise Wrong(lines, field, f"parameters make more than {_LETTERS_AT_MOST >> 20} MiB of text")
        return text

    def call(self, item: Map, arguments: Arguments | None, field: str) -> Iterator[Node]:
        lines = item.lines + self.calls
        for key in item.entries:
            if key not in _CALL or ("use" in item.entries and key == "make"):
                raise Wrong(
                    lines, f"{field}.{key}", f"beside `use` or `make` stand `each` and `with` only{near(key, _CALL)}"
                )
        name, body, known = self.body(item, arguments, lines, field)
        if (name and name in self.stack) or len(self.stack) >= _INSIDE_AT_MOST:
            raise Wrong(lines, field, f"templates that use each other without end: {' → '.join([*self.stack, name])}")
        rows = self.rows(item, arguments, lines, field)
        for key in rows[0] if rows else ():
            if known is not None and key not in known and key != "index":
                raise Wrong(lines, field, f"{name!r} has no parameter {key!r}{near(key, known)}")
        self.stack.append(name)
        before, self.calls = self.calls, lines if name else self.calls
        for row in rows:
            given = row if known is not None else {**(arguments or {}), **row}
            made = self.node(Items((body,), body.lines) if isinstance(body, Map) else body, given, field)
            yield from made.items if isinstance(made, Items) else (made,)
        self.calls = before
        self.stack.pop()

    def body(
        self, item: Map, arguments: Arguments | None, lines: tuple[int, ...], field: str
    ) -> tuple[str, Node, frozenset[str] | None]:
        """(name, what it stands for, its parameters); `make` has no name, and sees what is around it."""
        if "make" in item.entries:
            return "", item.entries["make"], None
        used = self.node(item.entries["use"], arguments, field)
        name = used.text if isinstance(used, Scalar) else ""
        if name not in self.templates:
            raise Wrong(lines, f"{field}.use", f"there is no template {name!r}{near(name, self.templates)}")
        return name, self.templates[name], self.parameters[name]

    def rows(self, item: Map, arguments: Arguments | None, lines: tuple[int, ...], field: str) -> list[dict[str, Node]]:
        constant = self.columns(item, "with", arguments, field)
        lists = {
            key: self.listed(node, f"{field}.each.{key}")
            for key, node in self.columns(item, "each", arguments, field).items()
        }
        lengths = {key: len(nodes) for key, nodes in lists.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise Wrong(lines, f"{field}.each", f"lists that run side by side are of one length: {told}")
        count = next(iter(lengths.values()), 1)
        if count > _ROWS_AT_MOST:
            raise Wrong(lines, f"{field}.each", f"more than {_ROWS_AT_MOST} rows")
        self._more(count * (1 + len(constant) + len(lists)), lines, field)
        return [
            {"index": Scalar(str(row), True, lines), **constant, **{key: nodes[row] for key, nodes in lists.items()}}
            for row in range(count)
        ]

    def columns(self, item: Map, key: str, arguments: Arguments | None, field: str) -> dict[str, Node]:
        if key not in item.entries:
            return {}
        made = self.node(item.entries[key], arguments, f"{field}.{key}")
        if not isinstance(made, Map):
            raise Wrong(made.lines, f"{field}.{key}", "expected names, each with its values")
        return made.entries

    def listed(self, node: Node, field: str) -> tuple[Node, ...]:
        """`[15, 3d]`, or a range of numbers, `0-7`."""
        if isinstance(node, Items):
            return node.items
        found = _RANGE.fullmatch(node.text) if isinstance(node, Scalar) else None
        if not found or not 0 <= int(found[2]) - int(found[1]) < _ROWS_AT_MOST:
            raise Wrong(node.lines, field, "expected a list, or a range such as 0-7")
        self._more(int(found[2]) - int(found[1]) + 1, node.lines, field)
        return tuple(Scalar(str(number), True, node.lines) for number in range(int(found[1]), int(found[2]) + 1))


def near(word: str, known: Mapping[str, object] | frozenset[str] | tuple[str, ...]) -> str:
    """`"; did you mean 'ports'?"`, or nothing."""
    letters, words = _NEAR_AT_MOST
    if len(word) > letters or len(known) > words:
        return ""
    found = difflib.get_close_matches(word, sorted(one for one in known if len(one) <= letters), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _parameters(node: Node) -> Iterator[str]:
    if isinstance(node, Scalar):
        yield from (found[1] for found in _PARAMETER.finditer(node.text))
    else:
        for below in node.items if isinstance(node, Items) else node.entries.values():
            yield from _parameters(below)
