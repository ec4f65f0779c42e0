"""/metrics: series that are right, bounded and joinable, in a text that Prometheus' own parsers take."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics

from tests import fixtures
from tests.machines import MACHINES, archive, needs_machines
from tests.paper import AMD, NVIDIA, NVME, Files, answers, cpus, nodes, now, nvlink, nvml, put, topology, two_sockets
from tests.promtool import PROGRAM, needs_promtool, promtool
from tests.test_checks import VIRTUAL, below, direct, linked, listed
from tests.test_cli import text_of
from tests.test_properties import BREAKS, SETTINGS, SMALL, base, broken
from topo_agent import discover
from topo_agent.cli import cli
from topo_agent.graph.build import build
from topo_agent.graph.checks import CHECKS, findings
from topo_agent.graph.findings import Finding
from topo_agent.graph.pairing import pairs
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.host.paper import Link
from topo_agent.publishers.metrics import exposition, negotiate
from topo_agent.scan import scan
from topo_agent.views.metrics import families

SERIES_AT_MOST = 700
"""domain: at most on a server of eight GPUs, without pairs."""
PAIRS_AT_MOST = 350

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"

X16 = {gen: gts * 16 * 128 / 130 / 8 * 1e9 for gen, gts in ((3, 8), (4, 16), (5, 32))}
"""Bytes per second of 16 lanes: PCI Express Base Specification, 128b/130b; Gen5 is 63.015 GB/s."""


def plain(found: Topology, *, every: bool = False, raised: Iterable[Finding] = ()) -> list[Json]:
    choices = pairs(found)
    return families(found, choices, [*findings(found, choices), *raised], pairs=every)


class Texts(NamedTuple):
    """What a fixture's machine exposes: as it is, with every pair, and that in OpenMetrics."""

    usual: str
    every: str
    strict: str


@cache
def texts(name: str) -> Texts:
    found = fixtures.topology(name)
    every = plain(found, every=True)
    bodies = (exposition(plain(found)), exposition(every), exposition(every, OPENMETRICS))
    return Texts(*(body.decode() for body, _ in bodies))


