"""Which GPUs a process uses: by its open device files, its environment, and what its container was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topo_agent.graph.nodes import Device
from topo_agent.graph.order import gpu_numbers, physical
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

_NVIDIA, _AMD = 0x10DE, 0x1002


def gpus_of(
    topology: Topology,
    *,
    opened: Iterable[str] | None,
    visible: Iterable[str] | None,
    asked: Iterable[tuple[str, str]] | None,
    pci_order: bool,
) -> tuple[list[Device], str, bool]:
    """(GPUs, how they were told, is that certain): open device files, then environment, then visible device files."""
    by_open = _with_nodes(physical(topology, "gpu"), opened or ())
    if by_open:
        return by_open, "device files that it has open", True
    said = dict(asked or ())
    given, by, certain = _given(topology, visible, said.get("NVIDIA_VISIBLE_DEVICES"))
    if not given and by:
        return given, by, certain
    migs = _migs(topology)
    chosen: dict[int, list[Device]] = {}
    for key, vendor in _variables(given, said):
        family = chosen.get(vendor, [gpu for gpu in given if gpu.vendor == vendor])
        # ROCm counts in the order of KFD, which the graph does not have: layouts.md §6 has 75 05 65 15 of one machine.
        # CUDA counts the fastest first unless told PCI_BUS_ID, which among equals is the order of the bus.
        ordered = vendor == _NVIDIA and (pci_order or len({gpu.device for gpu in family}) == 1)
        found, sure = _named(family, said[key], migs, ordered=ordered)
        chosen[vendor] = family if found is None else found
        by, certain = (key if found is not None else f"all that {key} may mean"), certain and sure
    if chosen:
        return [gpu for gpus in chosen.values() for gpu in gpus], by, certain
    if by:
        return given, by, certain
    known = [word for word, answer in (("has none open", opened), ("chooses none", asked)) if answer is not None]
    return given, f"all GPUs: it {' and '.join(known)}" if known else "all GPUs, as nothing else is known", False


def _with_nodes(gpus: list[Device], nodes: Iterable[str]) -> list[Device]:
    names = {node.rpartition("/")[2] for node in nodes}
    return [gpu for gpu in gpus if names & set(gpu.names.nodes)]


def _given(topology: Topology, visible: Iterable[str] | None, toolkit: str | None) -> tuple[list[Device], str, bool]:
    """What a container was given, among which the numbers of CUDA and ROCm count; "" for by nothing: all.

    NVIDIA's container toolkit counts as nvidia-smi does on the host. The variable alone keeps no device file away:
    an image may have it, and a privileged container, or one by CDI, says `void` and has them.
    """
    gpus, numbers = physical(topology, "gpu"), gpu_numbers(topology)
    by_sight = _with_nodes(gpus, visible or ())
    if by_sight and len(by_sight) < len(gpus):
        return by_sight, "device files that it can see", True
    nvidia = sorted((gpu for gpu in gpus if gpu.vendor == _NVIDIA), key=lambda gpu: numbers[gpu.ref])
    key, silent = "NVIDIA_VISIBLE_DEVICES", toolkit in ("", "none", "void")
    if toolkit is None or toolkit == "all" or not nvidia or (silent and by_sight):
        return gpus, "", True
    whole = ",".join(word.partition(":")[0] for word in toolkit.split(","))  # "0:1" is MIG device 1 of GPU 0
    found, sure = _named(nvidia, whole, _migs(topology), ordered=True)  # "void" names nothing
    if found is None:
        return nvidia, f"all that {key} may mean", False
    return sorted(found, key=lambda gpu: gpu.address), key, sure and not by_sight


def _variables(given: list[Device], said: Mapping[str, str]) -> list[tuple[str, int]]:
    """Those that choose among these GPUs, in the order in which they apply: HIP counts what ROCr left.

    HIP takes an empty variable as none, and then CUDA's (ROCm/clr rocclr/device/rocm/rocdevice.cpp Device::init).
    """
    vendors = {gpu.vendor for gpu in given}
    hip = next((key for key in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if said.get(key)), "")
    if hip == "CUDA_VISIBLE_DEVICES" and _NVIDIA in vendors:
        hip = ""
    wanted = (("CUDA_VISIBLE_DEVICES", _NVIDIA), ("ROCR_VISIBLE_DEVICES", _AMD), (hip, _AMD))
    return [(key, vendor) for key, vendor in wanted if key in said and vendor in vendors]


def _migs(topology: Topology) -> dict[str, Ref]:
    """MIG UUID -> its GPU."""
    return {one.uid: one.partition_of for one in topology.migs if one.uid}


def _named(
    gpus: list[Device], value: str, migs: Mapping[str, Ref], *, ordered: bool
) -> tuple[list[Device] | None, bool]:
    """What a list names, and is that certain; None: one of these, and nothing here can tell which.

    It ends at the first entry that is invalid (CUDA programming guide, CUDA_VISIBLE_DEVICES; rocdevice.cpp as above).
    `ordered`: the numbers are places in `gpus`.
    """
    places = [gpu for gpu in gpus for _ in range((gpu.gpu and gpu.gpu.partitions) or 1)]  # each counts in ROCm
    found: dict[Ref, Device] = {}
    sure = True
    for word in (part.strip() for part in value.split(",")):
        uuid = word.removeprefix("MIG-").partition("/")[0]  # MIG-<GPU UUID>/<GPU instance>/<compute instance>
        if word.isascii() and word.isdigit():
            named = places[int(word) :][:1] if len(word) < 4 else []
            sure = sure and (ordered or len(gpus) == 1 or not named)
        elif word in migs:
            named = [gpu for gpu in gpus if gpu.ref == migs[word]]
        elif uuid.startswith("GPU-"):
            named = [gpu for gpu in gpus if _uuid(gpu).startswith(uuid)]
            if not named and not all(gpu.uid for gpu in gpus):
                return None, False
        elif word.startswith("MIG-"):
            return None, False  # its own UUID, and NVML did not say of which GPU
        else:
            named = []
        if len(named) != 1:  # CUDA wants a beginning that only one GPU has
            break
        found[named[0].ref] = named[0]
    return [*found.values()], sure


def _uuid(gpu: Device) -> str:
    """As users write it: ROCr's is KFD's `unique_id`, `0x00…` here."""
    uid = gpu.uid or ""
    return f"GPU-{uid[2:]}" if uid.startswith("0x") else uid
