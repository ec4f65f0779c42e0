"""Devices of a ResourceSlice, what other drivers cover, which classes guard, and the object as it is written."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fixtures
from tests.test_cli import answer, refused, run
from topo_agent.daemon.remembered import HOLD, LONG, Remembered
from topo_agent.graph.covered import Covered, covered, unguarded
from topo_agent.host import Json
from topo_agent.publishers.kube import slices
from topo_agent.publishers.kube.slices import Wanted, body, name_of, same
from topo_agent.views import functions
from topo_agent.views.slices import STANDARD, Candidate, candidates, fitted

OURS = "topo-agent.io"
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NAME = re.compile(rf"({re.escape(STANDARD)})?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
GPU = "0000:3b:00.0"


def candidate(address: str = GPU, **attributes: Json) -> Candidate:
    return Candidate(address, None, f"pci-{address.translate({58: '-', 46: '-'})}", attributes)


def many(count: int) -> list[Candidate]:
    return [candidate(f"0000:{number:02x}:00.0", kind="gpu") for number in range(count)]


def only(value: Json, **shared: str) -> tuple[Any, dict[str, int]]:
    """The attributes of the one device, and what was cut."""
    fit = fitted([candidate(x=value)], shared)
    (device,) = fit.devices
    assert isinstance(device, dict)
    return device["attributes"], fit.cut


# Limits


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * 64, "a" * 64),
        ("a" * 65, "a" * 64),
        ("é" * 32, "é" * 32),
        ("a" + "é" * 32, "a" + "é" * 31),  # 63 bytes: the last one would be half a letter
        ("日" * 22, "日" * 21),
        ("🙂" * 17, "🙂" * 16),
    ],
)
def test_a_string_is_cut_between_letters(text: str, kept: str) -> None:
    said, cut = only(text)
    assert said["x"] == {"string": kept}
    assert len(kept.encode()) <= 64
    assert cut == {"values": int(text != kept), "elements": 0, "devices": 0}


def test_a_shared_value_is_cut_in_every_device() -> None:
    fit = fitted(many(3), {"rack": "r" * 70})
    assert fit.cut["values"] == 3


def test_a_list_is_cut() -> None:
    said, cut = only([*range(50)])
    assert said["x"] == {"ints": [*range(24)]}
    assert cut == {"values": 0, "elements": 26, "devices": 0}


def test_values_have_their_type() -> None:
    said, _ = only(7, rack="r1")
    assert said == {"x": {"int": 7}, "rack": {"string": "r1"}}
    assert only(True)[0]["x"] == {"bool": True}


@pytest.mark.parametrize(
    ("taint", "lists", "most"), [(None, False, 128), ("t/x", False, 64), (None, True, 64), ("t/x", True, 64)]
)
def test_devices_are_cut_from_the_end(*, taint: str | None, lists: bool, most: int) -> None:
    found = many(130)
    if lists:
        found[0] = candidate("0000:00:00.0", numaNode=[0, 1])
    fit = fitted(found, {}, taint=taint)
    assert [one["name"] for one in fit.devices if isinstance(one, dict)] == [one.name for one in found[:most]]
    assert fit.cut["devices"] == 130 - most
    assert fitted(found, {}, taint=taint) == fit


def test_every_device_is_tainted_or_none() -> None:
    (device,) = fitted([candidate()], {}, taint=slices.taint(OURS)).devices
    assert isinstance(device, dict)
    assert device["taints"] == [{"key": f"{OURS}/informational", "value": "true", "effect": "NoSchedule"}]
    assert "taints" not in str(fitted([candidate()], {}).devices)


# Every fixture


def dumped(name: str, common: Path, *more: str) -> dict[str, Any]:
    text = answer("dump", "-f", "slices", "--from", str(fixtures.tree(name, common)), "--node", "n1", *more)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def check(said: dict[str, Any]) -> None:
    """As resource.k8s.io/v1 types.go and its validation have it."""
    spec = said["spec"]
    assert spec["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    assert (spec["nodeName"], spec["driver"]) == ("n1", OURS)
    devices = spec["devices"]
    assert len(devices) <= 64
    names = [one["name"] for one in devices]
    assert len({*names}) == len(names)
    for one in devices:
        assert LABEL.fullmatch(one["name"])
        assert len(one["attributes"]) <= 32
        assert sum(len(value.get("ints", [0])) for value in one["attributes"].values()) <= 48
        for name, value in one["attributes"].items():
            assert NAME.fullmatch(name)
            ((kind, what),) = value.items()
            assert kind in {"int", "bool", "string", "ints"}
            assert what not in ("", -1, [])
            assert not isinstance(what, str) or len(what.encode()) <= 64


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_fixture(name: str, common: Path) -> None:
    """Its standard attributes are those of the document: what upstream publishes, and no more."""
    said = dumped(name, common)
    check(said)
    topology = fixtures.topology(name)
    standard = {f"pci-{str(one.address).translate({58: '-', 46: '-'})}": functions.device(one)["standard"]
                for one in topology.devices or ()}  # fmt: skip
    for one in said["spec"]["devices"]:
        found = {
            key.removeprefix(STANDARD): next(iter(value.values()))
            for key, value in one["attributes"].items()
            if key.startswith(STANDARD)
        }
        assert found == standard[one["name"]]
    offered = [one for one in candidates(topology) if not one.virtual]
    assert len(said["spec"]["devices"]) == min(len(offered), 64)
    listed = dumped(name, common, "--slice-numa", "list")
    check(listed)
    for one, other in zip(said["spec"]["devices"], listed["spec"]["devices"], strict=True):
        scalar = one["attributes"].pop(f"{STANDARD}numaNode", None)
        ints = other["attributes"].pop(f"{STANDARD}numaNode", None)
        assert one == other
        assert scalar is None if ints is None else ints["ints"][0] == scalar["int"]


def test_nothing_standard_where_upstream_gives_nothing(common: Path) -> None:
    """Functions in a domain of 32 bits: five digits are no bus id, and have no root."""
    devices = {one["name"]: one["attributes"] for one in dumped("vmd-32bit-domains", common)["spec"]["devices"]}
    five = [name for name in devices if re.match(r"pci-[0-9a-f]{5}-", name)]
    assert five
    for name in five:
        assert not any(key.startswith(STANDARD) for key in devices[name] if not key.endswith("numaNode"))


# --other-slices


def other(node: str, driver: str, *devices: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": f"{node}-x"}, "spec": {"driver": driver, "nodeName": node, "devices": [*devices]}}


def test_other_slices_are_those_of_the_node(tmp_path: Path, common: Path) -> None:
    names = [one["name"] for one in dumped("dgx-h100", common)["spec"]["devices"]]
    here, there, mine = names[:3]

    def device(name: str) -> dict[str, Any]:
        return {"name": name}

    items = [
        other("n1", "dra.net", device(here)),
        other("n2", "dra.net", device(there)),
        other("n1", OURS, device(mine)),
    ]
    file = tmp_path / "slices.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    left = [one["name"] for one in dumped("dgx-h100", common, "--other-slices", str(file))["spec"]["devices"]]
    assert left == names[1:]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"items": 7}', '{"items": [7]}', '{"items": [{}]}', "items: []", "[" * 100_000]
)
def test_other_slices_that_are_none(text: str, tmp_path: Path, common: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    words = ["dump", "-f", "slices", "--from", str(fixtures.tree("dgx-spark", common)), "--other-slices", str(file)]
    done = run(*words)
    assert done.returncode == 3
    assert f"{file}: expected ResourceSlices (JSON)" in refused(done)


def test_other_slices_that_are_not_there(common: Path) -> None:
    words = ["dump", "-f", "slices", "--from", str(fixtures.tree("dgx-spark", common)), "--other-slices", "/no/file"]
    done = run(*words)
    assert done.returncode == 3
    assert "/no/file" in refused(done)


# What others cover


def attributes(**said: str) -> dict[str, Any]:
    return {"name": "gpu-0", "attributes": {name.replace("__", "/"): {"string": text} for name, text in said.items()}}


@pytest.mark.parametrize(
    ("device", "address"),
    [
        ({"name": "gpu-0", "attributes": {f"{STANDARD}pciBusID": {"string": GPU}}}, GPU),  # gpu.nvidia.com
        ({"name": "eth0", "attributes": {"dra.net/pciAddress": {"string": GPU}}}, GPU),  # dra.net
        ({"name": "gpu-0", "attributes": {"pciAddress": {"string": GPU}}}, GPU),  # SR-IOV, gpu.intel.com
        ({"name": "gpu-0", "attributes": {"pciBusID": {"string": "00000000:3B:00.0"}}}, GPU),  # NVML
        ({"name": "gpu-0", "attributes": {"pciBusID": {"string": "00010000:3B:00.0"}}}, "10000:3b:00.0"),
        ({"name": "gpu-0", "attributes": {"x.example/pciBusId": {"string": " 0000:3B:00.0 "}}}, GPU),
        ({"name": "pci-0000-3b-00-0"}, GPU),  # dra.net
        ({"name": "0000-3b-00-0"}, GPU),  # SR-IOV
        ({"name": "0000-3b-00-0-0x1020"}, GPU),  # gpu.intel.com, gaudi.intel.com
        ({"name": "qatvf-0000-3b-00-1"}, "0000:3b:00.1"),  # qat.intel.com
        ({"name": "pci-10000-3b-00-0"}, "10000:3b:00.0"),
        ({"name": "old", "basic": {"attributes": {"pciBusID": {"string": GPU}}}}, GPU),  # v1beta1
    ],
)
def test_an_address_is_found(device: dict[str, Any], address: str) -> None:
    found = covered([other("n1", "vendor.example", device)], by_others_than=OURS)
    assert found.addresses == {address}


@pytest.mark.parametrize(
    "device",
    [
        {"name": "gpu-0"},
        {"name": "gpu-7b968a6d-c8aa-45e1-9e07-e1e51be99c31"},
        {"name": "gpu-0-mig-1g5gb-19-0"},
        {"name": "a0000-3b-00-0f"},
        attributes(pfPciAddress=GPU),  # a VF's parent is not given away with it
        attributes(pcieRoot="pci0000:3b"),
        attributes(model=GPU),
        attributes(pciBusID=""),
        attributes(pciBusID="3b:00.0"),
        {"name": "gpu-0", "attributes": {"pciBusID": {"int": 7}}},
        {"name": "gpu-0", "attributes": [7]},
        {"name": 7},
    ],
)
def test_no_address(device: dict[str, Any]) -> None:
    found = covered([other("n1", "vendor.example", device)], by_others_than=OURS)
    assert found == Covered(frozenset(), frozenset())


def test_a_uuid_is_enough() -> None:
    uid = "GPU-0d8e1e6f-2b3c-4d5e-8f90-123456789abc"
    for name in ("uuid", "gpu.nvidia.com/parentUUID"):
        device = {"name": "gpu-0", "attributes": {name: {"string": uid}}}
        found = covered([other("n1", "gpu.nvidia.com", device)], by_others_than=OURS)
        assert found.has("0000:01:00.0", uid)
        assert not found.has("0000:01:00.0", None)


def test_our_own_slice_covers_nothing() -> None:
    assert not covered([other("n1", OURS, {"name": "pci-0000-3b-00-0"})], by_others_than=OURS).addresses
    assert not covered([{}, {"spec": 7}, {"spec": {"devices": 7}}, {"spec": {"devices": [7]}}], by_others_than=OURS)[0]


# How long that counts


def test_what_was_covered_counts_for_a_while() -> None:
    """From the moment that its driver's slice goes, however long that stood."""
    found, nothing, one = Covered(frozenset({GPU}), frozenset()), Covered(frozenset(), frozenset()), candidate()
    seen = Remembered()
    seen.look(found, 0.0)
    seen.look(nothing, 86_400.0)
    assert seen.has(one)
    assert seen.due() == 86_400.0 + HOLD
    seen.look(nothing, 86_399.0 + HOLD)
    assert seen.has(one)
    seen.look(nothing, 86_400.0 + HOLD)
    assert not seen.has(one)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_after_a_wipe_it_counts_for_long(first: str) -> None:
    found, nothing, one = Covered(frozenset({GPU}), frozenset()), Covered(frozenset(), frozenset()), candidate()
    seen = Remembered()
    seen.look(found, 0.0)
    if first == "theirs":
        seen.look(nothing, 100.0)
    seen.wiped(101.0)
    seen.look(nothing, 102.0)
    seen.look(nothing, 100.0 + LONG)
    assert seen.has(one)
    seen.look(nothing, 103.0 + LONG)
    assert not seen.has(one)


