"""What NVML knows of GPUs, as a plain document.

docs/schema/nvml-document.json describes it. Nothing is decided here: a refused answer is {"error": NAME} in the place
of the value, and what has no place is not asked. It may hang or crash, so it runs in a process of its own (child.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from topo_agent.host import Json, Unavailable, nvml_structs
from topo_agent.host.nvml_calls import (
    INVALID,
    NOT_FOUND,
    Handle,
    Refused,
    answer_of,
    answered,
    call,
    climb_down,
    field_value,
    name_of,
    start,
    text_of,
)
from topo_agent.host.nvml_structs import FabricV1, FabricV2, FabricV3, FabricV4, PciInfo, Platform, word

_LINKS_AT_MOST = 64  # twice what nvml.h allows today (36); drivers end the loop themselves
_P2P = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3), ("pci", 4))  # nvmlGpuP2PCapsIndex_t

# nvml.h NVML_FI_DEV_…
_SPEED_OF_ALL, _LINKS, _SWITCH_LINKS, _SPEED, _STATE = 90, 91, 147, 164, 165
_C2C_LINKS, _C2C_STATUS, _C2C_MBPS = 170, 171, 172


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
        "fabric": answered(lambda: _fabric(handle)),
        "platform": answered(lambda: _platform(handle)),
        "nvlink_count": answered(lambda: field_value(handle, _LINKS)),
        "nvswitch_link_count": answered(lambda: field_value(handle, _SWITCH_LINKS)),
        "nvlink_mbps": answered(lambda: field_value(handle, _SPEED_OF_ALL)),
        "nvlinks": _nvlinks(handle, older=older),
        "c2c": answered(lambda: _c2c(handle)),
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


def _nvlinks(handle: Handle, *, older: bool) -> Json:
    """Link 0 upward until the driver says that there is no such link."""
    links: list[Json] = []
    for link in range(_LINKS_AT_MOST):
        answers = _nvlink(handle, link, older=older)
        if all(isinstance(answer, dict) for answer in answers.values()):
            invalid = {"error": name_of(INVALID)}
            if answers["p2p"] == invalid or answers["state"] == invalid:
                return links
            if link == 0:
                return answers["p2p"]
        links.append({"link": link, **answers})
    return links


def _nvlink(handle: Handle, link: int, *, older: bool) -> dict[str, Json]:
    """Since Hopper a link may sleep, which only the field tells (0 down, 1 up, 2 asleep, 3 no traffic)."""
    return {
        "state": answer_of("nvmlDeviceGetNvLinkState", handle, link)
        if older
        else answered(lambda: field_value(handle, _STATE, link)),
        "version": answer_of("nvmlDeviceGetNvLinkVersion", handle, link),
        "p2p": answer_of("nvmlDeviceGetNvLinkCapability", handle, link, 0),
        "speed_mbps": answered(lambda: field_value(handle, _SPEED, link)),
        "remote_type": answer_of("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        "remote_bdf": answered(lambda: _remote(handle, link)),
    }


def _remote(handle: Handle, link: int) -> Json:
    info = PciInfo.from_buffer_copy(call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
    return text_of(bytes(info.busId))


def _c2c(handle: Handle) -> Json:
    """The links between this GPU and its CPU: how many, how many of them active, and what one of them carries."""
    count = field_value(handle, _C2C_LINKS)
    if not isinstance(count, int) or not count:
        return {"count": count}
    states = [answered(partial(field_value, handle, _C2C_STATUS, link)) for link in range(min(count, _LINKS_AT_MOST))]
    refused = next((state for state in states if isinstance(state, dict)), None)
    return {
        "count": count,
        "active": states.count(1) if refused is None else refused,
        "max_mbps": answered(lambda: field_value(handle, _C2C_MBPS, 0)),
    }


def _fabric(handle: Handle) -> Json:
    """The newest struct that this driver knows: v4 has a call of its own, v3 and v2 share one, v1 has the oldest."""
    ladder: tuple[tuple[str, str, ctypes.Structure], ...] = (
        ("v4", "nvmlDeviceGetGpuFabricInfo_v4", FabricV4()),
        ("v3", "nvmlDeviceGetGpuFabricInfoV", FabricV3(version=word(FabricV3, 3))),
        ("v2", "nvmlDeviceGetGpuFabricInfoV", FabricV2(version=word(FabricV2, 2))),
        ("v1", "nvmlDeviceGetGpuFabricInfo", FabricV1()),
    )
    return climb_down(handle, ladder, _fabric_answers)


def _platform(handle: Handle) -> Json:
    ladder = tuple(
        (f"v{version}", "nvmlDeviceGetPlatformInfo", Platform(version=word(Platform, version))) for version in (2, 1)
    )
    return climb_down(handle, ladder, _platform_answers)


def _fabric_answers(fabric: Any) -> dict[str, Json]:
    """Every field; a struct before v4 tells one clique and no type."""
    digits = bytes(fabric.clusterUuid).hex()
    said: dict[str, Json] = {
        "state": fabric.state,
        "status": fabric.status,
        "uuid": "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
    }
    if isinstance(fabric, FabricV4):
        told = fabric.cliques[: min(fabric.numCliques, nvml_structs.CLIQUES)]
        said["cliques"] = [{"type": clique.type, "id": clique.id} for clique in told]
    else:
        said["cliques"] = [{"id": fabric.cliqueId}]
    if not isinstance(fabric, FabricV1):
        said["health_mask"] = fabric.healthMask
    if isinstance(fabric, FabricV3 | FabricV4):
        said["health_summary"] = fabric.healthSummary
    return said


def _platform_answers(platform: Any) -> dict[str, Json]:
    """A GUID of 8 bytes stands in a field of 16, the rest NUL; a serial is ASCII up to the first NUL."""
    guid = bytes(platform.ibGuid)
    return {
        "ib_guid": (guid if any(guid[8:]) else guid[:8]).hex(),
        "chassis_serial": text_of(bytes(platform.chassisSerialNumber)),
        "slot": platform.slotNumber,
        "tray": platform.trayIndex,
        "host_id": platform.hostId,
        "peer_type": platform.peerType,
        "module_id": platform.moduleId,
    }


def _pair(a: int, first: Handle, b: int, second: Handle) -> Json:
    return {
        "a": a,
        "b": b,
        "common_ancestor": answer_of("nvmlDeviceGetTopologyCommonAncestor", first, second),
        "p2p": {name: answer_of("nvmlDeviceGetP2PStatus", first, second, cap) for name, cap in _P2P},
    }
