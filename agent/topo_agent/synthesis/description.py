"""The description of a machine: its text -> what it says, every part with the line and field where it is said."""

from __future__ import annotations

from dataclasses import dataclass

from topo_agent.host import BadSource, files
from topo_agent.synthesis import amd, edits, memory, nvidia, parts, stacked, wiring
from topo_agent.synthesis.amd import Amd
from topo_agent.synthesis.cpus import Cpus
from topo_agent.synthesis.edits import Edit
from topo_agent.synthesis.expand import expanded
from topo_agent.synthesis.fields import Fields, Value
from topo_agent.synthesis.functions import Root
from topo_agent.synthesis.memory import Numa
from topo_agent.synthesis.nodes import BYTES_AT_MOST, Map, Wrong, parsed
from topo_agent.synthesis.nvidia import Nvidia
from topo_agent.synthesis.stacked import Stacked

SCHEMA = "topo-agent/machine/v1"
_TOP = ("schema", "name", "machine", "cpus", "numa", "pci", "net", "nvidia", "amd", "edits")


@dataclass(frozen=True, kw_only=True)
class Machine:
    vendor: str | None
    product: str | None
    board: str | None
    bios: str | None
    cpu: str | None
    architecture: str
    kernel: str
    hypervisor: str | None  # its name, or "" for a virtual machine that does not tell


@dataclass(frozen=True, kw_only=True)
class Description:
    name: str
    machine: Machine
    cpus: Cpus
    numa: Numa | None  # None: a kernel without NUMA
    roots: tuple[Root, ...]
    stacked: tuple[Stacked, ...]
    altnames: dict[str, tuple[str, ...]]
    nvidia: Nvidia | None  # None: nobody asked NVML
    amd: Amd | None
    edits: tuple[Edit, ...]


def load(path: str) -> str:
    """The text of a file; BadSource where there is none, or too much of it."""
    try:
        return files.text(path, "a description (YAML)", BYTES_AT_MOST)
    except files.Unreadable as error:
        raise BadSource(str(error)) from None


def described(text: str, file: str = "description") -> Description:
    """What a text says; BadSource("file: line 7: pci[0].ports[1]: …") where it says nothing that fits."""
    try:
        return _description(Value(expanded(parsed(text)), ""))
    except Wrong as wrong:
        raise BadSource(f"{file}: {wrong}") from None


def _description(value: Value) -> Description:
    said = value.fields(*_TOP, "templates")
    if said["schema"].word() != SCHEMA:
        raise said["schema"].wrong(f"expected {SCHEMA}")
    cpus = Cpus.read(said["cpus"])
    machine = _machine(said.get("machine") or Value(Map({}, value.node.lines), "machine"))
    numa, pci, net = said.get("numa"), said.get("pci"), said.get("net")
    told, more, drivers = said.get("nvidia"), said.get("amd"), said.get("edits")
    empty = Value(Map({}, value.node.lines), "numa")
    above, names = stacked.read(net) if net else ((), {})
    port = _root_port(machine)
    return Description(
        name=said["name"].name(),
        machine=machine,
        cpus=cpus,
        numa=None if numa is not None and numa.word() == "none" else memory.read(numa or empty, len(cpus.packages)),
        roots=tuple(wiring.root(one, port) for one in pci.items()) if pci else (),
        stacked=above,
        altnames=names,
        nvidia=nvidia.read(told) if told else None,
        amd=amd.read(more) if more else None,
        edits=tuple(edits.read(one) for one in drivers.items()) if drivers else (),
    )


def _root_port(machine: Machine) -> parts.Part:
    """What a root port is where nothing is said: that of the maker of the processor."""
    if machine.hypervisor is not None:
        return parts.PORTS["qemu"]
    return parts.PORTS["amd" if machine.cpu and "AMD" in machine.cpu else "intel"]


def _machine(value: Value) -> Machine:
    said = value.fields("vendor", "product", "board", "bios", "cpu", "architecture", "kernel", "hypervisor")
    architecture, kernel, hypervisor = (said.get(name) for name in ("architecture", "kernel", "hypervisor"))
    return Machine(
        vendor=_text(said, "vendor"),
        product=_text(said, "product"),
        board=_text(said, "board"),
        bios=_text(said, "bios"),
        cpu=_text(said, "cpu"),
        architecture=architecture.name() if architecture else "x86_64",
        kernel=kernel.name() if kernel else "6.8.0",
        hypervisor=_hypervisor(hypervisor) if hypervisor else None,
    )


def _hypervisor(value: Value) -> str | None:
    """`true`: the CPU says so; a name: sys/hypervisor says which."""
    if value.word().lower() in ("true", "false", "yes", "no"):
        return "" if value.truth() else None
    return value.name()


def _text(said: Fields, name: str) -> str | None:
    value = said.get(name)
    return None if value is None else value.text()
