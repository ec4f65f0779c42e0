"""Ask a host about everything once -> Inventory. The only place that outlives a source that fails whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from topo_agent.diagnostics import NOT_HERE, Diagnostic, Level, Notes
from topo_agent.facts import Acs, Cpu, GpuDirect, GpuLink, Inventory, Machine, PciDevice
from topo_agent.host import Host, Json, Through, Unavailable
from topo_agent.sources import cpu, gpu, irq, kfd, machine, net, numa, nvme, pci, process, rdma, standard

T = TypeVar("T")

_NOBODY = Machine(
    vendor=None, product=None, board=None, bios_version=None, architecture=None, kernel=None, virtual=None,
    hypervisor=None, cpu_model=None,
)  # fmt: skip


class Account:
    """How long each source took, which of them were heard, and what they noted: no fact of the machine.

    A driver that a source calls (`nvml`, `netlink`) has an account of its own, apart from that source.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.up: dict[str, bool] = {}  # what is not in it has nothing here to ask
        self.notes: Counter[tuple[str, Level]] = Counter()
        self._asked = ""
        self._since = 0.0

    def begin(self, source: str) -> None:
        self._asked, self._since = source, time.perf_counter()

    def end(self, found: object, noted: Iterable[Diagnostic]) -> None:
        """A source that found nothing is down if it noted that something was lost, and else there is nothing."""
        self._took(self._asked)
        levels = Counter(one.level for one in noted)
        self.notes.update({(self._asked, level): count for level, count in levels.items()})
        if any(found) if isinstance(found, tuple) else found is not None:
            self.up[self._asked] = True
        elif levels[Level.LOST] or levels[Level.DEGRADED]:
            self.up[self._asked] = False

    def document(self, host: Host, name: str) -> Json:
        """What the host answers."""
        self._took(self._asked)
        try:
            answer = host.document(name)
        except Unavailable as missing:
            if missing.reason not in NOT_HERE:
                self.up[name] = False
            raise
        else:
            self.up[name] = True
            return answer
        finally:
            self._took(name)

    def _took(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


class _Accounted(Through):
    """The same machine; what its documents take is noted."""

    def __init__(self, host: Host, account: Account) -> None:
        super().__init__(host)
        self._account = account

    def document(self, name: str) -> Json:
        return self._account.document(self._host, name)


def scan(
    host: Host, *, caches: bool = False, readiness: bool = False, acs: bool = False, account: Account | None = None
) -> Inventory:
    """Everything that today's sources know to ask. Never raises for what a machine says or fails to say.

    `caches` reads the caches of every CPU too, which costs more than all the rest together; `readiness` what only
    checks need of the kernel; `acs` configuration space, which is for root and slow. `account` is written to.
    """
    notes = Notes()
    account = account or Account()
    host = _Accounted(host, account)

    def source(name: str, read: Callable[[], T]) -> T | None:
        before, found = notes.count, None
        account.begin(name)
        try:
            found = read()
        except Exception as error:  # a source that fails whole costs itself
            notes.add(Level.LOST, name, "source_failed", f"{type(error).__name__}: {error}")
        account.end(found, notes.after(before))
        return found

    asker = source("process", lambda: process.read(host, notes)) or process.Process()
    cpus = source("cpu", lambda: _cpus(host, notes))
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


def _cpus(host: Host, notes: Notes) -> tuple[Cpu, ...] | None:
    found = cpu.read(host, notes)
    if found is None and host.source.kind == "live":
        notes.add(
            Level.LOST, "sys/devices/system/cpu", "sysfs_hidden", "this machine shows no CPUs: is /sys mounted here?"
        )
    return found


def _gpudirect(host: Host, notes: Notes, functions: Iterable[PciDevice]) -> GpuDirect:
    from topo_agent.sources import gpudirect  # as acs: only where somebody asks

    return gpudirect.read(host, notes, functions)


def _acs(host: Host, notes: Notes) -> tuple[Acs, ...]:
    from topo_agent.sources import acs

    return acs.read(host, notes)


def _both(first: tuple[GpuLink, ...] | None, second: tuple[GpuLink, ...] | None) -> tuple[GpuLink, ...] | None:
    """Links of both makers; None where neither tells of any."""
    return None if first is None and second is None else (*(first or ()), *(second or ()))
