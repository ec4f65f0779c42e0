"""Samples of metric families about the NVLink fabric: whose it is, how far it has come, how well it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from topo_agent.facts import FabricState, FabricStep
from topo_agent.graph.nodes import Device
from topo_agent.views.series import Labels, Sample, Scene, who
from topo_agent.views.summary import in_rack

_CONFIGURATION = "incorrect_configuration"
_ISSUES = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
"""nvml.h NVML_GPU_FABRIC_HEALTH_MASK_…; every other fault is one of the configuration."""


def fabrics(scene: Scene) -> Iterator[Sample]:
    """One that is not up yet has a place already, where the chassis is known."""
    place: Labels = dict.fromkeys(("chassis_serial", "slot", "tray"))
    known = in_rack(scene.topology)
    found = sorted({gpu.gpu.fabric for gpu in scene.machine.gpus if gpu.gpu and gpu.gpu.fabric})
    for fabric in found or ([""] if known else []):
        cluster, _, clique = fabric.rpartition(".")
        yield {"cluster_uuid": cluster, "clique": clique, **place, **known, "source": "nvml"}, 1


def states(scene: Scene) -> Iterator[Sample]:
    for gpu, now in _now(scene):
        if now.state is not None:
            for state in get_args(FabricStep):
                yield {**who(gpu), "topo_fabric_state": state}, int(state == now.state)


def health(scene: Scene) -> Iterator[Sample]:
    for gpu, now in _now(scene):
        if now.health is not None:
            yield who(gpu), int(now.health == "healthy")


def issues(scene: Scene) -> Iterator[Sample]:
    """Those that the driver tells of, if only that they are none."""
    for gpu, now in _now(scene):
        told = {_issue(fault): 0 for fault in now.ruled_out} | {_issue(fault): 1 for fault in now.faults}
        for issue in (*_ISSUES, _CONFIGURATION):
            if issue in told:
                yield {**who(gpu), "issue": issue}, told[issue]


def _issue(fault: str) -> str:
    return fault if fault in _ISSUES else _CONFIGURATION


def _now(scene: Scene) -> Iterator[tuple[Device, FabricState]]:
    said = dict(scene.topology.fabrics_now)
    return ((gpu, said[gpu.ref]) for gpu in scene.machine.gpus if gpu.ref in said)
