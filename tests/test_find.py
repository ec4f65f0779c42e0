"""The names that users type."""

from __future__ import annotations

import pytest

from tests.paper import function, topology
from tests.test_pci import vmd
from topo_agent.graph.find import NoSuchDevice, find

TOPOLOGY = topology(
    vmd()
    | function("0000:1b:00.0", under="pci0000:16")
    | function("0000:02:00.0", under="pci0000:00")
    | function("0001:02:00.0", under="pci0001:00")
)


@pytest.mark.parametrize(
    ("typed", "ref"),
    [
        ("0000:1b:00.0", "pci:0000:1b:00.0"),
        ("0000:1B:00.0", "pci:0000:1b:00.0"),
        ("1b:00.0", "pci:0000:1b:00.0"),
        ("1B:00.0", "pci:0000:1b:00.0"),
        (" 1b:00.0\n", "pci:0000:1b:00.0"),
        ("pci:0000:1b:00.0", "pci:0000:1b:00.0"),
        ("00000000:1B:00.0", "pci:0000:1b:00.0"),  # as NVML writes it: dra.md, section 6
        ("0001:02:00.0", "pci:0001:02:00.0"),
        ("10001:84:00.0", "pci:10001:84:00.0"),
        ("84:00.0", "pci:10001:84:00.0"),
        ("numa:1", "numa:1"),
        ("pkg:0", "pkg:0"),
        ("root:pci0000:6f", "root:pci0000:6f"),
        ("pci0000:6f", "root:pci0000:6f"),
    ],
)
def test_found(typed: str, ref: str) -> None:
    assert str(find(TOPOLOGY, typed)) == ref


def test_ambiguous() -> None:
    """Traps 60: two domains have the same bus. All candidates are named."""
    with pytest.raises(NoSuchDevice, match=r"ambiguous: pci:0000:02:00\.0, pci:0001:02:00\.0"):
        find(TOPOLOGY, "02:00.0")


@pytest.mark.parametrize(
    ("typed", "near"), [("0000:1b:00.1", "0000:1b:00.0"), ("1b:00.1", "1b:00.0"), ("numa:7", "numa:1")]
)
def test_near_names(typed: str, near: str) -> None:
    with pytest.raises(NoSuchDevice, match=f"no device.*{near}"):
        find(TOPOLOGY, typed)


@pytest.mark.parametrize(
    "typed", ["", " ", "numa:", ":", "pci:", "pci0000:", "0000:1b:00", "numa:-1", "numa:01", "a\x1b[2J\nb", "x" * 1000]
)
def test_not_there(typed: str) -> None:
    """contract.md, section 2: one line, and nothing that a terminal would obey."""
    with pytest.raises(NoSuchDevice) as caught:
        find(TOPOLOGY, typed)
    assert str(caught.value).isprintable()


def test_nothing_to_find() -> None:
    with pytest.raises(NoSuchDevice, match="no device 'numa:0' here"):
        find(topology({}), "numa:0")
