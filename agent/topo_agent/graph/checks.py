"""The checks: a machine -> findings. Each has a code that never changes, and one sentence of advice.

docs/findings.md is made from CHECKS. A check says what it saw, never what it supposes: where a fact is
unknown there is no finding, or one that says that it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from topo_agent.graph import gpudirect, links_health, placement, readiness
from topo_agent.graph.findings import SEVERITIES, Finding, Machine, Seen, together
from topo_agent.graph.pairing import Choice
from topo_agent.graph.topology import Topology


class Check(NamedTuple):
    code: str
    means: str
    advice: str
    look: Callable[[Machine], Iterable[Seen]]


CHECKS: tuple[Check, ...] = (
    Check(
        "numa_unknown",
        "A GPU, NIC or drive of a machine with several NUMA nodes has no known node.",
        "Update the BIOS or set its NUMA option; until then name the node of its root in an overlay.",
        placement.numa_unknown,
    ),
    Check(
        "numa_silent",
        "Firmware gives no PCI function any NUMA node, on a machine that has several.",
        "Look for an ACPI SRAT/_PXM or NUMA option in the BIOS; nothing can be aligned without it.",
        placement.numa_silent,
    ),
    Check(
        "sources_disagree",
        "Two sources of the machine contradict each other; neither is believed.",
        "Compare with a second tool and report it to the maker of the board.",
        placement.sources_disagree,
    ),
    Check(
        "overlay_contradicts",
        "The operator's overlay says something else than firmware does.",
        "Mend the overlay, or the firmware if the overlay is right.",
        placement.overlay_contradicts,
    ),
    Check(
        "gpu_without_nic",
        "A GPU has no NIC for it on its NUMA node.",
        "Move a NIC next to it, or keep traffic of this GPU off the network.",
        placement.gpu_without_nic,
    ),
    Check(
        "gpu_without_switch_nic",
        "A GPU has a NIC on its NUMA node, and none behind its switch.",
        "Expect traffic through the processor; a NIC in a slot of the same switch is faster.",
        placement.gpu_without_switch_nic,
    ),
    Check(
        "vm_flat_pci",
        "A virtual machine shows its GPUs on one bus without switches: nothing can be told from it.",
        "Ask the provider for the real layout (an NCCL topology file) and put it into an overlay.",
        placement.vm_flat_pci,
    ),
    Check(
        "uplink_shared",
        "Four or more GPUs share one link towards the processor.",
        "Spread the GPUs over more uplinks, or keep their traffic below the switch.",
        placement.uplink_shared,
    ),
    Check(
        "irq_far",
        "The interrupts of a NIC go to CPUs of which none is near it.",
        "Let irqbalance place them, or write near CPUs to /proc/irq/<n>/smp_affinity_list.",
        placement.irq_far,
    ),
    Check(
        "link_width",
        "A PCIe link runs with fewer lanes than both of its ends could.",
        "Reseat the card or cable; look for dirt on the contacts and for a bifurcation setting.",
        links_health.width,
    ),
    Check(
        "link_speed",
        "A PCIe link runs slower than both of its ends could.",
        "An idle GPU trains its link down by itself: look again under load before you reseat it.",
        links_health.speed,
    ),
    Check(
        "slot_limits",
        "The slot is slower or narrower than its card.",
        "Move the card to a better slot if there is one.",
        links_health.slot_limits,
    ),
    Check(
        "link_outlier",
        "One of several equal cards has another link at most than the rest.",
        "Compare its slot, riser and firmware with those of the others.",
        links_health.outlier,
    ),
    Check(
        "gpus_uneven",
        "Equal GPUs are spread unevenly over the packages that have any.",
        "Expect ranks of one package to share more than those of another; compare with the maker's layout.",
        placement.gpus_uneven,
    ),
    Check(
        "firmware_differs",
        "Equal NICs or drives run different firmware.",
        "Bring them to one version: differences in speed and in errors are hard to find otherwise.",
        readiness.firmware_differs,
    ),
    Check(
        "nvlink_partial",
        "A GPU has fewer active NVLinks than its equals, or none while they have some.",
        "Look at `nvidia-smi nvlink -s` and at the fabric manager; the GPU may need a reset.",
        links_health.nvlink_partial,
    ),
    Check(
        "driver_missing",
        "A GPU, NIC or drive has no driver.",
        "Load the driver, or ignore it if the device is given to a virtual machine.",
        readiness.driver_missing,
    ),
    Check(
        "passed_through",
        "A device is bound to vfio-pci: a virtual machine has it, and tools of this host do not see it.",
        "Nothing, if that is wanted.",
        readiness.passed_through,
    ),
    Check(
        "gpu_not_in_driver",
        "A GPU on the bus is missing from the list of the NVIDIA driver, which lists others.",
        "Look at the kernel log for XID errors; in a container it may only be hidden.",
        readiness.gpu_not_in_driver,
    ),
    Check(
        "gpu_not_on_bus",
        "A driver names a device that is not on the PCI bus.",
        "It fell off the bus: look at the kernel log, then reset or power-cycle it.",
        readiness.gpu_not_on_bus,
    ),
    Check(
        "acs_redirect",
        "ACS sends the traffic of a GPU and a NIC behind one switch through the root: the ports of the switch say so "
        "(`--probe acs`), or, unless they were asked, different IOMMU groups.",
        "Disable ACS on the switch ports (not on a host that isolates virtual machines), or use ATS.",
        gpudirect.acs_redirect,
    ),
    Check(
        "acs_unknown",
        "Whether ACS sends the traffic of a GPU and a NIC behind one switch through the root is not known.",
        "Run `topo-agent check --probe acs` as root of the host: in no container, and in no virtual machine.",
        gpudirect.acs_unknown,
    ),
    Check(
        "iommu_translates",
        "The IOMMU translates for a GPU, or for a NIC behind the same switch: their traffic goes through the root.",
        "Boot with `iommu=pt` (on Arm `iommu.passthrough=1`), unless this host gives devices to virtual machines.",
        gpudirect.iommu_translates,
    ),
    Check(
        "peer_memory_missing",
        "Nothing in the kernel lets a NIC reach the memory of NVIDIA GPUs: data is copied through the host's memory.",
        "Run `modprobe nvidia-peermem`, or use the open kernel modules on Linux 5.12 or newer, which offer dma-buf.",
        gpudirect.peer_memory_missing,
    ),
    Check(
        "software_rdma",
        "A software RDMA device is present; some tools fail or choose it.",
        "Remove it (`rdma link delete`) unless it is wanted.",
        readiness.software_rdma,
    ),
)


def findings(
    topology: Topology, choices: tuple[Choice, ...], again: frozenset[str] = frozenset()
) -> tuple[Finding, ...]:
    """Everything that the checks find, the worst first, then by the order of CHECKS.

    `again`: `CODE:SUBJECT` of what earlier readings found, too; it makes a warning of a link that is low.
    """
    machine = Machine(topology, choices, again)
    found = [one for check in CHECKS for one in together(check.code, check.advice, check.look(machine))]
    return tuple(sorted(found, key=lambda one: -SEVERITIES.index(one.severity)))


def kept(found: Iterable[Finding], ignored: Iterable[str]) -> Iterator[Finding]:
    """Without what is ignored: `CODE`, or `CODE:SUBJECT` for one subject of it."""
    words = set(ignored)
    for one in found:
        told = zip(one.subjects, one.evidences, strict=True)
        left = [(subject, evidence) for subject, evidence in told if f"{one.code}:{subject}" not in words]
        if one.code not in words and left:
            subjects, evidences = zip(*left, strict=True)
            yield one._replace(subjects=subjects, evidences=evidences)
