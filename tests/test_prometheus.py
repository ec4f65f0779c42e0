"""docs/metrics.md and docs/prometheus/: made from the code, or asked of Prometheus' own promtool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import fixtures
from tests.paper import Files, now, put, topology, two_sockets
from tests.promtool import evaluated, needs_promtool, promtool
from tests.test_checks import direct
from tests.test_metrics import plain
from topo_agent.daemon.counts import Cost, Counts, published, sliced
from topo_agent.daemon.own import OWN, Metric
from topo_agent.graph.checks import CHECKS
from topo_agent.host import Json
from topo_agent.publishers.metrics import exposition
from topo_agent.views.metrics import FAMILIES, Family

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = DOCS / "metrics.md"
ALERTS, DASHBOARD = DOCS / "prometheus" / "alerts.yaml", DOCS / "prometheus" / "dashboard.json"

JOINS = {
    "The state of every RDMA port with the address and NUMA node of its NIC (node_exporter)": """\
node_infiniband_state_id
  * on (instance, device) group_left (pci_bus_id, numa_node)
  label_replace(topo_nic_info{rdma_device!=""}, "device", "$1", "rdma_device", "(.*)")""",
    "How busy every GPU is, by NUMA node (dcgm-exporter)": """\
DCGM_FI_DEV_GPU_UTIL
  * on (instance, UUID) group_left (numa_node)
  label_replace(topo_gpu_info{uuid!=""}, "UUID", "$1", "uuid", "(.*)")""",
    "PCIe replays with the UUID and the address of the GPU (dcgm-exporter)": """\
DCGM_FI_DEV_PCIE_REPLAY_COUNTER
  * on (instance, pci_bus_id) group_left (uuid, segment, bus)
  label_replace(topo_pci_alias_info, "pci_bus_id", "$1", "dcgm_pci_bus_id", "(.*)")""",
    "The lanes of every GPU and NIC by what they are called (node_exporter with --collector.pcidevice)": """\
node_pcidevice_current_link_width
  * on (instance, segment, bus, device, function) group_left (uuid, rdma_device)
  topo_pci_alias_info""",
}

HEAD = """\
# Metrics

