"""`list gpus|nics|nvme|switches|links`: one row for each thing, and what each column says."""

from __future__ import annotations

import pytest

from tests.paper import (
    NVIDIA,
    NVME,
    Files,
    answers,
    disk,
    drive,
    grown,
    inventory,
    link_files,
    netdev,
    nvlink,
    nvml,
    rdma,
    topology,
    two_sockets,
)
from topo_agent.host.paper import Failure, Link
from topo_agent.views import devices, table
from topo_agent.views.devices import Row

SWITCH = "pci0000:15/15:01.0/16:00.0"
NIC_AT = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1d:00.0"
DRIVE_AT = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:05.0/0000:1e:00.0"
LINKS = {"18:00.0": link_files(), "1d:00.0": link_files("16.0 GT/s PCIe", 8)}


def box(net: Files | None = None, ib: Files | None = None) -> Files:
    """One switch over a GPU, a NIC, a drive and nothing, and a second GPU in the other socket."""
    files = two_sockets() | grown(f"{SWITCH}/17:01.0/18:00.0", NVIDIA, numa_node="0\n", links=LINKS)
    files |= grown(f"{SWITCH}/17:03.0/1d:00.0", numa_node="0\n", links=LINKS)
    files |= grown(f"{SWITCH}/17:05.0/1e:00.0", NVME, numa_node="0\n") | grown(f"{SWITCH}/17:07.0", PORT)
    files |= grown("pci0000:96/96:01.0/97:00.0", NVIDIA, numa_node="1\n")
    files |= netdev("ens1", NIC_AT, net or {}) | rdma("mlx5_0", NIC_AT, files=ib or {})
    files |= drive("nvme0", f"{DRIVE_AT}/nvme") | disk("nvme0n1", f"{DRIVE_AT}/nvme/nvme0")
    return files


PORT = {"class_": "0x060400", "vendor": "0x8086", "device": "0x352a"}


def nic(files: Files) -> Row:
    """The row of the first NIC."""
    return next(iter(devices.nics(topology(files))))


def some(row: Row, *names: str) -> tuple[object, ...]:
    return tuple(row[name] for name in names)


def test_gpus() -> None:
    """Contract, section 2: NVML index, CUDA order (bus order) and address side by side; rows in index order."""
    documents = nvml(answers("0000:97:00.0", 0), answers("0000:18:00.0", 1))
    rows = list(devices.gpus(topology(box(), documents=documents)))
    assert [some(row, "gpu", "nvml", "cuda", "address", "numa", "cpus") for row in rows] == [
        (0, 0, 1, "0000:97:00.0", 1, "4-7"),
        (1, 1, 0, "0000:18:00.0", 0, "0-3"),
    ]
    assert some(rows[1], "link", "memory", "name", "nearest_nics") == (
        "Gen5 x16",
        "80 GiB",
        "NVIDIA H100 80GB HBM3",
        "NIC0 (PIX)",
    )
    assert rows[0]["nearest_nics"] == "NIC0 (SYS)"


def test_gpus_without_nvml() -> None:
    rows = list(devices.gpus(topology(box())))
    assert [some(row, "gpu", "nvml", "cuda", "address") for row in rows] == [
        (0, "", 0, "0000:18:00.0"),
        (1, "", 1, "0000:97:00.0"),
    ]


def test_a_lost_gpu_comes_after_the_others() -> None:
    """Traps 110: no index, and still a row."""
    rows = list(devices.gpus(topology(box(), documents=nvml(answers("0000:97:00.0", 5)))))
    assert [some(row, "gpu", "nvml", "address") for row in rows] == [(5, 5, "0000:97:00.0"), (6, "", "0000:18:00.0")]


def test_doubt_is_said() -> None:
    files = grown("pci0000:16/16:01.0/17:00.0", NVIDIA) | grown("pci0000:96/96:01.0/97:00.0")
    (row,) = devices.gpus(topology(two_sockets() | files))
    assert row["nearest_nics"] == "NIC0 (SYS, not certain)"


def test_a_nic() -> None:
    assert some(nic(box()), "nic", "address", "netdev", "rdma", "layer", "state", "speed", "mtu", "numa", "link") == (
        "NIC0", "0000:1d:00.0", "ens1", "mlx5_0", "Ethernet", "up", "100 Gb/s", "1500", 0, "Gen4 x8",
    )  # fmt: skip


def test_an_infiniband_port_without_interface() -> None:
    """Its rate is that of the RDMA port: traps 79."""
    files = {at: said for at, said in box(ib={"ports/1/link_layer": "InfiniBand\n"}).items() if "/net/" not in at}
    assert some(nic(files), "netdev", "layer", "state", "speed") == ("", "InfiniBand", "up", "400 Gb/s")


DOWN: Files = {"ports/1/state": "1: DOWN\n", "ports/1/rate": "10 Gb/sec (4X SDR)\n"}


@pytest.mark.parametrize(
    "net",
    [
        {"carrier": "0\n", "operstate": "down\n", "speed": Failure(22)},
        {"carrier": Failure(22), "operstate": "down\n", "speed": Failure(22)},
        {"carrier": "0\n", "operstate": "down\n", "speed": "-1\n"},
    ],
    ids=["no carrier", "not set up", "minus one"],
)
def test_a_nic_that_is_down(net: Files) -> None:
    """Issue 4: carrier 0 and EINVAL. Down, no speed, one note at most, and the structure is the same."""
    found, whole = inventory(box(net, DOWN)), inventory(box())
    assert some(nic(box(net, DOWN)), "state", "speed") == ("down", "")
    assert len(set(found.diagnostics) - set(whole.diagnostics)) <= 1
    assert found == whole