def test_a_driver_that_came_back_after_a_wipe_may_go_for_good() -> None:
    found, nothing, one = Covered(frozenset({GPU}), frozenset()), Covered(frozenset(), frozenset()), candidate()
    seen = Remembered()
    seen.look(found, 0.0)
    seen.wiped(10.0)
    seen.look(nothing, 10.0)
    seen.look(found, 15.0)
    seen.look(nothing, 5000.0)
    assert seen.has(one)
    seen.look(nothing, 5000.0 + HOLD)
    assert not seen.has(one)


@pytest.mark.parametrize(("wiped", "hold"), [(False, HOLD), (True, LONG)])
def test_what_an_earlier_run_saw_counts(*, wiped: bool, hold: float) -> None:
    seen = Remembered()
    seen.remember([GPU], 0.0, wiped=wiped)
    seen.remember([GPU], 50.0, wiped=wiped)  # another session
    assert seen.due() == hold
    assert seen.has(candidate())
    assert seen.words == {GPU}


# Which classes guard

VENDOR = 'device.driver == "gpu.example.com"'
SHARED = 'device.attributes["gpu.example.com"].type == "gpu"'


def classed(*expressions: str) -> list[str]:
    selectors: list[Json] = [{"cel": {"expression": one}} for one in expressions]
    return unguarded([{"metadata": {"name": "c"}, "spec": {"selectors": selectors}}])


