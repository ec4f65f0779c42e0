"""topo-agent: how a server is wired, from sysfs to every form that people and programs already read.

import topo_agent
topology = topo_agent.discover()                 # this machine
topology = topo_agent.discover("host.topo")      # a recording, an archive, a directory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topo_agent.graph.overlay import Overlay
    from topo_agent.graph.topology import Topology
    from topo_agent.host import Watch

__version__ = "0.1.0"


def discover(
    source: str | None = None,
    *,
    caches: bool = False,
    readiness: bool = False,
    acs: bool = False,
    overlay: Overlay | None = None,
    timeout: float = 60.0,
    watch: Watch | None = None,
) -> Topology:
    """The topology of this machine, or of a recording, a tar archive or a directory that holds sys/.

    Never fails for what a machine says: what it cannot be told is None with its reason, and
    `topology.diagnostics` says what was lost. topo_agent.host.BadSource where `source` is no machine.
    `caches` reads the caches of every CPU too, `readiness` what only the checks need, `acs` PCI configuration space
    (for root, and no device that sleeps). `overlay` is what an operator knows better than firmware.
    `timeout` is how many seconds a driver of this machine may take to answer; `watch` hears what is waited for.
    """
    from topo_agent.graph.build import build
    from topo_agent.graph.overlay import EMPTY
    from topo_agent.host.opening import open_host
    from topo_agent.scan import scan

    host = open_host(source, timeout=timeout, watch=watch)
    return build(scan(host, caches=caches, readiness=readiness, acs=acs), overlay or EMPTY)
