"""`topo-agent pairs`, `explain` and `where`: what is near what, through what, and is a process near it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from topo_agent.commands.answer import NO, CouldNot, as_json, give, option
from topo_agent.commands.look import Look, find, finish, function, host, looking, machine, width

if TYPE_CHECKING:
    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.nodes import Device
    from topo_agent.graph.topology import Topology


@click.command(short_help="Which NIC for which GPU, and how sure.")
@click.argument("gpu", required=False)
@option(
    "-f", "--format", "form", type=click.Choice(["table", "json", "env", "bind"]), default="table", show_default=True
)
@option(
    "--with", "kind", type=click.Choice(["nic", "nvme"]), default="nic", show_default=True, help="NICs, or NVMe drives."
)
@looking
def pairs(look: Look, gpu: str | None, form: str, kind: Literal["nic", "nvme"]) -> None:
    """Say which NICs are nearest to each GPU, through what and why; ties are shown as ties.

    `env` is a shell fragment with NCCL, UCX and NVSHMEM variables for each local rank; `bind` prints taskset,
    numactl and srun commands for the CPUs near each GPU.
    """
    topology, operator = machine(look)
    only = None if gpu is None else topology.function(find(topology, gpu))
    if gpu is not None and (only is None or only.kind != "gpu"):
        raise CouldNot(f"{gpu} is no GPU")
    if form == "bind":
        from topo_agent.views.bind import bind

        text = bind(topology, only)
    else:
        text = _pairs(topology, operator, only, form, kind, width(look.output))
    give(text, look.output)
    finish(topology, look)


def _pairs(
    topology: Topology, operator: Resolved, only: Device | None, form: str, kind: Literal["nic", "nvme"], width: int
) -> str:
    from topo_agent.graph import pairing
    from topo_agent.views import pairs as view

    found = pairing.pairs(topology, operator, kind=kind)
    choices = [one for one in found if only is None or one.gpu == only.ref]
    if form == "json":
        return as_json(view.as_data(choices))
    if not choices:
        return "no GPU here\n"
    return view.as_environment(topology, choices) if form == "env" else view.as_table(topology, choices, width)


@click.command(short_help="Every hop between two things, or everything near one.")
@click.argument("one")
@click.argument("other", required=False)
@option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@looking
def explain(look: Look, one: str, other: str | None, form: str) -> None:
    """Explain how ONE reaches OTHER: each hop, the class in the words of nvidia-smi and NCCL, the narrowest link.

    Without OTHER, rank everything by how near it is to ONE. Devices are PCI addresses, gpu0, interfaces, …
    """
    from topo_agent.graph import explain as ways
    from topo_agent.views import explain as view

    topology, _ = machine(look)
    a = function(topology, one)
    if other is not None:
        b = function(topology, other)
        if a.ref == b.ref:
            raise CouldNot(f"{one} and {other} are the same device")
        said = ways.between(topology, a, b)
        text = as_json(view.as_data(said)) if form == "json" else view.between(topology, said, width(look.output))
    else:
        paths = ways.nearest(topology, a)
        text = as_json(view.near_data(paths)) if form == "json" else view.near(topology, a, paths)
    give(text, look.output)
    finish(topology, look)


@click.command(short_help="Is a process bound well?")
@option("--pid", type=click.IntRange(min=1), help="Which process; the caller of this command unless given.")
@option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@looking
def where(look: Look, pid: int | None, form: str) -> None:
    """Compare the CPUs, memory and RDMA devices of a process with the best that this machine has for its GPUs.

    Status 1 is the answer that it could be bound better.
    """
    from topo_agent.graph import chosen, pairing
    from topo_agent.graph import where as binding
    from topo_agent.host import Unavailable, process
    from topo_agent.sources import binding as source
    from topo_agent.views import where as view

    if look.source is not None:
        raise click.UsageError("where looks at a process of this machine: it takes no --from")
    topology, operator = machine(look)
    try:
        found = source.read(host(None), process.ask(pid or os.getppid()))
    except (Unavailable, ValueError, OSError) as error:
        raise CouldNot(f"process {pid or os.getppid()}: {error}") from None
    gpus, how, certain = chosen.gpus_of(
        topology, opened=found.opened, visible=found.visible, asked=found.asked, pci_order=found.pci_order
    )
    uverbs = dict(found.uverbs)
    judged = binding.judge(
        topology,
        gpus,
        cpus=found.cpus,
        memory=found.bound_memory,
        allowed=found.memory,
        rdma=[uverbs[name] for node in found.opened or () if (name := node.rpartition("/")[2]) in uverbs],
        choices=pairing.pairs(topology, operator),
    )
    said = binding.Where(judged, how, certain)
    if form == "json":
        text = as_json(view.as_data(said, found.cpus, found.hidden))
    else:
        text = view.as_text(topology, said, found.name, found.cpus, found.hidden, width(look.output))
    give(text, look.output)
    finish(topology, look)
    if not said.well:
        raise click.exceptions.Exit(NO)
