"""What a recording tells of nobody: planted secrets are found nowhere, and what wiring needs is still there."""

from __future__ import annotations

import json
import re

import pytest

from topo_agent.host import Json, Source
from topo_agent.host import recording as rec
from topo_agent.host.paper import Entry, Link, PaperHost
from topo_agent.host.redact import redacted

GPU = "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0"
NIC = "sys/devices/pci0000:16/0000:16:02.0/0000:18:00.0"
HYPERV = "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/7ad35d50-c05b-47ab-b3a0-56a9a845852b"

SECRETS = (
    "b8:ce:f6:12:34:56",
    "b8cef6123456",
    "B8:CE:F6:12:34:56",
    "b8cef6fffe123456",
    "b8cef60300123456",
    "b8ce:f603:0012:3456",
    "b8:ce:f6:03:00:12:34:56",
    "bace:f6ff:fe12:3456",
    "0xb8cef60300123456",
    "10.20.30.41",
    "0a14:1e29",
    "2001:db8:77",
    "dead:beef",
    "S64HNE0R805213",
    "533634484e453052",
    "1652922004711",
    "PF3XYZ77",
    "ASSET-4711",
    "GPU-9d4fc3a2-11d5-4a7e-b1a6-0c5a77e3b001",
    "9d4fc3a2",
    "4c4c4544-0043",
    "7ad35d50-c05b-47ab",
    "nqn.1994-11.com.samsung",
    "002538b541b01234",
    "deadbeefcafe0123",
    "16045690984503050531",
    "gpu-head-07",
    "dc4.corp.internal",
    "hunter2",
    "0b5c1fd2-aaaa",
    "f00dfacecafe",
    "QQ-SECRET",
    "other-host",
)

NQN = "nqn.1994-11.com.samsung:nvme:PM1733:2.5-inch:S64HNE0R805213"

ENTRIES: dict[str, Entry] = {
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=0b5c1fd2-aaaa-4bbb-8ccc-123456789abc ro iommu=pt pw=hunter2\n",
    "proc/cpuinfo": "processor\t: 0\nSerial\t\t: deadbeefcafe0123\n",
    "proc/sys/kernel/hostname": "gpu-head-07.dc4.corp.internal\n",
    "proc/sys/kernel/osrelease": "5.15.0.1\n",
    f"proc/driver/nvidia/gpus/{GPU[-12:]}/information": (
        "GPU UUID: \t GPU-9d4fc3a2-11d5-4a7e-b1a6-0c5a77e3b001\nVideo BIOS: \t 96.00.74.00.01\n"
    ),
    "proc/net/bonding/bond0": "Permanent HW addr: b8:ce:f6:12:34:56\nARP IP target/s: 10.20.30.41\n",
    "sys/class/net/enxb8cef6123456": Link(f"../../{NIC[4:]}/net/enxb8cef6123456"),
    f"{NIC}/net/enxb8cef6123456/address": "b8:ce:f6:12:34:56\n",
    f"{NIC}/net/enxb8cef6123456/broadcast": "ff:ff:ff:ff:ff:ff\n",
    f"{NIC}/net/enxb8cef6123456/ifalias": "to gpu-head-07 of ASSET-4711\n",
    f"{NIC}/net/enxb8cef6123456/phys_port_id": "b8cef6123456\n",
    f"{NIC}/net/enxb8cef6123456/phys_switch_id": "f00dfacecafe\n",
    f"{NIC}/net/enxb8cef6123456/uevent": "INTERFACE=enxb8cef6123456\nIFINDEX=2\n",
    f"{NIC}/net/ib0/address": "00:00:10:29:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:12:34:56\n",
    f"{NIC}/net/ib0/broadcast": "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff\n",
    f"{NIC}/infiniband/mlx5_0/fw_ver": "20.31.10.14\n",
    f"{NIC}/infiniband/mlx5_0/node_desc": "gpu-head-07 mlx5_0\n",
    f"{NIC}/infiniband/mlx5_0/node_guid": "b8ce:f603:0012:3456\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:b8ce:f603:0012:3456\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a14:1e29\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    f"{NIC}/infiniband/mlx5_0/ports/1/gids/3": "fe80:0000:0000:0000:bace:f6ff:fe12:3456\n",
    f"{NIC}/infiniband/mlx5_0/sys_image_guid": "b8ce:f603:0012:3456\n",
    f"{NIC}/infiniband/mlx5_1/sys_image_guid": "b8ce:f603:0012:3456\n",
    f"{NIC}/vendor": "0x15b3\n",
    f"{NIC}/uevent": "DRIVER=mlx5_core\nID_SERIAL=QQ-SECRET\nHOSTNAME=other-host\n",
    f"{GPU}/serial_number": "1652922004711\n",
    f"{GPU}/unique_id": "deadbeefcafe0123\n",
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/nvme/nvme0/address": "0000:17:00.0\n",
    f"{GPU}/nvme/nvme0/firmware_rev": "10.20.30.4\n",
    f"{GPU}/nvme/nvme0/nvme0n1/eui": "00 25 38 b5 41 b0 12 34\n",
    f"{GPU}/nvme/nvme0/nvme0n1/wwid": "eui.002538b541b01234\n",
    f"{GPU}/nvme/nvme0/nvme0n2/wwid": "nvme.144d-533634484e45305238303532313320202020-50-00000001\n",
    f"{GPU}/nvme/nvme0/serial": "S64HNE0R805213      \n",
    f"{GPU}/nvme/nvme0/subsysnqn": f"{NQN}\n",
    "sys/devices/virtual/dmi/id/board_asset_tag": "ASSET-4711\n",
    "sys/devices/virtual/dmi/id/bios_version": "1.2.3.4\n",
    "sys/devices/virtual/dmi/id/chassis_asset_tag": "To be filled by O.E.M.\n",
    "sys/devices/virtual/dmi/id/product_name": "Box of pf3xyz77 on GPU-HEAD-07\n",
    "sys/devices/virtual/dmi/id/product_serial": "PF3XYZ77\n",
    "sys/devices/virtual/dmi/id/product_uuid": "4c4c4544-0043-3510-8052-b4c04f503034\n",
    "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties": "simd_count 304\nunique_id 16045690984503050531\n",
    f"{HYPERV}/pci0001:00/0001:00:00.0/numa_node": "1\n",
    "sys/bus/pci/devices/0001:00:00.0": Link(f"../../../{HYPERV[4:]}/pci0001:00/0001:00:00.0"),
    "sys/bus/pci/devices/0000:17:00.0": Link(f"../../../{GPU[4:]}"),
}