class Series(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def parsed(said: str) -> list[Metric]:
    return list(parser.text_string_to_metric_families(said))


def strictly(said: str) -> list[Metric]:
    """As the reference parser of OpenMetrics 1.0 reads it."""
    parse: Any = openmetrics.text_string_to_metric_families
    return list(parse(said))


def series(
    found: Topology | Files | str, name: str, *, every: bool = False, raised: Iterable[Finding] = ()
) -> list[Series]:
    """The series of one name in a text, or of a machine, as a scraper reads them."""
    if isinstance(found, str):
        metrics = parsed(found)
    else:
        graph = found if isinstance(found, Topology) else topology(found)
        body, _ = exposition(plain(graph, every=every, raised=raised))
        metrics = parsed(body.decode())
    return [Series(one.name, one.labels, one.value) for each in metrics for one in each.samples if one.name == name]


def values(found: Topology | Files | str, name: str, *keys: str, every: bool = False) -> dict[tuple[str, ...], float]:
    """name{…} by the values of some labels, which tell the series apart."""
    some = series(found, name, every=every)
    by = {tuple(one.labels[key] for key in keys): one.value for one in some}
    assert len(by) == len(some)
    return by


# The whole text, of every fixture


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_bounded(name: str) -> None:
    without, with_pairs = (len(re.findall("(?m)^topo_", said)) for said in (texts(name).usual, texts(name).every))
    assert 0 < without <= SERIES_AT_MOST
    assert with_pairs - without <= PAIRS_AT_MOST


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_a_family_is_whole(name: str) -> None:
    metrics = parsed(texts(name).every)
    for metric in metrics:
        assert metric.documentation.endswith(".")
        assert metric.samples
        (labels,) = {tuple(sorted(one.labels)) for one in metric.samples}
        assert {"type", "node_name", "instance", "job", "cluster"}.isdisjoint(labels)
        told = Counter(tuple(sorted(one.labels.items())) for one in metric.samples)
        assert set(told.values()) == {1}, "the same series twice"
        assert all(one.name == metric.name for one in metric.samples)
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_no_number_stands_for_unknown(name: str) -> None:
    for metric in parsed(texts(name).every):
        assert all(one.value >= 0 for one in metric.samples)
        assert {"-1", "None", "unknown", "null", "?"}.isdisjoint(
            value for one in metric.samples for value in one.labels.values()
        )


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_names_end_in_their_unit(name: str) -> None:
    """OpenMetrics 1.0, UNIT; and its parser, which is strict, reads as many series."""
    said = texts(name).strict
    assert said.endswith("\n# EOF\n")
    metrics = strictly(said)
    assert sum(len(one.samples) for one in metrics) == len(re.findall("(?m)^topo_", texts(name).every))
    for metric in metrics:
        assert re.fullmatch(r"topo_[a-z_]+", metric.name)
        assert metric.name.endswith(metric.unit)
        if re.search(r"_(bytes|bytes_per_second|seconds|ratio)$", metric.name):
            assert metric.unit


def test_a_virtual_function_beside_its_physical_one() -> None:
    files = two_sockets() | put(direct(0x31), verbs="mlx5_0", files={"sriov_totalvfs": "8\n", "sriov_numvfs": "1\n"})
    files |= put("pci0000:30/30:01.0/31:00.1", files={"physfn": Link("../0000:31:00.0")})
    (nic,) = series(files, "topo_nic_info")
    assert (nic.labels["pci_bus_id"], nic.labels["function"]) == ("0000:31:00.0", "pf")
    assert values(files, "topo_devices", "kind", "state")["nic", "ok"] == 1


@needs_promtool
@pytest.mark.parametrize("name", fixtures.NAMES)
def test_promtool_has_nothing_to_say(name: str) -> None:
    assert promtool("check", "metrics", stdin=texts(name).every) == ""


@needs_promtool
def test_promtool_would_say_something() -> None:
    with pytest.raises(AssertionError, match="no help text"):
        promtool("check", "metrics", stdin="topo_gpu_info 1\n")


# Joins: the same words as other exporters


ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_addresses_are_written_as_others_write_them(name: str) -> None:
    """The kernel's, NVML's busId, and procfs' PciDeviceLocation.Strings (%04x, %02x, %02x, %x)."""
    for said in re.findall(r'pci_bus_id="([^"]*)"', texts(name).usual):
        assert ADDRESS.fullmatch(said) or re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]|", said)
    for one in series(texts(name).usual, "topo_pci_alias_info"):
        matched = ADDRESS.fullmatch(one.labels["pci_bus_id"])
        assert matched
        parts = (one.labels["segment"], one.labels["bus"], one.labels["device"], one.labels["function"])
        assert matched.groups() == parts
        assert one.labels["dcgm_pci_bus_id"] == f"{matched[1].rjust(8, '0')}:{matched[0].partition(':')[2]}".upper()


def test_letters_and_long_domains() -> None:
    """What node_exporter and dcgm-exporter print of an address with letters, and of one behind Intel VMD."""
    files = two_sockets() | put("pci0000:ca/ca:01.0/cb:00.0", NVIDIA) | put("pci10001:80/10001:80:1f.1", verbs="mlx5_0")
    found = {one.labels["pci_bus_id"]: one.labels for one in series(files, "topo_pci_alias_info")}
    gpu, nic = found["0000:cb:00.0"], found["10001:80:1f.1"]
    assert gpu["dcgm_pci_bus_id"] == "00000000:CB:00.0"
    assert [gpu[part] for part in ("segment", "bus", "device", "function")] == ["0000", "cb", "00", "0"]
    assert nic["dcgm_pci_bus_id"] == "00010001:80:1F.1"
    assert [nic[part] for part in ("segment", "bus", "device", "function")] == ["10001", "80", "1f", "1"]


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_one_series_for_each_function(name: str) -> None:
    """Two would make every join fail, by address or by name."""
    for metric in ("topo_gpu_info", "topo_nic_info", "topo_pci_alias_info"):
        some = series(texts(name).usual, metric)
        for label in {"pci_bus_id", "dcgm_pci_bus_id", "uuid", "netdev", "rdma_device"} & {
            *(some[0].labels if some else ())
        }:
            told = [one.labels[label] for one in some if one.labels[label]]
            assert len(told) == len(set(told)), label
        assert all(one.labels["pci_bus_id"] for one in some)


