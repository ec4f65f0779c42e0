"""What NVML knows of GPUs, as a plain document.

docs/schema/nvml-document.json describes it. Nothing is decided here: a refused answer is {"error": NAME} in the place
of the value, and what has no place is not asked. It may hang or crash, so it runs in a process of its own (child.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from topo_agent.host import Json, Unavailable
from topo_agent.host.nvml_calls import (
    NOT_FOUND,
    Handle,
    Refused,
    answer_of,
    answered,
    call,
    field_value,
    start,
    text_of,
)
from topo_agent.host.nvml_fabric import fabric, platform
from topo_agent.host.nvml_links import c2c, nvlinks
from topo_agent.host.nvml_structs import PciInfo

_P2P = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3), ("pci", 4))  # nvmlGpuP2PCapsIndex_t

# nvml.h NVML_FI_DEV_…
_SPEED_OF_ALL, _LINKS, _SWITCH_LINKS = 90, 91, 147


def _nobody(stage: str) -> None:
    """Where nobody wants to hear how far it came."""


def ask(tell: Callable[[str], None] = _nobody) -> Json:
    """Every question to NVML for every GPU, sorted by BDF; Unavailable where it does not start.

    `tell` hears how far it came: "initialising", "GPU 3 of 8", "pairs". No time, temperature or counter is in the
    answer. NVML stays initialised: the process that asked ends.
    """
    tell("initialising")
    start()
    try:
        count = int(call("nvmlDeviceGetCount"))
    except Refused as refused:
        raise Unavailable("driver_error", f"NVML does not tell how many GPUs there are: {refused}") from None
    handles: dict[int, Handle] = {}
    gpus: list[dict[str, Json]] = []
    for index in range(count):
        tell(f"GPU {index + 1} of {count}")
        try:
            handles[index] = call("nvmlDeviceGetHandleByIndex", index)
        except Refused as refused:
            gpus.append({"index": index, "error": str(refused)})
        else:
            gpus.append(_gpu(index, handles[index]))
    tell("pairs of GPUs")
    pairs = [_pair(a, handles[a], b, handles[b]) for a in handles for b in handles if a < b]
    return {
        "driver_version": answer_of("nvmlSystemGetDriverVersion"),
        "nvml_version": answer_of("nvmlSystemGetNVMLVersion"),
        "cuda_driver_version": answer_of("nvmlSystemGetCudaDriverVersion_v2"),
        "gpus": [*sorted(gpus, key=_place)],
        "pairs": [*pairs],
    }


def _place(gpu: dict[str, Json]) -> tuple[bool, str, int]:
    """By BDF; what has none comes last, by index."""
    bdf, index = gpu.get("bdf"), gpu["index"]
    return not isinstance(bdf, str), str(bdf).lower(), index if isinstance(index, int) else 0


def _gpu(index: int, handle: Handle) -> dict[str, Json]:
    capability = answer_of("nvmlDeviceGetCudaComputeCapability", handle)
    older = isinstance(capability, list) and isinstance(capability[0], int) and capability[0] < 9
    return {
        "index": index,
        **_pci(handle),
        "uuid": answer_of("nvmlDeviceGetUUID", handle),
        "name": answer_of("nvmlDeviceGetName", handle),
        "serial": answer_of("nvmlDeviceGetSerial", handle),
        "minor": answer_of("nvmlDeviceGetMinorNumber", handle),
        "module_id": answered(lambda: _module(handle)),
        "compute_capability": capability,
        "memory_bytes": answered(lambda: int(call("nvmlDeviceGetMemoryInfo", handle).total)),
        "numa_node_id": answer_of("nvmlDeviceGetNumaNodeId", handle),
        "cpu_affinity": answered(lambda: _words(call("nvmlDeviceGetCpuAffinity", handle, _sets("cpu")))),
        "memory_affinity": answered(lambda: _words(call("nvmlDeviceGetMemoryAffinity", handle, _sets("node"), 0))),
        "persistence_mode": answer_of("nvmlDeviceGetPersistenceMode", handle),
        "virtualization_mode": answered(lambda: call("nvmlDeviceGetVirtualizationMode", handle) & 0xFFFFFFFF),
        "pcie": {
            "gen": answer_of("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "width": answer_of("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "max_gen": answer_of("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "max_width": answer_of("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "gpu_max_gen": answer_of("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        },
        "mig": answered(lambda: _mig(handle)),
        "fabric": answered(lambda: fabric(handle)),
        "platform": answered(lambda: platform(handle)),
        "nvlink_count": answered(lambda: field_value(handle, _LINKS)),
        "nvswitch_link_count": answered(lambda: field_value(handle, _SWITCH_LINKS)),
        "nvlink_mbps": answered(lambda: field_value(handle, _SPEED_OF_ALL)),
        "nvlinks": nvlinks(handle, older=older),
        "c2c": answered(lambda: c2c(handle)),
    }


def _pci(handle: Handle) -> dict[str, Json]:
    try:
        info = PciInfo.from_buffer_copy(call("nvmlDeviceGetPciInfo_v3", handle))
    except Refused as refused:
        return {key: {"error": str(refused)} for key in ("bdf", "pci_device_id", "pci_subsystem_id")}
    return {
        "bdf": text_of(bytes(info.busId)),
        "pci_device_id": info.pciDeviceId,
        "pci_subsystem_id": info.pciSubSystemId,
    }


def _module(handle: Handle) -> Json:
    """Into a number of our own: the binding's default is one object for all calls. Given one, it returns the code."""
    number = ctypes.c_uint()
    code = call("nvmlDeviceGetModuleId", handle, ctypes.byref(number))
    if code:
        raise Refused(code)
    return number.value


