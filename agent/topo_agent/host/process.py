"""What /proc says of one process, as a plain document: CPUs, memory, devices. Nothing is decided here."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator

from topo_agent.diagnostics import errno_name
from topo_agent.host import Json, Unavailable

_KEYS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
"""Of the environment only these are read: the rest may hold secrets."""

_BYTES = 4 << 20  # numa_maps of a large process
_FILES_AT_MOST = 4096

# The second word of a line of numa_maps (fs/proc/task_mmu.c show_numa_map), which two policies of mm/mempolicy.c
# mpol_to_str write with a space.
_POLICY = re.compile(r"[0-9a-f]+ ((?:prefer (?=\(many\))|weighted (?=interleave))?\S+)", re.ASCII)


def ask(pid: int) -> Json:
    """Everything that may be read; what may not is {"error": "EACCES"}. Unavailable where there is no such process."""
    root = f"/proc/{pid}"
    if not os.path.isdir(root):
        raise Unavailable("not_supported", f"there is no process {pid}")
    status = _lines(_text(f"{root}/status"))
    return {
        "name": status.get("Name", ""),
        "allowed_cpus": status.get("Cpus_allowed_list", ""),
        "allowed_memory": status.get("Mems_allowed_list", ""),
        "environment": _try(lambda: {**_environment(f"{root}/environ")}),
        "files": _try(lambda: [*sorted(set(_devices(f"{root}/fd")))]),
        "device_nodes": _try(lambda: [*sorted(_nodes(f"{root}/root/dev"))]),
        "memory_policies": _try(lambda: {**policies(_text(f"{root}/numa_maps"))}),
    }


def _try(read: Callable[[], Json]) -> Json:
    try:
        return read()
    except OSError as error:
        return {"error": errno_name(error)}


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_BYTES).decode("utf-8", "replace")


def _lines(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, colon, value in pairs if colon}


def _environment(path: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _text(path).split("\0"))
    return {key: value[:1024] for key, _, value in pairs if key in _KEYS}


def _devices(folder: str) -> Iterator[str]:
    """The device files that the process has open: `/dev/nvidia0`, `/dev/infiniband/uverbs0`."""
    for name in os.listdir(folder)[:_FILES_AT_MOST]:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:  # closed in between
            continue
        if target.startswith(("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/infiniband/", "/dev/accel/")):
            yield target.removeprefix("/dev/")


def _nodes(folder: str) -> Iterator[str]:
    """The device files that the process could open: what its container was given."""
    for inside in ("", "dri", "accel", "infiniband"):
        try:
            names = os.listdir(f"{folder}/{inside}")
        except FileNotFoundError:
            continue
        wanted = ("nvidia",) if not inside else ("renderD", "accel", "uverbs")
        yield from (f"{inside}/{name}".lstrip("/") for name in names if name.startswith(wanted))


def policies(numa_maps: str) -> Counter[str]:
    """How many mappings have which memory policy: `{"default": 120, "bind:0": 3, "prefer (many):0-1": 1}`."""
    return Counter(found[1] for line in numa_maps.splitlines() if (found := _POLICY.match(line)))
