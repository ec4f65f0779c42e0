"""What other drivers cover, kept for after a boot, when their slices are gone and ours comes first.

It is an annotation of the object that has the labels: the Node, or the NodeFeature where nobody may write Nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from topo_agent.daemon.log import Log
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube.answers import Trouble
from topo_agent.publishers.kube.client import Client
from topo_agent.publishers.kube.node import Carrier, Node, Wanted
from topo_agent.publishers.kube.owners import taken

_MOST = 256  # functions that are kept


def kept(node: Node, domain: str) -> frozenset[str]:
    """The addresses and UUIDs that an agent has left there."""
    return frozenset(word for word in node.annotations.get(_key(domain), "").split(",") if word)


class Covering:
    """The annotation, as one session after another finds and leaves it."""

    def __init__(self, carrier: Carrier, domain: str, log: Log) -> None:
        self._carrier, self._domain, self._log = carrier, domain, log
        self._node: Node | None = None  # None: it cannot be read
        self._text = ""
        self._anew = False

    def read(self, client: Client, node: Node) -> frozenset[str] | None:
        """What an earlier run has left; None where it cannot be read. `node` is the Node as it is now."""
        return self._found(node if node.carrier == self._carrier else self._feature(client))

    def made_anew(self) -> None:
        """The object that has the labels, which takes the annotation with it. From another thread."""
        self._anew = True

    def again(self, client: Client) -> frozenset[str] | None:
        """As `read`, where the object was made anew since; None where it was not, too."""
        if not self._anew:
            return None
        self._anew = False
        return self._found(self._feature(client))

    def _found(self, node: Node | None) -> frozenset[str] | None:
        self._node = node
        self._text = node.annotations.get(_key(self._domain), "") if node else ""
        return kept(node, self._domain) if node else None

    def _feature(self, client: Client) -> Node | None:
        """Without its uid: whoever of us is first makes it, again as well. It holds nothing up where it cannot be."""
        try:
            return nodes.read(client, self._carrier)._replace(uid="")
        except Trouble as error:
            if error.kind not in ("forbidden", "not_found"):
                raise
            self._log.once("slices memory", f"what others cover is not remembered: {error}")
            return None

    def keep(self, client: Client, words: Iterable[str], mine: Container[str | None]) -> None:
        """What does not fit is of no function of `mine`."""
        text = ",".join(sorted(words, key=lambda word: (word not in mine, word))[:_MOST])
        node = self._node
        if node is None or text == self._text:
            return
        said = nodes.patch(node, Wanted({}, {_key(self._domain): text} if text else {}))
        try:
            client.apply(node.carrier.path, said, manager=nodes.OF_SLICES)
        except Trouble as error:
            missing = error.kind == "not_found" and node.carrier.kind != "Node"  # its namespace, or its kind
            if not (missing or error.kind == "forbidden" or taken(error)):
                raise
            self._log.once("slices memory", f"what others cover cannot be kept at the {node.carrier.kind}: {error}")
        else:
            self._log.well("slices memory", f"what others cover is kept at the {node.carrier.kind} again")
        self._text = text


def _key(domain: str) -> str:
    return f"{domain}/covered"