@pytest.mark.parametrize("name", fixtures.NAMES)
def test_what_public_sources_say(name: str) -> None:
    """expected.json was typed from them."""
    expected = json.loads((fixtures.FOLDER / name / "expected.json").read_text(encoding="utf-8"))
    found = texts(name).usual
    shown = {one.labels["pci_bus_id"]: one.labels for one in series(found, "topo_gpu_info")}
    shown |= {one.labels["pci_bus_id"]: one.labels for one in series(found, "topo_nic_info")}
    compared = 0
    for address, said in expected.get("functions", {}).items():
        if address in shown:
            labels = shown[address]
            if said.get("numa_node") is not None:
                assert labels["numa_node"] == str(said["numa_node"])
            if said.get("pcie_root"):
                assert labels["pcie_root"] == said["pcie_root"]
            if said["kind"] == "nic" and said.get("os_devices"):
                assert {labels["rdma_device"], labels["netdev"]} & {*said["os_devices"]}
            compared += 1
    kinds = [said["kind"] for said in expected.get("functions", {}).values() if said.get("kind") in ("gpu", "nic")]
    assert compared > 0 or not kinds


# Values


def test_bandwidth_of_known_machines() -> None:
    """H100 SXM is Gen5 x16, A100 SXM4 Gen4 x16 (their data sheets); 63.015 GB/s and 31.5 GB/s."""
    for name, generation, gpu in (("dgx-h100", 5, "0000:1b:00.0"), ("dgx-a100", 4, "0000:07:00.0")):
        best = values(texts(name).usual, "topo_pcie_link_max_bandwidth_bytes_per_second", "pci_bus_id")
        assert best[gpu,] == pytest.approx(X16[generation], rel=1e-8)
    assert X16[5] == pytest.approx(63.015e9, rel=1e-5)


def trained(path: str, speed: str, width: int, *more: Files) -> Files:
    files = two_sockets() | put(path, verbs="mlx5_0") | now(path, speed, width)
    for one in more:
        files |= one
    return files


def test_a_link_that_lost_lanes() -> None:
    found = trained(direct(0x31), "32.0 GT/s PCIe", 8)
    at = ("0000:31:00.0",)
    assert values(found, "topo_pcie_link_bandwidth_bytes_per_second", "pci_bus_id")[at] == pytest.approx(X16[5] / 2)
    assert values(found, "topo_pcie_link_max_bandwidth_bytes_per_second", "pci_bus_id")[at] == pytest.approx(X16[5])
    said = values(found, "topo_pcie_link_degraded", "pci_bus_id", "reason")
    assert said == {("0000:31:00.0", "width"): 1, ("0000:31:00.0", "speed"): 0}


def test_a_slow_nic_is_degraded_and_a_slow_gpu_may_be_idle() -> None:
    gpu = put(direct(0x41), NVIDIA) | now(direct(0x41), "2.5 GT/s PCIe", 16)
    files = trained(direct(0x31), "16.0 GT/s PCIe", 16, gpu)
    said = values(files, "topo_pcie_link_degraded", "pci_bus_id", "reason")
    assert said == {
        ("0000:31:00.0", "width"): 0,
        ("0000:31:00.0", "speed"): 1,
        ("0000:41:00.0", "width"): 0,  # and nothing of its speed
    }
    raised = Finding("link_speed", "warning", ("pci:0000:41:00.0",), ("slow under load",), "")
    again = series(files, "topo_pcie_link_degraded", raised=[raised])
    speeds = {one.labels["pci_bus_id"]: one.value for one in again if one.labels["reason"] == "speed"}
    assert speeds == {"0000:31:00.0": 1, "0000:41:00.0": 1}


def test_a_link_that_does_not_tell_has_no_series() -> None:
    files = trained(direct(0x31), "Unknown", 0, put(direct(0x41), lane=("Unknown", 255)))
    assert series(files, "topo_pcie_link_bandwidth_bytes_per_second") == []
    assert series(files, "topo_pcie_link_degraded") == []
    best = values(files, "topo_pcie_link_max_bandwidth_bytes_per_second", "pci_bus_id")
    assert best.keys() == {("0000:31:00.0",)}
    assert {one.labels["pci_bus_id"] for one in series(files, "topo_nic_info")} == {"0000:31:00.0", "0000:41:00.0"}


def test_a_virtual_machine_tells_nothing_of_its_ports() -> None:
    files = trained(direct(0x31), "32.0 GT/s PCIe", 8, VIRTUAL)
    assert series(files, "topo_pcie_link_degraded") == []
    (nic,) = series(files, "topo_nic_info")
    assert nic.labels["function"] == ""  # it may be a virtual one


