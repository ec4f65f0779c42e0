"""Names of things: addresses and numbers as the kernel prints them, as types that do not mix."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, NewType

NumaId = NewType("NumaId", int)
CpuId = NewType("CpuId", int)
PackageId = NewType("PackageId", int)

CpuSet = frozenset[int]
"""Logical CPU numbers. Printed as a kernel list by `cpulist`."""

# Domains are 16 bits on most machines and up to 32 bits behind Intel VMD and on Hyper-V
# (drivers/pci/controller/vmd.c starts at 0x10000, pci-hyperv.c makes them up).
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", re.ASCII)


class PciAddress(NamedTuple):
    """Where a PCI function is: `0000:1b:00.0`, `10001:84:00.0`. Sorts in bus order."""

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """`"0000:1b:00.0"` -> `PciAddress(0, 0x1b, 0, 0)`; ValueError when it does not fit."""
        found = _PCI.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} is no PCI address (dddd:bb:dd.f)")
        domain, bus, device, function = (int(part, 16) for part in found.groups())
        if device > 0x1F:
            raise ValueError(f"{text!r} is no PCI address: a bus has 32 devices")
        return cls(domain, bus, device, function)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"

    @property
    def card(self) -> tuple[int, int, int]:
        """What all functions of one device have in common: domain, bus, device."""
        return self[:3]


def function_in(path: str) -> PciAddress | None:
    """The PCI function that a sysfs path belongs to: its last component that is an address.

    `"sys/devices/pci0000:00/0000:00:03.0/virtio0/net/ens3"` -> `0000:00:03.0`; None on no PCI bus.
    """
    for part in reversed(path.split("/")):
        if _PCI.fullmatch(part):
            return PciAddress.parse(part)
    return None


class Ref(NamedTuple):
    """The name of a node of the graph, and a place: `pci:0000:1b:00.0`, `numa:1`, `pkg:0`."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"


def pci_ref(address: PciAddress) -> Ref:
    return Ref("pci", str(address))


def mig_ref(gpu: PciAddress, instance: int, compute: int) -> Ref:
    """`mig:0000:1b:00.0/1`: the GPU instance, and its compute instance where that is not 0: `mig:0000:1b:00.0/1/2`."""
    return Ref("mig", f"{gpu}/{instance}" + (f"/{compute}" if compute else ""))


def numa_ref(node: NumaId) -> Ref:
    return Ref("numa", str(node))


def package_ref(package: PackageId) -> Ref:
    return Ref("pkg", str(package))


def cpulist(cpus: Iterable[int]) -> str:
    """CPU or node numbers as the kernel lists them: `{0, 1, 2, 8}` -> `"0-2,8"`, nothing -> `""`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
