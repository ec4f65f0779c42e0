"""docs/kubernetes.md, typed on a cluster. No kubelet runs the pods here: tests/labs/node does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.labs.controlplane.cluster import Cluster
from tests.test_cli import environment
from tests.test_docs import blocks

ROOT = Path(__file__).parents[3]
NOT_HERE = "rollout status"  # waits for pods


def test_its_commands(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("n1")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "topo-agent").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topo_agent "$@"\n')
    (programs / "topo-agent").chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = environment(PATH=path, KUBECONFIG=cluster.kubeconfig, HOME=str(tmp_path))
    (tmp_path / "daemonset").symlink_to(ROOT / "daemonset")
    typed = 0
    for block in blocks(ROOT / "docs" / "kubernetes.md"):
        if block.tag != "sh cluster":
            continue
        text = "\n".join(line for line in block.text.splitlines() if NOT_HERE not in line)
        done = subprocess.run(
            ["sh", "-ec", text], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"kubernetes.md:{block.line}: {done.stdout}{done.stderr}"
        typed += 1
    assert typed >= 3
    assert "topo-agent" not in {one["metadata"]["name"] for one in cluster.get("clusterrole")["items"]}