def test_an_uplink_is_shared() -> None:
    """A switch with two GPUs and a drive (x16, x16, x4) below, x16 above: 36 lanes by 16."""
    files = two_sockets() | put(below(0x20), NVIDIA) | put(below(0x21), NVIDIA)
    files |= put(below(0x22), NVME, special={"22:00.0": ("32.0 GT/s PCIe", 4)})
    assert values(files, "topo_pcie_uplink_oversubscription_ratio", "pci_bus_id") == {("0000:16:00.0",): 36 / 16}
    silent = files | put(below(0x23), lane=("Unknown", 255), special={"15:01.0": ("32.0 GT/s PCIe", 16)})
    assert series(silent, "topo_pcie_uplink_oversubscription_ratio") == []


def test_the_switch_inside_an_amd_gpu_is_none() -> None:
    """It shows two bridges of its own; the link of the outer one is the GPU's (pairing.md, section 5)."""
    path = "pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0"
    ports = {part: {"vendor": "0x1002", "device": "0x1500"} for part in ("16:00.0", "17:00.0")}
    files = two_sockets() | put(path, AMD, ports=ports, special={"16:00.0": ("16.0 GT/s PCIe", 16)})
    (gpu,) = series(files, "topo_gpu_info")
    assert gpu.labels["upstream_switch"] == ""
    best = values(files, "topo_pcie_link_max_bandwidth_bytes_per_second", "pci_bus_id")
    assert best == {("0000:18:00.0",): pytest.approx(X16[4])}
    assert values(files, "topo_devices", "kind", "state")["switch", "ok"] == 0


def test_what_is_unknown_is_empty_or_absent() -> None:
    files = two_sockets() | put(direct(0x21), NVIDIA, node=-1) | put(direct(0x31), NVIDIA, node=1)
    silent, told = series(files, "topo_gpu_info")
    assert (silent.labels["numa_node"], silent.labels["package"]) == ("", "")
    assert (told.labels["numa_node"], told.labels["package"]) == ("1", "1")
    assert {told.labels["uuid"], told.labels["gpu"]} == {""}  # no driver answered
    said = values(files, "topo_devices", "kind", "state")
    assert (said["gpu", "ok"], said["gpu", "unknown_numa"], said["gpu", "lost"]) == (1, 1, 0)
    assert series(files, "topo_gpu_nearest_nic_info") == []
    assert series(files, "topo_nvlink_links") == []
    assert [one.labels["code"] for one in series(files, "topo_finding")].count("numa_unknown") == 1


def test_a_gpu_that_its_driver_lost() -> None:
    lost = values(listed(both=False), "topo_devices", "kind", "state")
    assert (lost["gpu", "ok"], lost["gpu", "lost"]) == (1, 1)
    assert values(listed(both=True), "topo_devices", "kind", "state")["gpu", "lost"] == 0
    assert len(series(listed(both=False), "topo_gpu_info")) == 2


def test_the_index_is_that_of_the_driver() -> None:
    """NVML may count in another order than the bus."""
    files = two_sockets() | put(direct(0x21), NVIDIA) | put(direct(0x31), NVIDIA)
    told = topology(files, documents=nvml(answers("00000000:21:00.0", 1), answers("00000000:31:00.0", 0)))
    assert {one.labels["pci_bus_id"]: one.labels["gpu"] for one in series(told, "topo_gpu_info")} == {
        "0000:21:00.0": "1",
        "0000:31:00.0": "0",
    }


def test_nvlinks_up_and_down() -> None:
    assert values(linked(18, 16), "topo_nvlink_links", "pci_bus_id", "state") == {
        ("0000:21:00.0", "active"): 18,
        ("0000:21:00.0", "inactive"): 0,
        ("0000:31:00.0", "active"): 16,
        ("0000:31:00.0", "inactive"): 2,
    }
    to_switches = values(linked(18, 16), "topo_gpu_gpu_links", "pci_bus_id", "peer_uuid", "kind", every=True)
    assert to_switches == {("0000:21:00.0", "nvswitch", "nvlink"): 18, ("0000:31:00.0", "nvswitch", "nvlink"): 18}


def test_nvlinks_between_two() -> None:
    """A link is told from both of its ends, so that the links of one GPU add up."""
    files = two_sockets() | put(direct(0x21), NVIDIA) | put(direct(0x31), NVIDIA)
    ends = ("00000000:21:00.0", "00000000:31:00.0")
    told = [answers(here, index, [nvlink(n, ends[1 - index], 0) for n in range(4)]) for index, here in enumerate(ends)]
    found = topology(files, documents=nvml(*told))
    assert values(found, "topo_gpu_gpu_links", "pci_bus_id", "peer_pci_bus_id", every=True) == {
        ("0000:21:00.0", "0000:31:00.0"): 4,
        ("0000:31:00.0", "0000:21:00.0"): 4,
    }


