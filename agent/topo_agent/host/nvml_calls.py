"""The door to NVML: calls of its library, and what becomes of a refusal. The only importer of pynvml."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pynvml

from topo_agent.host import Json, Unavailable, nvml_structs
from topo_agent.host.nvml_structs import FieldValue

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
INVALID, NOT_FOUND = 2, 6
_NOT_LOADED, _NO_LIBRARY, _NO_FUNCTION, _OTHER_VERSION = 9, 12, 13, 25

_NO_START = {
    4: ("not_permitted", "this user may not talk to the NVIDIA driver"),
    9: ("driver_error", "the NVIDIA driver is not loaded, or its device files are not here"),
    10: ("timeout", "the NVIDIA driver did not answer the library in time"),
    18: ("driver_error", "the loaded NVIDIA driver and its library are of different versions; a reboot joins them"),
}
"""Why NVML does not start -> (reason code, sentence)."""

_MODULE = ("/sys/module/nvidia", "/proc/driver/nvidia")  # device files stay when it is unloaded
_NO_GPUS = 1  # NVML_INIT_FLAG_NO_GPUS: a machine without GPUs is no failure


class Refused(Exception):
    """NVML answered with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


def name_of(code: int) -> str:
    """`15` -> "GPU_IS_LOST"; a code newer than this list keeps its number."""
    return _NAMES.get(code, f"ERROR_{code}")


def start() -> None:
    """Initialise the library that TOPO_AGENT_NVML names, or the machine's; Unavailable where it does not start."""
    named = os.environ.get("TOPO_AGENT_NVML", "")
    if "/" in named:  # the binding asks the linker for the soname, which is then there already
        _load(named)
    try:
        call("nvmlInitWithFlags", _NO_GPUS)
    except Refused as refused:
        if refused.code == _NO_LIBRARY:
            _load("libnvidia-ml.so.1")  # the binding says the same of a library that is here and does not load
        if refused.code == _NOT_LOADED and not any(map(os.path.exists, _MODULE)):
            raise Unavailable("not_supported", "no NVIDIA driver is loaded here") from None
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


def call(name: str, *arguments: Any) -> Any:
    """What a function of the binding returns; Refused also where the binding or the driver is too old to have it.

    Without the binding's decorator, which decodes bytes and raises where they are no UTF-8.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise Refused(_NO_FUNCTION)
    try:
        return getattr(function, "__wrapped__", function)(*arguments)
    except pynvml.NVMLError as error:
        raise Refused(error.value) from None


def answered(question: Question) -> Json:
    try:
        return question()
    except Refused as refused:
        return {"error": str(refused)}


def answer_of(name: str, *arguments: Any) -> Json:
    """The answer of a function that returns one number, text, or tuple of numbers."""

    def question() -> Json:
        value = call(name, *arguments)
        if isinstance(value, bytes):
            return text_of(value)
        return [*value] if isinstance(value, tuple) else value if isinstance(value, str) else int(value)

    return answered(question)


def text_of(value: bytes) -> str:
    """Up to the first NUL; bytes that are no UTF-8 stay visible: b"H100\\xff" -> "H100\\\\xff"."""
    return value.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def field_value(handle: Handle, field: int, scope: int = 0) -> Json:
    """One field value, as its own type says; it has a return code of its own."""
    (found,) = call("nvmlDeviceGetFieldValues", handle, [(field, scope)])
    entry = FieldValue.from_buffer_copy(found)
    if entry.nvmlReturn:
        raise Refused(entry.nvmlReturn)
    if entry.valueType >= len(nvml_structs.MEMBERS):
        return {"error": f"VALUE_TYPE_{entry.valueType}"}
    value: int | float = getattr(entry.value, nvml_structs.MEMBERS[entry.valueType])
    return value


def climb_down(
    handle: Handle,
    ladder: tuple[tuple[str, str, ctypes.Structure], ...],
    answers: Callable[[Any], dict[str, Json]],
) -> Json:
    """The first rung that this driver knows; any other refusal is the answer."""
    last = _NO_FUNCTION
    for api, name, struct in ladder:
        try:
            call(name, handle, ctypes.byref(struct))
        except Refused as refused:
            if refused.code not in (INVALID, _NO_FUNCTION, _OTHER_VERSION):
                raise
            last = refused.code
        else:
            return {"api": api, **answers(struct)}
    raise Refused(last)
