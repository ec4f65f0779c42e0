"""What a description says of the drivers of a function: interfaces, RDMA devices, drives, virtual functions."""

from __future__ import annotations

from topo_agent.synthesis.fields import Fields, Value
from topo_agent.synthesis.functions import NOWHERE, Drive, Network, Vfs
from topo_agent.synthesis.parts import Part

LAYERS = ("Ethernet", "InfiniBand", "Unspecified")


def network(said: Fields) -> Network:
    netdev, rdma, layer, speed = (said.get(name) for name in ("netdev", "rdma", "layer", "speed"))
    carrier, mtu, ports, board, mac = (said.get(name) for name in ("carrier", "mtu", "rdma_ports", "board", "mac"))
    return Network(
        netdevs=tuple(one.name() for one in netdev.some()) if netdev else (),
        rdma=tuple(one.name() for one in rdma.some()) if rdma else (),
        rdma_ports=ports.count(0, 16) if ports else 1,
        layer=layer.choice(*LAYERS) if layer else LAYERS[0],
        speed=speed.count(1, 3200) if speed else 100,
        carrier=carrier.choice("up", "down", "off") if carrier else "up",
        mtu=mtu.count(68, 65535) if mtu else 1500,
        board=board.name() if board else None,
        mac=mac.text() if mac else None,
    )


def drive(said: Fields) -> Drive:
    """`namespaces` is how many there are, or their numbers."""
    controller, namespaces, multipath = (said.get(name) for name in ("controller", "namespaces", "multipath"))
    numbers: tuple[int, ...] = (1,)
    if namespaces and namespaces.is_list:
        numbers = tuple(one.count(1, 1024) for one in namespaces.items())
    elif namespaces:
        numbers = tuple(range(1, namespaces.count(0, 1024) + 1))
    if controller and (not controller.word().startswith("nvme") or not controller.word()[4:].isdigit()):
        raise controller.wrong("expected a name such as nvme0")
    return Drive(
        controller=controller.name() if controller else None,
        namespaces=numbers,
        multipath=multipath.truth() if multipath else False,
    )


def vfs(value: Value, part: Part) -> Vfs:
    """`vfs: 8`, or a map: where they are (offset and stride of their requester ids), what they are, who drives them."""
    plain = not value.is_map
    said = (
        Fields(value) if plain else value.fields("count", "total", "offset", "stride", "ids", "class", "driver", "node")
    )
    total, offset, stride, ids = (said.get(name) for name in ("total", "offset", "stride", "ids"))
    klass, driver, node = said.get("class"), said.get("driver"), said.get("node")
    count = value.count(0, 2048) if plain else said["count"].count(0, 2048)
    if ids is None and part.vf is None:
        raise value.wrong("expected `ids`, for this part is not known to have virtual functions")
    found = Vfs(
        count=count,
        total=total.count(0, 65535) if total else max(count, 16),
        offset=offset.count(1, 65535) if offset else 2,
        stride=stride.count(1, 65535) if stride else 1,
        ids=ids.ids() if ids else part.vf or (0, 0),
        klass=klass.hexadecimal(24) if klass else part.klass,
        driver=part.driver if driver is None else None if driver.word() == "none" else driver.name(),
        node=None if node is None else NOWHERE if node.word() in ("none", "-1") else node.count(0, 1023),
    )
    if found.total < found.count:
        raise value.wrong(f"{found.count} virtual functions of at most {found.total}")
    return found
