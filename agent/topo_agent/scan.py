"""Ask a host about everything once -> Inventory. The only place that outlives a source that fails whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from topo_agent.diagnostics import Level, Notes
from topo_agent.facts import Acs, GpuDirect, GpuLink, Inventory, Machine, PciDevice
from topo_agent.host import Host
from topo_agent.sources import cpu, gpu, irq, kfd, machine, net, numa, nvme, pci, process, rdma, standard

T = TypeVar("T")

_NOBODY = Machine(
    vendor=None, product=None, board=None, bios_version=None, architecture=None, kernel=None, virtual=None,
    hypervisor=None, cpu_model=None,
)  # fmt: skip


def scan(host: Host, *, caches: bool = False, readiness: bool = False, acs: bool = False) -> Inventory:
    """Everything that today's sources know to ask. Never raises for what a machine says or fails to say.

    `caches` reads the caches of every CPU too, which costs more than all the rest together; `readiness` what only
    checks need of the kernel; `acs` configuration space, which is for root and slow.
    """
    notes = Notes()

    def source(name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as error:  # a source that fails whole costs itself
            notes.add(Level.LOST, name, "source_failed", f"{type(error).__name__}: {error}")
            return None

    asker = source("process", lambda: process.read(host, notes)) or process.Process()
    cpus = source("cpu", lambda: cpu.read(host, notes))
    if cpus is None and host.source.kind == "live":
        notes.add(
            Level.LOST, "sys/devices/system/cpu", "sysfs_hidden", "this machine shows no CPUs: is /sys mounted here?"
        )
    online = None if cpus is None else frozenset(one.id for one in cpus if one.online)
    memory = source("numa", lambda: numa.read(host, notes, online))
    bus = source("pci", lambda: pci.read(host, notes))
    functions = {one.address: one.path for one in bus.devices} if bus else {}
    nets = source("net", lambda: net.read(host, notes))
    ib = source("rdma", lambda: rdma.read(host, notes))
    drives = source("nvme", lambda: nvme.read(host, notes))
    present = {one.address: one for one in bus.devices} if bus else {}
    drivers = source("gpu", lambda: gpu.read(host, notes, present))
    amd = source("kfd", lambda: kfd.read(host, notes, functions))
    carriers = {one.function for one in (nets.netdevs if nets else ())} | {
        one.function for one in (ib.devices if ib else ())
    }
    busy = [(one, path) for one, path in functions.items() if one in carriers]
    return Inventory(
        source=host.source,
        machine=source("machine", lambda: machine.read(host, notes, asker.architecture)) or _NOBODY,
        cpus=cpus,
        caches=source("cache", lambda: cpu.caches(host, notes, cpus or ())) if caches else None,
        numa=memory.nodes if memory else None,
        standard_nodes=source("standard", lambda: standard.read(host)) or (),
        hugepages_now=memory.hugepages if memory else (),
        pci=bus.devices if bus else None,
        buses=bus.buses if bus else (),
        slots=bus.slots if bus else (),
        netdevs=nets.netdevs if nets else (),
        rdma=ib.devices if ib else (),
        nvme=drives.controllers if drives else (),
        disks=drives.disks if drives else (),
        gpus=(*(drivers.gpus if drivers else ()), *(amd.gpus if amd else ())),
        gpu_links=_both(drivers.links if drivers else None, amd.links if amd else None),
        migs=drivers.migs if drivers else (),
        kfd_hidden=amd.hidden if amd else 0,
        peer_access=drivers.peer_access if drivers else (),
        allowed_cpus=asker.allowed_cpus,
        default_routes=asker.default_routes,
        links_now=bus.links_now if bus else (),
        netdevs_now=nets.now if nets else (),
        rdma_now=ib.now if ib else (),
        fabrics_now=drivers.fabrics if drivers else (),
        nvlinks_now=drivers.now if drivers else (),
        irqs_now=source("irq", lambda: irq.read(host, notes, busy)) or (),
        gpudirect=source("gpudirect", lambda: _gpudirect(host, notes, present.values())) if readiness else None,
        acs=(source("acs", lambda: _acs(host, notes)) or ()) if acs else None,
        diagnostics=tuple(notes),
    )


def _gpudirect(host: Host, notes: Notes, functions: Iterable[PciDevice]) -> GpuDirect:
    from topo_agent.sources import gpudirect  # as acs: only where somebody asks

    return gpudirect.read(host, notes, functions)


def _acs(host: Host, notes: Notes) -> tuple[Acs, ...]:
    from topo_agent.sources import acs

    return acs.read(host, notes)


def _both(first: tuple[GpuLink, ...] | None, second: tuple[GpuLink, ...] | None) -> tuple[GpuLink, ...] | None:
    """Links of both makers; None where neither tells of any."""
    return None if first is None and second is None else (*(first or ()), *(second or ()))
