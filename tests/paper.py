"""Small machines described on paper: `topology(two_sockets() | function("0000:17:00.0", under="pci0000:16"))`.

Every helper gives the files of one thing as the kernel writes them; `|` puts things together. A file is left
out by saying None of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from topo_agent.facts import Inventory, PciDevice
from topo_agent.graph.build import build
from topo_agent.graph.nodes import Device
from topo_agent.graph.topology import Topology
from topo_agent.host import Source
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


def inventory(files: Mapping[str, Entry], *, complete: bool = True) -> Inventory:
    return scan(machine(files, complete=complete))


def topology(files: Mapping[str, Entry], *, complete: bool = True) -> Topology:
    return build(inventory(files, complete=complete))


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
