"""Labels of a node: what they are, and how ours are applied.

They are those of the Node itself, or those that a NodeFeature asks Node Feature Discovery for. What somebody else owns
stays, and is left out of ours: owning it together would take it from him.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import quote

from topo_agent.host import Json, as_object
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import MANAGER, METADATA, Client
from topo_agent.publishers.kube.owners import owners, owns_condition, taken

_TRIES = 3

OF_SLICES = f"{MANAGER}-slices"
"""Who owns the annotation that the publisher of slices keeps: what one applies must not take from the other."""


class Carrier(NamedTuple):
    """The object that has the labels."""

    version: str
    kind: str
    collection: str  # its path, without the name
    name: str
    part: Literal["metadata", "spec"]  # where in it the labels are
    own: Mapping[str, str]  # labels that the object itself needs

    @property
    def path(self) -> str:
        return f"{self.collection}/{quote(self.name, safe='')}"

    @property
    def accept(self) -> str:
        return METADATA if self.part == "metadata" else "application/json"


def node_carrier(name: str) -> Carrier:
    return Carrier("v1", "Node", "/api/v1/nodes", name, "metadata", {})


def nfd_carrier(name: str, namespace: str) -> Carrier:
    """kubernetes-sigs/node-feature-discovery, api/nfd/v1alpha1 NodeFeature: the label says which node is meant."""
    group = "nfd.k8s-sigs.io/v1alpha1"
    collection = f"/apis/{group}/namespaces/{quote(namespace, safe='')}/nodefeatures"
    own = {"nfd.node.kubernetes.io/node-name": name}
    return Carrier(group, "NodeFeature", collection, f"topo-agent-{name}", "spec", own)


class Node(NamedTuple):
    """What carries the labels as it is now; without a uid it is not there."""

    carrier: Carrier
    uid: str
    version: str  # resourceVersion
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owners: Mapping[str, frozenset[str]]  # label -> managers
    annotated: frozenset[str]  # annotations of ours
    remembered: frozenset[str]  # annotations of the publisher of slices
    complete: bool  # the labels that the object itself needs are there
    system_uuid: str | None = None  # status.nodeInfo.systemUUID; None where only metadata was read
    told: bool = False  # a condition of its status is ours

    def others(self, key: str) -> frozenset[str]:
        """Who owns a label that is not ours."""
        who = self.owners.get(key, frozenset())
        return frozenset() if MANAGER in who or key not in self.labels else who or frozenset({"somebody"})

    @property
    def ours(self) -> frozenset[str]:
        return frozenset(key for key, who in self.owners.items() if MANAGER in who)


class Wanted(NamedTuple):
    """What a Node should have of ours."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


NOTHING = Wanted({}, {})
"""Everything of ours taken back."""


def read(client: Client, carrier: Carrier, *, whole: bool = False) -> Node:
    """`whole`: with its status, for the systemUUID. A Node has to be there; a NodeFeature may still be made."""
    try:
        return of(client.get(carrier.path, accept="application/json" if whole else carrier.accept), carrier)
    except Trouble as error:
        if error.kind != "not_found" or error.answer is None:
            raise
        if carrier.kind == "Node":
            raise Trouble(
                "not_found", f"{client.host}: there is no node {carrier.name}; --node names another"
            ) from None
        return of({}, carrier)


def system_uuid(client: Client, node: Node, name: str) -> str | None:
    """Of the whole Node; beside a NodeFeature, the Node of that name is asked. "" where it says none.

    None where this account may not read it, or it is not there.
    """
    if node.carrier.kind == "Node":
        return node.system_uuid or ""
    try:
        return read(client, node_carrier(name), whole=True).system_uuid or ""
    except Trouble as error:
        if error.kind not in ("forbidden", "not_found"):
            raise
        return None


