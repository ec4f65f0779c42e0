"""What NVML knows of GPUs, as a plain document. The only importer of pynvml.

docs/schema/nvml-document.json describes it. Nothing is decided here: a refused answer is {"error": NAME} in the place
of the value, and what has no place is not asked. It may hang or crash, so it runs in a process of its own (child.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

from topo_agent.host import Json, Unavailable, nvml_structs
from topo_agent.host.nvml_structs import FabricV1, FabricV2, FabricV3, FabricV4, FieldValue, PciInfo, Platform, word

Handle = Any  # a pointer of the binding's, which has no types
Question = Callable[[], Json]

# nvml.h nvmlReturn_t: our own, since the binding's names of the newer ones changed between its versions.
_NAMES = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED", 999: "UNKNOWN",
}  # fmt: skip
_INVALID, _UNSUPPORTED, _NOT_FOUND, _NO_LIBRARY, _NO_FUNCTION, _OTHER_VERSION = 2, 3, 6, 12, 13, 25

_NO_START = {
    4: ("not_permitted", "this user may not talk to the NVIDIA driver"),
    9: ("driver_error", "the NVIDIA driver is not loaded, or its device files are not here"),
    10: ("timeout", "the NVIDIA driver did not answer the library in time"),
    18: ("driver_error", "the loaded NVIDIA driver and its library are of different versions; a reboot joins them"),
}
"""Why NVML does not start -> (reason code, sentence)."""

_NO_GPUS = 1  # NVML_INIT_FLAG_NO_GPUS: a machine without GPUs is no failure
_LINKS_AT_MOST = 64  # twice what nvml.h allows today (36); drivers end the loop themselves
_P2P = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3), ("pci", 4))  # nvmlGpuP2PCapsIndex_t

# nvml.h NVML_FI_DEV_…
_SPEED_OF_ALL, _LINKS, _SWITCH_LINKS, _SPEED, _STATE = 90, 91, 147, 164, 165
_C2C_LINKS, _C2C_STATUS, _C2C_MBPS = 170, 171, 172


class _Refused(Exception):
    """NVML answered with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


def name_of(code: int) -> str:
    """`15` -> "GPU_IS_LOST"; a code newer than this list keeps its number."""
    return _NAMES.get(code, f"ERROR_{code}")


def _nobody(stage: str) -> None:
    """Where nobody wants to hear how far it came."""


def ask(tell: Callable[[str], None] = _nobody) -> Json:
    """Every question to NVML for every GPU, sorted by BDF; Unavailable where it does not start.

    `tell` hears how far it came: "initialising", "GPU 3 of 8", "pairs". No time, temperature or counter is in the
    answer. NVML stays initialised: the process that asked ends.
    """
    tell("initialising")
    _start()
    try:
        count = int(_call("nvmlDeviceGetCount"))
    except _Refused as refused:
        raise Unavailable("driver_error", f"NVML does not tell how many GPUs there are: {refused}") from None
    handles: dict[int, Handle] = {}
    gpus: list[dict[str, Json]] = []
    for index in range(count):
        tell(f"GPU {index + 1} of {count}")
        try:
            handles[index] = _call("nvmlDeviceGetHandleByIndex", index)
        except _Refused as refused:
            gpus.append({"index": index, "error": str(refused)})
        else:
            gpus.append(_gpu(index, handles[index]))
    tell("pairs of GPUs")
    pairs = [_pair(a, handles[a], b, handles[b]) for a in handles for b in handles if a < b]
    return {
        "driver_version": _said("nvmlSystemGetDriverVersion"),
        "nvml_version": _said("nvmlSystemGetNVMLVersion"),
        "cuda_driver_version": _said("nvmlSystemGetCudaDriverVersion_v2"),
        "gpus": [*sorted(gpus, key=_place)],
        "pairs": [*pairs],
    }


def _place(gpu: dict[str, Json]) -> tuple[bool, str, int]:
    """By BDF; what has none comes last, by index."""
    bdf, index = gpu.get("bdf"), gpu["index"]
    return not isinstance(bdf, str), str(bdf).lower(), index if isinstance(index, int) else 0


def _start() -> None:
    named = os.environ.get("TOPO_AGENT_NVML", "")
    if "/" in named:  # the binding asks the linker for the soname, which is then there already
        _load(named)
    try:
        _call("nvmlInitWithFlags", _NO_GPUS)
    except _Refused as refused:
        if refused.code == _NO_LIBRARY:
            _load("libnvidia-ml.so.1")  # the binding says the same of a library that is here and does not load
        reason, why = _NO_START.get(refused.code, ("driver_error", f"NVML does not start: {refused}"))
        raise Unavailable(reason, why) from None


def _load(path: str) -> None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        absent = "No such file" in str(error)
        raise Unavailable(*(
            ("not_supported", f"there is no NVIDIA library here ({path})")
            if absent
            else ("driver_error", f"the NVIDIA library does not load: {error}")
        )) from None  # fmt: skip