def test_two_ports() -> None:
    """Traps 76: one up and one down."""
    second: Files = {
        "ports/2/link_layer": "InfiniBand\n",
        "ports/2/state": "1: DOWN\n",
        "ports/2/rate": "10 Gb/sec (4X SDR)\n",
    }
    files = {at: said for at, said in box(ib=second).items() if "/net/" not in at}
    assert some(nic(files), "state", "speed", "layer") == ("up down", "400 Gb/s", "Ethernet InfiniBand")


def test_unknown_state() -> None:
    silent: Files = dict.fromkeys(("carrier", "operstate", "speed"))
    assert some(nic(box(silent, {"ports/1/state": None, "ports/1/rate": None})), "state", "speed") == ("?", "")


def test_virtual_functions_are_counted() -> None:
    files = box()
    for number in range(1, 4):
        files |= grown(f"{SWITCH}/17:03.0/1d:00.{number}", files={"physfn": Link("../0000:1d:00.0")})
    rows = list(devices.nics(topology(files)))
    assert [some(row, "address", "vfs") for row in rows] == [("0000:1d:00.0", 3)]


def test_nics_on_no_function() -> None:
    """Bond, VLAN and software RDMA after the others, with what they stand on."""
    files = box() | netdev("bond0", "virtual", {"lower_ens1": Link("x")}, event="DEVTYPE=bond\n")
    files |= rdma("rxe0", "virtual", files={"parent": "ens1\n"})
    rows = [some(row, "nic", "address", "netdev", "rdma") for row in devices.nics(topology(files))]
    assert rows[1:] == [("bond", "NIC0", "bond0", ""), ("software_rdma", "NIC0", "", "rxe0")]


def test_drives() -> None:
    remote: Files = {"transport": "tcp\n", "address": "traddr=192.0.2.7,trsvcid=4420\n"}
    files = (
        box() | drive("nvme1", "virtual/nvme-fabrics/ctl", remote) | disk("nvme1n1", "virtual/nvme-fabrics/ctl/nvme1")
    )
    rows = list(devices.nvme(topology(files)))
    names = ("nvme", "address", "disks", "transport", "serial", "remote")
    assert some(rows[0], *names) == ("nvme0", "0000:1e:00.0", "nvme0n1", "pcie", "SNVME0", "")
    assert some(rows[1], *names[:1], "transport", "remote") == ("nvme1", "tcp", "traddr=192.0.2.7,trsvcid=4420")


def test_switches() -> None:
    """By their upstream port; the fourth downstream port leads nowhere."""
    (row,) = devices.switches(topology(box()))
    assert some(row, "kind", "address", "ports", "empty", "devices") == (
        "pcie", "0000:16:00.0", 4, 1, "GPU0 NIC0 nvme0",
    )  # fmt: skip


def test_the_bridges_inside_an_amd_gpu_are_no_switch() -> None:
    """pairing.md, section 5: internal to the GPU; eight MI300X are no eight switches more."""
    path = f"{SWITCH}/17:01.0/19:00.0/1a:00.0/1b:00.0"
    ports = {"19:00.0": {"vendor": "0x1022", "device": "0x1500"}, "1a:00.0": {"vendor": "0x1002", "device": "0x1501"}}
    files = two_sockets() | grown(path, {"class_": "0x120000", "vendor": "0x1002", "device": "0x74a1"}, ports=ports)
    assert [row["address"] for row in devices.switches(topology(files))] == ["0000:16:00.0"]


def test_nvswitches() -> None:
    files = box() | grown("pci0000:00/00:01.0/05:00.0", {"class_": "0x068000", "vendor": "0x10de", "device": "0x22a3"})
    assert [some(row, "kind", "address") for row in devices.switches(topology(files))] == [
        ("nvswitch", "0000:05:00.0"),
        ("pcie", "0000:16:00.0"),
    ]


def test_links() -> None:
    """Each once, with how many are up: traps 96."""
    a = [nvlink(number, "0000:97:00.0", 0, 1 if number < 3 else 0) for number in range(4)]
    b = [nvlink(number, "0000:18:00.0", 0, 1) for number in range(4)]
    documents = nvml(answers("0000:18:00.0", 0, a), answers("0000:97:00.0", 1, b))
    (row,) = devices.links(topology(box(), documents=documents))
    assert some(row, "a", "b", "kind", "peer", "count", "active", "bandwidth") == (
        "GPU0", "GPU1", "nvlink", "gpu", 4, 3, "100 GB/s",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gpus", "nics", "nvme", "switches", "links"])
def test_every_row_has_every_column(kind: str) -> None:
    """So that `--columns` of any name prints something for each row, remote and software ones too."""
    files = box() | rdma("rxe0", "virtual") | drive("nvme1", "virtual/nvme-fabrics/ctl", {"transport": "tcp\n"})
    documents = nvml(answers("0000:18:00.0", 0, [nvlink(0, "FFFFFFFF:FF:FF.0", 2)]))
    rows = list(table.rows(topology(files, documents=documents), kind))
    assert rows
    assert {tuple(sorted(row)) for row in rows} == {tuple(sorted(table.ALL_COLUMNS[kind]))}
