"""The structs of nvml.h that the binding spoils, with their bytes left alone.

pynvml decodes every bytes field as UTF-8 when it is read, so that a GUID is cut at its first NUL or raises, and
declares the one byte of a fabric's state as four, three of which nobody writes. Sizes and offsets here are compared
with what a C compiler makes of NVIDIA's nvml.h (tests/test_nvml.py).
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int, c_int64, c_ubyte, c_uint, c_ulong, c_ulonglong, c_ushort

CLIQUES = 64  # NVML_GPU_FABRIC_CLIQUE_MAX

Bytes16 = c_ubyte * 16
Bytes32 = c_ubyte * 32


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, as nvmlDeviceGetPciInfo_v3 fills it."""

    _fields_ = (
        ("busIdLegacy", Bytes16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", Bytes32),
    )


class Value(ctypes.Union):
    """nvmlValue_t: which member holds is said by `valueType` beside it."""

    _fields_ = (
        ("dVal", c_double),
        ("siVal", c_int),
        ("uiVal", c_uint),
        ("ulVal", c_ulong),
        ("ullVal", c_ulonglong),
        ("sllVal", c_int64),
        ("usVal", c_ushort),
    )


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_int64),
        ("latencyUsec", c_int64),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", Value),
    )


MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""nvmlValueType_t -> the member of Value that holds."""


class FabricV1(ctypes.Structure):
    """nvmlGpuFabricInfo_t, since driver 535."""

    _fields_ = (("clusterUuid", Bytes16), ("status", c_uint), ("cliqueId", c_uint), ("state", c_ubyte))


class FabricV2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t, since driver 550."""

    _fields_ = (
        ("version", c_uint),
        ("clusterUuid", Bytes16),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", c_ubyte),
        ("healthMask", c_uint),
    )


class FabricV3(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t, since driver 580."""

    _fields_ = (*FabricV2._fields_, ("healthSummary", c_ubyte))


class Clique(ctypes.Structure):
    """nvmlGpuFabricClique_v1_t."""

    _fields_ = (("type", c_ubyte), ("id", c_uint))


class FabricV4(ctypes.Structure):
    """nvmlGpuFabricInfo_v4_t, since driver 615; it has no version word, a call of its own asks for it."""

    _fields_ = (
        ("clusterUuid", Bytes16),
        ("status", c_uint),
        ("cliques", Clique * CLIQUES),
        ("numCliques", c_uint),
        ("state", c_ubyte),
        ("healthMask", c_uint),
        ("healthSummary", c_ubyte),
    )


class Platform(ctypes.Structure):
    """nvmlPlatformInfo_v2_t; v1 has other names for the same bytes (rackGuid, chassisPhysicalSlotNumber, …)."""

    _fields_ = (
        ("version", c_uint),
        ("ibGuid", Bytes16),
        ("chassisSerialNumber", Bytes16),
        ("slotNumber", c_ubyte),
        ("trayIndex", c_ubyte),
        ("hostId", c_ubyte),
        ("peerType", c_ubyte),
        ("moduleId", c_ubyte),
    )


def word(struct: type[ctypes.Structure], version: int) -> int:
    """NVML_STRUCT_VERSION: the size, and the version above it: (FabricV3, 3) -> 0x03000028."""
    return ctypes.sizeof(struct) | version << 24