def of(said: Object, carrier: Carrier) -> Node:
    """The object, whole or its metadata -> what counts of it here."""
    about = as_object(said.get("metadata"))
    info = as_object(as_object(said.get("status")).get("nodeInfo"))
    uuid = info.get("systemUUID")
    managed = about.get("managedFields")
    annotated = owners(managed, "metadata", "annotations")
    return Node(
        carrier=carrier,
        uid=str(about.get("uid", "")),
        version=str(about.get("resourceVersion", "")),
        labels={key: str(text) for key, text in as_object(as_object(said.get(carrier.part)).get("labels")).items()},
        annotations={key: str(text) for key, text in as_object(about.get("annotations")).items()},
        owners=owners(managed, carrier.part, "labels"),
        annotated=frozenset(key for key, who in annotated.items() if MANAGER in who),
        remembered=frozenset(key for key, who in annotated.items() if OF_SLICES in who),
        complete=carrier.own.items() <= as_object(about.get("labels")).items(),
        system_uuid=uuid if isinstance(uuid, str) else None,
        told=owns_condition(managed),
    )


def satisfied(node: Node, wanted: Wanted) -> bool:
    """Is nothing to be written? What others own counts as it is."""
    mine = {key: text for key, text in wanted.labels.items() if not node.others(key)}
    return (
        all(node.labels.get(key) == text for key, text in mine.items())
        and all(node.annotations.get(key) == text for key, text in wanted.annotations.items())
        and node.ours <= set(mine)
        and node.annotated <= set(wanted.annotations)
        and (node.complete or not node.uid)
    )


def patch(node: Node, wanted: Wanted) -> Object:
    """What is applied: everything of ours, and nothing else. The uid keeps a deleted object from rising again."""
    carrier = node.carrier
    labels: dict[str, Json] = {key: text for key, text in sorted(wanted.labels.items()) if not node.others(key)}
    about: dict[str, Json] = {"name": carrier.name}
    about |= {"uid": node.uid} if node.uid else {}
    # An empty map would be owned, too.
    about |= {"annotations": dict(wanted.annotations)} if wanted.annotations else {}
    said: Object = {"apiVersion": carrier.version, "kind": carrier.kind, "metadata": about}
    if carrier.part == "spec":
        about["labels"] = dict(carrier.own)
        return said | {"spec": {"labels": labels}}
    about |= {"labels": labels} if labels else {}
    return said


def apply(client: Client, node: Node, wanted: Wanted, *, dry_run: bool = False) -> Node:
    """Make it so. A label that somebody else took meanwhile is left to him."""
    for _ in range(_TRIES):
        try:
            return of(client.apply(node.carrier.path, patch(node, wanted), dry_run=dry_run), node.carrier)
        except Trouble as error:
            if not taken(error):
                raise
            fresh = read(client, node.carrier)
            if fresh.uid != node.uid:
                raise
            node = fresh
    raise Trouble("conflict", f"{client.host}: others write the labels of {node.carrier.name} at the same time")


def remove(client: Client, node: Node, *, dry_run: bool = False) -> None:
    """Take everything of ours back; a NodeFeature is ours as a whole."""
    if node.carrier.kind == "Node":
        if not satisfied(node, NOTHING):
            apply(client, node, NOTHING, dry_run=dry_run)
    elif node.uid:
        client.delete(node.carrier.path, uid=node.uid, dry_run=dry_run)


def forget(client: Client, node: Node, *, dry_run: bool = False) -> None:
    """Take back what the publisher of slices remembers at a Node."""
    if node.remembered:
        about: dict[str, Json] = {"name": node.carrier.name, "uid": node.uid}
        said: Object = {"apiVersion": "v1", "kind": "Node", "metadata": about}
        client.apply(node.carrier.path, said, manager=OF_SLICES, dry_run=dry_run)


def untell(client: Client, node: Node, condition: str, *, dry_run: bool = False) -> None:
    """Take back the condition of a Node.

    Not by an apply: where nobody is on record as the owner of the others, they would go with it.
    """
    gone: list[Json] = [{"type": condition, "$patch": "delete"}]
    said: Object = {"metadata": {"uid": node.uid}, "status": {"conditions": gone}}
    client.merge(f"{node.carrier.path}/status", said, dry_run=dry_run)