def test_levels_are_those_of_nvml() -> None:
    """nvml.h: SINGLE 10, MULTIPLE 20, HOSTBRIDGE 30, NODE 40, SYSTEM 50; the classes are of nvidia-smi topo -m."""
    expected = json.loads((fixtures.FOLDER / "dgx-a100" / "expected.json").read_text(encoding="utf-8"))
    found = values(fixtures.topology("dgx-a100"), "topo_gpu_nic_path_level", "pci_bus_id", "nic_pci_bus_id", every=True)
    numbers = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
    compared = [(found[one, other], numbers[word]) for one, other, word in expected["paths"] if (one, other) in found]
    assert len(compared) >= 64
    assert all(ours == theirs for ours, theirs in compared)


def test_a_class_that_is_a_guess_is_no_number() -> None:
    files = two_sockets() | put(direct(0x21), NVIDIA, node=-1) | put(direct(0x31), verbs="mlx5_0")
    assert series(files, "topo_gpu_nic_path_level", every=True) == []
    (near,) = series(files, "topo_gpu_nearest_nic_info")
    assert near.labels["confidence"] == "low"


def test_memory_of_gpus_is_told_apart() -> None:
    """GB200: 480 GiB on each Grace, 34 nodes of which 28 are neither CPUs nor memory (NVIDIA/k8s-dra-driver-gpu)."""
    kinds = Counter(one.labels["kind"] for one in series(texts("gb200-nvl72-tray").usual, "topo_numa_node_info"))
    assert kinds == {"cpu": 2, "gpu_memory": 4, "empty": 28}


def test_a_node_that_does_not_tell() -> None:
    files = cpus({0: range(4)}) | nodes({0: range(4), 1: ()})
    files = {path: entry for path, entry in files.items() if not path.endswith("node1/meminfo")}
    assert values(files, "topo_numa_memory_bytes", "node") == {("0",): 64 * 1024**3}
    assert values(files, "topo_numa_cpus", "node") == {("0",): 4, ("1",): 0}
    assert [one.labels["kind"] for one in series(files, "topo_numa_node_info")] == ["cpu", ""]


def test_a_machine_that_says_nothing() -> None:
    assert plain(topology({}, complete=False)) == []
    body, _ = exposition([], OPENMETRICS)
    assert body == b"# EOF\n"


@settings(SETTINGS, max_examples=60)
@given(st.data())
def test_what_breaks_costs_no_other_series(data: st.DataObject) -> None:
    """What exporters are reported for most (node_exporter#3265, procfs#761): one bad file, and nothing is left."""
    host, _, paths = base(data.draw(st.integers(0, len(SMALL) - 1)))
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True)):
        if path in host.entries:
            host = broken(host, path, data.draw(st.sampled_from(BREAKS)))
    found = build(scan(host))
    body, _ = exposition(plain(found, every=True), OPENMETRICS)
    samples = [one for metric in strictly(body.decode()) for one in metric.samples]
    shown = [one.labels["pci_bus_id"] for one in samples if one.name == "topo_gpu_info"]
    assert shown == [str(one.address) for one in found.of_kind("gpu") if one.physfn is None]
    assert all(one.value >= 0 for one in samples)


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_machines_that_others_recorded(name: str) -> None:
    body, _ = exposition(plain(discover(str(archive(name))), every=True))
    said = body.decode()
    lines = [line.rpartition(" ")[0] for line in said.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines)) <= SERIES_AT_MOST + PAIRS_AT_MOST
    assert PROGRAM is None or promtool("check", "metrics", stdin=said) == ""


def test_findings_are_codes() -> None:
    printed = "".join(one.read_text(encoding="utf-8") for one in fixtures.FOLDER.glob("*/expected/metrics.txt"))
    shown = set(re.findall(r'topo_finding\{code="(\w+)"\} 1', printed))
    assert len(shown) > 3
    assert shown <= {check.code for check in CHECKS}


def test_what_a_machine_wrote_is_no_markup() -> None:
    """A name of a card from its firmware may hold anything."""
    files = two_sockets() | put(direct(0x21), NVIDIA)
    name = 'H100\x1b[31m"\\\n\u202e\u00e9' + "x" * 500
    found = topology(files, documents=nvml(answers("00000000:21:00.0", 0, name=name, uuid="GPU-\x00")))
    (gpu,) = series(found, "topo_gpu_info")
    assert len(gpu.labels["model"]) == 128
    assert gpu.labels["model"].startswith('H100?[31m"\\???x')
    assert gpu.labels["uuid"] == "GPU-?"
    body, _ = exposition(plain(found), "application/openmetrics-text")
    assert strictly(body.decode())


