"""Topology -> flat rows of GPUs, NICs, NVMe drives, switches and links, for `list`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topo_agent.graph.hops import Hops
from topo_agent.graph.nodes import Device, NicPart, PortState
from topo_agent.graph.order import gpu_numbers, labels, physical
from topo_agent.graph.paths import ORDER, Paths
from topo_agent.graph.topology import Topology
from topo_agent.ids import cpulist
from topo_agent.views import names
from topo_agent.views.units import binary_size, bit_rate, link_name

Value = None | bool | int | str
Row = dict[str, Value]


def gpus(topology: Topology) -> Iterator[Row]:
    """`gpu` is nvidia-smi's index, or bus order without it; `cuda` is CUDA's order by PCI bus id."""
    numbers, paths = gpu_numbers(topology), Paths(topology)
    bus_order = {gpu.ref: place for place, gpu in enumerate(physical(topology, "gpu"))}
    for gpu in sorted(physical(topology, "gpu"), key=lambda one: numbers[one.ref]):
        memory = gpu.gpu.memory_bytes if gpu.gpu else None
        yield {
            "gpu": numbers[gpu.ref],
            "nvml": "" if gpu.names.nvml_index is None else gpu.names.nvml_index,
            "cuda": bus_order[gpu.ref],
            **_common(gpu),
            "memory": "" if memory is None else binary_size(memory),
            "uuid": gpu.uid or "",
            "vfs": _virtual_functions(topology, gpu),
            "nodes": " ".join(gpu.names.nodes),
            "mig": " ".join(one.profile or one.ref.key for one in topology.migs if one.partition_of == gpu.ref),
            "nearest_nics": _nearest(topology, gpu, paths),
        }


def _nearest(topology: Topology, gpu: Device, paths: Paths) -> str:
    """The NICs of the best class, and that class: `"NIC0 NIC1 (PIX)"`."""
    called = labels(topology)
    found = [(paths.between(gpu, nic), nic) for nic in physical(topology, "nic")]
    best = min((path.rank for path, _ in found), default=None)
    if best is None:
        return ""
    near = [called[nic.ref] for path, nic in found if path.rank == best]
    certain = all(path.certain for path, _ in found if path.rank == best)
    return f"{' '.join(near)} ({ORDER[best]}{'' if certain else ', not certain'})"


def nics(topology: Topology) -> Iterator[Row]:
    """A row for each physical function, then for each bond, VLAN and software RDMA device."""
    called, now = labels(topology), dict(topology.ports_now)
    for nic in physical(topology, "nic"):
        ports = now.get(nic.ref, ())
        yield {
            "nic": called[nic.ref],
            **_common(nic),
            "netdev": " ".join(nic.names.netdev),
            "rdma": " ".join(nic.names.rdma),
            "layer": _layers(nic.nic),
            "state": state(ports),
            "speed": speed(ports),
            "mtu": " ".join(str(port.mtu) for port in ports if port.mtu),
            "firmware": (nic.nic.firmware if nic.nic else None) or "",
            "board": nic.board or "",
            "uid": nic.uid or "",
            "dpu": bool(nic.nic and nic.nic.dpu),
            "vfs": _virtual_functions(topology, nic),
        }
    for one in topology.virtuals:
        if one.kind != "remote_nvme":
            row: Row = {**dict.fromkeys(NIC_COLUMNS, "")}
            row["nic"] = one.type or one.kind
            row["netdev"], row["rdma"] = " ".join(one.names.netdev), " ".join(one.names.rdma)
            row["address"] = " ".join(called.get(ref, ref.key) for ref in one.lower)
            yield row


NIC_COLUMNS = ("nic", "address", "name", "driver", "numa", "cpus", "link", "netdev", "rdma", "layer", "state", "speed",
               "mtu", "firmware", "board", "uid", "dpu", "vfs")  # fmt: skip


def _layers(nic: NicPart | None) -> str:
    layers = [port.link_layer for port in nic.ports if port.link_layer] if nic else []
    return " ".join(dict.fromkeys(layers))


def state(ports: Iterable[PortState]) -> str:
    """`"up"`, `"down"`, or one word for each port."""
    return " ".join("?" if port.up is None else "up" if port.up else "down" for port in ports)


def speed(ports: Iterable[PortState]) -> str:
    """What the ports run at now: `"400 Gb/s"`; a port without a link has no speed."""
    return " ".join(bit_rate(port.bits_per_second) for port in ports if port.bits_per_second)


def nvme(topology: Topology) -> Iterator[Row]:
    """A row for each controller, those across a network at the end."""
    for drive in physical(topology, "nvme"):
        part = drive.nvme
        yield {
            "nvme": " ".join(drive.names.nvme[:1]),
            **_common(drive),
            "disks": " ".join(drive.names.nvme[1:]),
            "transport": (part.transport if part else None) or "",
            "firmware": (part.firmware if part else None) or "",
            "serial": drive.uid or "",
            "remote": "",
        }
    for one in topology.virtuals:
        if one.kind == "remote_nvme":
            yield {
                "nvme": one.name,
                **dict.fromkeys(("address", "driver", "numa", "cpus", "link"), ""),
                "name": (one.nvme.model if one.nvme else None) or "",
                "disks": " ".join(one.names.nvme[1:]),
                "transport": one.type or "",
                "firmware": (one.nvme.firmware if one.nvme else None) or "",
                "serial": one.uid or "",
                "remote": (one.nvme.remote if one.nvme else None) or "",
            }


def switches(topology: Topology) -> Iterator[Row]:
    """PCIe switches by their upstream port, and NVSwitches."""
    called, of_pcie = labels(topology), {one.ref for one in Hops(topology).switches()}
    for device in topology.devices or ():
        if device.ref in of_pcie or device.kind == "nvswitch":
            ports = topology.children(device.ref)
            used = [port for port in ports if topology.children(port)]
            yield {
                "kind": "nvswitch" if device.kind == "nvswitch" else "pcie",
                **_common(device),
                "ports": len(ports) if ports else "",
                "empty": len(ports) - len(used) if ports else "",
                "devices": " ".join(called[ref] for ref in topology.below(device.ref) if ref in called),
            }


def links(topology: Topology) -> Iterator[Row]:
    """NVLink and xGMI, each link between two ends once."""
    called = labels(topology)
    active = {(a, b, peer): count for a, b, peer, count in topology.nvlinks_now}
    for link in topology.links or ():
        yield {
            "a": called.get(link.a, link.a.key),
            "b": called.get(link.b, link.b.key) if link.b else None,
            "kind": link.kind,
            "peer": link.peer,
            "count": "" if link.links is None else link.links,
            "active": active.get((link.a, link.b, link.peer), ""),
            "bandwidth": "" if link.bytes_per_second is None else f"{link.bytes_per_second / 1e9:.0f} GB/s",
            "weight": "" if link.weight is None else link.weight,
        }


def _common(device: Device) -> Row:
    return {
        "address": str(device.address),
        "name": device.title or names.title(device.vendor, device.device),
        "driver": device.driver or "",
        "numa": device.numa_node,
        "cpus": None if device.cpus is None else cpulist(device.cpus),
        "link": "" if device.link is None else link_name(device.link.max_gts, device.link.max_width),
    }


def _virtual_functions(topology: Topology, device: Device) -> int:
    return sum(one.physfn == device.ref for one in topology.devices or ())


def names_of(device: Device) -> tuple[str, ...]:
    """What people call a device, the most used name first: ("mlx5_0", "ens40f0np0"), ("nvme0n1",)."""
    disks = device.names.nvme[1:] or device.names.nvme[:1]
    return (*device.names.rdma, *device.names.netdev, *disks, *device.names.block)
