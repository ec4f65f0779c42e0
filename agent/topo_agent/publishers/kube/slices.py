"""Our ResourceSlice of a node: what is there, what should be, and how it is written.

One slice is the whole pool of the node. It is a plain object of our own, created and updated; what others have changed
in it is put right by the next update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, cast

from topo_agent.host import Json, as_array, as_object, as_objects
from topo_agent.publishers.kube.answers import Object, Trouble
from topo_agent.publishers.kube.client import Client

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"

SINCE = 36
"""The first minor version that keeps taints by default: before it a device that we mark would be given away."""

TOO_OLD = f"{{}}: slices need Kubernetes 1.{SINCE}, where device taints are kept"
OPEN = "DeviceClass {} names no driver: its claims would look at our devices, too, and could fail"
"""Why a slice is held back."""

_LISTS = "slice-numa = list needs the feature gate DRAListTypeAttributes"

SHARED = {"nvlink-clique": "nvlinkClique", "rack": "rack"}
"""Readings that every device says, and what the attribute is called."""

_NAME_AT_MOST = 253


class Wanted(NamedTuple):
    """What the slice should be."""

    node: str
    uid: str  # of the Node, which owns it
    driver: str
    devices: list[Json]
    skip_node_operations: bool

    @property
    def name(self) -> str:
        return name_of(self.node, self.driver)


def taint(domain: str) -> str:
    """The key of the taint on devices that only inform."""
    return f"{domain}/informational"


def name_of(node: str, driver: str) -> str:
    """One name for each node and driver, so that two of them can never be there at once."""
    name = f"{node}-{driver}"
    if len(name) <= _NAME_AT_MOST:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: _NAME_AT_MOST - 11].rstrip('-.')}-{mark}"


def minor(client: Client) -> int:
    """`{"major": "1", "minor": "37+"}` -> 37; Trouble where the server does not say."""
    said = client.get("/version")
    digits = str(said.get("minor", "")).rstrip("+")
    if said.get("major") != "1" or not digits.isdigit():
        raise Trouble("server", f"{client.host}: expected Kubernetes 1, and its version is {said.get('gitVersion')}")
    return int(digits)


def listed(said: Object) -> tuple[list[Object], str]:
    """The items of a list, and its resourceVersion."""
    return as_objects(said.get("items")), str(as_object(said.get("metadata")).get("resourceVersion", ""))


def about(one: Mapping[str, Json], what: Literal["name", "uid", "resourceVersion"]) -> str:
    return str(as_object(one.get("metadata")).get(what, ""))


def driver(one: Mapping[str, Json]) -> str:
    return str(as_object(one.get("spec")).get("driver", ""))


def generation(one: Mapping[str, Json] | None) -> int:
    found = as_object(as_object((one or {}).get("spec")).get("pool")).get("generation")
    return found if isinstance(found, int) else 0


def body(wanted: Wanted, *, generation: int, over: Mapping[str, Json] | None = None) -> Object:
    """The object as it is sent; `over` is the one that it replaces."""
    owner: dict[str, Json] = {
        "apiVersion": "v1", "kind": "Node", "name": wanted.node, "uid": wanted.uid, "controller": True,
    }  # fmt: skip
    meta: dict[str, Json] = {"name": wanted.name, "ownerReferences": [owner]}
    if over is not None:
        meta["resourceVersion"] = about(over, "resourceVersion")
    spec: dict[str, Json] = {
        "driver": wanted.driver,
        "nodeName": wanted.node,
        "pool": {"name": wanted.node, "generation": generation, "resourceSliceCount": 1},
        "devices": wanted.devices,
    }
    if wanted.skip_node_operations:
        spec["skipNodeOperations"] = ["*"]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}


def same(one: Mapping[str, Json], wanted: Wanted) -> bool:
    """Is this what is wanted, whatever its generation?"""
    owners = as_array(as_object(one.get("metadata")).get("ownerReferences"))
    first = as_object(owners[0]) if len(owners) == 1 else {}
    spec = dict(as_object(one.get("spec")))
    pool = as_object(spec.pop("pool", None))
    skipped = bool(spec.pop("skipNodeOperations", None))
    known = {"driver": wanted.driver, "nodeName": wanted.node, "devices": wanted.devices}
    spec["devices"] = _comparable(spec.get("devices"))
    return (
        first.get("uid") == wanted.uid
        and pool.get("name") == wanted.node
        and pool.get("resourceSliceCount") == 1
        and skipped == wanted.skip_node_operations
        and spec == known
    )


def write(client: Client, wanted: Wanted, current: Object | None, *, last: int, dry_run: bool = False) -> Object:
    """Create or update it; `last` is the highest generation so far. Trouble of kind "refused" where the server does not
    take it or keeps less than it got.

    It is asked first what it would keep: devices that lose their taint are given away at once.
    """
    sent = body(wanted, generation=max(generation(current), last) + 1, over=current)
    said: Object = {}
    for dry in (True,) if dry_run else (True, False):
        try:
            if current is None:
                said = client.create(SLICES, sent, dry_run=dry)
            else:
                said = client.update(f"{SLICES}/{wanted.name}", sent, dry_run=dry)
        except Trouble as error:
            if error.kind == "refused" and _has_lists(wanted):
                raise Trouble("refused", f"{error}; {_LISTS}") from None
            raise
        lost = _lost(said, wanted)
        if lost is not None:
            if not dry:
                delete(client, said)
            raise Trouble("refused", lost)
    return said


def _has_lists(wanted: Wanted) -> bool:
    attributes = (as_object(as_object(one).get("attributes")) for one in wanted.devices)
    return any("ints" in as_object(value) for some in attributes for value in some.values())


def delete(client: Client, one: Mapping[str, Json], *, dry_run: bool = False) -> None:
    client.delete(f"{SLICES}/{about(one, 'name')}", uid=about(one, "uid"), dry_run=dry_run)


def ours(found: Iterable[Object], driver_name: str) -> list[Object]:
    return [one for one in found if driver(one) == driver_name]


def _lost(said: Object, wanted: Wanted) -> str | None:
    """What the server dropped, as servers do with fields whose feature gate is off."""
    spec = as_object(said.get("spec"))
    if wanted.skip_node_operations and not spec.get("skipNodeOperations"):
        return "the cluster has no skipNodeOperations (feature gate DRAOptionalNodeOperations): pods would never start"
    kept = _comparable(spec.get("devices"))
    asked, left = (["taints" in as_object(one) for one in some] for some in (wanted.devices, kept))
    if any(asked) and not all(left):
        return "the cluster keeps no device taints (feature gate DRADeviceTaints): devices would be given away"
    return None if kept == wanted.devices else "the cluster does not keep the devices as they were sent"


def _comparable(devices: Json) -> list[Json]:
    """Without the time that the server adds to taints."""
    found: list[Json] = []
    for one in as_array(devices):
        device = dict(as_object(one))
        taints = device.get("taints")
        if isinstance(taints, list):
            device["taints"] = [{k: v for k, v in as_object(taint).items() if k != "timeAdded"} for taint in taints]
        found.append(cast("Json", device))
    return found


def shared(ours: Iterable[Object]) -> dict[str, str]:
    """What our own slices said for all of their devices, by the name of its reading."""
    found = {}
    for one in ours:
        for device in as_array(as_object(one.get("spec")).get("devices")):
            attributes = as_object(as_object(device).get("attributes"))
            for name, word in SHARED.items():
                text = as_object(attributes.get(word)).get("string")
                if isinstance(text, str) and text:
                    found[name] = text
    return found
