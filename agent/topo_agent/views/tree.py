"""Topology -> the tree that `dump` prints: packages, NUMA nodes, PCI roots, switches, devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from topo_agent.diagnostics import Unknown
from topo_agent.graph.nodes import Device, DeviceKind, Memory, Mig, Package, Root, Virtual
from topo_agent.graph.order import labels
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuSet, Ref, cpulist
from topo_agent.views import names
from topo_agent.views.devices import names_of, speed, state
from topo_agent.views.summary import DIAGNOSTICS_AT_MOST, WORDS, foot, headline
from topo_agent.views.text import clean, fit
from topo_agent.views.units import binary_size, link_name, plural

_COLOURS: dict[DeviceKind, str] = {"gpu": "green", "nic": "cyan", "nvme": "magenta", "nvswitch": "yellow"}
_STORAGE, _COPROCESSOR, _ACCELERATOR = 0x01, 0x0B, 0x12
_VIRTUALIZATION = {
    "passthrough": "passed through", "vgpu": "vGPU", "host_vgpu": "host of vGPUs", "host_vsga": "host of vSGA",
}  # fmt: skip
BOLD = "bold"
_ROOM = 40  # columns that a line keeps for its text, however deep it is

_SILENCE = {
    Unknown.FIRMWARE_SILENT: "firmware says -1",
    Unknown.CONTRADICTS: "the machine contradicts itself",
    Unknown.NOT_RECORDED: "not recorded",
    Unknown.NOT_SUPPORTED: "this kernel does not tell",
    Unknown.NOT_PERMITTED: "not permitted to read",
    Unknown.UNREADABLE: "unreadable",
}


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
        self.vfs = Counter(device.physfn for device in topology.devices or () if device.physfn)
        self.called = labels(topology)
        self.ports = dict(topology.ports_now)
        self.drivers_told = any(device.driver for device in topology.devices or ())

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
            branch = Branch(_mig_text(node), _COLOURS["gpu"])
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
            return f"{node.name} · NUMA {'unknown' if node.numa_node is None else node.numa_node}"
        if isinstance(node, Package):
            return self._package(node).text
        return self._bridge_text(node) if isinstance(node, Device) else ref.key

    def _package(self, package: Package) -> Branch:
        cores = "" if package.cores is None else f" · {plural(len(package.cores), 'core')}"
        model = _plain(self.topology.machine.cpu_model)
        text = f"package {package.id}{model and ' · ' + model}{cores} · {_cpus(package.cpus)}{self._caches(package)}"
        parent = self.topology.parent
        inside = [one for one in self.topology.memories or () if parent(one.ref) == package.ref]
        return Branch(text, BOLD, [self._memory(one) for one in inside])

    def _caches(self, package: Package) -> str:
        """`" · 2 × L3 32 MiB"`: the largest level, where caches were asked for."""
        inside = [cache for cache in self.topology.caches or () if cache.cpus <= package.cpus]
        level = max((cache.level for cache in inside), default=0)
        sizes = Counter(cache.size_bytes for cache in inside if cache.level == level and cache.size_bytes)
        return "".join(f" · {count} × L{level} {binary_size(size)}" for size, count in sorted(sizes.items()))

    def _memory(self, memory: Memory) -> Branch:
        roots = [root for root in self.topology.roots or () if root.numa_node == memory.id]
        return Branch(self._memory_text(memory), BOLD, self._roots(roots))

    def _memory_text(self, memory: Memory) -> str:
        words = [f"NUMA {memory.id}"]
        if dict(memory.sources).get("id") == "assumed":
            words[0] += " (assumed: this kernel tells no NUMA nodes)"
        if memory.kind:
            words.append(f"{memory.kind.upper()}" + (f" of {memory.gpu}" if memory.gpu else ""))
        if memory.memory_bytes is not None:
            words.append(binary_size(memory.memory_bytes) if memory.memory_bytes else "no memory")
        if memory.cpus is None:
            words.append("CPUs unknown")
        elif memory.cpus:
            words.append(_cpus(memory.cpus))
        else:
            near = "unknown" if memory.near_cpus is None else cpulist(memory.near_cpus)
            words.append(f"no CPUs, near CPUs {near}")
        return " · ".join(words)

    def _unplaced(self, roots: list[Root]) -> Iterator[Branch]:
        """Roots of unknown place, gathered under the reason why."""
        reasons: dict[str, list[Root]] = {}
        for root in roots:
            reason = dict(root.unknown).get("numa_node")
            named = f"NUMA {root.numa_node}" if root.numa_node is not None else "NUMA node unknown"
            reasons.setdefault(named + (f" ({_SILENCE.get(reason, reason.value)})" if reason else ""), []).append(root)
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
            self._bridge_text(device) if device.kind == "bridge" else self._text(device),
            _COLOURS.get(device.kind),
            [*self._migs(device), *(self._whole(child) for child in self._children(device.ref))],
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
                    branches.append(Branch(self._bridge_text(device) + inside.text(), None, below))
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
        return Branch(self._text(device) + inside.text(), _COLOURS.get(device.kind), [*self._migs(device), *below])

    def _migs(self, device: Device) -> Iterator[Branch]:
        """`"3 MIG: 3g.40gb, 2 × 1g.10gb"`: all parts of a GPU on one line."""
        if device.gpu is None or not device.gpu.mig:
            return
        parts = [one for one in self.topology.migs if one.partition_of == device.ref]
        counts = Counter(one.profile or "?" for one in parts)
        words = [f"{count} × {profile}" if count > 1 else profile for profile, count in counts.items()]
        hidden = dict(device.gpu.unknown).get("mig_devices")
        if words:
            yield Branch(f"{len(parts)} MIG: {', '.join(words)}")
        else:
            yield Branch(f"MIG on, its devices unknown ({hidden.value})" if hidden else "MIG on, no devices")

    def _text(self, device: Device) -> str:
        words = [f"{_short(device)} {self._label(device)} {device.title or names.title(device.vendor, device.device)}"]
        called = " ".join(names_of(device))
        if called:
            words.append(called)
        ports = self.ports.get(device.ref, ())
        if any(port.up is not None for port in ports):
            words.append(f"{speed(ports)} {state(ports)}".strip())
        if device.link is not None:
            words.append(link_name(device.link.max_gts, device.link.max_width))
        if device.physfn is not None:
            words.append(f"VF of {device.physfn.key}")
        elif self.vfs[device.ref]:
            words.append(f"+{plural(self.vfs[device.ref], 'VF')}")
        if device.gpu is not None and device.gpu.partitions:
            modes = " ".join(filter(None, (device.gpu.compute_partition, device.gpu.memory_partition)))
            words.append(f"{device.gpu.partitions} partitions{modes and f' ({modes})'}")
        if device.gpu is not None and device.gpu.virtualization:
            words.append(_VIRTUALIZATION[device.gpu.virtualization])
        if device.kind in WORDS and device.driver is None and self.drivers_told:
            words.append("no driver")
        return " · ".join(words) + self._elsewhere(device)

    def _label(self, device: Device) -> str:
        """GPU0 and NIC3 are the names of the matrix; a drive has a name of its own."""
        word = WORDS.get(device.kind)
        if word is None:
            return names.class_name(device.class_code)
        return self.called.get(device.ref, word) if device.kind in ("gpu", "nic") else word

    def _elsewhere(self, device: Device) -> str:
        """Said only where it differs from what the line above it says."""
        root = self.topology.nodes.get(device.root) if device.root else None
        if not isinstance(root, Root) or root.numa_node == device.numa_node or device.kind not in WORDS:
            return ""
        return f" · NUMA {'unknown' if device.numa_node is None else device.numa_node}"

    def _bridge_text(self, device: Device) -> str:
        if device.kind != "bridge":
            return self._text(device)
        words = {"root_port": "root port", "upstream_port": "switch", "downstream_port": "port"}
        link = f" · {link_name(device.link.max_gts, device.link.max_width)}" if device.link else ""
        word = words.get(device.role or "", "bridge")
        return f"{_short(device)} {word} {names.title(device.vendor, device.device)}{link}"


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


def _mig_text(one: Mig) -> str:
    memory = None if one.memory_bytes is None else binary_size(one.memory_bytes)
    return " · ".join(filter(None, (f"MIG {one.profile or one.ref.key}", memory, one.uid)))


def _one_card(devices: list[Device]) -> bool:
    """Functions of one endpoint. The ports of a switch may be functions of one device too: those are not."""
    physical = [device for device in devices if device.physfn is None]
    return all(device.kind != "bridge" for device in physical) and len({one.address.card for one in physical}) == 1


def _plain(model: str | None) -> str:
    """`"Intel(R) Xeon(R) Gold 6448Y"` -> `"Intel Xeon Gold 6448Y"`."""
    return " ".join((model or "").replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ").split())


def _short(device: Device) -> str:
    """`0000:1b:00.0` -> `1b:00.0`; other domains are written out."""
    return str(device.address).removeprefix("0000:")


def _cpus(cpus: CpuSet) -> str:
    """`"64 CPUs 0-31,64-95"`; a long list is cut in the middle: `"32 CPUs 0,4,8,…,124"`."""
    listed = cpulist(cpus)
    if len(listed) > 32:
        parts = listed.split(",")
        listed = ",".join([*parts[:3], "…", parts[-1]])
    return f"{plural(len(cpus), 'CPU')} {listed}"
