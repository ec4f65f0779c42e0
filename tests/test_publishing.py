"""Publishers, without an API server: whose labels stand, what a scan that fails does, and how a node is called."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import pytest

from topo_agent.daemon import kube
from topo_agent.daemon.covering import Covering, kept
from topo_agent.daemon.features import Features
from topo_agent.daemon.kube import Labels
from topo_agent.daemon.log import Log
from topo_agent.daemon.settled import Settled
from topo_agent.graph.covered import NONE, Covered
from topo_agent.graph.fabric import Reading, known, mapped, unsure
from topo_agent.graph.labels import keys
from topo_agent.publishers.kube import node as nodes
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import MANAGER, Client
from topo_agent.publishers.kube.node import Carrier, Node
from topo_agent.readers import mapping

NAME, UUID = "n1", "4c4c4544-0051-3010-8054-b4c04f565831"
RACK, BLOCK, LEAF = (f"topo-agent.io/{level}" for level in ("rack", "block", "leaf"))
NODE, FEATURE = nodes.node_carrier(NAME), nodes.nfd_carrier(NAME, "nfd")
R1, B1 = known("r1", "mapping"), known("b1", "mapping")


def managed(path: tuple[str, ...], keys: Iterable[str], manager: str) -> dict[str, Any]:
    """An entry of metadata.managedFields."""
    fields: dict[str, Any] = {f"f:{key}": {} for key in keys}
    for part in reversed(path):
        fields = {f"f:{part}": fields}
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields}


class Server:
    """Objects by their path; what is applied is theirs alone who apply. `refused`: paths of a 403, by their verb."""

    host = "https://server"

    def __init__(self, objects: Mapping[str, Object], refused: Iterable[tuple[str, str]] = ()) -> None:
        self.objects: dict[str, Any] = {**objects}
        self.refused, self.asked = set(refused), list[tuple[str, str]]()
        self.refusal: Literal["forbidden", "not_found"] = "forbidden"
        self.annotated = dict[str, set[str]]()  # by manager

    def _may(self, verb: str, path: str) -> None:
        self.asked.append((verb, path))
        if (verb, path) in self.refused:
            raise Trouble(self.refusal, f"{self.host}: no")

    def get(self, path: str, **_: object) -> Object:
        self._may("get", path)
        if path not in self.objects:
            raise Trouble("not_found", f"{self.host}: 404", answer={})
        found: Object = self.objects[path]
        return found

    def apply(self, path: str, body: Any, *, manager: str = MANAGER, **_: object) -> Object:
        self._may("apply", path)
        stands = self.objects.setdefault(path, {"metadata": {"uid": "u"}})
        about, part = stands["metadata"], "spec" if "spec" in body else "metadata"
        said = body[part].get("labels", {})
        about["managedFields"] = [
            *(one for one in about.get("managedFields", ()) if one["manager"] != manager),
            managed((part, "labels"), said, manager),
        ]
        mine = body["metadata"].get("annotations", {})
        owned = self.annotated.get(manager, set())
        others = {key: text for key, text in about.get("annotations", {}).items() if key not in owned}
        about["annotations"] = others | mine
        self.annotated[manager] = {*mine}
        holder = stands.setdefault(part, {})
        holder["labels"] = holder.get("labels", {}) | said
        found: Object = stands
        return found

    def watch(self, *_: object, **__: object) -> None:
        """Never: a session ends with what it has settled."""
        raise Trouble("unreachable", f"{self.host}: no watch")


def a_node(labels: Mapping[str, str] = {}, *, by: str = "kubectl-label", **about: Any) -> Object:
    """The Node as an API server has it; its labels are somebody else's."""
    entry = managed(("metadata", "labels"), labels, by) | {"operation": "Update"}
    return {
        "metadata": {"uid": "u", "labels": {**labels}, "managedFields": [entry], **about},
        "status": {"nodeInfo": {"systemUUID": UUID}},
    }


def publisher(carrier: Carrier = NODE) -> Labels:
    settled = Settled(NAME, carrier, "topo-agent.io", keys("topo-agent.io", (), gpu_clique=False))
    return Labels(settled, lambda: cast("Client", None), Log(out=io.StringIO()))


