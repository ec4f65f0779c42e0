"""What NVML knows of where a GPU stands: its NVLink fabric, and its place in a chassis."""

from __future__ import annotations

import ctypes
from typing import Any

from topo_agent.host import Json, nvml_structs
from topo_agent.host.nvml_calls import Handle, climb_down, text_of
from topo_agent.host.nvml_structs import FabricV1, FabricV2, FabricV3, FabricV4, Platform, word


def fabric(handle: Handle) -> Json:
    """The newest struct that this driver knows: v4 has a call of its own, v3 and v2 share one, v1 has the oldest."""
    ladder: tuple[tuple[str, str, ctypes.Structure], ...] = (
        ("v4", "nvmlDeviceGetGpuFabricInfo_v4", FabricV4()),
        ("v3", "nvmlDeviceGetGpuFabricInfoV", FabricV3(version=word(FabricV3, 3))),
        ("v2", "nvmlDeviceGetGpuFabricInfoV", FabricV2(version=word(FabricV2, 2))),
        ("v1", "nvmlDeviceGetGpuFabricInfo", FabricV1()),
    )
    return climb_down(handle, ladder, _fabric_answers)


def platform(handle: Handle) -> Json:
    """Chassis, slot and tray."""
    ladder = tuple(
        (f"v{version}", "nvmlDeviceGetPlatformInfo", Platform(version=word(Platform, version))) for version in (2, 1)
    )
    return climb_down(handle, ladder, _platform_answers)


def _fabric_answers(told: Any) -> dict[str, Json]:
    """Every field; a struct before v4 tells one clique and no type."""
    digits = bytes(told.clusterUuid).hex()
    said: dict[str, Json] = {
        "state": told.state,
        "status": told.status,
        "uuid": "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
    }
    if isinstance(told, FabricV4):
        listed = told.cliques[: min(told.numCliques, nvml_structs.CLIQUES)]
        said["cliques"] = [{"type": clique.type, "id": clique.id} for clique in listed]
    else:
        said["cliques"] = [{"id": told.cliqueId}]
    if not isinstance(told, FabricV1):
        said["health_mask"] = told.healthMask
    if isinstance(told, FabricV3 | FabricV4):
        said["health_summary"] = told.healthSummary
    return said


def _platform_answers(told: Any) -> dict[str, Json]:
    """A GUID of 8 bytes stands in a field of 16, the rest NUL; a serial is ASCII up to the first NUL."""
    guid = bytes(told.ibGuid)
    return {
        "ib_guid": (guid if any(guid[8:]) else guid[:8]).hex(),
        "chassis_serial": text_of(bytes(told.chassisSerialNumber)),
        "slot": told.slotNumber,
        "tray": told.trayIndex,
        "host_id": told.hostId,
        "peer_type": told.peerType,
        "module_id": told.moduleId,
    }
