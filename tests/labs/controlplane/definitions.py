"""What others bring along, as far as our objects need it: kinds of objects, a RuntimeClass, a namespace."""

from __future__ import annotations

from pathlib import Path

from tests.labs.controlplane.cluster import Cluster

KINDS = Path(__file__).with_name("standins.yaml")
RUNTIME_CLASS = """\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: runc
"""
NFD_NAMESPACE = """\
apiVersion: v1
kind: Namespace
metadata: {name: node-feature-discovery}
"""


def define(cluster: Cluster) -> None:
    """They are served from now on. Only in a cluster of one's own: who watches them would miss them for ever."""
    cluster.kubectl("apply", "-f", str(KINDS))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(KINDS))
