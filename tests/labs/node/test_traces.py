"""Nothing of a node stays behind. A file of its own, so that no other node runs meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.labs.node.node import Traces

PROGRAM = """
import signal, sys
from tests.labs.controlplane.cluster import Cluster
from tests.labs.node.node import NodeOf
from tests.labs.node import kubelet
from tests.labs.node.test_node import make, pod
with Cluster(users={"system:node:n9": ["system:nodes"]}) as cluster, NodeOf(cluster, "n9") as node:
    for own in (True, False):
        node.wait_pod(make(node, pod(f"pod-{own}".lower(), kubelet.PAUSE, hostNetwork=own)))
    print(node.folder, flush=True)
    if sys.argv[1] == "wait":
        signal.pause()
    assert sys.argv[1] == "end", "as a test that fails"
"""


@pytest.mark.parametrize("how", ["end", "fail", "wait"])
def test_nothing_is_left(how: str) -> None:
    """After a node with running pods: of a test that ends, that fails, and that is killed."""
    before = Traces()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        folder = process.stdout.readline().strip()
        if how == "wait":
            assert Traces().more_than(before)
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    if not folder and "CannotStart: " in said and not os.environ.get("CI"):
        pytest.skip(said.strip().splitlines()[-1])
    assert folder, said
    assert process.returncode == {"end": 0, "fail": 1, "wait": -9}[how], said
    until = time.monotonic() + 30
    while (more := Traces().more_than(before)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not more
    assert not Path(folder).exists()