def _sets(folder: str) -> int:
    """How many 64-bit words hold every CPU or node that may ever be: "0-223" -> 4."""
    try:
        with open(f"/sys/devices/system/{folder}/possible", encoding="ascii") as file:
            last = int(file.read(4096).strip().replace("-", ",").split(",")[-1])
    except (OSError, ValueError):
        last = 1023
    return last // 64 + 1


def _words(mask: Any) -> Json:
    return [f"{word:x}" for word in mask]


def _mig(handle: Handle) -> Json:
    current, pending = call("nvmlDeviceGetMigMode", handle)
    mig: dict[str, Json] = {"current": current, "pending": pending}
    if current:
        mig["devices"] = answered(lambda: _instances(handle, int(call("nvmlDeviceGetMaxMigDeviceCount", handle))))
    return mig


def _instances(handle: Handle, most: int) -> Json:
    """Every MIG device; a place that is not taken answers NOT_FOUND."""
    found: list[Json] = []
    for index in range(most):
        try:
            instance = call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        except Refused as refused:
            if refused.code != NOT_FOUND:
                found.append({"index": index, "error": str(refused)})
            continue
        found.append({"index": index, **_instance(instance)})
    return found


def _instance(handle: Handle) -> dict[str, Json]:
    return {
        "uuid": answer_of("nvmlDeviceGetUUID", handle),
        "name": answer_of("nvmlDeviceGetName", handle),
        "memory_bytes": answered(lambda: int(call("nvmlDeviceGetMemoryInfo", handle).total)),
        "gpu_instance": answer_of("nvmlDeviceGetGpuInstanceId", handle),
        "compute_instance": answer_of("nvmlDeviceGetComputeInstanceId", handle),
    }


def _pair(a: int, first: Handle, b: int, second: Handle) -> Json:
    return {
        "a": a,
        "b": b,
        "common_ancestor": answer_of("nvmlDeviceGetTopologyCommonAncestor", first, second),
        "p2p": {name: answer_of("nvmlDeviceGetP2PStatus", first, second, cap) for name, cap in _P2P},
    }
