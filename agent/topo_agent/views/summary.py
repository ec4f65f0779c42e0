"""Topology -> the lines above and below a tree: whose machine it is, what it counts, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from topo_agent.diagnostics import Diagnostic, Level
from topo_agent.graph.nodes import DeviceKind
from topo_agent.graph.order import labels
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref
from topo_agent.views.text import clean, fit, wrap
from topo_agent.views.units import plural

WORDS: dict[DeviceKind, str] = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe", "nvswitch": "NVSwitch"}
_PLURALS: dict[DeviceKind, str] = {"nvme": "NVMe", "nvswitch": "NVSwitches"}
DIAGNOSTICS_AT_MOST = 6
_IN_RACK = {"chassis_serial": "chassis", "slot": "slot", "tray": "tray"}


def headline(topology: Topology, width: int) -> Iterator[str]:
    machine = topology.machine
    name = " ".join(filter(None, (machine.vendor, machine.product))) or "A machine that does not say its name"
    if machine.virtual:
        name += f" (virtual machine{', ' + machine.hypervisor if machine.hypervisor else ''})"
    yield fit(clean(name), width)
    yield from wrap(list(counts(topology)), " · ", width)
    place = ", ".join(f"{_IN_RACK[part]} {where}" for part, where in in_rack(topology).items())
    rack = [clean(words) for words in (*_fabric(topology), place) if words]
    if rack:
        yield from wrap(rack, " · ", width)


def counts(topology: Topology) -> Iterator[str]:
    """ "2 packages", "8 GPUs", …: what there is, largest things first."""
    if topology.packages is not None:
        yield plural(len(topology.packages), "package")
    if topology.cores is not None:
        yield plural(topology.cores, "core")
    if topology.cpus is not None:
        offline = sum(not cpu.online for cpu in topology.cpus)
        yield plural(len(topology.online_cpus), "CPU") + (f" ({offline} offline)" if offline else "")
    if topology.memories is not None:
        yield plural(len(topology.memories), "NUMA node")
    for kind, word in WORDS.items():
        physical = [device for device in topology.of_kind(kind) if device.physfn is None]
        if physical:
            virtual = len(topology.of_kind(kind)) - len(physical)
            yield plural(len(physical), word, _PLURALS.get(kind)) + (f" + {plural(virtual, 'VF')}" if virtual else "")
    if topology.devices is not None:
        yield plural(len(topology.devices), "PCI function")


def _fabric(topology: Topology) -> Iterator[str]:
    """The cluster and clique of the GPUs, and which of them wait for it, failed, or are not well."""
    now = dict(topology.fabrics_now)
    gpus = {gpu.ref: gpu.gpu for gpu in topology.of_kind("gpu") if gpu.gpu is not None and gpu.ref in now}
    for fabric, count in Counter(part.fabric for part in gpus.values() if part.fabric).items():
        cluster, _, clique = fabric.rpartition(".")
        some = "" if count == len(gpus) else f" ({count} of {len(gpus)} GPUs)"
        yield f"NVLink cluster {cluster}, clique {clique}{some}"
    waiting: dict[str, list[Ref]] = {}
    for ref, part in gpus.items():
        reason, state = dict(part.unknown).get("fabric"), now[ref]
        if reason is not None:
            waiting.setdefault(f"unknown ({reason.value})", []).append(ref)
        elif state.state in ("not_started", "in_progress"):
            waiting.setdefault(state.state.replace("_", " "), []).append(ref)
        elif state.faults or state.health not in (None, "healthy"):
            waiting.setdefault(" ".join((state.health or "", *state.faults)).strip().replace("_", " "), []).append(ref)
    called = labels(topology) if waiting else {}
    for words, refs in waiting.items():
        yield f"NVLink fabric {words}: {' '.join(called.get(ref, ref.key) for ref in refs)}"


def in_rack(topology: Topology) -> dict[str, str | int]:
    """Where the GPUs are in their rack, as far as all of them say the same: chassis_serial, slot, tray."""
    told = [gpu.gpu.platform for gpu in topology.of_kind("gpu") if gpu.gpu is not None and gpu.gpu.platform is not None]
    said = {part: {getattr(one, part) for one in told} for part in _IN_RACK}
    same = {part: next(iter(values)) for part, values in said.items() if len(values) == 1 and None not in values}
    return same if "chassis_serial" in same else {}  # a slot of nobody knows what


def foot(diagnostics: Iterable[Diagnostic], most: int, width: int) -> Iterator[str]:
    """What went wrong, the same sentence once with a count; notes that cost nothing are left to json."""
    if most == 0:
        return
    grouped: dict[tuple[str, str], list[Diagnostic]] = {}
    for one in diagnostics:
        if one.level is not Level.NOTE:
            grouped.setdefault((one.level.value, one.message), []).append(one)
    if grouped:
        yield ""
    for (level, message), same in list(grouped.items())[:most]:
        others = f" and {len(same) - 1} more" if len(same) > 1 else ""
        yield fit(clean(f"{level}: {same[0].subject}{others}: {message}"), width)
    if len(grouped) > most:
        yield fit(f"… and {len(grouped) - most} more kinds of diagnostics: see -f json", width)
