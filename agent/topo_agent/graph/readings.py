"""What a machine says for each label, at this moment."""

from __future__ import annotations

from collections.abc import Iterable

from topo_agent.graph import fabric
from topo_agent.graph.fabric import Place, Reading, known, none, unsure
from topo_agent.graph.labels import GPU_CLIQUE, NAMES, RAW_AT_MOST, filler
from topo_agent.graph.links import nvlinks
from topo_agent.graph.order import equals, physical
from topo_agent.graph.pairing import Choice
from topo_agent.graph.paths import ORDER
from topo_agent.graph.shape import shape
from topo_agent.graph.topology import Topology

# Which classes (paths.ORDER) mean that a NIC is on the same switch, the same root, the same NUMA node.
_COVERAGE: tuple[tuple[str, str, str], ...] = (
    ("gpus-with-nic-on-switch", "PXB", "switch"),
    ("gpus-with-nic-on-root", "PHB", "root"),
    ("gpus-with-nic-on-numa", "NODE", "NUMA node"),
)


def readings(topology: Topology, choices: Iterable[Choice], place: Place) -> dict[str, Reading]:
    """Every label's reading by its name, that of GPU_CLIQUE too. `place` is what the operator says."""
    levels = fabric.decide([*fabric.nvlink(topology), *fabric.mapped(place)])
    found: dict[str, Reading] = {name: _valid(reading) for name, reading in levels.items()}
    found |= _counts(topology) | _coverage(topology, tuple(choices))
    found["gpu-model"] = _model(topology)
    found["shape"] = _shape(topology)
    found[GPU_CLIQUE] = fabric.gfd_clique(topology)
    return {name: found[name] for name in (*NAMES, GPU_CLIQUE) if name in found}


def _valid(reading: Reading) -> Reading:
    """A value that says nothing is none that anybody knows."""
    if reading.raw is None:
        return reading
    if filler(reading.raw):
        return unsure(reading.source, f"{reading.raw!r} is a placeholder")
    return reading if len(reading.raw) <= RAW_AT_MOST else unsure(reading.source, "its value is too long")


def _counts(topology: Topology) -> dict[str, Reading]:
    if topology.devices is None:
        silent = unsure("pci", "no PCI functions are recorded")
        return {"gpu-count": silent, "nic-count": silent}
    return {
        "gpu-count": known(str(len(physical(topology, "gpu"))), "pci"),
        "nic-count": known(str(len(physical(topology, "nic"))), "pci"),
    }


def _model(topology: Topology) -> Reading:
    """As the driver calls all GPUs, with dashes for blanks as in `nvidia.com/gpu.product`."""
    gpus = physical(topology, "gpu")
    if topology.devices is None:
        return unsure("driver", "no PCI functions are recorded")
    if not gpus:
        return none("driver", "no GPU is here")
    titles = {gpu.title for gpu in gpus}
    if None in titles:
        return unsure("driver", "the driver does not name every GPU")
    if len(titles) > 1:
        return none("driver", "the GPUs are of several models")
    return known("-".join((titles.pop() or "").split()), "driver")


def _coverage(topology: Topology, choices: tuple[Choice, ...]) -> dict[str, Reading]:
    """How many GPUs have a NIC that near. A distance that is not certain makes the number unsure where it matters."""
    found = {}
    for name, farthest, what in _COVERAGE:
        if topology.devices is None:
            found[name] = unsure("pci", "no PCI functions are recorded")
        elif not choices:
            found[name] = none("pci", "no GPU is here")
        else:
            found[name] = _covered(choices, ORDER.index(farthest), what)
    return found


def _covered(choices: tuple[Choice, ...], farthest: int, what: str) -> Reading:
    count = 0
    for choice in choices:
        paths = [one.path for one in choice.ranking]
        if any(path.certain and path.rank <= farthest for path in paths):
            count += 1
        elif any(not path.certain for path in paths):
            return unsure("pci", f"whether a NIC is on the {what} of {choice.gpu} is not known")
    return known(str(count), "pci")


def _shape(topology: Topology) -> Reading:
    """Links are a part of it that drivers tell: while one is silent the machine would look like another."""
    if topology.devices is None:
        return unsure("pci", "no PCI functions are recorded")
    theirs = fabric.nvidia(topology)
    silent = [gpu for gpu in theirs if gpu.names.nvml_index is None]
    silent += [gpu for gpu in physical(topology, "gpu") if gpu.driver is None and gpu not in theirs]
    if silent:
        return unsure("driver", f"no driver tells of {silent[0].address}")
    moving = _links_that_move(topology)
    if moving:
        return unsure("nvml", moving)
    return known(shape(topology), "pci")


def _links_that_move(topology: Topology) -> str | None:
    """Why the NVLinks of a GPU may be told otherwise soon: one that is down names no peer. None where all stand.

    A board may leave some links of every GPU unused, and a card may have no bridge. So they are waited for only where
    a GPU has fewer up than an equal one, or none while switches or a fabric will be at the other ends.
    """
    states, (up, whole) = dict(topology.fabrics_now), nvlinks(topology)
    switches = bool(topology.of_kind("nvswitch"))
    # NVLinks of a GPU that is cut into MIG devices are off
    gpus = [gpu for gpu in physical(topology, "gpu") if not (gpu.gpu and gpu.gpu.mig)]
    most = {gpu.ref: max(up[one.ref] for one in same) for same in equals(gpus) for gpu in same}
    for gpu in gpus:
        if up[gpu.ref] >= whole[gpu.ref]:
            continue
        now = states.get(gpu.ref)
        coming = switches or (now is not None and now.state in ("not_started", "in_progress"))
        fewer = up[gpu.ref] < most.get(gpu.ref, up[gpu.ref])
        if fewer if up[gpu.ref] else coming:
            return f"{gpu.address}: {up[gpu.ref]} of {whole[gpu.ref]} NVLinks are up"
    return None
