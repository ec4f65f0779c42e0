"""Described machines: the files are what the kernel writes, and a mistake is told with its line and field.

Expected values are typed from the kernel's sources, named beside them, and from recorded machines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests import fixtures
from topo_agent.graph.build import build as graph
from topo_agent.host import BadSource, recording
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Link, PaperHost
from topo_agent.scan import scan
from topo_agent.synthesis import parts
from topo_agent.synthesis.build import from_file, from_text

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "docs" / "schema"
FIXTURES = sorted((ROOT / "fixtures").glob("*/machine.yaml"))

HEAD = "schema: topo-agent/machine/v1\nname: test\n"
CPUS = "cpus: {packages: 2, cores: 2, threads: 2}\n"


def machine(text: str, *, cpus: str = CPUS) -> PaperHost:
    return from_text(HEAD + cpus + textwrap.dedent(text))


def said(host: PaperHost, path: str) -> str:
    return host.text(path)


def target(host: PaperHost, path: str) -> str:
    entry = host.entries[path]
    assert isinstance(entry, Link)
    return entry.target


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMA / name).read_text(encoding="utf-8")))


def example() -> str:
    found = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "machines.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


# CPUs


def online(host: PaperHost, file: str) -> list[str]:
    """What every CPU says in one file of its topology."""
    root = "sys/devices/system/cpu"
    names = [name for name in host.names(root) if re.fullmatch("cpu[0-9]+", name)]
    return [
        said(host, f"{root}/{name}/topology/{file}").strip() for name in sorted(names, key=lambda name: int(name[3:]))
    ]


@pytest.mark.parametrize(
    ("numbering", "packages", "cores", "siblings"),
    [
        ("cores-first", "00110011", "01010101", ["0,4", "1,5", "2,6", "3,7"] * 2),
        ("siblings-adjacent", "00001111", "00110011", ["0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7"]),
        ("round-robin-packages", "01010101", "00110011", ["0,4", "1,5", "2,6", "3,7"] * 2),
        (
            '{cores: ["7,0", "6,1", "5,2", "4,3"]}', "00111100", "01011010",
            ["0,7", "1,6", "2,5", "3-4", "3-4", "2,5", "1,6", "0,7"],
        ),
        ('{nodes: ["0-6:1/2", "1-7:1/2"]}', "01010101", "00110011", ["0,4", "1,5", "2,6", "3,7"] * 2),
    ],
)  # fmt: skip
def test_numbering(numbering: str, packages: str, cores: str, siblings: list[str]) -> None:
    host = machine("", cpus=f"cpus: {{packages: 2, cores: 2, threads: 2, numbering: {numbering}}}\n")
    assert "".join(online(host, "physical_package_id")) == packages
    assert "".join(online(host, "core_id")) == cores
    assert online(host, "thread_siblings_list") == siblings
    assert online(host, "core_cpus_list") == siblings


def test_dell_numbers_round_the_nodes() -> None:
    """XE9680 with SNC2: node0 = 0 4 8 …, node1 = 2 6 …, node2 = 1 5 …; nodes 0 and 1 are package 0."""
    host = machine(
        "numa: {nodes: 4}\n", cpus="cpus: {packages: 2, cores: 32, threads: 2, numbering: round-robin-nodes}\n"
    )
    lists = [said(host, f"sys/devices/system/node/node{node}/cpulist") for node in range(4)]
    assert [text.split(",")[:3] for text in lists] == [
        ["0", "4", "8"],
        ["2", "6", "10"],
        ["1", "5", "9"],
        ["3", "7", "11"],
    ]
    assert online(host, "physical_package_id")[:4] == ["0", "1", "0", "1"]
    assert online(host, "thread_siblings_list")[0] == "0,64"


def test_offline_cpus_have_no_topology() -> None:
    """drivers/base/topology.c makes the directory when a CPU comes up."""
    host = machine("", cpus="cpus: {packages: 1, cores: 2, threads: 2, offline: '3', possible: 8}\n")
    root = "sys/devices/system/cpu"
    lists = {name: said(host, f"{root}/{name}") for name in ("online", "offline", "present", "possible")}
    assert lists == {"online": "0-2\n", "offline": "3-7\n", "present": "0-3\n", "possible": "0-7\n"}
    assert said(host, f"{root}/cpu3/online") == "0\n"
    assert host.names(f"{root}/cpu3/topology") == []
    assert said(host, f"{root}/cpu1/topology/thread_siblings_list") == "1\n"
    assert said(host, "sys/devices/system/node/node0/cpulist") == "0-2\n"


def test_masks_have_groups_of_32_bits() -> None:
    """lib/vsprintf.c bitmap_string: 40 CPUs are two digits and eight."""
    host = machine("", cpus="cpus: {packages: [60, 84], cores: 20}\n")
    topology = "sys/devices/system/cpu/cpu39/topology"
    assert said(host, f"{topology}/package_cpus") == "ff,fff00000\n"
    assert said(host, f"{topology}/thread_siblings") == "80,00000000\n"
    assert said(host, f"{topology}/package_cpus_list") == "20-39\n"
    assert said(host, f"{topology}/physical_package_id") == "84\n"
    assert said(host, "sys/devices/system/node/node0/cpumap") == "00,000fffff\n"


def test_hybrid_cores_clusters_and_dies() -> None:
    """Two fast cores with two threads, four slow ones in one cluster; each kind is a PMU (arch/x86/events/intel)."""
    groups = "[{count: 2, threads: 2, kind: core}, {count: 4, kind: atom, cluster: 4}]"
    host = machine("", cpus=f"cpus: {{cores: {groups}, dies: 2, numbering: siblings-adjacent}}\n")
    assert said(host, "sys/devices/cpu_core/cpus") == "0-3\n"
    assert said(host, "sys/devices/cpu_atom/cpus") == "4-7\n"
    assert online(host, "cluster_cpus_list")[4:] == ["4-7"] * 4
    assert online(host, "die_id") == ["0", "0", "0", "0", "0", "1", "1", "1"]


def test_old_kernels_have_the_old_names_only() -> None:
    host = machine("", cpus="cpus: {cores: 2, old_names: true}\n")
    assert host.names("sys/devices/system/cpu/cpu0/topology") == [
        "core_id", "core_siblings", "core_siblings_list", "physical_package_id", "thread_siblings",
        "thread_siblings_list",
    ]  # fmt: skip


# NUMA


def test_distances_by_rule() -> None:
    host = machine("numa: {nodes: 4, distance: {local: 10, package: 12, other: 21}}\n")
    rows = [said(host, f"sys/devices/system/node/node{node}/distance") for node in range(4)]
    assert rows == ["10 12 21 21\n", "12 10 21 21\n", "21 21 10 12\n", "21 21 12 10\n"]


def test_first_node_that_is_not_0_gets_a_blank() -> None:
    """drivers/base/node.c node_read_distance: `i ? " " : ""` before node i."""
    host = machine("numa: {ids: [2, 8], distance: [[10, 40], [40, 10]], memory: [1 GiB, 0]}\n")
    node = "sys/devices/system/node"
    assert said(host, f"{node}/node2/distance") == " 10 40\n"
    assert said(host, f"{node}/online") == "2,8\n"
    assert said(host, f"{node}/has_memory") == "2\n"
    assert said(host, f"{node}/has_cpu") == "2,8\n"
    assert said(host, f"{node}/node2/meminfo").startswith("Node 2 MemTotal:        1048576 kB\n")


def test_memory_without_cpus() -> None:
    """POWER9 and Grace: `Node:      250` in proc/driver/nvidia; GH200: SLIT 80 to its own, 255 among themselves."""
    host = machine(
        """
        numa:
          nodes: 1
          extra:
            - {id: 1, kind: gpu, gpu: gpu0, memory: 96 GiB, distance: 80, among: 255}
            - {ids: 2-3, kind: empty, distance: 80, among: 255}
        pci: [{root: "0009:00", node: 0, ports: [gpu: gh200]}]
        nvidia: {}
        """
    )
    node = "sys/devices/system/node"
    assert said(host, f"{node}/node0/distance") == "10 80 80 80\n"
    assert said(host, f"{node}/node2/distance") == "80 255 10 255\n"
    assert said(host, f"{node}/node1/cpulist") == "\n"
    assert "Node:      1\n" in said(host, "proc/driver/nvidia/gpus/0009:01:00.0/numa_status")
    found = graph(scan(host))
    (gpu,) = found.of_kind("gpu")
    assert gpu.gpu is not None
    assert gpu.gpu.memory_node == 1
    assert [one.kind for one in found.memories or ()] == [None, "gpu", None, None]


def test_kinds_of_memory() -> None:
    extra = ["{id: 1, kind: hbm, memory: 16 GiB, bandwidth: 400000}", "{id: 2, kind: nvm, memory: 1 TiB}",
             "{id: 3, kind: cxl, memory: 1 TiB}"]  # fmt: skip
    host = machine(f"numa: {{nodes: 1, bandwidth: 100000, extra: [{', '.join(extra)}]}}\n")
    assert [one.kind for one in graph(scan(host)).memories or ()] == ["dram", "hbm", "nvm", "cxl"]


def test_a_kernel_without_numa() -> None:
    host = machine('numa: none\npci: [{root: "00", below: [device: "8086:1234"]}]\n')
    assert host.names("sys/devices/system/node") == []
    assert "numa_node" not in host.names("sys/bus/pci/devices/0000:00:01.0")


# PCI

SWITCH = """
    numa: {nodes: 2}
    pci:
      - root: "0001:15"
        node: 1
        ports:
          - switch: pex89104
            via: "01.1"
            ports:
              - {nic: cx7, netdev: eth0, rdma: mlx5_0, subsystem: "15b3:0058", iommu: 7, slot: "9", now: 16x8}
              - port:
              - {switch: pex88096, via: "04.0", ports: [gpu: h100]}