def session(labels: Labels, server: Server, kind: str = "unreachable") -> None:
    with pytest.raises(Trouble) as error:
        labels.session(cast("Client", server))
    assert error.value.kind == kind


def agreed(labels: Labels | Features, **readings: Reading) -> None:
    for now in (0.0, 1.0):
        labels.read(readings, now)


def states(labels: Labels | Features) -> dict[str, str]:
    (family,) = (one for one in labels.families() if one["name"] == "topo_label")
    samples = cast("list[tuple[dict[str, str], int]]", family["samples"])
    found = {said["key"]: said["state"] for said, _ in samples}
    assert len(found) == len(samples)  # one series of each
    return found


# Whether a label stands


def test_nothing_stands_before_the_server_has_it() -> None:
    labels, server = publisher(), Server({NODE.path: a_node()}, [("apply", NODE.path)])
    agreed(labels, rack=R1, block=B1)
    assert states(labels) == {RACK: "pending", BLOCK: "pending"}
    session(labels, server, "forbidden")
    assert states(labels) == {RACK: "pending", BLOCK: "pending"}
    server.refused.clear()
    session(labels, server)
    assert states(labels) == {RACK: "published", BLOCK: "published"}
    agreed(labels, rack=known("r2", "mapping"))
    assert states(labels) == {RACK: "pending", BLOCK: "published"}


def test_a_node_that_is_gone_has_no_labels() -> None:
    labels, server = publisher(), Server({NODE.path: a_node()})
    agreed(labels, rack=R1)
    session(labels, server)
    del server.objects[NODE.path]
    session(labels, server, "not_found")
    assert states(labels) == {RACK: "pending"}
    server.objects[NODE.path] = a_node({RACK: "by-hand"})
    session(labels, server)
    assert states(labels) == {RACK: "foreign"}
    del server.objects[NODE.path]
    session(labels, server, "not_found")
    assert states(labels) == {RACK: "pending"}  # nobody says otherwise any more


def test_what_somebody_else_owns_is_foreign() -> None:
    """With another value: one that is equal is what was wanted."""
    labels, server = publisher(), Server({NODE.path: a_node({RACK: "by-hand", BLOCK: "b1"})})
    agreed(labels, rack=R1, block=B1, leaf=known("l1", "mapping"))
    session(labels, server)
    assert states(labels) == {RACK: "foreign", BLOCK: "published", LEAF: "published"}
    server.objects[NODE.path] = a_node({RACK: "r1", BLOCK: "b1", LEAF: "l1"})
    session(labels, server)
    assert states(labels) == dict.fromkeys((RACK, BLOCK, LEAF), "published")


def test_scans_that_fail_make_suspect_and_take_nothing_back() -> None:
    """labels.md, section 7: errors and time-outs; the label is kept."""
    labels, server = publisher(), Server({NODE.path: a_node()})
    agreed(labels, rack=R1)
    session(labels, server)
    for now in range(9):
        labels.failed("no scan within 70 s: given up", 1000.0 * now)
    assert states(labels) == {RACK: "suspect"}
    session(labels, server)
    assert server.objects[NODE.path]["metadata"]["labels"] == {RACK: "r1"}
    labels.read({"rack": R1}, 9000.0)
    assert states(labels) == {RACK: "published"}


def test_a_file_that_cannot_be_written(tmp_path: Any) -> None:
    """The file is what nfd-worker sees."""
    path = tmp_path / "features.d" / "topo-agent"
    features = Features(str(path), NAME, {RACK: "rack"}, Log(out=io.StringIO()))
    agreed(features, rack=R1)
    assert states(features) == {RACK: "pending"}
    path.parent.mkdir()
    features.read({"rack": R1}, 2.0)
    assert states(features) == {RACK: "published"}
    features.failed("no scan", 3.0)
    assert states(features) == {RACK: "suspect"}
    assert path.read_text() == f"{RACK}=r1\n"


# How the node is called in a mapping


