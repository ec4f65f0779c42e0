"""Topology, choices and findings -> metric families as plain data, for whatever writes them down.

Names, units and labels follow the conventions of Prometheus and OpenMetrics 1.0. A series whose fact is unknown is
absent, an unknown label is empty, and no number stands for "unknown". docs/metrics.md is made from FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from topo_agent.graph.findings import Finding
from topo_agent.graph.pairing import Choice
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.views import series, series_fabric, series_links
from topo_agent.views.series import Sample, Scene
from topo_agent.views.text import clean

LABEL_AT_MOST = 128
"""Characters of a label's value: a model's name is shorter, and what is longer was not made for reading."""


class Family(NamedTuple):
    """One metric. As OpenMetrics has it the name is without `_info` and `_total`, and ends in its unit."""

    name: str
    kind: Literal["info", "gauge", "stateset", "counter"]
    unit: str
    help: str
    labels: tuple[str, ...]
    look: Callable[[Scene], Iterable[Sample]]
    pairs: bool = False  # grows with GPUs times NICs: only where asked for


_PLACE = ("vendor", "model", "numa_node", "package", "pcie_root", "upstream_switch")
_PAIR = ("pci_bus_id", "uuid", "nic_pci_bus_id", "rdma_device")

FAMILIES: tuple[Family, ...] = (
    Family(
        "topo_gpu",
        "info",
        "",
        "A GPU and where it is; gpu is the index of nvidia-smi.",
        ("pci_bus_id", "uuid", "gpu", *_PLACE),
        series.gpus,
    ),
    Family(
        "topo_nic",
        "info",
        "",
        "A network function and where it is, with the names of its first port; virtual functions are left out.",
        ("pci_bus_id", "netdev", "rdma_device", *_PLACE, "function", "board"),
        series.nics,
    ),
    Family(
        "topo_pci_alias",
        "info",
        "",
        "The names that other exporters give a GPU or a NIC, one series for each function.",
        ("pci_bus_id", "segment", "bus", "device", "function", "dcgm_pci_bus_id", "uuid", "netdev", "rdma_device"),
        series.aliases,
    ),
    Family(
        "topo_gpu_nearest_nic",
        "info",
        "",
        "A NIC that is chosen for a GPU, with the class of the path and how sure it is; rank 1 is the first of them.",
        (*_PAIR, "path", "confidence", "rank"),
        series_links.nearest_nics,
    ),
    Family(
        "topo_gpu_nic_path_level",
        "gauge",
        "",
        "How far a GPU and a NIC are apart: 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS.",
        _PAIR,
        series_links.path_levels,
        pairs=True,
    ),
    Family(
        "topo_gpu_nic_path_bandwidth_bytes_per_second",
        "gauge",
        "bytes_per_second",
        "The narrowest PCIe link between a GPU and a NIC at its best, one direction: an estimate.",
        _PAIR,
        series_links.path_bandwidths,
        pairs=True,
    ),
    Family(
        "topo_gpu_gpu_links",
        "gauge",
        "links",
        "Links from a GPU to another one, or to all switches or processors together (peer_uuid nvswitch, cpu).",
        ("pci_bus_id", "uuid", "peer_pci_bus_id", "peer_uuid", "kind"),
        series_links.gpu_links,
        pairs=True,
    ),
    Family(
        "topo_nvlink_links",
        "gauge",
        "links",
        "NVLinks of a GPU that are up (active, asleep ones among them) or not (inactive).",
        ("pci_bus_id", "uuid", "state"),
        series_links.nvlinks,
    ),
    Family(
        "topo_node_fabric",
        "info",
        "",
        "The NVLink fabric that the GPUs of this machine belong to, and where in its chassis all of them say they are.",
        ("cluster_uuid", "clique", "chassis_serial", "slot", "tray", "source"),
        series_fabric.fabrics,
    ),
    Family(
        "topo_fabric_state",
        "stateset",
        "",
        "How far the NVLink fabric of a GPU has come: 1 for one of not_supported, not_started, in_progress, completed.",
        ("pci_bus_id", "uuid", "topo_fabric_state"),
        series_fabric.states,
    ),
    Family(
        "topo_fabric_healthy",
        "gauge",
        "",
        "Whether the NVLink fabric of a GPU is well; an older driver does not tell.",
        ("pci_bus_id", "uuid"),
        series_fabric.health,
    ),
    Family(
        "topo_fabric_health_issue",
        "gauge",
        "",
        "Whether the NVLink fabric of a GPU has a fault: degraded_bandwidth, route_recovery, route_unhealthy, "
        "access_timeout_recovery, incorrect_configuration. What the driver tells nothing of is absent.",
        ("pci_bus_id", "uuid", "issue"),
        series_fabric.issues,
    ),
    Family(
        "topo_pcie_link_bandwidth_bytes_per_second",
        "gauge",
        "bytes_per_second",
        "What the PCIe link above a function carries as it is trained now, one direction.",
        ("pci_bus_id",),
        series_links.bandwidths,
    ),
    Family(
        "topo_pcie_link_max_bandwidth_bytes_per_second",
        "gauge",
        "bytes_per_second",
        "What the PCIe link above a function carries at its best, one direction: both ends' lesser maximum.",
        ("pci_bus_id",),
        series_links.best_bandwidths,
    ),
    Family(
        "topo_pcie_link_degraded",
        "gauge",
        "",
        "Whether a PCIe link is narrower (width) or slower (speed) than both ends can. An idle GPU tells nothing.",
        ("pci_bus_id", "reason"),
        series_links.degraded,
    ),
    Family(
        "topo_pcie_uplink_oversubscription_ratio",
        "gauge",
        "ratio",
        "What the links below a PCIe switch carry at their best, by what the link above its upstream port does.",
        ("pci_bus_id",),
        series_links.oversubscriptions,
    ),
    Family(
        "topo_numa_node",
        "info",
        "",
        "A NUMA node: cpu, gpu_memory, cxl, hbm, pmem, or empty where it has neither CPUs nor memory.",
        ("node", "kind", "package", "gpu_pci_bus_id"),
        series.numa_nodes,
    ),
    Family("topo_numa_cpus", "gauge", "cpus", "Online CPUs of a NUMA node.", ("node",), series.numa_cpus),
    Family("topo_numa_memory_bytes", "gauge", "bytes", "Memory of a NUMA node.", ("node",), series.numa_memory),
    Family(
        "topo_devices",
        "gauge",
        "devices",
        "Physical functions on the bus by kind and state: lost to its driver, hidden from this container, NUMA node "
        "unknown although there are several, or ok.",
        ("kind", "state"),
        series.devices,
    ),
    Family(
        "topo_finding",
        "gauge",
        "",
        "1 while there is a finding of this code: docs/findings.md says what each means.",
        ("code",),
        series.found,
    ),
)


def families(
    topology: Topology, choices: Sequence[Choice], findings: Sequence[Finding], *, pairs: bool = False
) -> list[Json]:
    """Every family that has a series: `{"name", "kind", "unit", "help", "samples": [[labels, number], …]}`.

    A sample of a stateset is one state, named by the label that is called as the family.
    """
    scene = Scene(topology, tuple(choices), tuple(findings))
    said = [_said(family, family.look(scene)) for family in FAMILIES if pairs or not family.pairs]
    return [one for one in said if one["samples"]]


def _said(family: Family, samples: Iterable[Sample]) -> dict[str, Json]:
    return {
        "name": family.name,
        "kind": family.kind,
        "unit": family.unit,
        "help": family.help,
        "samples": [[_labels(family, labels), number] for labels, number in samples],
    }


def _labels(family: Family, told: series.Labels) -> dict[str, Json]:
    """All labels of the family in order; what is unknown is empty."""
    return {label: label_value(told[label]) for label in family.labels}


def label_value(told: str | int | None) -> str:
    """`"H100\\x1b"` -> `"H100?"`: machines wrote it, so that it is ASCII, printable and not long."""
    if told is None:
        return ""
    return clean(str(told)).encode("ascii", "replace").decode()[:LABEL_AT_MOST]
