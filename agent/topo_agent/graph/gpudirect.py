"""Checks of what stands between a GPU and the NIC beside it: ACS, the IOMMU, a kernel without peer memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from topo_agent.diagnostics import Unknown
from topo_agent.facts import Acs
from topo_agent.graph.findings import Machine, Seen
from topo_agent.graph.nodes import Device
from topo_agent.graph.topology import Topology
from topo_agent.ids import Ref

_NVIDIA = 0x10DE
_PEER_MEMORY = frozenset({"nvidia_peermem", "nv_peer_mem"})
# Those that take GPU memory from ib_core's clients; EFA and Slingshot bring code of their own (efa_p2p.c, cxi-core).
_CLIENTS = frozenset({"mlx4_core", "mlx5_core", "bnxt_en"})
_DMA_BUF = (5, 12)  # the kernel in which ib_core takes dma-bufs: drivers/infiniband/core/umem_dmabuf.c
_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})(?![0-9])", re.ASCII)


class _Verdict(NamedTuple):
    """Does ACS redirect what two functions send each other? With the evidence, or the reason why nobody knows."""

    redirects: bool | Literal["unknown"]
    why: str


def acs_redirect(machine: Machine) -> Iterator[Seen]:
    """One NIC is enough: a GPU whose traffic to one of its nearest takes the long way."""
    for gpu, nics in _beside(machine):
        verdicts = [_verdict(machine.topology, gpu, nic) for nic in nics]
        found = next((one for one in verdicts if one.redirects is True), None)
        if found is not None:
            yield Seen(str(gpu.ref), found.why, "warning")


def acs_unknown(machine: Machine) -> Iterator[Seen]:
    """Worth knowing; where the ports were asked and did not answer, a warning: silence would look like "off"."""
    asked = machine.topology.acs is not None
    for gpu, nics in _beside(machine):
        verdicts = [_verdict(machine.topology, gpu, nic) for nic in nics]
        if not any(one.redirects is True for one in verdicts):
            why = next((one.why for one in verdicts if one.redirects == "unknown"), None)
            if why is not None:
                yield Seen(str(gpu.ref), why, "warning" if asked else "info", "" if asked else "not asked")


def iommu_translates(machine: Machine) -> Iterator[Seen]:
    """A warning: a NIC gets an address for GPU memory that only the IOMMU understands, whatever the ports do.

    nvidia-peermem and the dma-bufs of nvidia and amdgpu map with dma_map_resource(), which gives such an address in
    every domain that translates (drivers/iommu/dma-iommu.c), and no switch routes it to a neighbour. Virtual machines
    have the IOMMU of their hypervisor, and where nothing tells whether a machine is one (Arm) nothing is said.
    """
    said = machine.topology.gpudirect
    domains = dict(said.domains) if said is not None else {}
    for gpu, nics in _beside(machine) if machine.topology.machine.virtual is False else ():
        for nic in nics:
            types = {one.ref: domains.get(one.iommu_group or 0) for one in (gpu, nic) if one.iommu_group is not None}
            if any(type_ is not None and type_.startswith("DMA") for type_ in types.values()):
                told = [f"{ref.key} {type_}" for ref, type_ in types.items() if type_ is not None]
                ats = _ats(machine.topology, gpu, nic)
                yield Seen(str(gpu.ref), f"IOMMU domains: {', '.join(told)}{f'; {ats}' if ats else ''}", "warning")
                break


def peer_memory_missing(machine: Machine) -> Iterator[Seen]:
    """Only where the list of modules is one: it names the modules of the GPU's and of the NIC's driver, which run."""
    gpus = [gpu for gpu in machine.gpus if gpu.vendor == _NVIDIA and gpu.driver == "nvidia"]
    nics = [nic for nic in machine.nics if nic.driver in _CLIENTS and nic.names.rdma]
    said, kernel = machine.topology.gpudirect, machine.topology.machine.kernel
    if said is None or said.modules is None or not nics or _PEER_MEMORY & said.modules:
        return
    if not {"nvidia", *(str(nic.driver) for nic in nics)} <= said.modules:
        return
    if said.open_modules is False:
        why = "the driver is not of the open kernel modules, which offer dma-buf"
    elif said.open_modules and (release := _release(kernel)) is not None and release < _DMA_BUF:
        why = f"Linux {kernel} takes no dma-buf"
    else:
        return  # dma-buf can do it, or nothing tells whether it can
    for gpu in gpus:
        yield Seen(str(gpu.ref), f"nvidia_peermem is not loaded, and {why}", "warning")


def _beside(machine: Machine) -> Iterator[tuple[Device, list[Device]]]:
    """Every GPU with those of its nearest NICs that are behind the same switch."""
    for choice in machine.choices:
        gpu = machine.topology.device(choice.gpu)
        near = [one for one in choice.local if one.path.class_ in ("PIX", "PXB")]
        nics = [nic for one in near if (nic := machine.topology.device(one.nearest[0])) is not None]
        if gpu is not None and nics:
            yield gpu, nics


def _verdict(topology: Topology, gpu: Device, nic: Device) -> _Verdict:
    """What the ports say, where they were asked and answered; else what the IOMMU groups let us suppose.

    No hypervisor gives a bridge to its guest: the ports of a virtual machine, and its groups, are not the real ones.
    """
    ports = _parting(topology, gpu.ref, nic.ref)
    if topology.machine.virtual:
        why = f"a virtual machine does not see the real ports towards {nic.address}"
        return _Verdict("unknown", why) if ports else _Verdict(False, "")
    unread = f"the ports of the switch, towards {nic.address}, were not asked"
    if topology.acs is not None and ports:
        said = dict(topology.acs)
        acs = [said.get(port) for port in ports]
        redirecting = [one for one in acs if one is not None and one.acs_redirect]
        if redirecting:
            return _Verdict(True, _redirected(topology, redirecting, gpu, nic))
        reasons = {port: _silence(one) for port, one in zip(ports, acs, strict=True)}
        silent = next((port for port in ports if reasons[port] is not None), None)
        if silent is None:
            return _Verdict(False, "")
        unread = f"port {silent.key} of the switch, towards {nic.address}, did not tell ({reasons[silent]})"
    groups = (gpu.iommu_group, nic.iommu_group)
    if None not in groups and groups[0] != groups[1]:
        # drivers/iommu/iommu.c pci_device_group(): apart below one switch only where ACS isolates its ports
        evidence = f"IOMMU group {groups[0]}, and {groups[1]} of {nic.ref} behind the same switch"
        return _Verdict(True, evidence)
    if (None not in groups and topology.acs is None) or not ports:
        return _Verdict(False, "")
    return _Verdict("unknown", unread)


def _silence(said: Acs | None) -> str | None:
    """Why a port did not tell; None for one that did, if only that it has no ACS."""
    reason = Unknown.NOT_RECORDED if said is None else dict(said.unknown).get("acs_redirect")
    return None if reason is None else reason.value


def _parting(topology: Topology, a: Ref, b: Ref) -> tuple[Ref, ...]:
    """The ports at which two ways below one bridge part: what comes in at one of them may go out at the other.

    Only these can turn it to the root: the ports further down send upwards what goes up anyway, and nothing passes
    those above (PCIe Base Specification, 6.12.1.1). () where an end hangs at the common bridge itself.
    """
    mine, yours = (a, *topology.ancestors(a)), (b, *topology.ancestors(b))
    common = next((ref for ref in mine if ref in yours), None)
    if common is None:
        return ()
    ends = (way[way.index(common) - 1] for way in (mine, yours) if way.index(common) > 0)
    return tuple(ref for ref in ends if (port := topology.device(ref)) is not None and port.kind == "bridge")


def _redirected(topology: Topology, ports: list[Acs], gpu: Device, nic: Device) -> str:
    bits = [name for name in ("ReqRedir", "CmpltRedir", "UpstreamFwd") if any(name in one.enabled for one in ports)]
    where = ", ".join(str(one.function) for one in ports)
    ats = _ats(topology, gpu, nic)
    passes = ", DirectTrans+" if ats and all("DirectTrans" in one.enabled for one in ports) else ""
    words = " ".join(f"{name}+" for name in bits[:2])  # the third only helps the others
    return f"{words} at {where} before {nic.address}" + (f"; {ats}{passes}" if ats else "")


def _ats(topology: Topology, gpu: Device, nic: Device) -> str:
    """Addresses that are translated already pass a port with DirectTrans: then redirection costs little."""
    said = dict(topology.acs or ())
    both = [one for end in (gpu, nic) if (one := said.get(end.ref)) is not None and one.ats]
    return "ATS on at both" if len(both) == 2 else ""


def _release(kernel: str | None) -> tuple[int, int] | None:
    """`"5.14.0-427.el9.x86_64"` -> `(5, 14)`."""
    matched = _RELEASE.match(kernel or "")
    return (int(matched[1]), int(matched[2])) if matched else None
