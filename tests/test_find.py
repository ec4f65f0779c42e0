"""The names that users type."""

from __future__ import annotations

import pytest

from tests.paper import (
    NVIDIA,
    NVME,
    Files,
    answers,
    disk,
    drive,
    function,
    grown,
    netdev,
    nvml,
    rdma,
    topology,
    two_sockets,
)
from tests.test_pci import vmd
from topo_agent.graph.find import NoSuchDevice, find
from topo_agent.graph.topology import Topology
from topo_agent.host.paper import Link

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


CARD, DRIVE = "pci0000:16/0000:16:01.0/0000:18:00.0", "pci0000:16/0000:16:03.0/0000:19:00.0"


def box() -> Files:
    """Two GPUs, a NIC with two interfaces, an RDMA device, a bond and a multipath drive."""
    files = two_sockets() | grown("pci0000:16/17:00.0", NVIDIA) | grown("pci0000:96/97:00.0", NVIDIA)
    files |= grown("pci0000:16/16:01.0/18:00.0") | netdev("ens1", CARD) | netdev("ens1d1", CARD, {"dev_port": "1\n"})
    files |= rdma("mlx5_bond_0", CARD) | netdev("bond0", "virtual", {"lower_ens1": Link("x")}, event="DEVTYPE=bond\n")
    files |= grown("pci0000:16/16:03.0/19:00.0", NVME) | drive("nvme0", f"{DRIVE}/nvme", {"nvme0c0n1/size": "1\n"})
    return files | disk("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0")


def named() -> Topology:
    """NVML counts against the bus: index 0 is 97:00.0."""
    first, second = "GPU-5f3a0000-0000-0000-0000-000000000001", "GPU-5f3b0000-0000-0000-0000-000000000002"
    return topology(
        box(), documents=nvml(answers("0000:97:00.0", 0, uuid=first), answers("0000:17:00.0", 1, uuid=second))
    )


@pytest.mark.parametrize(
    ("typed", "ref"),
    [
        ("ens1", "pci:0000:18:00.0"),
        ("ens1d1", "pci:0000:18:00.0"),
        ("mlx5_bond_0", "pci:0000:18:00.0"),
        ("bond0", "net:bond0"),
        ("net:bond0", "net:bond0"),
        ("nvme0", "pci:0000:19:00.0"),
        ("nvme0n1", "pci:0000:19:00.0"),
        ("nvme0c0n1", "pci:0000:19:00.0"),
        ("gpu0", "pci:0000:97:00.0"),
        ("gpu1", "pci:0000:17:00.0"),
        ("GPU1", "pci:0000:17:00.0"),
        ("GPU-5f3a0000-0000-0000-0000-000000000001", "pci:0000:97:00.0"),
        ("GPU-5f3b", "pci:0000:17:00.0"),
        ("GPU-5f3b0000-0000", "pci:0000:17:00.0"),
        ("97:00.0", "pci:0000:97:00.0"),
    ],
)
def test_names_of_devices(typed: str, ref: str) -> None:
    """contract.md, section 2."""
    assert str(find(named(), typed)) == ref


def test_gpus_without_nvml_are_in_bus_order() -> None:
    found = topology(box())
    assert [str(find(found, f"gpu{number}")) for number in (0, 1)] == ["pci:0000:17:00.0", "pci:0000:97:00.0"]


@pytest.mark.parametrize("typed", ["GPU-", "GPU-5f3"])
def test_a_beginning_that_two_gpus_have(typed: str) -> None:
    with pytest.raises(NoSuchDevice, match=r"ambiguous: pci:0000:17:00\.0, pci:0000:97:00\.0"):
        find(named(), typed)


@pytest.mark.parametrize(
    "typed", ["GPU-6", "GPU-5f3a1", "gpu2", "gpu00", "gpu-1", "gpu", "ens", "ens11", "nvme0n2", "nvme"]
)
def test_names_of_nobody(typed: str) -> None:
    with pytest.raises(NoSuchDevice, match="no device"):
        find(named(), typed)


def test_near_names_of_devices() -> None:
    with pytest.raises(NoSuchDevice, match=r"near: .*mlx5_bond_0"):
        find(named(), "mlx5_bond0")


def test_a_disk_of_two_controllers() -> None:
    """One multipath disk below two functions: both are named."""
    other = "pci0000:16/0000:16:05.0/0000:1a:00.0"
    files = (
        box() | grown("pci0000:16/16:05.0/1a:00.0", NVME) | drive("nvme1", f"{other}/nvme", {"nvme0c1n1/size": "1\n"})
    )
    with pytest.raises(NoSuchDevice, match=r"ambiguous: pci:0000:19:00\.0, pci:0000:1a:00\.0"):
        find(topology(files), "nvme0n1")


def test_one_name_of_two_things() -> None:
    """An interface may be called as a GPU is: neither is guessed."""
    files = box() | netdev("gpu0", CARD, {"dev_port": "2\n"})
    with pytest.raises(NoSuchDevice, match="ambiguous"):
        find(topology(files), "gpu0")


def test_two_names_of_one_thing_that_are_equal() -> None:
    """`rdma dev set mlx5_0 name ens1` (iproute2): the same card."""
    files = box() | rdma("ens1", CARD)
    assert str(find(topology(files), "ens1")) == "pci:0000:18:00.0"