What `topo-agent dump -f metrics` prints, for Prometheus; `/metrics` of `topo-agent run` has the same and
[more of the agent itself](#the-agent-itself). A fact that is unknown has no series, or an empty label where
the rest is known; no number stands for it. Virtual functions are left out. A type `info` has the value 1 and is a gauge
in the text format 0.0.4; OpenMetrics 1.0.0 has it as it is. What says "pairs" is there with `--metrics-pairs` only.

| metric | type | unit | labels | |
|---|---|---|---|---|
"""

OWN_HEAD = """\

## The agent itself

What `/metrics` of `topo-agent run` has besides. A counter begins at 0 with the agent. `topo_label_info` is there where
labels are published, `topo_slice_…` where a ResourceSlice is.

| metric | type | unit | labels | |
|---|---|---|---|---|
"""

OWN_TAIL = """\

A source is what the agent asks for one class of facts: `cpu`, `numa`, `pci`, `net`, `rdma`, `nvme`, `gpu`, `kfd`,
`machine`, `process`, `standard`, `irq`, `gpudirect`; `nvml` is NVIDIA's driver and `netlink` the network stack, which
`gpu` and `net` call. Where no NVIDIA driver is loaded, or no library of it is there, `nvml` has no series: that is no
fault. The phases of `topo_agent_scan_duration_seconds` add up to the whole scan. Notes of the source `graph` are about
facts that disagree.
"""

TAIL = """\

A GPU without load trains its link down by itself. `topo_pcie_link_degraded` therefore has `reason="speed"` of a GPU
only while it runs at its best, and again when it was seen slow under load. In a virtual machine no link is judged: its
ports may be made of software. `path` and the levels are the words of `nvidia-smi topo -m`; `confidence` is `high`,
`medium`, `low` or `operator` as in `topo-agent pairs`.

| label | |
|---|---|
| `pci_bus_id` | as the kernel writes it: `0000:1b:00.0`, with more digits where a domain has more |
| `segment`, `bus`, `device`, `function` | the same in parts, as node_exporter's `node_pcidevice_info` has them |
| `dcgm_pci_bus_id` | the same as NVML and dcgm-exporter write it: `00000000:1B:00.0` |
| `uuid` | `GPU-…` of NVML; `0x…`, the unique id, of an AMD GPU |
| `gpu` | the index of `nvidia-smi`; empty where NVIDIA's library does not answer |
| `numa_node`, `package` | empty where unknown |
| `upstream_switch` | the upstream port of the nearest PCIe switch above; empty where there is none |
| `board` | equal on all functions of one card: the address of its first |
| `function` (of a NIC) | `pf`, `data_direct`; empty in a virtual machine, which may hold a virtual one |
| `rdma_device`, `netdev` | names, which may change from boot to boot: to join by, not to alert on |
| `chassis_serial`, `slot`, `tray` | as the driver tells them and all GPUs say the same; empty where nobody set them |
"""

JOINS_HEAD = """\

## Joins

The examples need one `instance` for all exporters of a server: let the scrape configuration drop the port from it.
`rdma_device!=""` and `uuid!=""` matter: Prometheus refuses to join where two series on the right have the same label,
an empty one too.
"""

FOOT = """
## Alerts and dashboard

[prometheus/alerts.yaml](prometheus/alerts.yaml) has alert rules, and
[prometheus/alerts_test.yaml](prometheus/alerts_test.yaml) says when they fire (`promtool test rules`).
[prometheus/dashboard.json](prometheus/dashboard.json) is a Grafana dashboard to import.
"""


def sample_name(family: Family | Metric) -> str:
    return family.name + {"info": "_info", "counter": "_total"}.get(family.kind, "")


def _rows(families: Iterable[Family | Metric]) -> Iterator[str]:
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        kind = family.kind + (", pairs" if isinstance(family, Family) and family.pairs else "")
        unit = family.unit.replace("_per_", "/").replace("seconds", "s").replace("second", "s")
        yield f"| `{sample_name(family)}` | {kind} | {unit} | {labels} | {family.help} |\n"


def test_the_document_lists_every_metric(golden: Callable[[Path, str], None]) -> None:
    joins = [f"\n{title}:\n\n```\n{expression}\n```\n" for title, expression in JOINS.items()]
    own = [OWN_HEAD, *_rows(OWN), OWN_TAIL]
    golden(DOCUMENT, "".join([HEAD, *_rows(FAMILIES), TAIL, *own, JOINS_HEAD, *joins, FOOT]))


# Two servers: a DGX A100, and a small one with a link that lost lanes


def _of(instance: str, text: str) -> list[str]:
    """The series as Prometheus stores them: the scrape configuration adds who it is."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    labelled = [line if "{" in line else line.replace(" ", "{} ", 1) for line in lines]
    return [line.replace("{", f'{{instance="{instance}",job="topo",', 1) for line in labelled]


def _degraded() -> Files:
    return two_sockets() | put(direct(0x31), verbs="mlx5_0") | now(direct(0x31), "32.0 GT/s PCIe", 8)


@pytest.fixture(scope="module")
def servers() -> list[str]:
    found = (fixtures.topology("dgx-a100"), topology(_degraded()))
    big, small = (exposition([*plain(one, every=True), *_own()])[0].decode() for one in found)
    return [*_of("a", big), *_of("b", small)]


def _own() -> list[Json]:
    """What the agent says of itself after a scan, with a label that is published."""
    counts = Counts()
    counts.scanned(Cost(0.02, 1500, {"pci": 0.01}, {"pci": True}, [("pci", "degraded", 1)]), 1.79e9)
    counts.last_change = 1.79e9
    label = ("topo-agent.io/rack", "r1", "published", "mapping")
    return [
        *counts.families(),
        *published("node_labels", {"ok": 1}, [label], {label[0]: label[1]}),
        *sliced({}, {"values": 0}, None),
    ]


def _uuid(series: list[str], address: str) -> str:
    (line,) = (one for one in series if one.startswith("topo_gpu_info{") and f'pci_bus_id="{address}"' in one)
    return line.partition('uuid="')[2].partition('"')[0]


@needs_promtool
def test_joins(servers: list[str], tmp_path: Path) -> None:
    """Series as node_exporter 1.12 and dcgm-exporter print them of a DGX A100 (its expected.json): 07:00.0 and mlx5_0,
    which is 0c:00.0, are on node 3. Both servers have an mlx5_0.
    """
    uuid = _uuid(servers, "0000:07:00.0")
    address = 'segment="0000",bus="07",device="00",function="0"'
    theirs = [
        'node_infiniband_state_id{instance="a",job="node",device="mlx5_0",port="1"} 4',
        'node_infiniband_state_id{instance="b",job="node",device="mlx5_0",port="1"} 1',
        f'DCGM_FI_DEV_GPU_UTIL{{instance="a",job="dcgm",gpu="0",UUID="{uuid}",pci_bus_id="00000000:07:00.0"}} 97',
        'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{instance="a",job="dcgm",gpu="0",pci_bus_id="00000000:07:00.0"} 5',
        f'node_pcidevice_current_link_width{{instance="a",job="node",{address}}} 16',
    ]
    ports, busy, replays, lanes = JOINS.values()
    expected = {
        ports: [
            ('{instance="a",job="node",device="mlx5_0",port="1",pci_bus_id="0000:0c:00.0",numa_node="3"}', 4.0),
            ('{instance="b",job="node",device="mlx5_0",port="1",pci_bus_id="0000:31:00.0",numa_node="0"}', 1.0),
        ],
        busy: [
            (
                f'{{instance="a",job="dcgm",gpu="0",UUID="{uuid}",pci_bus_id="00000000:07:00.0",numa_node="3"}}',
                97.0,
            )
        ],
        replays: [
            (
                f'{{instance="a",job="dcgm",gpu="0",pci_bus_id="00000000:07:00.0",uuid="{uuid}",segment="0000",bus="07"}}',
                5.0,
            )
        ],
        lanes: [(f'{{instance="a",job="node",{address},uuid="{uuid}"}}', 16.0)],
    }
    evaluated(tmp_path, [*servers, *theirs], expected)


@needs_promtool
def test_empty_labels_spoil_a_join(tmp_path: Path) -> None:
    """What the page warns of, on a Frontier node: four NICs that are no RDMA devices."""
    printed = (fixtures.FOLDER / "mi250x-frontier" / "expected" / "metrics.txt").read_text(encoding="utf-8")
    theirs = 'node_infiniband_state_id{instance="a",job="node",device="mlx5_0",port="1"} 4'
    ports = next(iter(JOINS.values()))
    evaluated(tmp_path, [*_of("a", printed), theirs], {ports: []})
    with pytest.raises(AssertionError, match="duplicate series"):
        evaluated(tmp_path, [*_of("a", printed), theirs], {ports.replace('{rdma_device!=""}', ""): []})


@needs_promtool
def test_joins_that_find_nothing_are_noticed(servers: list[str], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="FAILED"):
        evaluated(tmp_path, servers, {"count(topo_gpu_info)": [("{}", 9.0)]})


# Alerts


@needs_promtool
def test_alerts() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(ALERTS.with_name("alerts_test.yaml")))


def test_every_alert_is_tested() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}


