"""`topo-agent kube`: what talks to a cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from topo_agent.commands.answer import CouldNot, give, option
from topo_agent.commands.labels import label_options, readings_of
from topo_agent.commands.look import Look, finish, looking, machine

if TYPE_CHECKING:
    from topo_agent.daemon.kube import Settled
    from topo_agent.publishers.kube.client import Client, Trouble
    from topo_agent.publishers.kube.node import Node, Wanted
    from topo_agent.settings import Settings

_DRY = option(
    "--dry-run", type=click.Choice(["client", "server"]),
    help="client: print what would be sent, and ask no server; server: let it judge and change nothing.",
)  # fmt: skip


@click.group(short_help="Labels of this node in a Kubernetes cluster.")
def kube() -> None:
    """Publish what this server is made of in a Kubernetes cluster, or take it back."""


@kube.command(short_help="Publish the labels of this node once.")
@_DRY
@label_options("kubeconfig", "context")
@looking
def publish(look: Look, dry_run: str | None, settings: Settings) -> None:
    """Look at the machine once, and make the labels of its node say what was found.

    Nothing of others is touched: a label that somebody else owns stays as it is, and that is told. `topo-agent run
    --labels node` does the same, and keeps them right.
    """
    from topo_agent.daemon.kube import remembered, wanted
    from topo_agent.daemon.log import now
    from topo_agent.daemon.start import settled
    from topo_agent.graph.held import Held
    from topo_agent.publishers.kube import node as nodes

    topology, operator = machine(look)
    chosen = settled(settings)
    held = Held(agree=1)  # whoever types this has looked
    if dry_run == "client":
        held.read(readings_of(topology, operator, settings), 0.0, now())
        node = nodes.of({}, chosen.carrier)
        give(json.dumps(nodes.patch(node, wanted(chosen, held.published)), indent=2) + "\n", look.output)
        finish(topology, look)
        return
    client = _client(settings)
    node = _read(client, chosen)
    held.remember(remembered(chosen, node, now()))
    held.read(readings_of(topology, operator, settings, system_uuid=node.system_uuid), 0.0, now())
    want = wanted(chosen, held.published)
    for key in sorted(want.labels):
        if node.others(key) and node.labels[key] != want.labels[key]:
            who = ", ".join(sorted(node.others(key)))
            click.echo(f"topo-agent: {key}: {who} says {node.labels[key]}, not {want.labels[key]}: left", err=True)
    changed = not nodes.satisfied(node, want)
    after = _apply(client, node, want, dry_run=dry_run == "server") if changed else node
    give("".join(f"{key}={after.labels[key]}\n" for key in sorted(want.labels) if key in after.labels), look.output)
    done = "would be written" if dry_run else "written"
    click.echo(
        f"topo-agent: {node.carrier.kind} {node.carrier.name}: {done if changed else 'nothing to change'}", err=True
    )
    finish(topology, look)


@kube.command(short_help="Remove everything that topo-agent published.")
@_DRY
@label_options("kubeconfig", "context")
def unpublish(dry_run: str | None, settings: Settings) -> None:
    """Remove the labels and the annotation that topo-agent owns on its node, of any domain, and nothing else."""
    from topo_agent.daemon.start import settled
    from topo_agent.publishers.kube import node as nodes

    chosen = settled(settings)
    if dry_run == "client":
        empty = nodes.of({}, chosen.carrier)
        give(json.dumps(nodes.patch(empty, nodes.NOTHING), indent=2) + "\n", None)
        return
    client = _client(settings)
    node = _read(client, chosen)
    gone = sorted(node.ours)
    if not nodes.satisfied(node, nodes.NOTHING):
        _apply(client, node, nodes.NOTHING, dry_run=dry_run == "server")
    give("".join(f"{key}-\n" for key in gone), None)
    done = f"{len(gone)} labels {'would be ' if dry_run else ''}removed" if gone else "nothing of ours is there"
    click.echo(f"topo-agent: {node.carrier.kind} {node.carrier.name}: {done}", err=True)


def _client(settings: Settings) -> Client:
    from topo_agent.publishers.kube.client import Client, Trouble

    try:
        return Client(kubeconfig=settings.kubeconfig, context=settings.context)
    except Trouble as error:
        raise CouldNot(str(error)) from None


def _read(client: Client, chosen: Settled) -> Node:
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube.client import Trouble

    try:
        return nodes.read(client, chosen.carrier, whole=True)
    except Trouble as error:
        raise _could_not(error, "get") from None


def _apply(client: Client, node: Node, want: Wanted, *, dry_run: bool) -> Node:
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube.client import Trouble

    try:
        return nodes.apply(client, node, want, dry_run=dry_run)
    except Trouble as error:
        raise _could_not(error, "patch") from None


def _could_not(error: Trouble, right: str) -> CouldNot:
    hint = f"; this account needs the right to {right} it, see docs/kubernetes.md" if error.kind == "forbidden" else ""
    return CouldNot(f"{error}{hint}")
