"""A libnvidia-ml.so.1 of our own: built from stub/nvml.c with NVIDIA's nvml.h, answering as stub/profiles say.

A profile describes a machine as docs/schema/nvml-document.json does, shorter: `each` is what all GPUs have in common,
`extends` names a profile that it changes, `nvlinks` counts the links to each remote end, and what it leaves out is
NOT_SUPPORTED. `faults` are lines for the stub as they are.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STUB = Path(__file__).parent / "stub"
PROFILES = sorted(path.stem for path in (STUB / "profiles").glob("*.json"))

_ASKED = (
    "bdf", "pci_device_id", "pci_subsystem_id", "uuid", "name", "serial", "minor", "module_id", "compute_capability",
    "memory_bytes", "numa_node_id", "cpu_affinity", "memory_affinity", "persistence_mode", "virtualization_mode",
    "pcie", "mig", "fabric", "platform", "nvlink_count", "nvswitch_link_count", "nvlink_mbps", "nvlinks", "c2c",
)  # fmt: skip
_PCIE = {
    "gen": "CurrPcieLinkGeneration", "width": "CurrPcieLinkWidth", "max_gen": "MaxPcieLinkGeneration",
    "max_width": "MaxPcieLinkWidth", "gpu_max_gen": "GpuMaxPcieLinkGeneration",
}  # fmt: skip
_PLAIN = {
    "uuid": "UUID", "name": "Name", "serial": "Serial", "minor": "MinorNumber", "module_id": "ModuleId",
    "compute_capability": "CudaComputeCapability", "memory_bytes": "MemoryInfo", "numa_node_id": "NumaNodeId",
    "cpu_affinity": "CpuAffinity", "memory_affinity": "MemoryAffinity", "persistence_mode": "PersistenceMode",
    "virtualization_mode": "VirtualizationMode", "gpu_instance": "GpuInstanceId",
    "compute_instance": "ComputeInstanceId",
}  # fmt: skip
_LINK = {
    "version": "NvLinkVersion", "p2p": "NvLinkCapability", "remote_type": "NvLinkRemoteDeviceType",
    "remote_bdf": "NvLinkRemotePciInfo_v2",
}  # fmt: skip
_FIELDS = {"nvlink_count": 91, "nvswitch_link_count": 147, "nvlink_mbps": 90}
_P2P = ("read", "write", "nvlink", "atomics", "pci")
NOT_SUPPORTED = {"error": "NOT_SUPPORTED"}


@functools.cache
def header() -> Path | None:
    """The folder of nvml.h, as the package nvidia-nvml-dev brings it."""
    try:
        files = importlib.metadata.files("nvidia-nvml-dev") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).parent for file in files if file.name == "nvml.h"), None)


def needs_compiler() -> Path:
    """The folder of nvml.h; where it or gcc is missing the test is skipped, and in CI it fails."""
    folder = header()
    if folder is not None and shutil.which("gcc"):
        return folder
    why = "gcc and the package nvidia-nvml-dev are needed to build a libnvidia-ml.so.1"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def build(folder: Path, *, old_driver: bool = False) -> Path:
    """libnvidia-ml.so.1 in `folder`."""
    library = folder / "libnvidia-ml.so.1"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    options += ["-Wl,-soname,libnvidia-ml.so.1", *(["-DOLD_DRIVER"] if old_driver else [])]
    compiled(STUB / "nvml.c", library, *options)
    return library


def compiled(source: Path, target: Path, *options: str) -> None:
    command = ["gcc", *options, f"-I{needs_compiler()}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@functools.cache
def codes() -> dict[str, int]:
    """NAME -> number of every return code, from NVIDIA's header."""
    text = (needs_compiler() / "nvml.h").read_text(encoding="utf-8")
    enum = re.search(r"typedef enum nvmlReturn_enum\s*\{(.*?)\} nvmlReturn_t;", text, re.DOTALL)
    assert enum is not None
    found = re.findall(r"NVML_(?:ERROR_)?(\w+)\s*=\s*(\d+)", enum[1])
    return {name: int(number) for name, number in found}


def profile(name: str) -> dict[str, Any]:
    """A profile with what it extends, still short."""
    own: dict[str, Any] = json.loads((STUB / "profiles" / f"{name}.json").read_text(encoding="utf-8"))
    if "extends" not in own:
        return own
    found = profile(own.pop("extends"))
    gpus = own.pop("gpus", [{}] * len(found["gpus"]))
    found["gpus"] = [_merged(one, change) for one, change in zip(found["gpus"], gpus, strict=False)]
    changed: dict[str, Any] = _merged(found, own)
    return changed