def test_the_uuid_beside_a_node_feature() -> None:
    """Its Node says it, and is asked once."""
    labels, server = publisher(FEATURE), Server({NODE.path: a_node()})
    assert [*labels.named.names] == [NAME]
    session(labels, server)
    session(labels, server)
    assert [*labels.named.names] == [NAME, UUID]
    assert labels.named.heard() == ["systemUUID"]
    assert labels.named.heard() == []
    assert server.asked.count(("get", NODE.path)) == 1


def test_a_node_that_may_not_be_read() -> None:
    """All else goes on."""
    labels, server = publisher(FEATURE), Server({}, [("get", NODE.path)])
    agreed(labels, rack=R1)
    session(labels, server)
    assert [*labels.named.names] == [NAME]
    assert states(labels) == {RACK: "published"}
    assert server.objects[FEATURE.path]["spec"]["labels"] == {RACK: "r1"}
    server.refused.clear()
    server.objects[NODE.path] = a_node()
    session(labels, server)
    assert [*labels.named.names] == [NAME, UUID]


class Bookmarks:
    """A watch on which nothing happens."""

    def events(self) -> Iterator[Object]:
        for _ in range(30):
            time.sleep(0.02)
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}

    def close(self) -> None:
        """It ends by itself."""


class Granting(Server):
    """The right to read Nodes comes while a watch goes on."""

    def watch(self, *_: object, **__: object) -> Any:
        self.refused.clear()
        return Bookmarks()