NVML: Json = {
    "driver_version": "10.20.30.4",
    "devices": [
        {
            "bdf": "00000000:17:00.0",
            "uuid": "GPU-9d4fc3a2-11d5-4a7e-b1a6-0c5a77e3b001",
            "serial": 1652922004711,
            "platform": {"chassisSerialNumber": "1652922004711", "ibGuid": "0xb8cef60300123456"},
            "fabric": {"clusterUuid": "00000000-0000-0000-0000-000000000000"},
        }
    ],
}
NETLINK: Json = {
    "b8:ce:f6:12:34:56": {"ifname": "enxb8cef6123456", "inet": "10.20.30.41/24", "inet6": "2001:db8:77::dead:beef"},
    "neighbours": [{"sysname": "gpu-head-07", "chassis_id": "B8:CE:F6:12:34:56"}],
}


def planted(kind: str = "live") -> PaperHost:
    source = Source(kind="live" if kind == "live" else "recording", complete=True, privileged=True, scope="host")
    return PaperHost(ENTRIES, {"nvml": NVML, "netlink": NETLINK}, source=source)


@pytest.fixture(scope="module")
def text() -> str:
    return rec.write(planted())


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_nowhere(text: str, secret: str) -> None:
    whole = rec.write(planted(), keep_names=True)
    assert secret.lower() not in text.lower()
    if secret not in ("B8:CE:F6:12:34:56", "b8cef6fffe123456"):
        assert secret in whole or secret.lower() in whole.lower().replace(" ", "")


def test_keep_names_changes_nothing() -> None:
    again = rec.parse(rec.write(planted(), keep_names=True))
    assert not again.source.redacted
    for path, entry in ENTRIES.items():
        assert again.entries[path] == entry, path
    assert again.document("nvml") == NVML
    assert again.document("netlink") == NETLINK


def test_what_is_no_secret_stays(text: str) -> None:
    host = rec.parse(text)
    assert host.source.redacted
    assert host.text("sys/bus/pci/devices/0000:17:00.0/vendor") == "0x10de\n"
    assert host.text(f"{GPU}/nvme/nvme0/address") == "0000:17:00.0\n"
    assert host.text(f"{GPU}/nvme/nvme0/firmware_rev") == "10.20.30.4\n"
    assert host.text(f"{NIC}/infiniband/mlx5_0/fw_ver") == "20.31.10.14\n"
    assert host.text(f"{NIC}/infiniband/mlx5_0/ports/1/gids/2") == "0000:0000:0000:0000:0000:0000:0000:0000\n"
    assert host.text("proc/sys/kernel/osrelease") == "5.15.0.1\n"
    assert host.text("sys/devices/virtual/dmi/id/bios_version") == "1.2.3.4\n"
    assert host.text("sys/devices/virtual/dmi/id/chassis_asset_tag") == "To be filled by O.E.M.\n"
    assert host.text("proc/cmdline") == "BOOT_IMAGE=redacted root=redacted ro iommu=pt pw=redacted\n"
    assert "96.00.74.00.01" in host.text("proc/driver/nvidia/gpus/0000:17:00.0/information")
    nvml = host.document("nvml")
    assert isinstance(nvml, dict)
    assert nvml["driver_version"] == "10.20.30.4"
    assert json.dumps(nvml).count("00000000-0000-0000-0000-000000000000") == 1
    assert '"bdf": "00000000:17:00.0"' in json.dumps(nvml)