"""


def test_buses_are_numbered_depth_first() -> None:
    host = machine(SWITCH)
    assert host.names("sys/bus/pci/devices") == [
        "0001:15:01.1", "0001:16:00.0", "0001:17:00.0", "0001:17:01.0", "0001:17:04.0", "0001:18:00.0",
        "0001:1a:00.0", "0001:1b:00.0", "0001:1c:00.0",
    ]  # fmt: skip
    gpu = "0001:15:01.1/0001:16:00.0/0001:17:04.0/0001:1a:00.0/0001:1b:00.0/0001:1c:00.0"
    assert target(host, "sys/bus/pci/devices/0001:1c:00.0") == f"../../../devices/pci0001:15/{gpu}"
    bridges = ("0001:15:01.1", "0001:16:00.0", "0001:17:01.0", "0001:1a:00.0")
    buses = [[said(host, f"sys/bus/pci/devices/{one}/{end}_bus_number").strip() for end in ("secondary", "subordinate")]
             for one in bridges]  # fmt: skip
    assert buses == [["22", "28"], ["23", "28"], ["25", "25"], ["27", "28"]]  # decimal: pci-sysfs.c prints %u


def test_files_of_a_function() -> None:
    """drivers/pci/pci-driver.c pci_uevent: upper case, no leading zeros in PCI_CLASS (%04X)."""
    host = machine(SWITCH)
    path = "sys/devices/pci0001:15/0001:15:01.1/0001:16:00.0/0001:17:00.0/0001:18:00.0"
    assert said(host, f"{path}/uevent") == (
        "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0058\nPCI_SLOT_NAME=0001:18:00.0\n"
        "MODALIAS=pci:v000015B3d00001021sv000015B3sd00000058bc02sc00i00\n"
    )
    names = [name for name in host.names(path) if isinstance(host.entries[f"{path}/{name}"], str)]
    files = {name: said(host, f"{path}/{name}").strip() for name in names}
    assert {name: files[name] for name in files if name != "uevent"} == {
        "class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "revision": "0x00",
        "subsystem_vendor": "0x15b3", "subsystem_device": "0x0058",
        "numa_node": "1", "local_cpulist": "2-3,6-7", "local_cpus": "cc",
        "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
        "current_link_speed": "16.0 GT/s PCIe", "current_link_width": "8",
    }  # fmt: skip
    assert target(host, f"{path}/driver") == "../../../../../../bus/pci/drivers/mlx5_core"
    assert target(host, f"{path}/subsystem") == "../../../../../../bus/pci"
    assert target(host, f"{path}/iommu_group") == "../../../../../../kernel/iommu_groups/7"
    assert target(host, "sys/class/net/eth0") == "../../" + path.removeprefix("sys/") + "/net/eth0"
    assert target(host, f"{path}/net/eth0/device") == "../../../0001:18:00.0"
    assert said(host, "sys/bus/pci/slots/9/address") == "0001:18:00\n"
    assert said(host, "sys/devices/pci0001:15/pci_bus/0001:15/cpulistaffinity") == "2-3,6-7\n"
    assert target(host, "sys/class/pci_bus/0001:16") == "../../devices/pci0001:15/0001:15:01.1/pci_bus/0001:16"


def test_a_node_that_nobody_tells() -> None:
    """drivers/pci/pci-sysfs.c pci_dev_show_local_cpu: without a node all online CPUs are local."""
    host = machine('pci: [{root: "00", node: none, ports: [{nic: cx7}, {nic: cx6, node: 1}]}]\n')
    place = "sys/bus/pci/devices"
    assert [said(host, f"{place}/0000:01:00.0/{name}") for name in ("numa_node", "local_cpulist")] == ["-1\n", "0-7\n"]
    assert [said(host, f"{place}/0000:02:00.0/{name}") for name in ("numa_node", "local_cpulist")] == [
        "1\n",
        "2-3,6-7\n",
    ]


def test_virtual_functions() -> None:
    """drivers/pci/iov.c. A recorded ConnectX has them at 1d:00.2 … 1d:02.1."""
    host = machine(
        'pci: [{root: "1c", ports: [{nic: cx7, netdev: eth0, vfs: {count: 16, total: 32, driver: none}}]}]\n'
    )
    names = host.names("sys/bus/pci/devices")
    assert names[2:4] + names[-1:] == ["0000:1d:00.2", "0000:1d:00.3", "0000:1d:02.1"]
    physfn = "sys/devices/pci0000:1c/0000:1c:01.0/0000:1d:00.0"
    assert target(host, f"{physfn}/virtfn15") == "../0000:1d:02.1"
    assert target(host, "sys/devices/pci0000:1c/0000:1c:01.0/0000:1d:02.1/physfn") == "../0000:1d:00.0"
    told = {
        name: said(host, f"{physfn}/sriov_{name}").strip() for name in ("totalvfs", "numvfs", "vf_device", "offset")
    }
    assert told == {"totalvfs": "32", "numvfs": "16", "vf_device": "101e", "offset": "2"}
    assert "PCI_ID=15B3:101E" in said(host, f"{physfn}/../0000:1d:00.2/uevent".replace("0000:1d:00.0/../", ""))


def test_virtual_functions_on_the_next_bus_count_as_below() -> None:
    host = machine('pci: [{root: "00", ports: [{nic: cx7, vfs: {count: 2, offset: 255}}, nic: cx6]}]\n')
    assert host.names("sys/bus/pci/devices")[2:] == ["0000:01:00.0", "0000:01:1f.7", "0000:02:00.0", "0000:03:00.0"]
    assert said(host, "sys/bus/pci/devices/0000:00:01.0/subordinate_bus_number") == "2\n"


def test_bridges_inside_a_gpu() -> None:
    """The recorded MI300X: 15:01.0/16:00.0/17:01.0/19:00.0/1a:00.0/1b:00.0, with 1022:1500 and 1002:1501."""
    host = machine(
        """
        pci:
          - root: "15"
            ports:
              - {switch: pex89104, ports: [{gpu: mi300x, via: "01.0", bus: 19}, {nic: cx6dx, via: "03.0", bus: 1d}]}
        """
    )
    above = "0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"
    assert target(host, "sys/bus/pci/devices/0000:1b:00.0") == f"../../../devices/pci0000:15/{above}"
    ids = [
        said(host, f"sys/bus/pci/devices/0000:{one}/uevent").split("PCI_ID=")[1][:9] for one in ("19:00.0", "1a:00.0")
    ]
    assert ids == ["1022:1500", "1002:1501"]


def test_vmd_and_vmbus() -> None:
    """The recorded VMD, and a root below VMBus: both keep their domains of more than 16 bits, or their whole path."""
    host = machine(
        """
        pci:
          - root: "6f"
            below:
              - {device: vmd, at: "00.5", inside: {root: "10001:80", ports: [{nvme: cd6, via: "07.0", bus: 84}]}}
          - {root: "0101:00", prefix: LNXSYSTM:00/ACPI0004:00/VMBUS:00/guid-1, below: [{nic: cx7, at: "00.2"}]}
        """
    )
    vmd = "pci0000:6f/0000:6f:00.5/pci10001:80/10001:80:07.0/10001:84:00.0"
    assert target(host, "sys/bus/pci/devices/10001:84:00.0") == f"../../../devices/{vmd}"
    assert said(host, "sys/bus/pci/devices/10001:80:07.0/class") == "0x060400\n"
    vmbus = "LNXSYSTM:00/ACPI0004:00/VMBUS:00/guid-1/pci0101:00/0101:00:00.2"
    assert target(host, "sys/bus/pci/devices/0101:00:00.2") == f"../../../devices/{vmbus}"


def test_ports_as_functions() -> None:
    """A recorded GB200: the downstream ports are 26:00.0, 26:00.1 and 26:00.2."""
    switch = "{switch: aws, ports_are: functions, ports: [gpu: gb200, nic: efa3, nvme: ebs]}"
    host = machine(f'pci: [{{root: "24", ports: [{switch}]}}]\n')
    assert [name for name in host.names("sys/bus/pci/devices") if ":26:" in name] == [
        "0000:26:00.0", "0000:26:00.1", "0000:26:00.2",
    ]  # fmt: skip


# Drivers


def test_interfaces() -> None:
    host = machine(
        """
        pci:
          - root: "00"
            ports:
              - [{nic: cx7, netdev: eth0, rdma: mlx5_0}, {nic: cx7, netdev: eth1, carrier: "off"}]
              - {nic: cx7, netdev: ib0, rdma: mlx5_1, layer: InfiniBand, speed: 400}
            below: [{device: virtio-net, netdev: ens3, carrier: down}]
        net: {stacked: [{bond: bond0, on: [eth0, eth1]}, {vlan: bond0.7, on: bond0, id: 7}], altnames: {eth0: enp1s0}}
        """
    )
    net = "sys/class/net"
    assert host.names(net) == ["bond0", "bond0.7", "bonding_masters", "eth0", "eth1", "ens3", "ib0", "lo"] or sorted(
        host.names(net)
    ) == ["bond0", "bond0.7", "bonding_masters", "ens3", "eth0", "eth1", "ib0", "lo"]
    assert "virtio0/net/ens3" in target(host, f"{net}/ens3")
    assert [said(host, f"{net}/ens3/{name}") for name in ("carrier", "speed")] == ["0\n", "-1\n"]
    with pytest.raises(OSError, match="Invalid argument"):
        said(host, f"{net}/eth1/speed")
    assert said(host, f"{net}/eth0/address") == said(host, f"{net}/eth1/address")  # the bond's
    assert said(host, f"{net}/eth0/address")[:3] == "02:"
    assert len(said(host, f"{net}/ib0/address").strip()) == 59
    assert said(host, f"{net}/ib0/type") == "32\n"
    assert "PCI_CLASS=20700\n" in said(host, "sys/class/infiniband/mlx5_1/device/uevent")
    assert said(host, "sys/class/infiniband/mlx5_1/ports/1/rate") == "400 Gb/sec (4X NDR)\n"
    assert said(host, "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0") == "eth0\n"
    assert said(host, f"{net}/bond0/bonding/slaves") == "eth0 eth1\n"
    document: Any = host.document("netlink")
    assert not list(schema("netlink-document.json").iter_errors(document))
    assert {link["name"]: link.get("vlan_id", link.get("altnames")) for link in document["links"]} == {
        "lo": None, "bond0": None, "bond0.7": 7, "ens3": None, "eth0": ["enp1s0"], "eth1": None, "ib0": None,
    }  # fmt: skip


def test_drives() -> None:
    """drivers/nvme/host/multipath.c: the disk of a shared namespace is below its subsystem, its path is hidden."""
    host = machine(
        'pci: [{root: "00", ports: [{nvme: pm1733, controller: nvme3, namespaces: 2}, {nvme: cd6, multipath: true}]}]\n'
    )
    assert host.names("sys/class/nvme") == ["nvme3", "nvme4"]
    assert host.names("sys/class/block") == ["nvme3n1", "nvme3n2", "nvme4c4n1", "nvme4n1"]
    assert target(host, "sys/class/block/nvme4n1") == "../../devices/virtual/nvme-subsystem/nvme-subsys4/nvme4n1"
    assert said(host, "sys/class/nvme/nvme3/model").startswith("SAMSUNG MZWLJ3T8HBLS-00007 ")


def test_device_nodes() -> None:
    host = machine(
        'pci: [{root: "00", below: [device: aspeed], ports: [{gpu: h100}, {gpu: gaudi3}, {gpu: mi210, nodes: none}]}]\n'
    )
    assert host.names("sys/class/drm") == ["card0", "card1", "renderD128"]
    assert target(host, "sys/class/drm/card1").endswith("0000:01:00.0/drm/card1")
    assert host.names("sys/class/accel") == ["accel0"]


NVIDIA = """
    pci: [{root: "00", node: 1, ports: [gpu: h100, gpu: h100, nvswitch: ls10, nvswitch: ls10]}]
    nvidia: {order: [gpu1, gpu0], nvlink: {to: switches, links: [10, 8], down: {gpu1: 2}}, mig: {gpu0: 2}}
