"""sys/devices/system/node -> StandardNode: NUMA nodes as the upstream Kubernetes helper reads them, for its list alone.

`numa` and `cpu` judge the same files: a node has to be online, a package to be believed, and a NUL at the end means
nothing. The helper takes each file by itself, and graph/standard.py must say what it says. What is wrong with a file is
noted by those two.
"""

from __future__ import annotations

import re

from topo_agent.diagnostics import Notes
from topo_agent.facts import StandardNode
from topo_agent.host import Host
from topo_agent.ids import NumaId
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry

_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
_COLUMN = re.compile(r"[0-9]{1,18}", re.ASCII)


def read(host: Host) -> tuple[StandardNode, ...]:
    """Every node that has a directory, by id, online or not."""
    unsaid = Notes()
    ids = sorted(
        node for name in Entry(host, _NODES, unsaid).names() if (node := parse.numbered(name, "node")) is not None
    )
    return tuple(_node(NumaId(node), Entry(host, f"{_NODES}/node{node}", unsaid)) for node in ids)


def _node(node: NumaId, entry: Entry) -> StandardNode:
    first = entry.peek("cpulist", _first)
    socket = None if first is None else Entry(entry.host, f"{_CPUS}/cpu{first}/topology", entry.notes)
    return StandardNode(
        id=node,
        distances=entry.peek("distance", _columns),
        socket=None if socket is None else socket.peek("physical_package_id", _number),
    )


def _columns(text: str) -> tuple[int, ...] | None:
    """`" 10 21\\n"` -> `(10, 21)`; None for an empty file."""
    columns = text.split()
    if not all(map(_COLUMN.fullmatch, columns)):
        raise ValueError(f"{text[:40]!r} is no row of distances")
    return tuple(map(int, columns)) or None


def _first(text: str) -> int | None:
    """`"2,6,10\\n"` -> `2`; None for a node without CPUs.

    The helper takes any CPU of the list. They are in one socket, but for a list that names offline CPUs, or a node
    across sockets: then it says now this and now that.
    """
    return min(parse.cpulist(_without_nul(text)), default=None)


def _number(text: str) -> int:
    """-1 is a socket like any other."""
    return parse.decimal(_without_nul(text))


def _without_nul(text: str) -> str:
    """To the helper a NUL is no space: a number before it is none."""
    if "\0" in text:
        raise ValueError(f"{text[:40]!r} holds a NUL")
    return text