def _call(name: str, *arguments: Any) -> Any:
    """What a function of the binding returns; _Refused also where the binding or the driver is too old to have it.

    Without the binding's decorator, which decodes bytes and raises where they are no UTF-8.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise _Refused(_NO_FUNCTION)
    try:
        return getattr(function, "__wrapped__", function)(*arguments)
    except pynvml.NVMLError as error:
        raise _Refused(error.value) from None


def _answer(question: Question) -> Json:
    try:
        return question()
    except _Refused as refused:
        return {"error": str(refused)}


def _said(name: str, *arguments: Any) -> Json:
    """The answer of a function that returns one number, text, or tuple of numbers."""

    def question() -> Json:
        value = _call(name, *arguments)
        if isinstance(value, bytes):
            return _text(value)
        return [*value] if isinstance(value, tuple) else value if isinstance(value, str) else int(value)

    return _answer(question)


def _text(value: bytes) -> str:
    """Up to the first NUL; bytes that are no UTF-8 stay visible: b"H100\\xff" -> "H100\\\\xff"."""
    return value.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _gpu(index: int, handle: Handle) -> dict[str, Json]:
    capability = _said("nvmlDeviceGetCudaComputeCapability", handle)
    older = isinstance(capability, list) and isinstance(capability[0], int) and capability[0] < 9
    return {
        "index": index,
        **_pci(handle),
        "uuid": _said("nvmlDeviceGetUUID", handle),
        "name": _said("nvmlDeviceGetName", handle),
        "serial": _said("nvmlDeviceGetSerial", handle),
        "minor": _said("nvmlDeviceGetMinorNumber", handle),
        "module_id": _answer(lambda: _module(handle)),
        "compute_capability": capability,
        "memory_bytes": _answer(lambda: int(_call("nvmlDeviceGetMemoryInfo", handle).total)),
        "numa_node_id": _said("nvmlDeviceGetNumaNodeId", handle),
        "cpu_affinity": _answer(lambda: _words(_call("nvmlDeviceGetCpuAffinity", handle, _sets("cpu")))),
        "memory_affinity": _answer(lambda: _words(_call("nvmlDeviceGetMemoryAffinity", handle, _sets("node"), 0))),
        "persistence_mode": _said("nvmlDeviceGetPersistenceMode", handle),
        "virtualization_mode": _answer(lambda: _call("nvmlDeviceGetVirtualizationMode", handle) & 0xFFFFFFFF),
        "pcie": {
            "gen": _said("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "width": _said("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "max_gen": _said("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "max_width": _said("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "gpu_max_gen": _said("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        },
        "mig": _answer(lambda: _mig(handle)),
        "fabric": _answer(lambda: _fabric(handle)),
        "platform": _answer(lambda: _platform(handle)),
        "nvlink_count": _answer(lambda: _field(handle, _LINKS)),
        "nvswitch_link_count": _answer(lambda: _field(handle, _SWITCH_LINKS)),
        "nvlink_mbps": _answer(lambda: _field(handle, _SPEED_OF_ALL)),
        "nvlinks": _nvlinks(handle, older=older),
        "c2c": _answer(lambda: _c2c(handle)),
    }


def _pci(handle: Handle) -> dict[str, Json]:
    try:
        info = PciInfo.from_buffer_copy(_call("nvmlDeviceGetPciInfo_v3", handle))
    except _Refused as refused:
        return {key: {"error": str(refused)} for key in ("bdf", "pci_device_id", "pci_subsystem_id")}
    return {
        "bdf": _text(bytes(info.busId)),
        "pci_device_id": info.pciDeviceId,
        "pci_subsystem_id": info.pciSubSystemId,
    }


def _module(handle: Handle) -> Json:
    """Into a number of our own: the binding's default is one object for all calls. Given one, it returns the code."""
    number = ctypes.c_uint()
    code = _call("nvmlDeviceGetModuleId", handle, ctypes.byref(number))
    if code:
        raise _Refused(code)
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
    current, pending = _call("nvmlDeviceGetMigMode", handle)
    mig: dict[str, Json] = {"current": current, "pending": pending}
    if current:
        mig["devices"] = _answer(lambda: _instances(handle, int(_call("nvmlDeviceGetMaxMigDeviceCount", handle))))
    return mig


def _instances(handle: Handle, most: int) -> Json:
    """Every MIG device; a place that is not taken answers NOT_FOUND."""
    found: list[Json] = []
    for index in range(most):
        try:
            instance = _call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        except _Refused as refused:
            if refused.code != _NOT_FOUND:
                found.append({"index": index, "error": str(refused)})
            continue
        found.append({"index": index, **_instance(instance)})
    return found