"""


def test_nvml_document() -> None:
    document: Any = machine(NVIDIA).document("nvml")
    assert not list(schema("nvml-document.json").iter_errors(document))
    first, second = document["gpus"]
    assert (first["bdf"], first["index"]) == ("00000000:01:00.0", 1)
    assert (second["bdf"], second["index"]) == ("00000000:02:00.0", 0)
    assert first["pci_device_id"] == 0x233010DE
    assert first["cpu_affinity"] == ["00000000000000cc"]
    ends = [(link["remote_bdf"], link["state"]) for link in second["nvlinks"]]
    assert ends == [("00000000:03:00.0", 0)] * 2 + [("00000000:03:00.0", 1)] * 8 + [("00000000:04:00.0", 1)] * 8
    assert len(first["mig"]["devices"]) == 2


@pytest.mark.parametrize(
    ("nvlink", "ends"),
    [
        ("{to: hidden, links: 2}", [("FFFFFFFF:FF:FF.0", 2)] * 2),
        ("{to: own, links: 1}", [("00000000:01:00.0", 255)]),
        ("{pairs: [[gpu0, gpu1, 4]]}", [("00000000:02:00.0", 0)] * 4),
    ],
)
def test_nvlinks(nvlink: str, ends: list[tuple[str, int]]) -> None:
    document: Any = machine(
        f'pci: [{{root: "00", ports: [gpu: a100, gpu: a100]}}]\nnvidia: {{nvlink: {nvlink}}}\n'
    ).document("nvml")
    assert [(link["remote_bdf"], link["remote_type"]) for link in document["gpus"][0]["nvlinks"]] == ends


def test_kfd() -> None:
    """A recorded MI300X in CPX: location_id 0x500…0x507, one unique_id; xGMI is type 11."""
    host = machine('pci: [{root: "00", ports: [{gpu: mi300x, bus: "03"}, gpu: mi300x]}]\namd: {partitions: 8}\n')
    nodes = "sys/class/kfd/kfd/topology/nodes"
    gpus = [
        dict(line.split() for line in said(host, f"{nodes}/{node}/properties").splitlines()) for node in range(2, 10)
    ]
    assert [int(gpu["location_id"]) for gpu in gpus] == list(range(0x500, 0x508))
    assert {gpu["device_id"] for gpu in gpus} == {"29857"}
    assert len({gpu["unique_id"] for gpu in gpus}) == 1
    found = graph(scan(host))
    assert [(str(link.a), str(link.b), link.kind) for link in found.links or ()] == [
        ("pci:0000:05:00.0", "pci:0000:08:00.0", "xgmi")
    ]
    assert {gpu.gpu.partitions for gpu in found.of_kind("gpu") if gpu.gpu} == {8}


def test_edits() -> None:
    host = machine(
        """
        pci: [{root: "00", node: 0, ports: [{nic: cx7, netdev: eth0}, gpu: h100]}]
        edits:
          - {of: all, file: numa_node, says: -1}
          - {of: gpu0, file: local_cpulist, gone: true}
          - {of: "0000:01:00.0", file: vendor, fails: EIO}
          - {of: nics, file: class, raw: "0x02"}
          - {path: sys/devices/system/node/node0/cpulist, says: "0-99"}
          - {of: ports, file: driver, points: nowhere}
          - {path: proc/meminfo, gone: true}
        """
    )
    gpu, nic = "sys/bus/pci/devices/0000:02:00.0", "sys/bus/pci/devices/0000:01:00.0"
    assert said(host, f"{gpu}/numa_node") == "-1\n"
    assert "local_cpulist" not in host.names(gpu)
    assert "local_cpulist" in host.names(nic)
    with pytest.raises(OSError, match="Input/output error"):
        said(host, f"{nic}/vendor")
    assert said(host, f"{nic}/class") == "0x02"
    assert said(host, "sys/devices/system/node/node0/cpulist") == "0-99\n"
    assert host.link("sys/bus/pci/devices/0000:00:01.0/driver") == "nowhere"
    assert "meminfo" not in host.names("proc")


def test_templates() -> None:
    """Columns side by side, ranges, constants, templates in templates, and lists as values."""
    host = machine(
        """
        templates:
          card: [{nic: cx7, netdev: "$(name)a"}, {nic: cx7, netdev: "$(name)b"}]
          root:
            root: $(bus)
            ports: $(behind)
            below: [{use: card, with: {name: "$(prefix)$(index)"}}]
        pci:
          - {use: root, each: {bus: [10, 2f], behind: [[gpu: h100], []]}, with: {prefix: e}}
          - root: "80"
            ports: [{make: {nvme: pm1733, controller: "nvme$(n+10)"}, each: {n: 0-2}}]
        """
    )
    assert host.names("sys/class/net") == ["e0a", "e0b", "e1a", "e1b", "lo"]
    assert host.names("sys/class/nvme") == ["nvme10", "nvme11", "nvme12"]
    assert "0000:11:00.0" in host.names("sys/bus/pci/devices")
    assert "0000:2f:02.0" in host.names("sys/bus/pci/devices")


# Mistakes

DEEP = "[" * 100
BOMB = "x: &a [1,1,1,1,1,1,1,1,1]\n" + "\n".join(
    f"x{b}: &{b} [{','.join(['*' + a] * 9)}]" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
TWO = 'pci:\n  - root: "00"\n    below:\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpus: {cores: many}", "line 3: cpus.cores: expected a number from 1 to 8192"),
        ("cpus: {cores: 2, tread: 2}", "line 3: cpus.tread: unknown field; did you mean 'threads'?"),
        ("cpus: {cores: 2}\npcie: []", "line 4: pcie: unknown field; did you mean 'pci'?"),
        ("numa: none", "line 1: the field 'cpus' is missing"),
        ("cpus: {cores: 2, offline: '9'}", "line 3: cpus: there is no CPU 9 to be offline"),
        ("cpus: {cores: 9000}", "line 3: cpus.cores: expected a number from 1 to 8192"),
        ("cpus: {packages: 2, cores: 5000}", "line 3: cpus: more than 8192 CPUs"),
        ("cpus: {cores: 2, numbering: {cores: ['0', '0']}}", "line 3: cpus.numbering.cores: CPU 0 is there twice"),
        ("cpus: {cores: 2, numbering: {cores: ['0']}}", "line 3: cpus: the numbering lists 1 cores, and there are 2"),
        ("cpus: {cores: 2}\nnuma: {cpus: ['0', '0-1']}", "line 4: numa.cpus[1]: CPU 0 is in another node already"),
        ("cpus: {cores: 2}\nnuma: {cpus: ['0', '1-5']}", "line 4: numa: there is no CPU 2"),
        ("cpus: {cores: 4}\nnuma: {nodes: 2, distance: [[10, 20], [20]]}", "line 4: numa.distance[1]: distances"),
        ("cpus: {cores: 4}\nnuma: {extra: [{id: 0, kind: nvm}]}", "line 4: numa: node 0 is there twice"),
        ("cpus: {cores: 4}\nnuma: {memory: 3 potatoes}", "line 4: numa.memory: expected a size such as 64 GiB"),
        (f"{CPUS}{TWO}      - {{gpu: h101}}", "line 7: pci[0].below[0].gpu: there is no gpu 'h101'; did you mean"),
        (f"{CPUS}{TWO}      - {{gpuu: h100}}", "nvswitch, switch, port, device; did you mean 'gpu'?"),
        (f"{CPUS}{TWO}      - {{gpu: h100, at: '01.0'}}\n      - {{nic: cx7, at: '01.0'}}",
         "line 8: pci[0].below[1]: two functions at 0000:00:01.0"),
        (f"{CPUS}pci:\n  - root: '10'\n    ports: [{{gpu: h100, bus: '0f'}}]",
         "line 6: pci[0].ports[0]: bus 0f below bus 10: buses do not nest"),
        (f"{CPUS}pci:\n  - {{root: 10, ports: [{{switch: aws, bus: 20, ports: [gpu: h100]}}, {{port: , inner: 21}}]}}",
         "its buses 21-21 and those of a neighbour, 20-22"),
        (f"{CPUS}pci:\n  - {{root: '10', ports: [gpu: h100, gpu: h100]}}\n  - {{root: '12'}}",
         "line 6: pci[1].root: its buses 12-12 and those of pci0000:10, 10-12"),
        (f"{CPUS}{TWO}      - {{use: cart}}", "line 7: pci[0].below[0].use: there is no template 'cart'"),
        (f"templates: {{a: [use: b], b: [use: a]}}\n{CPUS}{TWO}      - use: a",
         "used at line 8: pci[0].below[0][0][0]: templates that use each other without end: a → b → a"),
        (f"templates: {{a: {{gpu: $(g)}}}}\n{CPUS}{TWO}      - {{use: a, with: {{gp: h100}}}}",
         "line 8: pci[0].below[0]: 'a' has no parameter 'gp'; did you mean 'g'?"),
        (f"templates: {{a: {{gpu: $(gpu)}}}}\n{CPUS}{TWO}      - use: a",
         "line 3, used at line 8: pci[0].below[0][0].gpu: $(gpu) has no value"),
        (f"templates: {{a: {{gpu: $(g), nod: 1}}}}\n{CPUS}{TWO}      - {{use: a, with: {{g: h100}}}}",
         "line 3, used at line 8: pci[0].below[0].nod: unknown field; did you mean 'node'?"),
        (f"templates: {{a: {{gpu: $(g)}}}}\n{CPUS}{TWO}      - {{use: a, each: {{g: [h100, h100], index: [1]}}}}",
         "lists that run side by side are of one length: g has 2, index has 1"),
        (f"{CPUS}{TWO}      - {{gpu: h100, link: 33x16}}", "line 7: pci[0].below[0].link: expected GT/s and lanes"),
        (f"{CPUS}{TWO}      - {{nic: cx7, netdev: ../../etc}}", "pci[0].below[0].netdev: '../../etc' is no name"),
        (f"{CPUS}{TWO}      - {{nic: cx7, netdev: [a, a]}}", "line 7: pci[0].below[0]: two interfaces are called 'a'"),
        (f"{CPUS}{TWO}      - {{gpu: h100, vfs: 2}}", "line 7: pci[0].below[0].vfs: expected `ids`"),
        (f"{CPUS}nvidia: {{nvlink: {{pairs: [[gpu0, gpu1, 4]]}}}}", "nvidia.nvlink.pairs[0]: there is no GPU 'gpu0'"),
        (f"{CPUS}edits:\n  - {{of: gpu9, file: class, says: 1}}", "line 5: edits[0]: there is no function 'gpu9'"),
        (f"{CPUS}edits:\n  - {{path: ../../etc/passwd, says: 1}}", "edits[0].path: '../../etc/passwd' is no path"),
        (f"{CPUS}edits:\n  - {{path: sys/a, fails: EWHAT}}", "edits[0].fails: 'EWHAT' is no error"),
        (f"{CPUS}edits:\n  - {{path: sys/a, gone: true}}", "line 5: edits[0]: there is no sys/a"),
        (f"{CPUS}machine: [1]", "line 4: machine: expected a map of fields"),
        (f"{CPUS}machine: {{vendor: [x]}}", "line 4: machine.vendor: expected a text"),
        (f"{CPUS}cpus: {{cores: 1}}", "line 4: cpus: is there twice"),
        (f"{CPUS}machine: {{vendor: !!python/object:os.system x}}", "a description has no tags"),
        (f"{CPUS}x: {DEEP}", "line 4: nested more than 32 deep"),
        (f"{CPUS}{BOMB}", "more than 200000 values"),
        (f"{CPUS}a: &a [*a]", "line 4: *a is not there, or holds itself"),
        (f"{CPUS}pci: [", "line 5: no YAML: "),
        (f"{CPUS}pci: @", "line 4: no YAML: "),
        (f"{CPUS}---\nmore: 1", "line 4: a description is one document"),
        (f"{CPUS}# {'x' * 300_000}", "at most 256 KiB"),
        (f"{CPUS}machine: {{vendor: {'x' * 5000}}}", "line 4: a text of more than 4096 characters"),
        (f"templates: {{a: {{nvme: pm1733}}}}\n{CPUS}{TWO}      - {{use: a, each: {{index: 0-9999}}}}",
         "expected a list, or a range such as 0-7"),
    ],
)  # fmt: skip
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(BadSource) as error:
        from_text(HEAD + text, "machine.yaml")
    assert str(error.value).startswith("machine.yaml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.yaml: a description is a map of fields, and this holds nothing"),
        ("- 1\n", "m.yaml: line 1: a description is a map of fields"),
        ("schema: topo-agent/v2\nname: x\ncpus: {cores: 1}\n", "line 1: schema: expected topo-agent/machine/v1"),
        ("\0", "m.yaml: no YAML: "),
    ],
)  # fmt: skip
def test_no_description_at_all(text: str, message: str) -> None:
    with pytest.raises(BadSource) as error:
        from_text(text, "m.yaml")
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    huge, binary = tmp_path / "huge.yaml", tmp_path / "binary.yaml"
    huge.write_bytes(b"#" * (1 << 20))
    binary.write_bytes(b"name: \xff")
    for path, message in ((huge, "at most 256 KiB"), (binary, "byte 6 is not UTF-8"), (tmp_path / "x", "No such file")):
        with pytest.raises(BadSource, match=message):
            from_file(str(path))


# Whole machines


def test_the_example_of_the_manual() -> None:
    found = graph(scan(from_text(example())))
    devices = [one for one in found.of_kind("gpu", "nic", "nvme") if one.physfn is None]
    assert [(str(one.address), one.numa_node, dict(one.sources)["numa_node"]) for one in devices] == [
        ("0000:13:00.0", 0, "firmware"),
        ("0000:14:00.0", 0, "firmware"),
        ("0000:83:00.0", 1, "firmware"),
        ("0000:84:00.0", 1, "bridge"),
        ("0000:c1:00.0", 1, "firmware"),
    ]
    assert [(one.peer, one.links) for one in found.links or ()] == [("gpu", 4)]
    assert not list(schema("machine-description.json").iter_errors(yaml.safe_load(example())))


def test_the_manual_names_every_part() -> None:
    text = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    described = json.loads((SCHEMA / "machine-description.json").read_text(encoding="utf-8"))["$defs"]
    for kind, known in parts.KINDS.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{kind}:`"))
        assert set(known) == set(re.split("[` ]+", row.split("|")[2].split(", or ")[0].strip(" `"))), kind
        assert described[kind]["properties"][kind]["anyOf"][0]["enum"] == list(known)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.parent.name)
def test_fixtures_are_short_and_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 180
    assert [error.message for error in schema("machine-description.json").iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.parent.name)
def test_same_machine_in_every_form(path: Path, common: Path) -> None:
    """On paper, as a recording of it, and as a directory."""
    host = from_file(str(path))
    text = recording.write(host, keep_names=True)
    assert recording.write(recording.parse(text), keep_names=True) == text
    first = scan(host)
    assert scan(recording.parse(text)) == first
    found = scan(LiveHost(str(fixtures.tree(path.parent.name, common))))
    assert [one.address for one in found.pci or ()] == [one.address for one in first.pci or ()]


def test_same_bytes_every_time() -> None:
    """In processes whose hashes of texts differ, too."""
    program = (
        "import hashlib, sys; from topo_agent.host import recording; from topo_agent.synthesis.build import from_file;"
        "print(hashlib.sha256(recording.write(from_file(sys.argv[1]), keep_names=True).encode()).hexdigest())"
    )
    for path in FIXTURES[:2]:
        found = {
            subprocess.run(
                [sys.executable, "-c", program, str(path)],
                env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, timeout=60,
            ).stdout
            for seed in ("1", "2")
        }  # fmt: skip
        assert len(found) == 1


def test_addresses_are_made_up_and_differ() -> None:
    host = from_file(str(ROOT / "fixtures" / "mi300x" / "machine.yaml"))
    macs = [said(host, f"sys/class/net/{name}/address") for name in host.names("sys/class/net") if name != "lo"]
    assert len(set(macs)) == len(macs) == 8
    assert all(mac.startswith("02:") for mac in macs)
