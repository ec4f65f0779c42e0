"""A description -> a machine on paper, with every file and document that such a machine would have."""

from __future__ import annotations

from topo_agent.host import BadSource, Source
from topo_agent.host.paper import Document, PaperHost
from topo_agent.synthesis import amd, bus, cpus, devices, edits, memories, nvidia, stacked
from topo_agent.synthesis.description import Description, Machine, described, load
from topo_agent.synthesis.layout import layout
from topo_agent.synthesis.nodes import Wrong
from topo_agent.synthesis.tree import Tree

_FLAGS = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2 ht lm"


def from_file(path: str) -> PaperHost:
    """The machine that a file describes; BadSource names the file, the line and the field."""
    return from_text(load(path), path)


def from_text(text: str, file: str = "description") -> PaperHost:
    said = described(text, file)
    try:
        return build(said)
    except Wrong as wrong:
        raise BadSource(f"{file}: {wrong}") from None


def build(said: Description) -> PaperHost:
    """The same machine for the same description, to the byte. Wrong where its parts do not fit together."""
    threads = cpus.threads(
        said.cpus, len(said.numa.ids) if said.numa and said.numa.cpus is None else len(said.cpus.packages)
    )
    numbers = {one.cpu for one in threads}
    stranger = min(said.cpus.offline - numbers, default=None)
    if stranger is not None:
        raise said.cpus.place.wrong(f"there is no CPU {stranger} to be offline")
    tree = Tree(said.name, max(max(numbers) + 1, said.cpus.possible or 0))
    online = frozenset(numbers) - said.cpus.offline
    cpus.write(tree, said.cpus, threads)
    nodes: dict[int, frozenset[int]] = {}
    gpu_memories: dict[str, int] = {}
    if said.numa is not None:
        nodes = memories.shared_out(said.numa, threads, said.cpus.offline)
        strangers = frozenset[int]().union(*nodes.values()) - online
        if strangers:
            raise said.numa.place.wrong(f"there is no CPU {min(strangers)}")
        packages = {node: frozenset(one.package for one in threads if one.cpu in of) for node, of in nodes.items()}
        memories.write(tree, said.numa, nodes, memories.distances(said.numa, packages))
        gpu_memories = {one.gpu: one.ids[0] for one in said.numa.extra if one.gpu is not None}
    _machine(tree, said.machine, online, said.numa.memory if said.numa else (64 << 30,))
    where = layout(said.roots)
    bus.write(tree, where, bus.Near(nodes, online, told=said.numa is not None))
    devices.write(tree, where, stacked.bonded(tree, where, said.stacked))
    stacked.write(tree, where, said.stacked)
    documents: dict[str, Document] = {
        "process": {"allowed_cpus": [*sorted(online)], "architecture": said.machine.architecture},
        "netlink": stacked.document(tree, where, said.stacked, said.altnames),
    }
    if said.nvidia is not None:
        nvidia.write(tree, where, said.nvidia, gpu_memories)
        documents["nvml"] = nvidia.document(tree, where, said.nvidia, nodes, gpu_memories)
    if said.amd is not None:
        amd.write(tree, where, said.amd, nodes)
    source = Source(kind="recording", complete=True, privileged=True, scope="host")
    return PaperHost(edits.applied(tree.entries, where, said.edits), documents, source=source)


def _machine(tree: Tree, said: Machine, online: frozenset[int], memory: tuple[int, ...]) -> None:
    """DMI, the kernel's version, and the first lines of proc/cpuinfo of each CPU."""
    dmi = "sys/devices/virtual/dmi/id"
    if said.vendor or said.product or said.board or said.bios:
        tree.link("sys/class/dmi/id", dmi)
        tree.write(
            dmi, sys_vendor=said.vendor, product_name=said.product, board_name=said.board, bios_version=said.bios
        )
    tree.write("proc/sys/kernel", osrelease=said.kernel)
    tree.text("proc/meminfo", f"MemTotal:       {sum(memory) >> 10} kB\n")
    flags = _FLAGS + (" hypervisor" if said.hypervisor is not None else "")
    x86 = said.architecture in ("x86_64", "i686")
    block = [f"model name\t: {said.cpu}"] if said.cpu else []
    block += [f"flags\t\t: {flags}"] if x86 else ["Features\t: fp asimd"]
    tree.text(
        "proc/cpuinfo", "\n\n".join("\n".join([f"processor\t: {cpu}", *block]) for cpu in sorted(online)) + "\n\n"
    )
    if said.hypervisor:
        tree.write("sys/hypervisor", type=said.hypervisor)