def test_a_right_that_comes_while_a_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookmarks come more often than the Node is asked again: that must not put it off."""
    monkeypatch.setattr(kube, "_ASK", 0.1)
    labels, server = publisher(FEATURE), Granting({NODE.path: a_node()}, [("get", NODE.path)])
    session(labels, server)
    assert [*labels.named.names] == [NAME, UUID]


def test_a_rack_by_uuid_outlives_a_restart(tmp_path: Any) -> None:
    """Before the Node has been read no line names this node: no reason to take the last one back, however often."""
    file = tmp_path / "nodes.csv"
    file.write_text(f"node,rack\n{UUID},r1\n", encoding="utf-8")
    server = Server({NODE.path: a_node()})

    def placed(labels: Labels) -> dict[str, Reading]:
        return dict(mapped(mapping.place(str(file), labels.named.names, unnamed=labels.named.unnamed)))

    def scanned(labels: Labels, times: int) -> None:
        for now in range(times):
            labels.read(placed(labels), float(now))

    first = publisher(FEATURE)
    session(first, server)
    scanned(first, 2)
    session(first, server)
    assert server.objects[FEATURE.path]["spec"]["labels"] == {RACK: "r1"}
    again = publisher(FEATURE)
    server.refused.add(("get", NODE.path))
    session(again, server)
    scanned(again, 5)
    session(again, server)
    assert states(again) == {RACK: "suspect"}
    server.refused.clear()
    session(again, server)
    scanned(again, 1)
    assert states(again) == {RACK: "published"}
    file.write_text("node,rack\nelse,r1\n", encoding="utf-8")
    scanned(again, 2)
    assert states(again) == {}


def test_a_label_in_doubt_before_it_is_remembered() -> None:
    """Nobody was sure before the memory was read: it stands, and in doubt."""
    server = Server({NODE.path: a_node()})
    first = publisher()
    agreed(first, rack=R1)
    session(first, server)
    again = publisher()
    again.read({"rack": unsure("mapping", "nodes.csv cannot be read")}, 0.0)
    session(again, server)
    assert states(again) == {RACK: "suspect"}
    again.read({"rack": R1}, 1.0)
    assert states(again) == {RACK: "published"}


# What others cover


def covering(carrier: Carrier) -> Covering:
    return Covering(carrier, "topo-agent.io", Log(out=io.StringIO()))


@pytest.mark.parametrize("carrier", [NODE, FEATURE])
def test_what_others_cover_is_kept_where_the_labels_are(carrier: Carrier) -> None:
    server = Server({NODE.path: a_node()}, [("apply", NODE.path)] if carrier is FEATURE else [])
    client, one = cast("Client", server), covering(carrier)
    assert one.read(client, nodes.read(client, NODE)) == frozenset()
    one.keep(client, {"0000:41:00.0", "GPU-1"}, set())
    assert one.read(client, nodes.read(client, NODE)) == frozenset({"0000:41:00.0", "GPU-1"})
    assert server.objects[carrier.path]["metadata"]["annotations"] == {"topo-agent.io/covered": "0000:41:00.0,GPU-1"}
    count = len(server.asked)
    one.keep(client, {"GPU-1", "0000:41:00.0"}, set())
    assert len(server.asked) == count
    assert kept(nodes.read(client, carrier), "topo-agent.io") == {"0000:41:00.0", "GPU-1"}


def test_functions_of_this_machine_come_first() -> None:
    server = Server({NODE.path: a_node()})
    client, one = cast("Client", server), covering(NODE)
    one.read(client, nodes.read(client, NODE))
    one.keep(client, {*(f"GPU-{number}" for number in range(300)), "Z"}, {"Z"})
    found = kept(nodes.read(client, NODE), "topo-agent.io")
    assert len(found) == 256
    assert "Z" in found


def test_without_node_feature_discovery_slices_go_on() -> None:
    server = Server({NODE.path: a_node()}, [("get", FEATURE.path)])
    client, one = cast("Client", server), covering(FEATURE)
    assert one.read(client, nodes.read(client, NODE)) is None
    one.keep(client, {"GPU-1"}, set())
    assert not [path for verb, path in server.asked if verb == "apply"]


def test_without_the_namespace_slices_go_on() -> None:
    """The API server answers 404 to what is written there."""
    server = Server({NODE.path: a_node()}, [("apply", FEATURE.path)])
    client, one = cast("Client", server), covering(FEATURE)
    server.refusal = "not_found"
    assert one.read(client, nodes.read(client, NODE)) == frozenset()
    one.keep(client, {"GPU-1"}, set())
    assert FEATURE.path not in server.objects


def test_a_node_feature_that_is_made_anew() -> None:
    """It had the annotation, which is written again; one that could not be read before is read then."""
    server = Server({NODE.path: a_node()})
    client, one = cast("Client", server), covering(FEATURE)
    one.read(client, nodes.read(client, NODE))
    one.keep(client, {"GPU-1"}, set())
    assert one.again(client) is None
    del server.objects[FEATURE.path]
    one.made_anew()
    assert one.again(client) == frozenset()
    one.keep(client, {"GPU-1"}, set())
    assert kept(nodes.read(client, FEATURE), "topo-agent.io") == {"GPU-1"}
    late, server.refused = covering(FEATURE), {("get", FEATURE.path)}
    assert late.read(client, nodes.read(client, NODE)) is None
    server.refused.clear()
    late.made_anew()
    assert late.again(client) == frozenset({"GPU-1"})


def test_who_makes_the_node_feature_says_so() -> None:
    labels, server, made = publisher(FEATURE), Server({NODE.path: a_node()}), list[str]()
    labels.made = lambda: made.append("made")
    agreed(labels, rack=R1)
    session(labels, server)
    session(labels, server)
    assert made == ["made"]
    del server.objects[FEATURE.path]
    session(labels, server)
    assert made == ["made"] * 2


def test_a_node_feature_is_made_whole() -> None:
    """kubernetes-sigs/node-feature-discovery: its label says which node is meant, and a spec is required."""
    empty = nodes.of({}, FEATURE)
    said: Any = nodes.patch(empty, nodes.Wanted({}, {"topo-agent.io/covered": "GPU-1"}))
    assert said["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NAME}
    assert "spec" in said


def test_what_is_remembered_counts_as_covered() -> None:
    found: Covered = NONE.also({"0000:41:00.0", "GPU-1"})
    assert found.has("0000:41:00.0", None)
    assert found.has("0000:42:00.0", "GPU-1")
    assert not found.has("0000:42:00.0", "GPU-2")


def test_nothing_is_kept() -> None:
    empty: Node = nodes.of({"metadata": {"annotations": {"topo-agent.io/covered": ""}}}, NODE)
    assert kept(empty, "topo-agent.io") == frozenset()