def test_equal_stays_equal(text: str) -> None:
    host = rec.parse(text)
    guid = host.text(f"{NIC}/infiniband/mlx5_0/sys_image_guid").strip()
    assert re.fullmatch(r"0200:0000:0000:[0-9a-f]{4}", guid)
    assert host.text(f"{NIC}/infiniband/mlx5_0/node_guid").strip() == guid
    assert host.text(f"{NIC}/infiniband/mlx5_1/sys_image_guid").strip() == guid
    assert host.text(f"{NIC}/infiniband/mlx5_0/ports/1/gids/0").strip() == f"fe80:0000:0000:0000:{guid}"
    octets = ":".join(re.findall("..", guid.replace(":", "")))
    assert host.text(f"{NIC}/net/ib0/address").strip() == f"00:00:10:29:fe:80:00:00:00:00:00:00:{octets}"
    assert f"0x{guid.replace(':', '')}" in json.dumps(host.document("nvml"))


def test_an_interface_is_found_below_its_new_name(text: str) -> None:
    host = rec.parse(text)
    (name,) = host.names("sys/class/net")
    assert re.fullmatch(r"enx02[0-9a-f]{10}", name)
    mac = ":".join(re.findall("..", name[3:]))
    assert host.text(f"sys/class/net/{name}/address") == f"{mac}\n"
    assert host.text(f"sys/class/net/{name}/uevent") == f"INTERFACE={name}\nIFINDEX=2\n"
    assert host.text(f"sys/class/net/{name}/broadcast") == "ff:ff:ff:ff:ff:ff\n"
    netlink = host.document("netlink")
    assert isinstance(netlink, dict)
    assert mac in netlink


def test_numbers_in_two_notations_stay_equal(text: str) -> None:
    host = rec.parse(text)
    unique = int(host.text(f"{GPU}/unique_id"), 16)
    assert host.text("sys/devices/virtual/kfd/kfd/topology/nodes/1/properties").endswith(f"unique_id {unique}\n")
    assert host.text(f"{GPU}/serial_number") == "1000000000001\n"
    assert '"serial": 1000000000001' in json.dumps(host.document("nvml"))


def test_a_root_below_vmbus_is_found_by_its_link(text: str) -> None:
    host = rec.parse(text)
    assert host.text("sys/bus/pci/devices/0001:00:00.0/numa_node") == "1\n"


def test_redacting_twice_changes_nothing(text: str) -> None:
    assert rec.write(rec.parse(text)) == text
    assert "".join(f"{line}\n" for line in rec.lines(redacted(rec.parse(text)))) == text


def test_a_kept_recording_can_be_redacted_later(text: str) -> None:
    assert rec.write(rec.parse(rec.write(planted(), keep_names=True))) == text


def test_a_host_named_like_a_device_spoils_nothing() -> None:
    entries: dict[str, Entry] = {
        "proc/sys/kernel/hostname": "node1\n",
        "sys/devices/system/node/node1/cpulist": "0-3\n",
        "sys/devices/system/node/node1/uevent": "DEVNAME=node1\n",
    }
    host = rec.parse(rec.write(PaperHost(entries, source=Source(kind="live", complete=True))))
    assert host.text("proc/sys/kernel/hostname") == "host1\n"
    assert host.text("sys/devices/system/node/node1/uevent") == "DEVNAME=node1\n"


def test_a_real_value_that_looks_like_a_pseudonym_does_not_stay() -> None:
    path = "sys/devices/virtual/net/eth0/address"
    entries: dict[str, Entry] = {path: "02:00:00:00:00:01\n"}
    host = redacted(PaperHost(entries, source=Source(kind="recording", complete=True)))
    assert host.text(path) == "02:00:00:00:00:02\n"


def test_a_secret_added_to_a_redacted_recording_is_redacted(text: str) -> None:
    edited = rec.parse(text).saying("sys/devices/virtual/dmi/id/chassis_serial", "NEWSERIAL88\n")
    again = rec.write(edited)
    assert "NEWSERIAL88" not in again
    assert set(text.splitlines()) < set(again.splitlines())
