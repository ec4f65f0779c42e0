"""The `fabric` and `platform` answers of a GPU in the NVML document -> its NVLink fabric, and its place in the rack.

nvml.h nvmlGpuFabricInfo_v3_t, nvmlGpuFabricInfo_v4_t, nvmlPlatformInfo_v2_t. A cluster and a clique are wiring only
where the fabric is up; how far it has come, and how well it is, moves by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from topo_agent.diagnostics import Unknown
from topo_agent.facts import Clique, FabricState, FabricStep, Platform
from topo_agent.host import Json, as_object, as_objects
from topo_agent.ids import PciAddress
from topo_agent.sources import parse
from topo_agent.sources.answers import Answers, number, refusal

_NOT_SUPPORTED, _COMPLETED = 0, 3  # nvml.h NVML_GPU_FABRIC_STATE_…
_STATES: tuple[FabricStep, ...] = get_args(FabricStep)
_TYPES: tuple[
    Literal["unicast_pointer", "multicast_pointer", "unicast_logical_endpoint", "multicast_logical_endpoint"], ...
] = ("unicast_pointer", "multicast_pointer", "unicast_logical_endpoint", "multicast_logical_endpoint")
Health = Literal["healthy", "unhealthy", "limited_capacity"]
# NVML_GPU_FABRIC_HEALTH_SUMMARY_…; 0 is not told
_SUMMARIES: dict[int, Health] = {1: "healthy", 2: "unhealthy", 3: "limited_capacity"}

# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…: two bits each, 0 is not told, 1 true, 2 false; all of these are faults.
_FAULTS = (("degraded_bandwidth", 0), ("route_recovery", 2), ("route_unhealthy", 4), ("access_timeout_recovery", 6))
_FALSE = 0xAA  # none of them
_CONFIGURATION = 8  # four bits: 0 is not told, 1 right
_CONFIGURATIONS = {
    2: "system_guid", 3: "chassis_serial", 4: "no_partition", 5: "insufficient_nvlinks", 6: "gpu_firmware",
    7: "invalid_location", 8: "gpu_state",
}  # fmt: skip
_SERIAL = re.compile(r"[!-\[\]-~]+(?: +[!-\[\]-~]+)*", re.ASCII)  # a backslash stands before a byte that is no text
_NOBODY = 255  # what a slot or tray is where nobody has set it
_NUMBERS = ("slot", "tray", "host_id", "module_id")


class Rack(NamedTuple):
    state: FabricState | None
    fabric: str | None  # "<cluster uuid>.<clique>"
    cliques: tuple[Clique, ...]
    platform: Platform | None
    unknown: dict[str, Unknown]


def read(function: PciAddress, one: Answers) -> Rack:
    """What one GPU says of its fabric and of its place."""
    fabric, typed = _cliques(one.get("fabric"))
    return Rack(_state(function, one.get("fabric")), fabric, typed, _platform(one.get("platform")), _unknown(one))


def _state(function: PciAddress, said: Json) -> FabricState | None:
    """How the fabric of one GPU is now; None where it has none to tell of."""
    step = number(said.get("state")) if isinstance(said, dict) else None
    if not isinstance(said, dict) or step is None:
        return None
    mask = number(said.get("health_mask"))
    faults = tuple(_faults(mask or 0))
    summary = _SUMMARIES.get(number(said.get("health_summary")) or 0)
    return FabricState(
        function=function,
        state=_STATES[step] if step < len(_STATES) else None,
        status=number(said.get("status")) if step == _COMPLETED else None,  # before that it says nothing
        health_mask=mask,
        health=summary or _health(mask or 0, faults),
        faults=faults,
        ruled_out=tuple(_ruled_out(mask or 0)),
    )


def _faults(mask: int) -> Iterator[str]:
    """`0x11a9` -> `"degraded_bandwidth"`."""
    yield from (name for name, shift in _FAULTS if mask >> shift & 3 == 1)
    configuration = mask >> _CONFIGURATION & 0xF
    if configuration > 1:
        yield _CONFIGURATIONS.get(configuration, f"configuration_{configuration}")


def _ruled_out(mask: int) -> Iterator[str]:
    """`0x1a9` -> `"route_recovery"`, `"route_unhealthy"`, `"access_timeout_recovery"`, `"configuration"`."""
    yield from (name for name, shift in _FAULTS if mask >> shift & 3 == 2)
    if mask >> _CONFIGURATION & 0xF == 1:
        yield "configuration"


def _health(mask: int, faults: tuple[str, ...]) -> Health | None:
    """What the mask says where there is no summary; a mask that tells nothing is no health."""
    return "unhealthy" if faults else "healthy" if mask & 0xFF == _FALSE else None


def _cliques(said: Json) -> tuple[str | None, tuple[Clique, ...]]:
    """(`"<cluster uuid>.<clique>"`, cliques with their types) of a fabric that is up (state 3, status 0).

    An HGX board is up and has no cluster: nothing but zeros. The clique is that of unicast pointers, which is the only
    one that structs before v4 tell.
    """
    if not isinstance(said, dict) or said.get("state") != _COMPLETED or said.get("status") != 0:
        return None, ()
    uuid, listed = said.get("uuid"), said.get("cliques")
    if not isinstance(uuid, str) or parse.filler(uuid) or not isinstance(listed, list):
        return None, ()
    told = [
        (number(one.get("type", 0)), number(one.get("id")), "type" in one) for one in listed if isinstance(one, dict)
    ]
    main = next((clique for kind, clique, _ in told if kind == 0 and clique is not None), None)
    typed = tuple(
        Clique(_TYPES[kind], clique)
        for kind, clique, has_type in told
        if has_type and kind is not None and kind < len(_TYPES) and clique is not None
    )
    return None if main is None else f"{uuid}.{main}", typed


def _unknown(one: Answers) -> dict[str, Unknown]:
    """Why a GPU has no fabric, or no place, that it may have. Not supported is an answer: it has none."""
    found: dict[str, Unknown] = {}
    for key in ("fabric", "platform"):
        said = as_object(one.get(key))
        reason = refusal(said) if "error" in said else _failed(one) if key == "fabric" else None
        if reason is not None and reason is not Unknown.NOT_SUPPORTED:
            found[key] = reason
    return found


def _failed(one: Answers) -> Unknown | None:
    """A fabric that did not come up, or that says of itself what cannot be.

    NOT_SUPPORTED, with status SUCCESS, is the answer of a GPU that has no fabric, and of a GB200 whose fabric is broken
    (leptonai/gpud PR 1108). Links to a switch that are up on a part that registers (Hopper and later) exclude it.
    """
    said = as_object(one.get("fabric"))
    if said.get("state") == _COMPLETED:
        whole = said.get("status") == 0 and (_no_cluster(said.get("uuid")) or _cliques(said)[0] is not None)
        return None if whole else Unknown.DRIVER_ERROR
    return Unknown.CONTRADICTS if said.get("state") == _NOT_SUPPORTED and _registers(one) else None


def _no_cluster(uuid: Json) -> bool:
    """Nothing but zeros: the answer of an HGX board. Another filler is no answer."""
    return isinstance(uuid, str) and not set(uuid) - set("0-") and "0" in uuid


def _registers(one: Answers) -> bool:
    capability, links = one.get("compute_capability"), one.get("nvlinks")
    major = number(capability[0]) if isinstance(capability, list) and capability else None
    up = any(link.get("remote_type") == 2 and number(link.get("state")) in (1, 2, 3) for link in as_objects(links))
    return major is not None and major >= 9 and up


def _platform(said: Json) -> Platform | None:
    """Where a GPU is; None where its driver has no such question, and where all of it is unset.

    Slot 0 of a chassis is a place; zeros without a chassis are a struct that nobody has filled in.
    """
    if not isinstance(said, dict) or "error" in said:
        return None
    serial = said.get("chassis_serial")
    known = isinstance(serial, str) and not parse.filler(serial) and _SERIAL.fullmatch(serial) is not None
    values = {key: _place(said.get(key), unset=0 if not known else _NOBODY) for key in _NUMBERS}
    if not known and not any(values.values()):
        return None
    missing = [key for key, value in (("chassis_serial", known or None), *values.items()) if value is None]
    return Platform(
        chassis_serial=serial if known and isinstance(serial, str) else None,
        **values,
        unknown=tuple(
            (key, Unknown.FIRMWARE_SILENT if key in said else Unknown.NOT_RECORDED) for key in sorted(missing)
        ),
    )


def _place(said: Json, *, unset: int) -> int | None:
    value = number(said)
    return None if value in (None, unset) or value >= _NOBODY else value