def _instance(handle: Handle) -> dict[str, Json]:
    return {
        "uuid": _said("nvmlDeviceGetUUID", handle),
        "name": _said("nvmlDeviceGetName", handle),
        "memory_bytes": _answer(lambda: int(_call("nvmlDeviceGetMemoryInfo", handle).total)),
        "gpu_instance": _said("nvmlDeviceGetGpuInstanceId", handle),
        "compute_instance": _said("nvmlDeviceGetComputeInstanceId", handle),
    }


def _field(handle: Handle, field: int, scope: int = 0) -> Json:
    """One field value, as its own type says; it has a return code of its own."""
    (found,) = _call("nvmlDeviceGetFieldValues", handle, [(field, scope)])
    entry = FieldValue.from_buffer_copy(found)
    if entry.nvmlReturn:
        raise _Refused(entry.nvmlReturn)
    if entry.valueType >= len(nvml_structs.MEMBERS):
        return {"error": f"VALUE_TYPE_{entry.valueType}"}
    value: int | float = getattr(entry.value, nvml_structs.MEMBERS[entry.valueType])
    return value


def _nvlinks(handle: Handle, *, older: bool) -> Json:
    """Link 0 upward until the driver says that there is no such link."""
    links: list[Json] = []
    for link in range(_LINKS_AT_MOST):
        answers = _nvlink(handle, link, older=older)
        if all(isinstance(answer, dict) for answer in answers.values()):
            invalid = {"error": name_of(_INVALID)}
            if answers["p2p"] == invalid or answers["state"] == invalid:
                return links
            if link == 0:
                return answers["p2p"]
        links.append({"link": link, **answers})
    return links


def _nvlink(handle: Handle, link: int, *, older: bool) -> dict[str, Json]:
    """Since Hopper a link may sleep, which only the field tells (0 down, 1 up, 2 asleep, 3 no traffic)."""
    return {
        "state": _said("nvmlDeviceGetNvLinkState", handle, link)
        if older
        else _answer(lambda: _field(handle, _STATE, link)),
        "version": _said("nvmlDeviceGetNvLinkVersion", handle, link),
        "p2p": _said("nvmlDeviceGetNvLinkCapability", handle, link, 0),
        "speed_mbps": _answer(lambda: _field(handle, _SPEED, link)),
        "remote_type": _said("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        "remote_bdf": _answer(lambda: _remote(handle, link)),
    }


def _remote(handle: Handle, link: int) -> Json:
    info = PciInfo.from_buffer_copy(_call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
    return _text(bytes(info.busId))


def _c2c(handle: Handle) -> Json:
    """The links between this GPU and its CPU: how many, how many of them active, and what one of them carries."""
    count = _field(handle, _C2C_LINKS)
    if not isinstance(count, int) or not count:
        return {"count": count}
    states = [_answer(partial(_field, handle, _C2C_STATUS, link)) for link in range(min(count, _LINKS_AT_MOST))]
    refused = next((state for state in states if isinstance(state, dict)), None)
    return {
        "count": count,
        "active": states.count(1) if refused is None else refused,
        "max_mbps": _answer(lambda: _field(handle, _C2C_MBPS, 0)),
    }


def _fabric(handle: Handle) -> Json:
    """The newest struct that this driver knows: v4 has a call of its own, v3 and v2 share one, v1 has the oldest."""
    ladder: tuple[tuple[str, str, ctypes.Structure], ...] = (
        ("v4", "nvmlDeviceGetGpuFabricInfo_v4", FabricV4()),
        ("v3", "nvmlDeviceGetGpuFabricInfoV", FabricV3(version=word(FabricV3, 3))),
        ("v2", "nvmlDeviceGetGpuFabricInfoV", FabricV2(version=word(FabricV2, 2))),
        ("v1", "nvmlDeviceGetGpuFabricInfo", FabricV1()),
    )
    return _climb_down(handle, ladder, _fabric_answers)


def _platform(handle: Handle) -> Json:
    ladder = tuple(
        (f"v{version}", "nvmlDeviceGetPlatformInfo", Platform(version=word(Platform, version))) for version in (2, 1)
    )
    return _climb_down(handle, ladder, _platform_answers)


def _climb_down(
    handle: Handle,
    ladder: tuple[tuple[str, str, ctypes.Structure], ...],
    answers: Callable[[Any], dict[str, Json]],
) -> Json:
    """The first rung that this driver knows; any other refusal is the answer."""
    last = _NO_FUNCTION
    for api, name, struct in ladder:
        try:
            _call(name, handle, ctypes.byref(struct))
        except _Refused as refused:
            if refused.code not in (_INVALID, _NO_FUNCTION, _OTHER_VERSION):
                raise
            last = refused.code
        else:
            return {"api": api, **answers(struct)}
    raise _Refused(last)


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
        "chassis_serial": _text(bytes(platform.chassisSerialNumber)),
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
        "common_ancestor": _said("nvmlDeviceGetTopologyCommonAncestor", first, second),
        "p2p": {name: _said("nvmlDeviceGetP2PStatus", first, second, cap) for name, cap in _P2P},
    }
