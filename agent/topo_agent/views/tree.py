"""Topology -> the tree that `dump` prints: packages, NUMA nodes, PCI roots, switches, devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from topo_agent.graph.nodes import Device, DeviceKind, Memory, Mig, Package, Root, Virtual
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref
from topo_agent.views.lines import Lines, mig
from topo_agent.views.summary import DIAGNOSTICS_AT_MOST, WORDS, foot, headline
from topo_agent.views.text import clean, fit
from topo_agent.views.units import plural

_COLOURS: dict[DeviceKind, str] = {"gpu": "green", "nic": "cyan", "nvme": "magenta", "nvswitch": "yellow"}
_COPROCESSOR, _ACCELERATOR = 0x0B, 0x12
BOLD = "bold"
_ROOM = 40  # columns that a line keeps for its text, however deep it is


@dataclass(slots=True)
class Branch:
    """One line of the tree and what hangs below it."""

    text: str
    colour: str | None = None
    below: list[Branch] = field(default_factory=list)


def tree(
    topology: Topology,
    *,
    everything: bool = False,
    start: Ref | None = None,
    width: int = 100,
    color: bool = False,
    diagnostics: int = DIAGNOSTICS_AT_MOST,
) -> str:
    """The machine, or what surrounds `start`, in at most `width` columns.

    Without `everything`, bridges that lead to one thing are folded into it, and virtual functions, empty
    ports and functions of no interest are counted.
    """
    writer = _Writer(topology, everything=everything)
    if start is None:
        lines = [*headline(topology, width), "", *_draw(writer.machine(), width, color=color)]
    else:
        lines = list(_draw([writer.surroundings(start)], width, color=color))
    return "\n".join([*lines, *foot(topology.diagnostics, diagnostics, width), ""])


def _draw(branches: list[Branch], width: int, *, color: bool, indent: str = "", top: bool = True) -> Iterator[str]:
    for branch in branches:
        last = branch is branches[-1]
        edge = "" if top else ("└─ " if last else "├─ ")
        text = fit(clean(branch.text), max(width - len(indent) - len(edge), 1))
        if color and branch.colour == BOLD:
            text = click.style(text, bold=True)
        elif color and branch.colour:
            text = click.style(text, fg=branch.colour)
        yield f"{indent}{edge}{text}"
        deeper = (indent + ("" if top else ("   " if last else "│  ")))[: max(width - _ROOM, 0)]
        yield from _draw(branch.below, width, color=color, indent=deeper, top=False)


class _Writer:
    def __init__(self, topology: Topology, *, everything: bool) -> None:
        self.topology = topology
        self.everything = everything
        self.lines = Lines(topology)

    def machine(self) -> list[Branch]:
        """Packages, then what is in no package, then what has no known place."""
        branches = [self._package(package) for package in self.topology.packages or ()]
        branches += [
            self._memory(memory) for memory in self.topology.memories or () if self.topology.parent(memory.ref) is None
        ]
        lost = [root for root in self.topology.roots or () if self.topology.memory(root.numa_node) is None]
        branches += self._unplaced(lost)
        stray = [device for device in self.topology.devices or () if device.root is None]
        if stray:
            branches.append(Branch("PCI parent unknown", BOLD, [self._device(device) for device in stray]))
        return branches

    def surroundings(self, ref: Ref) -> Branch:
        """One node with everything below it, inside the chain of what it hangs below."""
        node = self.topology.nodes[ref]
        if isinstance(node, Package):
            branch = self._package(node)
        elif isinstance(node, Memory):
            branch = self._memory(node)
        elif isinstance(node, Root):
            branch = self._root(node)
        elif isinstance(node, Virtual):
            branch = Branch(node.name)
        elif isinstance(node, Mig):
            branch = Branch(mig(node), _COLOURS["gpu"])
        else:
            branch = self._whole(node)
        for above in self.topology.ancestors(ref):
            text = self._above(above)
            branch = Branch(text, BOLD, [branch])
        return branch

    def _above(self, ref: Ref) -> str:
        """The line of something that is only there because something else is below it."""
        node = self.topology.nodes[ref]
        if isinstance(node, Root):
            return self.lines.root(node)
        if isinstance(node, Package):
            return self.lines.package(node)
        return self.lines.bridge(node) if isinstance(node, Device) else ref.key

    def _package(self, package: Package) -> Branch:
        parent = self.topology.parent
        inside = [one for one in self.topology.memories or () if parent(one.ref) == package.ref]
        return Branch(self.lines.package(package), BOLD, [self._memory(one) for one in inside])

    def _memory(self, memory: Memory) -> Branch:
        roots = [root for root in self.topology.roots or () if root.numa_node == memory.id]
        return Branch(self.lines.memory(memory), BOLD, self._roots(roots))

    def _unplaced(self, roots: list[Root]) -> Iterator[Branch]:
        """Roots of unknown place, gathered under the reason why."""
        reasons: dict[str, list[Root]] = {}
        for root in roots:
            reasons.setdefault(self.lines.place(root), []).append(root)
        for text, same in reasons.items():
            yield Branch(text, BOLD, self._roots(same))

    def _roots(self, roots: list[Root]) -> list[Branch]:
        branches, dull = [], []
        for root in roots:
            branch = self._root(root)
            if branch.below or self.everything:
                branches.append(self._folded(branch))
            else:
                dull.append(root)
        if dull:
            functions = sum(1 for root in dull for _ in self.topology.below(root.ref))
            count = plural(functions, "function")
            branches.append(Branch(f"{plural(len(dull), 'root')} with nothing of interest ({count})"))
        return branches

    def _folded(self, branch: Branch) -> Branch:
        """A root that leads to one thing is written on the line of that thing."""
        if self.everything or len(branch.below) != 1:
            return branch
        only = branch.below[0]
        return Branch(f"{branch.text} · {only.text}", only.colour, only.below)

    def _root(self, root: Root) -> Branch:
        children = self._children(root.ref)
        if self.everything:
            return Branch(root.name, None, [self._whole(child) for child in children])
        below, passed = self._interesting(children)
        # Of a root behind VMBus only the bus: what stands before it (a UUID for each device) is in the whole tree.
        return Branch(f"{root.name.rsplit('/', 1)[-1]}{passed.text()}", None, below)

    def _children(self, ref: Ref) -> list[Device]:
        devices = (self.topology.device(child) for child in self.topology.children(ref))
        return [device for device in devices if device is not None]

    def _whole(self, device: Device) -> Branch:
        """Every function below, nothing folded."""
        return Branch(
            self.lines.bridge(device),
            _COLOURS.get(device.kind),
            [*map(Branch, self.lines.migs(device)), *(self._whole(child) for child in self._children(device.ref))],
        )

    def _interesting(self, children: list[Device]) -> tuple[list[Branch], _Passed]:
        """The branches worth a line, and a count of what was passed over."""
        branches: list[Branch] = []
        passed = _Passed()
        for device in children:
            grandchildren = self._children(device.ref)
            if device.physfn in self.topology.nodes:
                continue  # counted at its PF
            if device.kind == "bridge" and not grandchildren:
                passed.empty += 1
            elif device.kind == "bridge":
                below, inside = self._interesting(grandchildren)
                if len(below) > 1 and not _one_card(grandchildren):
                    branches.append(Branch(self.lines.bridge(device) + inside.text(), None, below))
                else:
                    branches += below
                    passed.add(inside)
            elif _interesting(device) or grandchildren:  # an endpoint with a bus of its own: VMD
                branches.append(self._device(device))
            else:
                passed.others += 1
        return branches, passed

    def _device(self, device: Device) -> Branch:
        below, inside = self._interesting(self._children(device.ref))
        text = self.lines.device(device) + inside.text()
        return Branch(text, _COLOURS.get(device.kind), [*map(Branch, self.lines.migs(device)), *below])


@dataclass(slots=True)
class _Passed:
    """What has no line of its own."""

    empty: int = 0
    others: int = 0

    def add(self, other: _Passed) -> None:
        self.empty += other.empty
        self.others += other.others

    def text(self) -> str:
        words = [plural(self.empty, "empty port")] if self.empty else []
        words += [plural(self.others, "other function")] if self.others else []
        return f" · {', '.join(words)}" if words else ""


def _interesting(device: Device) -> bool:
    base = None if device.class_code is None else device.class_code >> 16
    return device.kind in WORDS or base is None or base in (_COPROCESSOR, _ACCELERATOR)


def _one_card(devices: list[Device]) -> bool:
    """Functions of one endpoint. The ports of a switch may be functions of one device too: those are not."""
    physical = [device for device in devices if device.physfn is None]
    return all(device.kind != "bridge" for device in physical) and len({one.address.card for one in physical}) == 1
