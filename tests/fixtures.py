"""The machines of fixtures/: recorded (host.topo) or described (machine.yaml)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests import machines
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host import Host
from topo_agent.host.opening import open_host
from topo_agent.host.unpack import unpack
from topo_agent.scan import scan
from topo_agent.synthesis.build import from_file

FOLDER = Path(__file__).parents[1] / "fixtures"

NAMES = sorted(one.name for one in FOLDER.iterdir() if (one / "host.topo").exists() or (one / "machine.yaml").exists())


@cache
def host(name: str) -> Host:
    recorded = FOLDER / name / "host.topo"
    return open_host(str(recorded)) if recorded.exists() else from_file(str(FOLDER / name / "machine.yaml"))


def tree(name: str, base: Path) -> Path:
    """The machine as a root directory below `base`."""
    return machines.once(base / f"fixture-{name}", lambda fresh: unpack(host(name), str(fresh)))


@cache
def topology(name: str) -> Topology:
    return build(scan(host(name), readiness=True))
