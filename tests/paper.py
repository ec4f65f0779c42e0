"""Small machines described on paper: `topology(two_sockets() | function("0000:17:00.0", under="pci0000:16"))`.

Every helper gives the files of one thing as the kernel writes them; `|` puts things together. A file is left
out by saying None of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topo_agent.facts import Inventory, PciDevice
from topo_agent.graph.build import build
from topo_agent.graph.nodes import Device
from topo_agent.graph.paths import Path, Paths
from topo_agent.graph.topology import Topology
from topo_agent.host import Json, Source
from topo_agent.host.paper import Document, Entry, Link, PaperHost
from topo_agent.ids import PciAddress, pci_ref
from topo_agent.scan import scan

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
DEVICES = "sys/bus/pci/devices"

Files = dict[str, Entry]


def machine(
    files: Mapping[str, Entry], *, complete: bool = True, documents: Mapping[str, Document] | None = None
) -> PaperHost:
    """A host of these files. `complete`: a file that is absent is absent on the machine too."""
    return PaperHost(files, documents, source=Source(kind="recording", complete=complete))


def inventory(
    files: Mapping[str, Entry],
    *,
    complete: bool = True,
    documents: Mapping[str, Document] | None = None,
    acs: bool = False,
) -> Inventory:
    """Everything that `check` asks; `acs` as with `--probe acs`."""
    return scan(machine(files, complete=complete, documents=documents), readiness=True, acs=acs)


def topology(
    files: Mapping[str, Entry],
    *,
    complete: bool = True,
    documents: Mapping[str, Document] | None = None,
    acs: bool = False,
) -> Topology:
    return build(inventory(files, complete=complete, documents=documents, acs=acs))


def mask(cpus: Iterable[int], bits: int = 32) -> str:
    """`{0, 33}` of 64 CPUs -> `"00000002,00000001"`, as bitmap_print_to_pagebuf writes it (lib/bitmap-str.c)."""
    groups = [0] * ((bits + 31) // 32)
    for cpu in cpus:
        groups[cpu // 32] |= 1 << cpu % 32
    return ",".join(f"{group:08x}" for group in reversed(groups)) + "\n"


def listed(cpus: Iterable[int]) -> str:
    """A list without ranges: the kernel would write `0-3`, and `0,1,2,3` means the same."""
    return ",".join(map(str, sorted(cpus))) + "\n"


def cpus(packages: Mapping[int, Iterable[int]], *, threads: int = 1, offline: Iterable[int] = ()) -> Files:
    """Online CPUs by package, `threads` neighbours to a core; offline ones have no topology (base/topology.c)."""
    members = {package: sorted(of) for package, of in packages.items()}
    online = sorted(cpu for of in members.values() for cpu in of)
    bits = max(online) + 1
    files: Files = {f"{CPU}/online": listed(online)}
    for package, of in members.items():
        for place, cpu in enumerate(of):
            core = of[place // threads * threads :][:threads]
            topology = f"{CPU}/cpu{cpu}/topology"
            files |= {
                f"{topology}/physical_package_id": f"{package}\n",
                f"{topology}/core_id": f"{place // threads}\n",
                f"{topology}/core_siblings": mask(of, bits),
                f"{topology}/core_siblings_list": listed(of),
                f"{topology}/thread_siblings": mask(core, bits),
                f"{topology}/thread_siblings_list": listed(core),
            }
    return files | {f"{CPU}/cpu{cpu}": None for cpu in offline}


def nodes(of: Mapping[int, Iterable[int]], slit: Mapping[int, Sequence[int]] | None = None) -> Files:
    """NUMA nodes with their CPUs, and rows of distances by node id."""
    files: Files = {f"{NODE}/online": listed(of)}
    for node, members in of.items():
        files[f"{NODE}/node{node}/cpulist"] = listed(members)
        files[f"{NODE}/node{node}/meminfo"] = f"Node {node} MemTotal:       67108864 kB\n"
    for node, row in (slit or {}).items():
        files[f"{NODE}/node{node}/distance"] = " ".join(map(str, row)) + "\n"
    return files


def two_sockets() -> Files:
    """Two packages of four CPUs, each a NUMA node."""
    return cpus({0: range(4), 1: range(4, 8)}) | nodes({0: range(4), 1: range(4, 8)}, {0: (10, 21), 1: (21, 10)})


def function(
    address: str,
    *,
    under: str,
    class_: str = "0x020000",
    vendor: str = "0x15b3",
    device: str = "0x1021",
    numa_node: str | None = "-1\n",
    driver: str | None = None,
    files: Mapping[str, Entry] | None = None,
) -> Files:
    """One PCI function below `pci0000:16/0000:16:01.0`, with its link, as drivers/pci/pci-sysfs.c shows it.

    The uevent has no leading zeros and upper case, as pci_uevent() in drivers/pci/pci-driver.c prints it.
    """
    path = f"sys/devices/{under}/{address}"
    event = (
        f"PCI_CLASS={int(class_, 16):X}\nPCI_ID={vendor[2:].upper()}:{device[2:].upper()}\nPCI_SLOT_NAME={address}\n"
    )
    said: dict[str, Entry] = {
        "class": f"{class_}\n",
        "vendor": f"{vendor}\n",
        "device": f"{device}\n",
        "uevent": (f"DRIVER={driver}\n" if driver else "") + event,
    }
    if numa_node is not None:
        said["numa_node"] = numa_node
    said |= files or {}
    entries: Files = {f"{path}/{name}": entry for name, entry in said.items() if entry is not None}
    return entries | {f"{DEVICES}/{address}": Link(f"../../../devices/{under}/{address}")}


def bridge(
    address: str, *, under: str, numa_node: str | None = "-1\n", files: Mapping[str, Entry] | None = None
) -> Files:
    """A PCIe port."""
    return function(
        address, under=under, class_="0x060400", vendor="0x8086", device="0x352a", numa_node=numa_node, files=files
    )


def fact(found: Inventory, address: str) -> PciDevice:
    """The one function of that address."""
    (one,) = (device for device in found.pci or () if device.address == PciAddress.parse(address))
    return one


def place(found: Topology, address: str) -> Device:
    """The same in the graph."""
    device = found.device(pci_ref(PciAddress.parse(address)))
    assert device is not None, f"{address} is not there"
    return device


NVIDIA: dict[str, str] = {"class_": "0x030200", "vendor": "0x10de", "device": "0x2330"}
AMD: dict[str, str] = {"class_": "0x120000", "vendor": "0x1002", "device": "0x74a1"}
NIC: dict[str, str] = {"class_": "0x020000", "vendor": "0x15b3", "device": "0x1021"}
NVME: dict[str, str] = {"class_": "0x010802", "vendor": "0x144d", "device": "0xa824"}


def link_files(gts: str = "32.0 GT/s PCIe", width: int = 16) -> Files:
    """The PCIe link of a function at its best, as max_link_speed and max_link_width print it."""
    return {"max_link_speed": f"{gts}\n", "max_link_width": f"{width}\n"}


def grown(
    path: str,
    what: Mapping[str, str] = NIC,
    *,
    numa_node: str | None = "-1\n",
    ports: Mapping[str, Mapping[str, str]] | None = None,
    links: Mapping[str, Files] | None = None,
    files: Mapping[str, Entry] | None = None,
) -> Files:
    """One function at the end of `pci0000:15/15:01.0/16:00.0/17:03.0/1d:00.0`, and every bridge on the way.

    Short addresses are in the domain of the host bridge before them. `ports` and `links` say what is special
    about some bridges, by the address as it stands in the path.
    """
    under, domain, made = "", "0000", Files()
    *above, last = path.split("/")
    for part in above:
        if part.startswith("pci"):
            under, domain = f"{under}/{part}".lstrip("/"), part[3:].partition(":")[0]
            continue
        ids = {"class_": "0x060400", "vendor": "0x8086", "device": "0x352a", **(ports or {}).get(part, {})}
        at = part if part.count(":") == 2 else f"{domain}:{part}"
        made |= function(at, under=under, numa_node=numa_node, files=(links or {}).get(part), **ids)
        under = f"{under}/{at}"
    at = last if last.count(":") == 2 else f"{domain}:{last}"
    return made | function(at, under=under, numa_node=numa_node, files={**(links or {}).get(last, {}), **(files or {})},
                           **what)  # fmt: skip


def between(found: Topology, one: str, other: str) -> Path:
    return Paths(found).between(place(found, one), place(found, other))


def netdev(name: str, under: str, files: Mapping[str, Entry] | None = None, *, event: str = "") -> Files:
    """An interface that is up, below a path of sys/devices ("pci0000:16/0000:17:00.0"): net/core/net-sysfs.c."""
    path = f"sys/devices/{under}/net/{name}"
    said: dict[str, Entry] = {
        "uevent": f"{event}INTERFACE={name}\nIFINDEX=2\n",
        "type": "1\n",
        "address": "02:00:00:00:00:01\n",
        "operstate": "up\n",
        "carrier": "1\n",
        "speed": "100000\n",
        "mtu": "1500\n",
        **(files or {}),
    }
    made: Files = {f"{path}/{key}": entry for key, entry in said.items() if entry is not None}
    return made | {f"sys/class/net/{name}": Link(f"../../devices/{under}/net/{name}")}


def rdma(
    name: str,
    under: str,
    *,
    ports: Sequence[int] = (1,),
    layer: str = "Ethernet",
    board: str | None = None,
    files: Mapping[str, Entry] | None = None,
) -> Files:
    """An RDMA device whose ports are up, below a path of sys/devices: drivers/infiniband/core/sysfs.c."""
    path = f"sys/devices/{under}/infiniband/{name}"
    said: dict[str, Entry] = {"node_type": "1: CA\n", "fw_ver": "28.39.1002\n", "node_guid": "0200:0000:0000:0001\n"}
    if board:
        said["sys_image_guid"] = f"{board}\n"
    for port in ports:
        said |= {
            f"ports/{port}/link_layer": f"{layer}\n",
            f"ports/{port}/state": "4: ACTIVE\n",
            f"ports/{port}/rate": "400 Gb/sec (4X NDR)\n",
        }
    said |= files or {}
    made: Files = {f"{path}/{key}": entry for key, entry in said.items() if entry is not None}
    return made | {f"sys/class/infiniband/{name}": Link(f"../../devices/{under}/infiniband/{name}")}


def drive(name: str, under: str, files: Mapping[str, Entry] | None = None) -> Files:
    """An NVMe controller below a path of sys/devices: drivers/nvme/host/sysfs.c."""
    path = f"sys/devices/{under}/{name}"
    said: dict[str, Entry] = {
        "model": "SAMSUNG MZWLJ3T8HBLS-00007           \n",
        "serial": f"S{name.upper()}            \n",
        "firmware_rev": "EPK98B5Q\n",
        "transport": "pcie\n",
        **(files or {}),
    }
    made: Files = {f"{path}/{key}": entry for key, entry in said.items() if entry is not None}
    return made | {f"sys/class/nvme/{name}": Link(f"../../devices/{under}/{name}")}


def disk(name: str, under: str) -> Files:
    """A block device below a path of sys/devices."""
    return {
        f"sys/devices/{under}/{name}/size": "7501476528\n",
        f"sys/class/block/{name}": Link(f"../../devices/{under}/{name}"),
    }


def kfd(number: int, properties: Mapping[str, int], links: Iterable[Mapping[str, int]] = ()) -> Files:
    """One node of KFD: lines `key value`, decimal (drivers/gpu/drm/amd/amdkfd/kfd_topology.c)."""
    node = f"sys/class/kfd/kfd/topology/nodes/{number}"
    files: Files = {f"{node}/properties": _lines(properties), f"{node}/name": "ip discovery\n"}
    return files | {f"{node}/io_links/{place}/properties": _lines(link) for place, link in enumerate(links)}


def _lines(said: Mapping[str, int]) -> str:
    return "".join(f"{key} {value}\n" for key, value in said.items())


def nvlink(number: int, remote: Json, kind: Json, state: Json = 1) -> Json:
    """One NVLink of the NVML document: nvml.md, sections 6 and 10."""
    return {
        "link": number,
        "state": state,
        "version": 6,
        "remote_type": kind,
        "remote_bdf": remote,
        "speed_mbps": 25000,
    }


def answers(bdf: Json, index: Json, links: Sequence[Json] = (), **said: Json) -> Json:
    """One GPU of the NVML document."""
    uuid = f"GPU-{index:08d}-0000-0000-0000-000000000000" if isinstance(index, int) else index
    return {
        "bdf": bdf, "index": index, "uuid": uuid, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85899345920,
        "numa_node_id": {"error": "NOT_SUPPORTED"}, "nvlinks": list(links), **said,
    }  # fmt: skip


def nvml(*gpus: Json) -> dict[str, Document]:
    return {"nvml": {"driver_version": "580.95.05", "gpus": list(gpus)}}


def spelled(path: str) -> str:
    """`pci0000:15/15:01.0/16:00.0` -> `pci0000:15/0000:15:01.0/0000:16:00.0`, below sys/devices."""
    found, domain = list[str](), "0000"
    for part in path.split("/"):
        if part.startswith("pci"):
            domain = part[3:].partition(":")[0]
        found.append(part if part.startswith("pci") or part.count(":") == 2 else f"{domain}:{part}")
    return "/".join(found)


def put(
    path: str,
    what: Mapping[str, str] = NIC,
    *,
    node: int = 0,
    verbs: str | None = None,
    interface: str | None = None,
    layer: str = "InfiniBand",
    board: str | None = None,
    lane: tuple[str, int] = ("32.0 GT/s PCIe", 16),
    special: Mapping[str, tuple[str, int]] | None = None,
    ports: Mapping[str, Mapping[str, str]] | None = None,
    files: Mapping[str, Entry] | None = None,
) -> Files:
    """`grown` with a link on every function, and with an RDMA device and an interface on the last one.

    `lane` is what every link can at most, and `special` what some can, by the address as it stands in the path.
    """
    parts = [part for part in path.split("/") if not part.startswith("pci")]
    links = {part: link_files(*(special or {}).get(part, lane)) for part in parts}
    made = grown(path, what, numa_node=f"{node}\n", links=links, ports=ports, files=files)
    if verbs is not None:
        made |= rdma(verbs, spelled(path), layer=layer, board=board)
    return made if interface is None else made | netdev(interface, spelled(path))


def now(path: str, speed: str = "32.0 GT/s PCIe", width: int = 16) -> Files:
    """What the link of the last function of a path runs at now."""
    where = f"sys/devices/{spelled(path)}"
    return {f"{where}/current_link_speed": f"{speed}\n", f"{where}/current_link_width": f"{width}\n"}


def routed(*interfaces: str) -> dict[str, Document]:
    """The document of the asking process: default routes leave by these interfaces."""
    return {"process": {"allowed_cpus": [0], "architecture": "x86_64", "default_routes": [*interfaces]}}
