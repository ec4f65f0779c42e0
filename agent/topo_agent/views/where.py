"""How a process is bound -> text and plain data."""

from __future__ import annotations

from collections.abc import Iterable

from topo_agent.graph.order import labels
from topo_agent.graph.topology import Topology
from topo_agent.graph.where import Judged, Where
from topo_agent.host import Json
from topo_agent.ids import CpuSet, cpulist
from topo_agent.views.fields import present
from topo_agent.views.text import clean, fit


def as_text(topology: Topology, said: Where, name: str, cpus: CpuSet, hidden: Iterable[str], width: int) -> str:
    """A headline, a line for each GPU, and what to do about those that are not well bound."""
    called = labels(topology)
    sure = "" if said.certain else " (not certain)"
    lines = [f"{name}: CPUs {cpulist(cpus)}; GPUs by {said.how}{sure}"]
    if not said.gpus:
        lines.append("no GPU to be near to")
    for one in said.gpus:
        words = f"CPUs {one.cpus}, memory {one.memory}" + ("" if one.nics == "unknown" else f", NICs {one.nics}")
        lines.append(f"{called[one.gpu]} {one.gpu.key.removeprefix('0000:')}: {words}: {one.reason}")
        if one.command:
            lines.append(f"  {one.command}")
        lines += [f"  {sentence}" for sentence in one.advice]
    lines += [f"not readable: {what}" for what in hidden]
    return "".join(fit(clean(line), width) + "\n" for line in lines)


def as_data(said: Where, cpus: CpuSet, hidden: Iterable[str]) -> dict[str, Json]:
    return {
        "well": said.well,
        "allowed_cpus": cpulist(cpus),
        "gpus_by": said.how,
        "certain": said.certain,
        "gpus": [_judged(one) for one in said.gpus],
        "hidden": [*hidden],
    }


def _judged(one: Judged) -> dict[str, Json]:
    verdicts: dict[str, Json] = {"gpu": str(one.gpu), "cpus": one.cpus, "memory": one.memory, "nics": one.nics}
    return verdicts | present({"reason": one.reason or None, "command": one.command, "advice": [*one.advice] or None})