@pytest.mark.parametrize(
    "expression",
    [
        VENDOR,
        "device.driver=='gpu.example.com'",
        '"gpu.example.com" == device.driver',
        "device.driver in [\"gpu.example.com\", 'nic.example.com']",
        f"{VENDOR} && {SHARED}",
        f"{SHARED} && {VENDOR}",
        f"{SHARED}\n  && ({VENDOR}\n) && true",
        f'{VENDOR} || device.driver == "nic.example.com"',
        f'({VENDOR} || device.driver == "nic.example.com") && ({SHARED} || true)',
        f"(({VENDOR}))",
        f"// GPUs that aren't ours\n{VENDOR} // and (nothing else",
        f"{VENDOR} && (true ? false : true)",
        f'{VENDOR} && device.attributes["gpu.example.com"].?name.orValue("") == "a || b"',
        f"""{VENDOR} && device.attributes["x"].y == ")]}}' || \\" //" """,
        f'{VENDOR} && device.attributes["x"].url == "https://example.com"',
    ],
)
def test_a_class_that_names_its_driver(expression: str) -> None:
    assert classed(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        SHARED,
        f"{VENDOR} || {SHARED}",
        f"{SHARED} || {VENDOR}",
        f"({VENDOR}) || ({SHARED} && true)",
        f"!({VENDOR})",
        'device.driver != "gpu.example.com"',
        f"{VENDOR} ? true : {SHARED}",
        f"{SHARED} ? {VENDOR} : true",
        f"({SHARED} ? {VENDOR} : true)",
        f"true // && {VENDOR}",
        f"// {VENDOR}\ntrue",
        f"{SHARED} == '&& {VENDOR} &&'",
        f'device.attributes["x"].y == " && {VENDOR.replace(chr(34), chr(39))} && "',
        f"true || '\\'' == ' && {VENDOR} && '",
        "device.driver in [device.driver]",
        'device.driver in ["gpu.example.com", device.driver]',
        'device.driver == device.driver + ""',
        f'r"\\" == "" || true == " && {VENDOR.replace(chr(34), chr(39))} && "',
        f'"""a" && {VENDOR} && "b""" == ""',
        f"{VENDOR}) && (true",
        f"[{VENDOR}].exists(x, true)",
        f"({VENDOR}) == (true)",
        f"{VENDOR} && (",
    ],
)
def test_a_class_that_does_not(expression: str) -> None:
    assert classed(expression) == ["c"]


