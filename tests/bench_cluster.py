"""What publishing costs: `python -m tests.bench_cluster [--idle 600]`, on a control plane of its own.

The agent publishes the labels and the ResourceSlice of the 8-GPU fixture, and then nothing changes: how many requests
it makes by the audit log of the API server, its processor time, and its memory.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests import fixtures
from tests.agent import Agent
from tests.cost import MACHINE, Figure, cpu_seconds, memory, mib
from tests.labs.apt import CannotStart
from tests.labs.controlplane.cluster import Cluster

MEMORY = 80 << 20  # issue 9, point 7
START = 30.0  # seconds, after which everything is published and confirmed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_cluster")
    parser.add_argument("--idle", type=float, default=60 if os.environ.get("CI") else 600, metavar="SECONDS")
    chosen = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
            os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/byte-code"  # as an installed package has it
            idle(Path(folder), cluster, chosen.idle)
    except CannotStart as error:
        print(f"no control plane: {error}")


def idle(folder: Path, cluster: Cluster, seconds: float) -> None:
    cluster.node("n1")
    box = str(fixtures.tree(MACHINE, folder))
    publishing = ("--labels", "node", "--slice-mode", "inventory", "--node", "n1", "--kubeconfig", cluster.kubeconfig)
    # A copied machine is looked at every minute; this one as often as a live one.
    around = "from topo_agent.daemon import loop; loop._POLL = 300.0"
    agent = Agent(folder / "http", "--from", box, "--state-dir", "", *publishing, around=around)
    try:
        agent.ready()
        time.sleep(START)
        first, spent = requests(cluster), cpu_seconds(agent)
        print(f"{MACHINE}: published with {first} requests")
        time.sleep(seconds)
        more, share = requests(cluster) - first, (cpu_seconds(agent) - spent) / seconds * 100
        used = memory(agent)
        print(Figure(f"idle for {seconds:g} s with both publishers: {more} requests", "0", not more))
        print(f"{share:.4f}% of a core")
        print(Figure(mib(used), mib(MEMORY), used <= MEMORY))
    finally:
        agent.stop()


def requests(cluster: Cluster) -> int:
    """That have begun, open watches among them."""
    return len(cluster.requests(agent="topo-agent"))


if __name__ == "__main__":
    main()
