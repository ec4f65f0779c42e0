"""Who takes what scans find to a cluster, as those who hand it over see them: none of it waits for a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from topo_agent.daemon.named import Named
from topo_agent.daemon.offer import DeviceData
from topo_agent.graph.fabric import Reading
from topo_agent.host import Json


class _Taker(Protocol):
    @property
    def named(self) -> Named:
        """What this node may be called in a mapping."""
        ...

    @property
    def undecided(self) -> bool:
        """Would another scan soon decide something?"""
        ...


class Publisher(_Taker, Protocol):
    """Takes what labels should say."""

    def read(self, readings: Mapping[str, Reading], now: float) -> None: ...

    def failed(self, why: str, now: float) -> None:
        """There are no readings: what is published stays, and nobody is sure of it."""
        ...

    def families(self) -> list[dict[str, Json]]:
        """Its own metrics; from another thread."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Slices(_Taker, Protocol):
    """Takes the devices that a ResourceSlice should have."""

    def read(self, devices: Iterable[DeviceData], readings: Mapping[str, Reading], now: float) -> None: ...
