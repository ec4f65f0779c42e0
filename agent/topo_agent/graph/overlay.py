"""What an operator knows and firmware hides: nodes of roots, roles of NICs and their Data Direct, NICs of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from topo_agent.ids import NumaId

Role = Literal["compute", "storage", "management", "default_route", "dpu", "nvlink_management", "ethernet"]
"""What a NIC is for. Only `compute` NICs are paired with GPUs; `ethernet` has no RDMA while others here have."""

ROLES: tuple[Role, ...] = (
    "compute", "storage", "management", "default_route", "dpu", "nvlink_management", "ethernet",
)  # fmt: skip

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Overlay(NamedTuple):
    """Names as the operator typed them: roots by name, devices by anything that `find` understands."""

    roots: Mapping[str, NumaId] = MappingProxyType({})
    roles: Mapping[str, Role] = MappingProxyType({})
    pairs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    data_direct: Mapping[str, str] = _NOTHING  # DMA function -> the NIC that it works for
    where: Mapping[str, str] = _NOTHING  # "roots.pci0000:15" -> "overlay.yaml:3", for messages


EMPTY = Overlay()
