"""`topo-agent dump` and `topo-agent list`: the machine in every form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from topo_agent.commands.answer import CouldNot, give, option
from topo_agent.commands.labels import label_options, readings_of, slice_of
from topo_agent.commands.look import Look, colored, find, finish, looking, machine, width

if TYPE_CHECKING:
    from collections.abc import Callable

    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.nodes import DeviceKind
    from topo_agent.graph.topology import Topology
    from topo_agent.host import Json
    from topo_agent.ids import Ref
    from topo_agent.settings import Settings


@click.command(short_help="The machine, or what surrounds one device.")
@click.argument("device", required=False)
@option(
    "-f", "--format", "form", type=click.Choice(["tree", "matrix", "json", "yaml", "metrics", "labels", "slices"]),
    default="tree", show_default=True,
)  # fmt: skip
@option("--all", "everything", is_flag=True, help="Every function and bridge, nothing folded or counted.")
@option("--caches", is_flag=True, help="Read the caches of every CPU too: slow on a large machine.")
@option("--kinds", metavar="A,B", default="gpu,nic", show_default=True, help="matrix: which of gpu, nic, nvme.")
@option(
    "--p2p",
    type=click.Choice(["read", "write", "nvlink", "atomics", "pci"]),
    help="matrix: what the driver lets GPUs do with each other's memory, instead of distances.",
)
@option("--metrics-pairs", "every_pair", is_flag=True, help="metrics: every pair of a GPU and a NIC or GPU, too.")
@option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@option(
    "--other-slices", metavar="FILE",
    help="slices: those of other drivers (`kubectl get resourceslices -o json`), whose functions are left out.",
)  # fmt: skip
@looking
@label_options()
def dump(
    look: Look, device: str | None, form: str, everything: bool, caches: bool, kinds: str, p2p: str | None,
    every_pair: bool, color: str, other_slices: str | None, settings: Callable[[], Settings],
) -> None:  # fmt: skip
    """Show the machine, or what surrounds DEVICE (a PCI address such as 1b:00.0, or an id such as numa:0)."""
    if p2p is not None and form != "matrix":
        raise click.UsageError("--p2p is a matrix: give -f matrix with it")
    if every_pair and form != "metrics":
        raise click.UsageError("--metrics-pairs is of the metrics: give -f metrics with it")
    if other_slices is not None and form != "slices":
        raise click.UsageError("--other-slices is of slices: give -f slices with it")
    if device is not None and form in ("matrix", "metrics", "labels", "slices"):
        raise click.UsageError(f"-f {form} is of the whole machine: it takes no DEVICE")
    chosen = _kinds(kinds) if form == "matrix" else []
    topology, operator = machine(look, caches=caches)
    start = None if device is None else find(topology, device)
    if form == "tree":
        from topo_agent.views.summary import DIAGNOSTICS_AT_MOST
        from topo_agent.views.tree import tree

        text = tree(
            topology,
            everything=everything,
            start=start,
            width=width(look.output),
            color=colored(color, look.output),
            diagnostics=0 if look.quiet else DIAGNOSTICS_AT_MOST,
        )
    elif form == "matrix":
        from topo_agent.views.matrix import matrix, peer_access

        text = matrix(topology, chosen) if p2p is None else peer_access(topology, p2p)
    elif form == "labels":
        text = _labels(look, topology, operator, settings())
    elif form == "slices":
        text = _slices(topology, operator, settings(), other_slices)
    elif form == "metrics":
        text = _metrics(topology, operator, pairs=every_pair)
    else:
        text = _document(topology, form, start)
    give(text, look.output)
    finish(topology, look)


def _metrics(topology: Topology, operator: Resolved, *, pairs: bool) -> str:
    from topo_agent.graph import checks, pairing
    from topo_agent.publishers.metrics import exposition
    from topo_agent.views.metrics import families

    choices = pairing.pairs(topology, operator)
    body, _ = exposition(families(topology, choices, checks.findings(topology, choices), pairs=pairs))
    return body.decode()


def _labels(look: Look, topology: Topology, operator: Resolved, settings: Settings) -> str:
    from topo_agent.daemon.settled import settled
    from topo_agent.views.labels import labels, missing

    found, keys = readings_of(topology, operator, settings), settled(settings).keys
    if look.verbose:
        for sentence in missing(found, keys):
            click.echo(f"topo-agent: {sentence}", err=True)
    return labels(found, keys)


def _slices(topology: Topology, operator: Resolved, settings: Settings, others: str | None) -> str:
    """YAML of what would be published, but for the uid of the Node that owns it."""
    import yaml

    from topo_agent.graph.covered import NONE, covered
    from topo_agent.publishers.kube.slices import body

    found = NONE if others is None else covered(_listed(others, settings), by_others_than=settings.domain)
    wanted = slice_of(topology, settings, readings_of(topology, operator, settings), found)
    said = body(wanted, generation=1)
    said["metadata"] = {"name": wanted.name}
    return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100))


def _listed(path: str, settings: Settings) -> list[dict[str, Json]]:
    """The ResourceSlices of this node in a list that kubectl wrote."""
    import json

    from topo_agent.daemon.settled import node_name
    from topo_agent.host import files

    expected = "ResourceSlices (JSON)"
    try:
        said = json.loads(files.text(path, expected))
    except files.Unreadable as error:
        raise CouldNot(str(error)) from None
    except (ValueError, RecursionError):
        raise CouldNot(f"{path}: expected {expected}, and this is no JSON") from None
    items = said.get("items") if isinstance(said, dict) else None
    if not isinstance(items, list) or not all(
        isinstance(one, dict) and isinstance(one.get("spec"), dict) for one in items
    ):
        raise CouldNot(f"{path}: expected {expected}: an object with items")
    return [one for one in items if one["spec"].get("nodeName") == node_name(settings)]


def _document(topology: Topology, form: str, start: Ref | None) -> str:
    from topo_agent.views.document import document

    said = document(topology, start)
    if form == "json":
        from topo_agent.views.document import as_json

        return as_json(said)
    import yaml

    return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100))


def _kinds(asked: str) -> list[DeviceKind]:
    from topo_agent.graph.hops import SCOPE

    chosen = [name.strip() for name in asked.split(",")]
    found = [kind for name in chosen for kind in SCOPE if kind == name]
    if len(found) != len(chosen) or len(set(found)) != len(found):
        raise click.UsageError(f"--kinds takes some of {', '.join(SCOPE)}, each once")
    return found


@click.command("list", short_help="A flat table of one kind of thing.")
@click.argument("kind", type=click.Choice(["gpus", "nics", "nvme", "numa", "cpus", "pci", "switches", "links"]))
@option("-f", "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@option("--columns", metavar="A,B,…", help="Which columns, in which order; `all` for every one.")
@looking
def list_(look: Look, kind: str, form: str, columns: str | None) -> None:
    """List the devices, NUMA nodes, CPUs or PCI functions of the machine, one a line."""
    from topo_agent.views import table

    chosen = _columns(columns, table.COLUMNS[kind], table.ALL_COLUMNS[kind])
    topology, _ = machine(look)
    give(table.FORMATS[form](table.rows(topology, kind), chosen), look.output)
    finish(topology, look)


def _columns(asked: str | None, usual: tuple[str, ...], every: tuple[str, ...]) -> tuple[str, ...]:
    if asked is None:
        return usual
    if asked == "all":
        return every
    chosen = tuple(name.strip() for name in asked.split(","))
    wrong = [name for name in chosen if name not in every]
    if wrong:
        raise click.UsageError(f"no column {', '.join(wrong)}; there are {', '.join(every)}")
    return chosen
