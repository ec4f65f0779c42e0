"""What containerd and a kubelet are told, to be one node of a lab beside whatever else the machine runs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import yaml

PAUSE = "localhost/pause:1"


def containerd(folder: Path, runc: Path, cni: Path) -> str:
    """Its configuration, in TOML."""
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    tables: dict[str, dict[str, object]] = {
        "": {
            "version": 3,
            "root": f"{folder}/containerd/root",
            "state": f"{folder}/containerd/state",
            "disabled_plugins": ["io.containerd.nri.v1.nri"],
        },
        "grpc": {"address": f"{folder}/containerd.sock"},
        "ttrpc": {"address": f"{folder}/containerd.ttrpc"},
        "plugins.'io.containerd.internal.v1.opt'": {"path": f"{folder}/containerd/opt"},
        # Else every pod fails with "failed to update /proc/self/oom_score_adj" where root may not lower it.
        runtime: {
            "restrict_oom_score_adj": True,
            "netns_mounts_under_state_dir": True,
            "cdi_spec_dirs": [f"{folder}/cdi"],  # what the machine has for its own containers is none of the node's
        },
        f"{runtime}.cni": {"bin_dirs": [str(cni)], "conf_dir": f"{folder}/cni"},
        f"{runtime}.containerd.runtimes.runc": {"runtime_type": "io.containerd.runc.v2"},
        f"{runtime}.containerd.runtimes.runc.options": {"BinaryName": str(runc), "SystemdCgroup": False},
        "plugins.'io.containerd.cri.v1.images'.pinned_images": {"sandbox": PAUSE},
    }
    return "\n".join(_table(name, values) for name, values in tables.items())


def _table(name: str, values: Mapping[str, object]) -> str:
    head = f"[{name}]\n" if name else ""
    return head + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def network(folder: Path) -> str:
    """CNI's list: a pod has an address that this machine and no other can reach; its interfaces go with it."""
    part = zlib.crc32(folder.name.encode()) % 512  # of 198.18.0.0/15, which no network uses: RFC 2544
    subnet = f"198.{18 + part // 256}.{part % 256}.0/24"
    addresses = {"type": "host-local", "subnet": subnet, "dataDir": f"{folder}/addresses"}
    plugins = [{"type": "loopback"}, {"type": "ptp", "ipam": addresses}]
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": plugins})


def kubelet(folder: Path, port: int, gates: Mapping[str, bool]) -> str:
    """Its configuration."""
    none = dict.fromkeys(("imagefs.available", "memory.available", "nodefs.available", "nodefs.inodesFree"), "0%")
    said = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{folder.name}",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "evictionHard": none,  # of a full disk the lab's pods are not to blame
        "failCgroupV1": False,
        "failSwapOn": False,
        "featureGates": dict(gates),
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,  # the tables are the machine's
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": f"{folder}/logs",
        "reservedSystemCPUs": "0",
        "volumePluginDir": f"{folder}/volume-plugins",
    }
    return yaml.safe_dump(said)
