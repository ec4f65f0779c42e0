"""What others bring along, as far as our objects need it: kinds of objects, a RuntimeClass, a namespace.

The kinds have the fields that we write, and the rules of theirs that could refuse us; nothing acts on them.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.labs.controlplane.cluster import Cluster

_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_WORD = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = rf"^({_WORD}(\.{_WORD})*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"


def _kind(kind: str, plural: str, group: str, version: str, spec: dict[str, Any], *, namespaced: bool) -> str:
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", **spec}}}
    said = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    return yaml.safe_dump(said)


NODE_FEATURE = _kind(
    "NodeFeature", "nodefeatures", "nfd.k8s-sigs.io", "v1alpha1", {"properties": {"labels": _TEXTS, "features": _ANY}},
    namespaced=True,
)  # fmt: skip
# kubernetes-sigs/kueue, apis/kueue/v1beta2: topology_types.go and resourceflavor_types.go, with their rules.
TOPOLOGY = _kind(
    "Topology", "topologies", "kueue.x-k8s.io", "v1beta2",
    {
        "required": ["levels"],
        "properties": {
            "levels": {
                "type": "array", "minItems": 1, "maxItems": 16,
                "items": {
                    "type": "object", "required": ["nodeLabel"],
                    "properties": {"nodeLabel": {"type": "string", "maxLength": 316, "pattern": _LABEL}},
                },
                "x-kubernetes-validations": [
                    {"rule": "self == oldSelf"},
                    {"rule": "size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0"},
                    {
                        "rule": "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0"
                        " || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                    },
                ],
            },
        },
    },
    namespaced=False,
)  # fmt: skip
RESOURCE_FLAVOR = _kind(
    "ResourceFlavor", "resourceflavors", "kueue.x-k8s.io", "v1beta2",
    {
        "properties": {"topologyName": {"type": "string"}, "nodeLabels": {**_TEXTS, "maxProperties": 8}},
        "x-kubernetes-validations": [{"rule": "!has(self.topologyName) || self.nodeLabels.size() >= 1"}],
    },
    namespaced=False,
)  # fmt: skip
# prometheus-operator, pkg/apis/monitoring/v1: podmonitor_types.go; in TLS settings a secret is named with its key.
_SECRET = {"type": "object", "required": ["key"], "properties": {"name": {"type": "string"}, "key": {"type": "string"}}}
_FROM = {"type": "object", "properties": {"secret": _SECRET}}
POD_MONITOR = _kind(
    "PodMonitor", "podmonitors", "monitoring.coreos.com", "v1",
    {
        "required": ["selector", "podMetricsEndpoints"],
        "properties": {
            "selector": {"type": "object", "properties": {"matchLabels": _TEXTS}},
            "podMetricsEndpoints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "string"},
                        "scheme": {"type": "string", "enum": ["http", "https", "HTTP", "HTTPS"]},
                        "tlsConfig": {
                            "type": "object",
                            "properties": {
                                "ca": _FROM, "cert": _FROM, "keySecret": _SECRET, "serverName": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
    namespaced=True,
)  # fmt: skip
EVERY = (NODE_FEATURE, TOPOLOGY, RESOURCE_FLAVOR, POD_MONITOR)

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


def define(cluster: Cluster, *kinds: str) -> None:
    """They are served from now on. Only in a cluster of one's own: who watches them would miss them for ever."""
    cluster.apply("---\n".join(kinds))
    names = [yaml.safe_load(one)["metadata"]["name"] for one in kinds]
    cluster.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in names))
