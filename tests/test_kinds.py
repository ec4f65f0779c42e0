"""What a function is, by class and vendor: pairing.md section 2 and the boxes of traps.md."""

from __future__ import annotations

import pytest

from tests.paper import Files, bridge, function, place, topology
from topo_agent.host.paper import Failure


@pytest.mark.parametrize(
    ("class_", "vendor", "device", "kind"),
    [
        # traps 50
        ("0x030200", "0x10de", "0x20b0", "gpu"),
        ("0x030000", "0x10de", "0x2b85", "gpu"),
        ("0x120000", "0x1002", "0x74a1", "gpu"),  # MI300X
        ("0x120000", "0x1002", "0x74a0", "gpu"),  # MI300A
        ("0x038000", "0x1002", "0x66a1", "gpu"),  # MI50
        ("0x038000", "0x1002", "0x7408", "gpu"),  # MI250X
        ("0x0b4000", "0x1bcf", "0x001c", "gpu"),  # NEC Aurora
        ("0x0b4000", "0x8086", "0x4940", "other"),  # Intel QAT
        ("0x120000", "0x1da3", "0x1020", "gpu"),  # Gaudi2
        # traps 49: displays of management processors
        ("0x030000", "0x102b", "0x0536", "other"),  # Matrox
        ("0x030000", "0x1a03", "0x2000", "other"),  # ASPEED
        ("0x030000", "0x19e5", "0x1711", "other"),  # pci.ids: Hi171x [iBMC … w/VGA support]
        # displays of hypervisors
        ("0x030000", "0x1013", "0x00b8", "other"),  # Cirrus
        ("0x030000", "0x1af4", "0x1050", "other"),  # virtio-gpu
        ("0x030000", "0x15ad", "0x0405", "other"),  # VMware
        ("0x030000", "0x1414", "0x5353", "other"),  # Hyper-V
        ("0x040300", "0x10de", "0x22ba", "other"),  # traps 51: the audio function of a GPU
        # pairing.md, section 2
        ("0x020000", "0x15b3", "0x1021", "nic"),
        ("0x020700", "0x15b3", "0x1003", "nic"),  # traps 84: InfiniBand without a driver
        ("0x020000", "0x17db", "0x0501", "nic"),  # traps 83: Cassini
        ("0x028000", "0x1d0f", "0xefa1", "nic"),
        ("0x010802", "0x144d", "0xa824", "nvme"),
        ("0x010700", "0x1000", "0x00b2", "other"),  # traps 47: switch management endpoint
        ("0x010400", "0x8086", "0x28c0", "other"),  # VMD
        ("0x088000", "0x1000", "0x02b0", "other"),  # traps 47: placeholder endpoint
        ("0x080100", "0x15b3", "0x2100", "other"),  # traps 54: the DMA function of Data Direct
        ("0x068000", "0x10de", "0x1af1", "nvswitch"),
        ("0x068000", "0x8086", "0x7113", "other"),  # traps 48: PIIX4
        ("0x060000", "0x8086", "0x09a2", "host_bridge"),
        ("0x060400", "0x8086", "0x352a", "bridge"),
        ("0x060401", "0x8086", "0x244e", "bridge"),
        ("0x060100", "0x8086", "0x1b81", "other"),  # ISA
    ],
)
def test_kind(class_: str, vendor: str, device: str, kind: str) -> None:
    found = topology(function("0000:17:00.0", under="pci0000:16", class_=class_, vendor=vendor, device=device))
    assert place(found, "0000:17:00.0").kind == kind


def test_a_function_without_class() -> None:
    files = function("0000:17:00.0", under="pci0000:16", files={"class": None, "uevent": None})
    assert place(topology(files), "0000:17:00.0").kind == "other"


SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"


def xe9680() -> Files:
    """Traps 43: the Dell XE9680's GPU and NIC below one switch; the GPU has two ports of its own."""
    gpu = f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0"
    return (
        bridge("0000:15:01.0", under="pci0000:15")
        | bridge("0000:16:00.0", under="pci0000:15/0000:15:01.0")
        | bridge("0000:17:01.0", under=SWITCH)
        | bridge("0000:17:03.0", under=SWITCH)
        | bridge("0000:19:00.0", under=f"{SWITCH}/0000:17:01.0")
        | bridge("0000:1a:00.0", under=f"{SWITCH}/0000:17:01.0/0000:19:00.0")
        | function("0000:1b:00.0", under=gpu, class_="0x120000", vendor="0x1002", device="0x74a1")
        | function("0000:1d:00.0", under=f"{SWITCH}/0000:17:03.0")
    )


def test_ports() -> None:
    """pairing.md, section 2: after the host bridge a root port, then upstream and downstream port of each switch."""
    found = topology(xe9680())
    assert {one.ref.key[5:]: one.role for one in found.of_kind("bridge")} == {
        "15:01.0": "root_port",
        "16:00.0": "upstream_port",
        "17:01.0": "downstream_port",
        "17:03.0": "downstream_port",
        "19:00.0": "upstream_port",
        "1a:00.0": "downstream_port",
    }
    assert place(found, "0000:1b:00.0").role is None


def test_downstream_ports_that_are_functions_of_one_device() -> None:
    """Traps 37: AWS p6e-gb200, ports 26:00.0, 26:00.1 and 26:00.2 below 25:00.0."""
    port = "pci0000:24/0000:24:00.0/0000:25:00.0"
    files = bridge("0000:24:00.0", under="pci0000:24") | bridge("0000:25:00.0", under="pci0000:24/0000:24:00.0")
    for number in range(3):
        files |= bridge(f"0000:26:00.{number}", under=port)
        files |= function(f"0000:{0x27 + number:02x}:00.0", under=f"{port}/0000:26:00.{number}")
    roles = {one.ref.key: one.role for one in topology(files).of_kind("bridge")}
    assert roles == {
        "0000:24:00.0": "root_port",
        "0000:25:00.0": "upstream_port",
        **{f"0000:26:00.{number}": "downstream_port" for number in range(3)},
    }


def test_a_bridge_to_conventional_pci() -> None:
    """pairing.md, section 2: ASPEED's AST1150 below a root port leads to its graphics."""
    above = "pci0000:00/0000:00:1c.0"
    files = (
        bridge("0000:00:1c.0", under="pci0000:00")
        | bridge("0000:02:00.0", under=above)
        | function("0000:03:00.0", under=f"{above}/0000:02:00.0", class_="0x030000", vendor="0x1a03", device="0x2000")
    )
    assert place(topology(files), "0000:02:00.0").role == "pci_bridge"


def test_a_function_without_class_does_not_name_its_neighbours() -> None:
    """A port whose `class` and `uevent` fail (EIO below a switch that is being reset) is not a device below it."""
    lost: Files = {f"sys/devices/{SWITCH}/0000:17:03.0/{name}": Failure(5) for name in ("class", "uevent")}
    found = topology(xe9680() | lost)
    assert place(found, "0000:17:03.0").role is None
    roles = [place(found, address).role for address in ("0000:16:00.0", "0000:17:01.0", "0000:19:00.0")]
    assert roles == ["upstream_port", "downstream_port", "upstream_port"]