def test_the_first_selector_has_to() -> None:
    """An error of one ends the scheduling of the pod; where one says no, the next is not asked."""
    assert classed(VENDOR, SHARED) == []
    assert classed(SHARED, VENDOR) == ["c"]
    assert classed() == ["c"]


@pytest.mark.parametrize("spec", [{}, None, {"selectors": None}, {"selectors": [7]}, {"selectors": [{"cel": {}}]}])
def test_a_class_without_selectors(spec: Json) -> None:
    assert unguarded([{"metadata": {"name": "b"}, "spec": spec}, {"metadata": {"name": "a"}}]) == ["a", "b"]


# The object


def wanted() -> Wanted:
    devices = fitted([candidate(kind="gpu", numaNode=[0, 1])], {"rack": "r1"}, taint=slices.taint(OURS)).devices
    return Wanted("n1", "0a-1b", OURS, devices, skip_node_operations=False)


def stored(want: Wanted) -> dict[str, Any]:
    said: dict[str, Any] = copy.deepcopy(body(want, generation=7))
    for one in said["spec"]["devices"]:
        for taint in one["taints"]:
            taint["timeAdded"] = "2026-11-30T02:21:03Z"
    return said


def test_what_the_server_adds_makes_no_difference() -> None:
    assert same(stored(wanted()), wanted())


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "ownerReferences", 0, "uid"),
        ("spec", "driver"),
        ("spec", "nodeName"),
        ("spec", "pool", "name"),
        ("spec", "pool", "resourceSliceCount"),
        ("spec", "devices", 0, "name"),
        ("spec", "devices", 0, "attributes", "rack", "string"),
        ("spec", "devices", 0, "taints", 0, "effect"),
        ("spec", "skipNodeOperations"),
        ("spec", "perDeviceNodeSelection"),
    ],
)
def test_what_others_change_does(path: tuple[Any, ...]) -> None:
    said: Any = stored(wanted())
    at = said
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = "other"
    assert not same(said, wanted())


def test_names() -> None:
    assert name_of("n1", OURS) == "n1-topo-agent.io"
    long = [name_of(f"{'n' * 240}{end}", OURS) for end in ("a", "b")]
    assert long[0] != long[1]
    assert all(len(one) <= 253 for one in long)
