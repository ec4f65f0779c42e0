"""The three standard DRA attributes, byte for byte as the upstream Kubernetes helper derives them.

k8s.io/dynamic-resource-allocation/deviceattribute: pci_linux.go, numa_linux.go. Its faults are kept here and
nowhere else: what the graph itself believes stands in `pcie_root`, `numa_node` and `numa_nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topo_agent.facts import PciDevice, StandardNode
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


def numa_nodes(node: int, nodes: Iterable[StandardNode]) -> tuple[int, ...]:
    """The list form of numaNode for a device on `node`: that one, then its neighbours in the same socket.

    getEquidistantNUMANodes in numa_linux.go: of the row of the node, the columns with the smallest distance but its
    own, less those whose socket is known to be another. It takes the number of a column for the id of a node, so that
    with gaps in the ids it names wrong nodes, also such as there are not; and a node without CPUs has no socket, so
    that it stays. A device without a node has no list; for one that is no PCI function the helper refuses ids above
    1023.
    """
    known = {int(one.id): one for one in nodes}
    row = known[node].distances if node in known else None
    if row is None or node >= len(row):
        return (node,)
    others = {column: distance for column, distance in enumerate(row) if column != node}
    nearest = min(others.values(), default=None)
    sockets = {id_: one.socket for id_, one in known.items()}
    here = sockets[node]
    beside = (
        column
        for column, distance in others.items()
        if distance == nearest and (here is None or sockets.get(column) in (None, here))
    )
    return node, *beside
