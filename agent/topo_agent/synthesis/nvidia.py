"""NVIDIA's driver: the NVML document (docs/schema/nvml-document.json) and proc/driver/nvidia."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from topo_agent.host import Json, Unavailable
from topo_agent.host.paper import Document
from topo_agent.ids import CpuSet
from topo_agent.synthesis.fields import Place, Value
from topo_agent.synthesis.layout import Layout, Placed
from topo_agent.synthesis.named import named, ordered
from topo_agent.synthesis.nvlink import NvLink, links
from topo_agent.synthesis.nvlink import read as read_nvlink
from topo_agent.synthesis.tree import Tree

_REFUSED: Json = {"error": "NOT_SUPPORTED"}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_REASONS = ("not_supported", "not_permitted", "driver_error", "timeout")
_FABRIC = ("state", "status", "uuid", "clique", "health_mask", "health_summary")
_PLATFORM = ("ib_guid", "chassis_serial", "slot", "tray", "host_id", "peer_type", "module_id")

_NUMBER = re.compile(r"[0-9]{1,20}|0x[0-9a-fA-F]{1,16}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Nvidia:
    """What a description says of NVIDIA's driver."""

    driver: str
    cuda: int
    unavailable: str | None  # the reason why NVML does not answer
    proc: bool
    order: tuple[str, ...]  # names of GPUs in NVML's order; empty is bus order
    nvlink: NvLink | None
    c2c: tuple[int, int, int] | None  # links, those that are up, MB/s of each
    fabric: tuple[tuple[str, str], ...] | None
    platform: tuple[tuple[str, str], ...] | None
    lost: tuple[tuple[str, str], ...]  # name of a GPU, and the error of its handle
    mig: Mapping[str, int]
    place: Place


def read(value: Value) -> Nvidia:
    said = value.fields(
        *("driver", "cuda", "unavailable", "proc", "order", "nvlink", "c2c", "fabric", "platform", "lost", "mig")
    )
    driver, cuda, unavailable, proc, order = (
        said.get(name) for name in ("driver", "cuda", "unavailable", "proc", "order")
    )
    nvlink, c2c, fabric, platform, lost, mig = (
        said.get(name) for name in ("nvlink", "c2c", "fabric", "platform", "lost", "mig")
    )
    direct = c2c.fields("links", "mbps") if c2c else None
    return Nvidia(
        driver=driver.text() if driver else "580.95.05",
        cuda=cuda.count() if cuda else 13000,
        unavailable=unavailable.choice(*_REASONS) if unavailable else None,
        proc=proc.truth() if proc else True,
        order=tuple(one.text() for one in order.items()) if order else (),
        nvlink=read_nvlink(nvlink) if nvlink else None,
        c2c=(count := direct["links"].count(1, 64), count, direct["mbps"].count(1)) if direct else None,
        fabric=_texts(fabric, _FABRIC) if fabric else None,
        platform=_texts(platform, _PLATFORM) if platform else None,
        lost=tuple((key, one.name()) for key, one in lost.pairs()) if lost else (),
        mig={key: one.count(1, 7) for key, one in mig.pairs()} if mig else {},
        place=value.place,
    )


