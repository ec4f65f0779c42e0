"""Drivers of placed functions -> interfaces, RDMA devices, NVMe drives, disks and GPU device nodes in sysfs."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from topo_agent.synthesis.bus import identity
from topo_agent.synthesis.functions import Drive, Network
from topo_agent.synthesis.layout import Layout, Placed
from topo_agent.synthesis.tree import Tree

_RATES = {  # Gb/s: lanes and name, as drivers/infiniband/core/sysfs.c rate_show() prints them
    10: "4X SDR", 20: "4X DDR", 25: "1X EDR", 40: "4X QDR", 50: "2X EDR", 56: "4X FDR", 100: "4X EDR", 200: "4X HDR",
    400: "4X NDR", 800: "4X XDR",
}  # fmt: skip
_CARDS = frozenset({"nvidia", "amdgpu", "xe", "i915", "ast", "mgag200", "qxl", "virtio-pci", "bochs-drm"})
_NO_RENDER = frozenset({"ast", "mgag200", "qxl", "bochs-drm"})
_TYPES = {"Ethernet": 1, "InfiniBand": 32, "Unspecified": 1}  # include/uapi/linux/if_arp.h


def write(tree: Tree, layout: Layout, addresses: Mapping[str, str]) -> None:
    """What every driver shows. `addresses`: the MAC of an interface that a bond gave it."""
    counts = {"card": 0, "render": 128, "accel": 0, "nvme": 0, "virtio": 0}
    for one in layout.functions.values():
        if one.physfn is not None:
            continue
        if one.spec.network is not None:
            _network(tree, one, one.spec.network, addresses, counts)
        if one.spec.drive is not None and one.spec.part.driver == "nvme":
            _drive(tree, one, one.spec.drive, counts)
        if one.spec.disk is not None:
            _disk(tree, f"{one.directory}/{_virtio(one, counts)}".rstrip("/"), one.spec.disk)
        _nodes(tree, one, counts)


def add(tree: Tree, kind: str, path: str, parent: str | None) -> None:
    """A member of a class: its directory, and the links between it, its class and its device."""
    name = path.rpartition("/")[2]
    tree.link(f"sys/class/{kind}/{name}", path)
    tree.link(f"{path}/subsystem", f"sys/class/{kind}")
    if parent is not None:
        tree.link(f"{path}/device", parent)


def _virtio(one: Placed, counts: dict[str, int]) -> str:
    """The virtio device between a function and its interface or disk; nothing for other drivers."""
    if one.spec.part.driver != "virtio-pci":
        return ""
    counts["virtio"] += 1
    return f"virtio{counts['virtio'] - 1}"


def _network(tree: Tree, one: Placed, said: Network, addresses: Mapping[str, str], counts: dict[str, int]) -> None:
    parent = f"{one.directory}/{_virtio(one, counts)}".rstrip("/")
    for port, name in enumerate(said.netdevs):
        interface(
            tree, f"{parent}/net/{name}", parent, said, port=port, address=addresses.get(name) or mac(tree, said, name)
        )
    board = said.board or f"{one.address.domain:04x}:{one.address.bus:02x}:{one.address.device:02x}"
    for number, name in enumerate(said.rdma):
        path = f"{one.directory}/infiniband/{name}"
        add(tree, "infiniband", path, one.directory)
        tree.write(path, node_type="1: CA", fw_ver="28.39.1002", hca_type=f"MT{one.spec.part.ids[1]}")
        tree.write(path, node_guid=tree.guid(f"{one.address}/{number}"), sys_image_guid=tree.guid(f"board {board}"))
        for port in range(1, said.rdma_ports + 1):
            place = number + port - 1
            netdev = said.netdevs[place] if place < len(said.netdevs) else None
            _rdma_port(tree, f"{path}/ports/{port}", said, netdev, f"{one.address}/{number}")


def mac(tree: Tree, said: Network, name: str) -> str:
    """An Ethernet address, or the 20 bytes of an InfiniBand one: queue pair, subnet, GUID."""
    if said.mac is not None:
        return said.mac
    if said.layer != "InfiniBand":
        return tree.mac(name)
    digits = "00001029fe80000000000000" + tree.guid(name).replace(":", "")
    return ":".join(digits[place : place + 2] for place in range(0, 40, 2))


def interface(tree: Tree, path: str, parent: str | None, said: Network, *, port: int, address: str) -> None:
    """net/core/net-sysfs.c. An interface that is down answers EINVAL to carrier and speed, one without a cable -1."""
    name = path.rpartition("/")[2]
    add(tree, "net", path, parent)
    tree.text(f"{path}/uevent", f"INTERFACE={name}\nIFINDEX={_index(tree, name)}\n")
    tree.write(
        path, address=address, type=_TYPES[said.layer], dev_port=port, mtu=said.mtu, addr_len=(len(address) + 1) // 3
    )
    tree.write(path, operstate="up" if said.carrier == "up" else "down")
    if said.carrier == "off":
        for file in ("carrier", "speed"):
            tree.fail(f"{path}/{file}", errno.EINVAL)
    else:
        up = said.carrier == "up"
        tree.write(path, carrier=int(up), speed=said.speed * 1000 if up and said.layer != "InfiniBand" else -1)


def _index(tree: Tree, name: str) -> int:
    return 2 + int(tree.digits(f"ifindex {name}", 3), 16)


def _rdma_port(tree: Tree, path: str, said: Network, netdev: str | None, what: str) -> None:
    up = said.carrier == "up"
    rate = f"{said.speed} Gb/sec ({_RATES.get(said.speed, '4X EDR')})" if up else "2.5 Gb/sec (1X SDR)"
    tree.write(path, link_layer=said.layer, rate=rate, state="4: ACTIVE" if up else "1: DOWN")
    tree.write(path, phys_state="5: LinkUp" if up else "3: Disabled")
    tree.write(f"{path}/gids", **{"0": f"fe80:0000:0000:0000:{tree.guid(what)}"})
    if said.layer == "Ethernet" and netdev is not None:
        tree.write(f"{path}/gid_attrs/ndevs", **{"0": netdev})
        tree.write(f"{path}/gid_attrs/types", **{"0": "RoCE v2"})


def _drive(tree: Tree, one: Placed, said: Drive, counts: dict[str, int]) -> None:
    """drivers/nvme/host/{core,multipath}.c: a shared disk hangs below its subsystem, and its path is hidden."""
    name = said.controller or f"nvme{counts['nvme']}"
    counts["nvme"] = max(counts["nvme"], int(name[4:])) + 1
    path, serial = f"{one.directory}/nvme/{name}", f"S{tree.digits(f'nvme {one.address}', 13).upper()}"
    add(tree, "nvme", path, one.directory)
    tree.write(path, model=f"{one.spec.part.title or 'NVMe disk':40}", serial=f"{serial:20}", firmware_rev="1.0.0   ")
    tree.write(path, transport="pcie", address=str(one.address), state="live", cntlid=1)
    tree.write(path, subsysnqn=f"nqn.2014-08.org.nvmexpress:uuid:{tree.uuid(f'nvme {one.address}')}")
    subsystem = f"sys/devices/virtual/nvme-subsystem/nvme-subsys{name[4:]}"
    if said.multipath:
        add(tree, "nvme-subsystem", subsystem, None)
        tree.link(f"{subsystem}/{name}", path)
    for number in said.namespaces:
        disk = f"{name}n{number}"
        if said.multipath:
            hidden = f"nvme{name[4:]}c{name[4:]}n{number}"
            add(tree, "block", f"{path}/{hidden}", path)
            tree.write(f"{path}/{hidden}", size=0, hidden=1)
            block(tree, f"{subsystem}/{disk}", subsystem)
        else:
            block(tree, f"{path}/{disk}", path)


def _disk(tree: Tree, parent: str, name: str) -> None:
    block(tree, f"{parent}/block/{name}", parent)


def block(tree: Tree, path: str, parent: str) -> None:
    name = path.rpartition("/")[2]
    add(tree, "block", path, parent)
    tree.text(f"{path}/uevent", f"MAJOR=259\nMINOR=0\nDEVNAME={name}\nDEVTYPE=disk\n")
    tree.write(path, size=7501476528, hidden=0, removable=0)


def nodes(one: Placed, counts: dict[str, int]) -> tuple[str, ...]:
    """The device nodes of a function, numbered in bus order: card0 and renderD128, or accel0."""
    if one.spec.nodes is not None:
        return one.spec.nodes
    _, klass, driver = identity(one)
    if driver == "habanalabs":
        counts["accel"] += 1
        return (f"accel{counts['accel'] - 1}",)
    if driver not in _CARDS or klass >> 16 not in (0x03, 0x12):
        return ()
    counts["card"] += 1
    if driver in _NO_RENDER:
        return (f"card{counts['card'] - 1}",)
    counts["render"] += 1
    return f"card{counts['card'] - 1}", f"renderD{counts['render'] - 1}"


def _nodes(tree: Tree, one: Placed, counts: dict[str, int]) -> None:
    for name in nodes(one, counts):
        kind = "accel" if name.startswith("accel") else "drm"
        add(tree, kind, f"{one.directory}/{kind}/{name}", one.directory)
        tree.text(f"{one.directory}/{kind}/{name}/uevent", f"DEVNAME={'accel' if kind == 'accel' else 'dri'}/{name}\n")