# How it is written

# What Prometheus 2.42 and 3.0 send: scrape/scrape.go
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;"
    "version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/plain", "text"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text"),  # a browser
        ("application/json", "text"),
        ("application/*", "openmetrics"),  # it takes no text
        ("application/openmetrics-text", "openmetrics"),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", "openmetrics"),
        ('Application/OpenMetrics-Text; Version="1.0.0"', "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "text"),
        ("application/openmetrics-text;version=2.0.0", "text"),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", "openmetrics"),
        ("text/plain;q=0.6,application/openmetrics-text;q=0.5", "text"),
        ("text/plain,application/openmetrics-text;q=0.9", "text"),
        ("application/openmetrics-text;q=0,*/*;q=0.1", "text"),
        ("application/openmetrics-text;q=0", "text"),
        ("application/openmetrics-text;q=lots,*/*", "text"),
        ("text/plain;q=0,*/*;q=0.5", "openmetrics"),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.75,*/*;q=0.1", "openmetrics"),
        (PROMETHEUS_2, "openmetrics"),
        (PROMETHEUS_3, "openmetrics"),
        (",;=,/;q=", "text"),
    ],
)
def test_negotiation(accept: str, form: str) -> None:
    assert negotiate(accept) == form
    _, content_type = exposition([], accept)
    assert content_type == (OPENMETRICS if form == "openmetrics" else TEXT)


OTHERS: list[Json] = [
    {
        "name": "topo_fabric_state", "kind": "stateset", "unit": "", "help": "A state.",
        "samples": [[{"uuid": "GPU-1", "topo_fabric_state": state}, int(state == "completed")]
                    for state in ("completed", "in_progress")],
    },
    {"name": "topo_changes", "kind": "counter", "unit": "", "help": "Changes.", "samples": [[{"kind": "added"}, 3]]},
    {"name": "topo_generation", "kind": "gauge", "unit": "", "help": "Rises.", "samples": [[{}, 7]]},
    {"name": "topo_agent_build", "kind": "info", "unit": "", "help": "Who.", "samples": [[{"version": "1"}, 1]]},
]  # fmt: skip


def test_every_kind_in_text() -> None:
    """Text 0.0.4 knows neither info nor stateset."""
    body, _ = exposition(OTHERS)
    assert body.decode().splitlines() == [
        "# HELP topo_fabric_state A state.",
        "# TYPE topo_fabric_state gauge",
        'topo_fabric_state{topo_fabric_state="completed",uuid="GPU-1"} 1.0',
        'topo_fabric_state{topo_fabric_state="in_progress",uuid="GPU-1"} 0.0',
        "# HELP topo_changes_total Changes.",
        "# TYPE topo_changes_total counter",
        'topo_changes_total{kind="added"} 3.0',
        "# HELP topo_generation Rises.",
        "# TYPE topo_generation gauge",
        "topo_generation 7.0",
        "# HELP topo_agent_build_info Who.",
        "# TYPE topo_agent_build_info gauge",
        'topo_agent_build_info{version="1"} 1.0',
    ]


def test_every_kind_in_openmetrics() -> None:
    body, _ = exposition(OTHERS, OPENMETRICS)
    found = {one.name: one for one in strictly(body.decode())}
    assert {name: one.type for name, one in found.items()} == {
        "topo_fabric_state": "stateset",
        "topo_changes": "counter",
        "topo_generation": "gauge",
        "topo_agent_build": "info",
    }
    assert [one.value for one in found["topo_fabric_state"].samples] == [1, 0]


def test_the_command_prints_them(tmp_path: Path) -> None:
    recorded = tmp_path / "host.topo"
    recorded.write_text(text_of(trained(direct(0x31), "32.0 GT/s PCIe", 8)), encoding="utf-8")
    said = CliRunner().invoke(cli, ["dump", "-f", "metrics", "--from", str(recorded), "-o", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    names = {metric.name for metric in parsed((tmp_path / "out").read_text(encoding="utf-8"))}
    assert {"topo_nic_info", "topo_pcie_link_degraded"} <= names


@pytest.mark.parametrize("wrong", ["dump gpu0 -f metrics", "dump --metrics-pairs", "dump -f json --metrics-pairs"])
def test_usage(wrong: str) -> None:
    assert CliRunner().invoke(cli, wrong.split()).exit_code == 2