def _texts(value: Value, known: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    said = value.fields(*known)
    if value.has("clique"):  # the one of them that is a number whatever is written
        said["clique"].count(0, (1 << 32) - 1)
    return tuple((key, said[key].text()) for key in known if value.has(key))


def document(
    tree: Tree, layout: Layout, spec: Nvidia, cpus: Mapping[int, CpuSet], memories: Mapping[str, int]
) -> Document:
    """Every answer. `memories`: the NUMA node of the memory of a GPU, by the GPU's name."""
    if spec.unavailable is not None:
        return Unavailable(spec.unavailable)
    spec = replace(spec, mig={str(named(layout, name, spec.place).address): count for name, count in spec.mig.items()})
    gpus = ordered(layout, "nvidia", spec.order, spec.place)
    lost = {str(named(layout, name, spec.place).address): error for name, error in spec.lost}
    nodes = {str(named(layout, name, spec.place).address): node for name, node in memories.items()}
    wired = links(layout, spec.nvlink, gpus) if spec.nvlink else {}
    found: list[dict[str, Json]] = []
    for index, one in enumerate(gpus):
        at = str(one.address)
        if at in lost:
            found.append({"index": index, "error": lost[at], "bdf": _bdf(one)})
        else:
            found.append(_gpu(tree, spec, index, one, cpus.get(one.node, frozenset()), nodes.get(at), wired.get(at)))
    return {
        "driver_version": spec.driver,
        "nvml_version": f"13.{spec.driver}",
        "cuda_driver_version": spec.cuda,
        "gpus": [*sorted(found, key=lambda one: str(one["bdf"]))],
    }


def _bdf(one: Placed) -> str:
    """nvml.h busId: `00000000:1B:00.0`."""
    at = one.address
    return f"{at.domain:08X}:{at.bus:02X}:{at.device:02X}.0"


def _gpu(
    tree: Tree, spec: Nvidia, index: int, one: Placed, cpus: CpuSet, node: int | None, wired: list[Json] | None
) -> dict[str, Json]:
    part = one.spec.part
    now = one.spec.now or part.link
    most: dict[str, Json] = (
        {} if part.link is None else {"max_gen": _GENERATIONS[part.link[0]], "max_width": part.link[1]}
    )
    return {
        "index": index,
        "bdf": _bdf(one),
        "pci_device_id": part.ids[1] << 16 | part.ids[0],
        "uuid": f"GPU-{tree.uuid(f'gpu {one.address}')}",
        "name": part.title or "NVIDIA GPU",
        "serial": str(1650000000000 + int(tree.digits(f"serial {one.address}", 8), 16)),
        "minor": index,
        "memory_bytes": part.memory or _REFUSED,
        "numa_node_id": _REFUSED if node is None else node,
        "cpu_affinity": [*_words(cpus, tree.possible)] if cpus else _REFUSED,
        "persistence_mode": 1,
        "pcie": most if now is None else {**most, "gen": _GENERATIONS[now[0]], "width": now[1]},
        "mig": _mig(tree, spec, one),
        "fabric": _fabric(spec),
        "platform": _platform(spec),
        "nvlinks": _REFUSED if wired is None else wired,
        "c2c": _REFUSED if spec.c2c is None else dict(zip(("count", "active", "max_mbps"), spec.c2c, strict=True)),
    }


def _words(cpus: CpuSet, possible: int) -> Iterator[Json]:
    """64 CPUs in each word, lowest first."""
    mask = sum(1 << cpu for cpu in cpus)
    for word in range((possible + 63) // 64):
        yield f"{mask >> 64 * word & (1 << 64) - 1:016x}"


def _mig(tree: Tree, spec: Nvidia, one: Placed) -> Json:
    count = spec.mig.get(str(one.address), 0)
    if not count:
        return _REFUSED
    part = one.spec.part
    slice_ = (part.memory or 0) // 8
    size = f".{round(slice_ / (1 << 30))}gb" if slice_ else ""
    devices: list[Json] = [
        {
            "index": number,
            "uuid": f"MIG-{tree.uuid(f'mig {one.address}/{number}')}",
            "name": f"{part.title or 'NVIDIA GPU'} MIG 1g{size}",
            "memory_bytes": slice_ or _REFUSED,
            "gpu_instance": 7 + number,  # the smallest ones are 7 to 13 on A100 and H100
            "compute_instance": 0,
        }
        for number in range(count)
    ]
    return {"current": 1, "pending": 1, "devices": devices}


def _fabric(spec: Nvidia) -> Json:
    if spec.fabric is None:
        return _REFUSED
    said = dict(spec.fabric)
    clique = int(said.pop("clique", "0"))
    numbers: dict[str, Json] = {key: _plain(text) for key, text in said.items()}
    return {"api": "v3", "cliques": [{"id": clique}], **numbers}


def _platform(spec: Nvidia) -> Json:
    """A serial is text, also where it is nothing but digits."""
    if spec.platform is None:
        return _REFUSED
    return {key: text if key in ("ib_guid", "chassis_serial") else _plain(text) for key, text in spec.platform}


def _plain(text: str) -> Json:
    return int(text, 16 if text.startswith("0x") else 10) if _NUMBER.fullmatch(text) else text


def write(tree: Tree, layout: Layout, spec: Nvidia, memories: Mapping[str, int]) -> None:
    """proc/driver/nvidia/gpus/<address>/information, and numa_status where the memory of a GPU is a NUMA node."""
    if not spec.proc:
        return
    nodes = {str(named(layout, name, spec.place).address): node for name, node in memories.items()}
    tree.write("proc/driver/nvidia", version=f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {spec.driver}")
    for index, one in enumerate(ordered(layout, "nvidia", spec.order, spec.place)):
        path = f"proc/driver/nvidia/gpus/{one.address}"
        uuid = f"GPU-{tree.uuid(f'gpu {one.address}')}"
        lines = [
            f"Model: \t\t {one.spec.part.title}",
            f"GPU UUID: \t {uuid}",
            f"Bus Location: \t {one.address}",
            f"Device Minor: \t {index}",
        ]
        tree.write(path, information="\n".join(lines))
        if str(one.address) in nodes:
            tree.write(path, numa_status=f"Node:      {nodes[str(one.address)]}\nStatus:    online")
