"""The PCI functions of a description: what each is, and what hangs below it."""

from __future__ import annotations

from dataclasses import dataclass

from topo_agent.synthesis.fields import Place
from topo_agent.synthesis.parts import Ids, Link, Part

NOWHERE = -1
"""A numa_node file that says -1."""


@dataclass(frozen=True, slots=True)
class Vfs:
    count: int
    total: int
    offset: int
    stride: int
    ids: Ids
    klass: int
    driver: str | None
    node: int | None


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces and RDMA devices of a function."""

    netdevs: tuple[str, ...]
    rdma: tuple[str, ...]
    rdma_ports: int
    layer: str
    speed: int  # Gb/s
    carrier: str  # up, down (no cable), off (the interface is down)
    mtu: int
    board: str | None
    mac: str | None


@dataclass(frozen=True, slots=True)
class Drive:
    controller: str | None
    namespaces: tuple[int, ...]
    multipath: bool


@dataclass(frozen=True, kw_only=True)
class Function:
    """One function, with what is below it."""

    kind: str
    part: Part
    place: Place
    name: str | None = None
    at: tuple[int, int] | None = None  # device and function; None: the next that is free
    inner: int | None = None  # the bus below a bridge; None: the next that is free
    now: Link | None = None
    node: int | None = None  # None: that of what is above
    slot: str | None = None
    iommu: int | None = None
    suspended: bool = False
    msi: int = 0
    vfs: Vfs | None = None
    bridge: bool = False  # is there a bus below it?
    below: tuple[Function, ...] = ()
    several: bool = False  # the downstream ports of this switch are functions of one device
    inside: Root | None = None  # the bus of a VMD
    network: Network | None = None
    drive: Drive | None = None
    disk: str | None = None
    nodes: tuple[str, ...] | None = None  # device nodes; None: as the driver makes them


@dataclass(frozen=True, kw_only=True)
class Root:
    """A host bridge."""

    domain: int
    bus: int
    prefix: str
    node: int
    below: tuple[Function, ...]
    place: Place
