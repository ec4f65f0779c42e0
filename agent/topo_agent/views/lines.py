"""What the tree says of one thing: a package, a NUMA node, a PCI root, a function, each in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topo_agent.diagnostics import Unknown
from topo_agent.graph.nodes import Device, Memory, Mig, Package, Root
from topo_agent.graph.order import labels
from topo_agent.graph.topology import Topology
from topo_agent.ids import CpuSet, cpulist
from topo_agent.views import names
from topo_agent.views.devices import names_of, speed, state
from topo_agent.views.summary import WORDS
from topo_agent.views.units import binary_size, link_name, plural

_VIRTUALIZATION = {
    "passthrough": "passed through", "vgpu": "vGPU", "host_vgpu": "host of vGPUs", "host_vsga": "host of vSGA",
}  # fmt: skip
_SILENCE = {
    Unknown.FIRMWARE_SILENT: "firmware says -1",
    Unknown.CONTRADICTS: "the machine contradicts itself",
    Unknown.NOT_RECORDED: "not recorded",
    Unknown.NOT_SUPPORTED: "this kernel does not tell",
    Unknown.NOT_PERMITTED: "not permitted to read",
    Unknown.UNREADABLE: "unreadable",
}


class Lines:
    """Of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._vfs = Counter(device.physfn for device in topology.devices or () if device.physfn)
        self._called = labels(topology)
        self._ports = dict(topology.ports_now)
        self._drivers_told = any(device.driver for device in topology.devices or ())

    def package(self, package: Package) -> str:
        cores = "" if package.cores is None else f" · {plural(len(package.cores), 'core')}"
        model = _plain(self._topology.machine.cpu_model)
        return f"package {package.id}{model and ' · ' + model}{cores} · {_cpus(package.cpus)}{self._caches(package)}"

    def _caches(self, package: Package) -> str:
        """`" · 2 × L3 32 MiB"`: the largest level, where caches were asked for."""
        inside = [cache for cache in self._topology.caches or () if cache.cpus <= package.cpus]
        level = max((cache.level for cache in inside), default=0)
        sizes = Counter(cache.size_bytes for cache in inside if cache.level == level and cache.size_bytes)
        return "".join(f" · {count} × L{level} {binary_size(size)}" for size, count in sorted(sizes.items()))

    def memory(self, memory: Memory) -> str:
        words = [f"NUMA {memory.id}"]
        if dict(memory.sources).get("id") == "assumed":
            words[0] += " (assumed: this kernel tells no NUMA nodes)"
        if memory.kind:
            words.append(f"{memory.kind.upper()}" + (f" of {memory.gpu}" if memory.gpu else ""))
        if memory.memory_bytes is not None:
            words.append(binary_size(memory.memory_bytes) if memory.memory_bytes else "no memory")
        if memory.cpus is None:
            words.append("CPUs unknown")
        elif memory.cpus:
            words.append(_cpus(memory.cpus))
        else:
            near = "unknown" if memory.near_cpus is None else cpulist(memory.near_cpus)
            words.append(f"no CPUs, near CPUs {near}")
        return " · ".join(words)

    def root(self, root: Root) -> str:
        """Where it is, too, for no NUMA node is above it."""
        return f"{root.name} · NUMA {'unknown' if root.numa_node is None else root.numa_node}"

    def place(self, root: Root) -> str:
        """The reason why its NUMA node is not known, or which one that is not there."""
        reason = dict(root.unknown).get("numa_node")
        named = f"NUMA {root.numa_node}" if root.numa_node is not None else "NUMA node unknown"
        return named + (f" ({_SILENCE.get(reason, reason.value)})" if reason else "")

    def device(self, device: Device) -> str:
        words = [f"{_short(device)} {self._label(device)} {device.title or names.title(device.vendor, device.device)}"]
        called = " ".join(names_of(device))
        if called:
            words.append(called)
        ports = self._ports.get(device.ref, ())
        if any(port.up is not None for port in ports):
            words.append(f"{speed(ports)} {state(ports)}".strip())
        if device.link is not None:
            words.append(link_name(device.link.max_gts, device.link.max_width))
        if device.physfn is not None:
            words.append(f"VF of {device.physfn.key}")
        elif self._vfs[device.ref]:
            words.append(f"+{plural(self._vfs[device.ref], 'VF')}")
        if device.gpu is not None and device.gpu.partitions:
            modes = " ".join(filter(None, (device.gpu.compute_partition, device.gpu.memory_partition)))
            words.append(f"{device.gpu.partitions} partitions{modes and f' ({modes})'}")
        if device.gpu is not None and device.gpu.virtualization:
            words.append(_VIRTUALIZATION[device.gpu.virtualization])
        if device.kind in WORDS and device.driver is None and self._drivers_told:
            words.append("no driver")
        return " · ".join(words) + self._elsewhere(device)

    def bridge(self, device: Device) -> str:
        """Of what is not one, its own."""
        if device.kind != "bridge":
            return self.device(device)
        words = {"root_port": "root port", "upstream_port": "switch", "downstream_port": "port"}
        link = f" · {link_name(device.link.max_gts, device.link.max_width)}" if device.link else ""
        word = words.get(device.role or "", "bridge")
        return f"{_short(device)} {word} {names.title(device.vendor, device.device)}{link}"

    def migs(self, device: Device) -> Iterator[str]:
        """`"3 MIG: 3g.40gb, 2 × 1g.10gb"`: all parts of a GPU on one line."""
        if device.gpu is None or not device.gpu.mig:
            return
        parts = [one for one in self._topology.migs if one.partition_of == device.ref]
        counts = Counter(one.profile or "?" for one in parts)
        words = [f"{count} × {profile}" if count > 1 else profile for profile, count in counts.items()]
        hidden = dict(device.gpu.unknown).get("mig_devices")
        if words:
            yield f"{len(parts)} MIG: {', '.join(words)}"
        else:
            yield f"MIG on, its devices unknown ({hidden.value})" if hidden else "MIG on, no devices"

    def _label(self, device: Device) -> str:
        """GPU0 and NIC3 are the names of the matrix; a drive has a name of its own."""
        word = WORDS.get(device.kind)
        if word is None:
            return names.class_name(device.class_code)
        return self._called.get(device.ref, word) if device.kind in ("gpu", "nic") else word

    def _elsewhere(self, device: Device) -> str:
        """Said only where it differs from what the line above it says."""
        root = self._topology.nodes.get(device.root) if device.root else None
        if not isinstance(root, Root) or root.numa_node == device.numa_node or device.kind not in WORDS:
            return ""
        return f" · NUMA {'unknown' if device.numa_node is None else device.numa_node}"


def mig(one: Mig) -> str:
    memory = None if one.memory_bytes is None else binary_size(one.memory_bytes)
    return " · ".join(filter(None, (f"MIG {one.profile or one.ref.key}", memory, one.uid)))


def _plain(model: str | None) -> str:
    """`"Intel(R) Xeon(R) Gold 6448Y"` -> `"Intel Xeon Gold 6448Y"`."""
    return " ".join((model or "").replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ").split())


def _short(device: Device) -> str:
    """`0000:1b:00.0` -> `1b:00.0`; other domains are written out."""
    return str(device.address).removeprefix("0000:")


def _cpus(cpus: CpuSet) -> str:
    """`"64 CPUs 0-31,64-95"`; a long list is cut in the middle: `"32 CPUs 0,4,8,…,124"`."""
    listed = cpulist(cpus)
    if len(listed) > 32:
        parts = listed.split(",")
        listed = ",".join([*parts[:3], "…", parts[-1]])
    return f"{plural(len(cpus), 'CPU')} {listed}"
