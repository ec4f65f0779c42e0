"""Where interrupts go: proc/irq and msi_irqs (Documentation/core-api/irq/irq-affinity.rst)."""

from __future__ import annotations

import pytest

from tests.paper import DEVICES, Files, grown, inventory, netdev
from topo_agent.facts import IrqState
from topo_agent.host.paper import Failure, Link
from topo_agent.ids import PciAddress

CARD = "pci0000:16/0000:16:01.0/0000:17:00.0"
HERE = PciAddress(0, 0x17, 0, 0)


def box(**irqs: str | Failure | None) -> Files:
    """A NIC with interrupts: `i128="0-3"` is what effective_affinity_list of 128 says."""
    files = grown("pci0000:16/16:01.0/17:00.0") | netdev("eth0", CARD)
    for name, said in irqs.items():
        files[f"sys/devices/{CARD}/msi_irqs/{name[1:]}"] = "msix\n"
        if said is not None:
            files[f"proc/irq/{name[1:]}/effective_affinity_list"] = said
    return files


def test_all_queues_together() -> None:
    assert inventory(box(i128="0\n", i129="1\n", i130="8-9\n")).irqs_now == (
        IrqState(HERE, 3, frozenset({0, 1, 8, 9})),
    )


@pytest.mark.parametrize("said", ["\n", "", None])
def test_an_interrupt_that_is_not_effective_yet(said: str | None) -> None:
    """Before the first start effective_affinity_list is empty: what was asked for is what there is."""
    files = box(i128=said) | {"proc/irq/128/smp_affinity_list": "0-7\n"}
    assert inventory(files).irqs_now == (IrqState(HERE, 1, frozenset(range(8))),)


def test_without_proc_irq() -> None:
    """A recording without proc/irq: nothing is known and nothing is wrong."""
    found = inventory(box(i128=None))
    assert found.irqs_now == ()
    assert not [one for one in found.diagnostics if "irq" in one.subject]


def test_one_bad_interrupt_costs_itself() -> None:
    found = inventory(box(i128="0\n", i129="nonsense\n"))
    assert found.irqs_now == (IrqState(HERE, 2, frozenset({0})),)
    assert len([one for one in found.diagnostics if "irq" in one.subject]) == 1


def test_only_of_what_carries_an_interface() -> None:
    files = box(i128="0\n") | grown("pci0000:16/16:03.0/18:00.0")
    files |= {"sys/devices/pci0000:16/0000:16:03.0/0000:18:00.0/msi_irqs/140": "msix\n"}
    files |= {"proc/irq/140/effective_affinity_list": "1\n"}
    assert [one.function for one in inventory(files).irqs_now] == [HERE]


def test_it_is_state() -> None:
    """contract.md, section 3: interrupts that move change no structure."""
    assert inventory(box(i128="0\n")) == inventory(box(i128="1\n"))


def test_a_bus_of_plain_directories() -> None:
    """Traps 30: bus/pci/devices/<BDF> are plain directories; class/net tells the function all the same."""
    files: Files = {
        f"{DEVICES}/0000:17:00.0/class": "0x020000\n",
        f"{DEVICES}/0000:17:00.0/msi_irqs/128": "msix\n",
        "proc/irq/128/effective_affinity_list": "0\n",
        "sys/class/net/eth0/uevent": "INTERFACE=eth0\n",
        "sys/class/net/eth0/device": Link(f"../../../bus/pci/devices/{HERE}"),
    }
    found = inventory(files)
    assert [str(one) for one in found.diagnostics if one.code == "source_failed"] == []
    assert found.irqs_now == (IrqState(HERE, 1, frozenset({0})),)
