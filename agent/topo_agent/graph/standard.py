"""The three standard DRA attributes, byte for byte as the upstream Kubernetes helper derives them.

k8s.io/dynamic-resource-allocation/deviceattribute: pci_linux.go, numa_linux.go. Its faults are kept here and
nowhere else: what the graph itself believes stands in `pcie_root` and `numa_node`.
"""

from __future__ import annotations

import re

from topo_agent.facts import PciDevice
from topo_agent.graph.nodes import Standard

_BDF = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)


def of(device: PciDevice) -> Standard:
    """What the helper would publish; a domain of more than 16 bits (VMD, Hyper-V) is refused as it does."""
    name = str(device.address)
    if not _BDF.fullmatch(name):
        return Standard()
    first = device.path.removeprefix("sys/devices/").partition("/")[0]
    return Standard(
        pci_bus_id=name,
        pcie_root=first if first.startswith("pci") and device.path.endswith(f"/{name}") else None,
        numa_node=device.numa_node,
    )