def _merged(old: Any, new: Any) -> Any:
    """Dictionaries key by key; None takes a key away; an error or a list replaces what was there."""
    if not isinstance(old, dict) or not isinstance(new, dict) or "error" in new:
        return new
    merged = {key: _merged(old[key], new[key]) if key in old and key in new else new.get(key, old.get(key))
              for key in {**old, **new}}  # fmt: skip
    return {key: value for key, value in merged.items() if value is not None}


def document(short: dict[str, Any]) -> dict[str, Any]:
    """What host/nvml.py is to say of this machine."""
    gpus = [_gpu(place, _merged(short["each"], one)) for place, one in enumerate(short["gpus"])]
    alive = sorted(gpu["index"] for gpu in gpus if "error" not in gpu)
    place = {gpu["index"]: at for at, gpu in enumerate(gpus)}
    pairs = short["pairs"]
    near = pairs["near"]
    return {
        **{key: short[key] for key in ("driver_version", "nvml_version", "cuda_driver_version")},
        "gpus": sorted(gpus, key=lambda gpu: (gpu.get("bdf", "z").lower(), gpu["index"])),
        "pairs": [
            {
                "a": a, "b": b,
                "common_ancestor": pairs["same" if place[a] // near == place[b] // near else "other"],
                "p2p": pairs["p2p"],
            }
            for a in alive for b in alive if a < b
        ],
    }  # fmt: skip


def _gpu(place: int, one: dict[str, Any]) -> dict[str, Any]:
    index = one.get("index", place)
    if isinstance(one.get("error"), str):
        return {"index": index, "error": one["error"]}
    made = {
        "uuid": f"GPU-{place + 1:08x}-0000-4000-8000-00000000000a",
        "serial": f"100000000000{place}",
        "minor": place,
    }
    gpu = {"index": index, **{key: one.get(key, made.get(key, NOT_SUPPORTED)) for key in _ASKED}}
    gpu["pcie"] = {key: gpu["pcie"].get(key, NOT_SUPPORTED) for key in _PCIE}
    links = gpu["nvlinks"]
    if "to" in links:
        ends = [end for end, count in links["to"] for _ in range(count)]
        gpu["nvlinks"] = [{"link": link, "remote_bdf": end, **links["each"]} for link, end in enumerate(ends)]
    return gpu


def table(said: dict[str, Any], faults: dict[str, str]) -> str:
    """The lines from which the stub answers so."""
    lines = {
        "nvmlInitWithFlags": "0",
        "nvmlSystemGetDriverVersion": _value(said["driver_version"]),
        "nvmlSystemGetNVMLVersion": _value(said["nvml_version"]),
        "nvmlSystemGetCudaDriverVersion_v2": _value(said["cuda_driver_version"]),
        "nvmlDeviceGetCount_v2": str(len(said["gpus"])),
    }
    for gpu in said["gpus"]:
        lines |= _gpu_lines(gpu)
    for pair in said["pairs"]:
        both = f"{pair['a']},{pair['b']}"
        lines[f"nvmlDeviceGetTopologyCommonAncestor,{both}"] = _value(pair["common_ancestor"])
        for cap, name in enumerate(_P2P):
            lines[f"nvmlDeviceGetP2PStatus,{both},{cap}"] = _value(pair["p2p"][name])
    return "".join(f"{key} {value}\n" for key, value in (lines | faults).items())


def _value(said: Any) -> str:
    if isinstance(said, dict):
        return f"!{codes()[said['error']]}"
    if isinstance(said, list):
        return " ".join(str(part) for part in said)
    return re.sub(r"\\x(..)", r"%\1", str(said))


def _gpu_lines(gpu: dict[str, Any]) -> dict[str, str]:
    index = gpu["index"]
    handle = f"nvmlDeviceGetHandleByIndex_v2,{index}"
    if "error" in gpu:
        return {handle: _value(gpu)}
    lines = {handle: str(index), **_plain_lines(str(index), gpu), **_mig_lines(index, gpu["mig"])}
    place = [_value(gpu[key]) for key in ("bdf", "pci_device_id", "pci_subsystem_id")]
    lines[f"nvmlDeviceGetPciInfo_v3,{index}"] = " ".join(place)
    lines |= {f"nvmlDeviceGet{name},{index}": _value(gpu["pcie"][key]) for key, name in _PCIE.items()}
    for key, number in _FIELDS.items():
        lines[_field(index, number, 0)] = _typed(gpu[key])
    return lines | _fabric_lines(index, gpu["fabric"]) | _platform_lines(index, gpu["platform"]) | _link_lines(gpu)


def _plain_lines(device: str, said: dict[str, Any]) -> dict[str, str]:
    return {f"nvmlDeviceGet{name},{device}": _value(said[key]) for key, name in _PLAIN.items() if key in said}


def _field(index: int, number: int, scope: int) -> str:
    return f"nvmlDeviceGetFieldValues,{index},{number},{scope}"


def _typed(said: Any) -> str:
    return _value(said) if isinstance(said, dict) else f"1 {said}"


def _mig_lines(index: int, mig: dict[str, Any]) -> dict[str, str]:
    if "error" in mig:
        return {f"nvmlDeviceGetMigMode,{index}": _value(mig)}
    lines = {f"nvmlDeviceGetMigMode,{index}": f"{mig['current']} {mig['pending']}"}
    if mig["current"]:
        lines[f"nvmlDeviceGetMaxMigDeviceCount,{index}"] = "7"
        lines |= {f"nvmlDeviceGetMigDeviceHandleByIndex,{index},{place}": "!6" for place in range(7)}
    for one in mig.get("devices", ()):
        lines[f"nvmlDeviceGetMigDeviceHandleByIndex,{index},{one['index']}"] = "0"
        lines |= _plain_lines(f"{index}.mig{one['index']}", one)
    return lines


def _fabric_lines(index: int, fabric: dict[str, Any]) -> dict[str, str]:
    """The rung that the profile names and all below it answer; those above it are not there yet."""
    rungs = ("_v4", "V", "V", "")
    keys = [f"nvmlDeviceGetGpuFabricInfo{rung},{index}" for rung in rungs]
    keys[1] += ",3"
    keys[2] += ",2"
    if "error" in fabric:
        return dict.fromkeys(keys, _value(fabric))
    cliques = " ".join(f"{clique.get('type', 0)}:{clique['id']}" for clique in fabric["cliques"])
    numbers = [fabric.get(key, 0) for key in ("state", "status", "health_mask", "health_summary")]
    text = f"{_value(numbers)} {fabric['uuid'].replace('-', '')} {cliques}"
    first = 4 - int(fabric["api"][1])
    absent = ("!13", "!25" if first < 3 else "!13", "!13", "!13")
    return {key: text if place >= first else absent[place] for place, key in enumerate(keys)}


def _platform_lines(index: int, platform: dict[str, Any]) -> dict[str, str]:
    keys = [f"nvmlDeviceGetPlatformInfo,{index},{version}" for version in (2, 1)]
    if "error" in platform:
        return dict.fromkeys(keys, _value(platform))
    numbers = [platform[key] for key in ("slot", "tray", "host_id", "peer_type", "module_id")]
    text = f"{_value(numbers)} {platform['ib_guid']} {_value(platform['chassis_serial'])}"
    return {keys[0]: text if platform["api"] == "v2" else "!25", keys[1]: text}


def _link_lines(gpu: dict[str, Any]) -> dict[str, str]:
    index, links, c2c = gpu["index"], gpu["nvlinks"], gpu["c2c"]
    capability = gpu["compute_capability"]
    refused = links if isinstance(links, dict) else {"error": "INVALID_ARGUMENT"}
    lines: dict[str, str] = {}
    known = links if isinstance(links, list) else []
    last = {"link": len(known), **dict.fromkeys(("state", "speed_mbps", *_LINK), refused)}
    for link in (*known, last):
        where = f"{index},{link['link']}"
        for key, name in _LINK.items():
            ids = " 0 0" if key == "remote_bdf" and isinstance(link[key], str) else ""
            lines[f"nvmlDeviceGet{name},{where}"] = _value(link[key]) + ids
        lines[_field(index, 164, link["link"])] = _typed(link["speed_mbps"])
        if isinstance(capability, list) and capability[0] >= 9:
            lines[_field(index, 165, link["link"])] = _typed(link["state"])
        else:
            lines[f"nvmlDeviceGetNvLinkState,{where}"] = _value(link["state"])
    lines[_field(index, 170, 0)] = _typed(c2c if "error" in c2c else c2c["count"])
    for link in range(c2c.get("count", 0)):
        lines[_field(index, 171, link)] = f"1 {int(link < c2c['active'])}"
        lines[_field(index, 172, link)] = _typed(c2c["max_mbps"])
    return lines