# Dashboard


def _expressions() -> dict[str, str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return {panel["title"]: target["expr"] for panel in panels for target in panel["targets"]}


def test_the_dashboard_is_for_everybody() -> None:
    """Grafana asks which data source, and panels do not overlap."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {one["name"] for one in dashboard["templating"]["list"]} == {"datasource", "instance"}
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {"${datasource}"}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@needs_promtool
def test_every_panel_shows_something(servers: list[str], tmp_path: Path) -> None:
    shown = {f"count({one.replace('$instance', '.*')}) > bool 0": [("{}", 1.0)] for one in _expressions().values()}
    assert len(shown) == 9
    evaluated(tmp_path, servers, shown)


def test_they_name_what_there_is() -> None:
    """Metrics, labels and values of alerts and dashboard are those of some machine of fixtures/, and real codes."""
    printed = "".join(one.read_text(encoding="utf-8") for one in sorted(fixtures.FOLDER.glob("*/expected/metrics.txt")))
    names = set(re.findall(r"(?m)^(topo_\w+)\{", printed)) | {sample_name(one) for one in OWN}
    families: list[Family | Metric] = [*FAMILIES, *OWN]
    labels = {label for family in families for label in family.labels}
    used = ALERTS.read_text(encoding="utf-8") + "\n".join(_expressions().values())
    assert set(re.findall(r"\btopo_\w+", used)) <= names
    assert set(re.findall(r"(\w+)=~?\"", used)) <= labels | {"instance"}
    codes = re.findall(r'code="(\w+)"', used)
    assert codes
    assert {*codes} <= {check.code for check in CHECKS}


def test_families_are_named_by_the_rules() -> None:
    """Prometheus naming: one prefix, and no two alike."""
    families: list[Family | Metric] = [*FAMILIES, *OWN]
    names = [sample_name(family) for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert family.name.startswith("topo_")
        assert not re.search(r"_(info|total|created|bucket|count|sum)$", family.name)
        assert family.help.endswith(".")
        assert not (family.unit and family.kind == "info")
        assert len(family.labels) <= 30
