"""`topo-agent kube`: what talks to a cluster."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from topo_agent.commands.answer import CouldNot, give, option
from topo_agent.commands.labels import label_options, readings_of, slice_of
from topo_agent.commands.look import Look, finish, looking, machine
from topo_agent.commands.manifests import manifests

if TYPE_CHECKING:
    from topo_agent.host import Json
    from topo_agent.publishers.kube.answers import Object
    from topo_agent.publishers.kube.client import Client
    from topo_agent.publishers.kube.node import Node
    from topo_agent.publishers.kube.slices import Wanted
    from topo_agent.settings import Settings

_DRY = option(
    "--dry-run", type=click.Choice(["client", "server"]),
    help="client: print what would be sent, and ask no server; server: let it judge and change nothing.",
)  # fmt: skip


@click.group(short_help="Labels and the ResourceSlice of this node in a Kubernetes cluster.")
def kube() -> None:
    """Publish what this server is made of in a Kubernetes cluster, or take it back."""


kube.add_command(manifests)


@kube.command(short_help="Publish this node once.")
@_DRY
@option("--slices", "with_slice", is_flag=True, help="Its ResourceSlice, too: tainted unless it is to be allocatable.")
@label_options(cluster=True)
@looking
def publish(look: Look, dry_run: str | None, with_slice: bool, settings: Callable[[], Settings]) -> None:
    """Look at the machine once, and make the labels of its node say what was found.

    Nothing of others is touched: a label that somebody else owns stays as it is, and that is told. `topo-agent run
    --labels node` does the same, and keeps them right.
    """
    from topo_agent.daemon.covering import kept
    from topo_agent.daemon.log import now
    from topo_agent.daemon.settled import remembered, settled, wanted
    from topo_agent.graph.covered import NONE, covered
    from topo_agent.graph.held import Held
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube import slices

    by = settings()
    topology, operator = machine(look)
    chosen = settled(by)
    held = Held(agree=1)  # whoever types this has looked
    if dry_run == "client":
        readings = readings_of(topology, operator, by)
        held.read(readings, 0.0, now())
        sent: list[Json] = [nodes.patch(nodes.of({}, chosen.carrier), wanted(chosen, held.published))]
        if with_slice:
            sent.append(slices.body(slice_of(topology, by, readings, NONE), generation=1))
        give("".join(json.dumps(one, indent=2, ensure_ascii=False) + "\n" for one in sent), look.output)
        finish(topology, look)
        return
    with _asking("get and patch nodes"):
        client = _client(by)
        node = nodes.read(client, chosen.carrier, whole=True)
        held.remember(remembered(chosen, node, now()))
        uuid = nodes.system_uuid(client, node, chosen.name)
        readings = readings_of(topology, operator, by, system_uuid=uuid)
        held.read(readings, 0.0, now())
        want = wanted(chosen, held.published)
        for key in sorted(want.labels):
            if node.others(key) and node.labels[key] != want.labels[key]:
                who = ", ".join(sorted(node.others(key)))
                _tell(f"{key}: {who} says {node.labels[key]}, not {want.labels[key]}: left")
        changed = not nodes.satisfied(node, want)
        after = nodes.apply(client, node, want, dry_run=dry_run == "server") if changed else node
    give("".join(f"{key}={after.labels[key]}\n" for key in sorted(want.labels) if key in after.labels), look.output)
    _tell(f"{chosen.carrier.kind} {chosen.carrier.name}: {_done(changed=changed, dry_run=dry_run)}")
    if with_slice:
        with _asking("get, list, create, update and delete resourceslices and list deviceclasses"):
            others = covered(_slices(client, by), by_others_than=by.domain)
            left = kept(node, by.domain) - others.addresses - others.uids
            if left:
                _tell(f"{chosen.carrier.kind} {chosen.carrier.name}: an agent left that others cover {len(left)} more")
            others = others.also(left)
            _publish_slice(client, slice_of(topology, by, readings, others), dry_run)
    finish(topology, look)


def _publish_slice(client: Client, want: Wanted, dry_run: str | None) -> None:
    from topo_agent.graph.covered import unguarded
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube import slices

    if slices.minor(client) < slices.SINCE:
        raise CouldNot(slices.TOO_OLD.format(client.host))
    classes, _ = slices.listed(client.get(slices.CLASSES))
    open_ = unguarded(classes)
    if open_:
        raise CouldNot(slices.OPEN.format(", ".join(open_)))
    uid = nodes.read(client, nodes.node_carrier(want.node)).uid
    want = want._replace(uid=uid)
    found = slices.listed(client.get(slices.SLICES, field=f"spec.nodeName={want.node}"))[0]
    current = next((one for one in found if slices.about(one, "name") == want.name), None)
    changed = current is not None if not want.devices else current is None or not slices.same(current, want)
    if changed and want.devices:
        slices.write(client, want, current, last=0, dry_run=dry_run is not None)
    elif changed and current is not None:
        slices.delete(client, current, dry_run=dry_run is not None)
    _tell(f"ResourceSlice {want.name}, {len(want.devices)} devices: {_done(changed=changed, dry_run=dry_run)}")


@kube.command(short_help="Remove everything that topo-agent published.")
@_DRY
@label_options(cluster=True)
def unpublish(dry_run: str | None, settings: Callable[[], Settings]) -> None:
    """Remove what topo-agent published of its node: labels and annotations, of any domain, its condition, and the
    ResourceSlice of its driver. Nothing else is touched.
    """
    from topo_agent.daemon.settled import settled
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube import slices

    by = settings()
    chosen = settled(by)
    empty = nodes.of({}, chosen.carrier)
    if dry_run == "client":
        give(json.dumps(nodes.patch(empty, nodes.NOTHING), indent=2) + "\n", None)
        return
    server = dry_run == "server"
    with _asking("get and patch nodes"):
        client = _client(by)
        node = nodes.read(client, chosen.carrier, whole=True)
        gone = sorted(node.ours)
        nodes.remove(client, node, dry_run=server)
        _forget(client, node, chosen.name, dry_run=server)
    give("".join(f"{key}-\n" for key in gone), None)
    done = f"{len(gone)} labels {'would be ' if dry_run else ''}removed" if gone else "no label of ours is there"
    _tell(f"{chosen.carrier.kind} {chosen.carrier.name}: {done}")
    with _asking("list and delete resourceslices"):
        for one in slices.ours(_slices(client, by), by.domain):
            slices.delete(client, one, dry_run=server)
            _tell(f"ResourceSlice {slices.about(one, 'name')}: {'would be ' if dry_run else ''}removed")


def _forget(client: Client, node: Node, name: str, *, dry_run: bool) -> None:
    """What others keep at the Node: the publisher of slices its memory, that of findings a condition.

    Who publishes by way of NFD may have no right to see it.
    """
    from topo_agent.daemon.events import CONDITION
    from topo_agent.publishers.kube import node as nodes
    from topo_agent.publishers.kube.answers import Trouble

    if node.carrier.kind != "Node":
        try:
            node = nodes.read(client, nodes.node_carrier(name))
        except Trouble as error:
            if error.kind in ("not_found", "forbidden"):
                return
            raise
    nodes.forget(client, node, dry_run=dry_run)
    if node.told:
        nodes.untell(client, node, CONDITION, dry_run=dry_run)
        _tell(f"Node {name}: its condition {'would be ' if dry_run else ''}removed")


def _slices(client: Client, settings: Settings) -> list[Object]:
    """All of this node; none where the cluster does not know them."""
    from topo_agent.daemon.settled import node_name
    from topo_agent.publishers.kube import slices
    from topo_agent.publishers.kube.answers import Trouble

    try:
        return slices.listed(client.get(slices.SLICES, field=f"spec.nodeName={node_name(settings)}"))[0]
    except Trouble as error:
        if error.kind == "not_found":
            return []
        raise


def _client(settings: Settings) -> Client:
    from topo_agent.publishers.kube.client import Client

    return Client(kubeconfig=settings.kubeconfig, context=settings.context)


@contextlib.contextmanager
def _asking(right: str) -> Iterator[None]:
    """Trouble with the cluster is one line, and status 3.

    A server, or a proxy, that closes the connection is such; it ends us not as `| head` does.
    """
    from topo_agent.publishers.kube.answers import Trouble

    pipe = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    except Trouble as error:
        hint = f"; this account needs the right to {right}, see docs/kubernetes.md" if error.kind == "forbidden" else ""
        raise CouldNot(f"{error}{hint}") from None
    finally:
        signal.signal(signal.SIGPIPE, pipe)


def _done(*, changed: bool, dry_run: str | None) -> str:
    return ("would be written" if dry_run else "written") if changed else "nothing to change"


def _tell(sentence: str) -> None:
    click.echo(f"topo-agent: {sentence}", err=True)
