"""The document of one process -> Binding: what it may use, and which devices it has."""

from __future__ import annotations

import re
from typing import NamedTuple

from topo_agent.diagnostics import Notes
from topo_agent.host import Host, Json, as_object
from topo_agent.ids import CpuSet
from topo_agent.sources import parse
from topo_agent.sources.entry import members

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_POLICY = re.compile(r"(?:bind|(?:weighted )?interleave|prefer(?: \(many\))?)(?:=[a-z|]+)?:(.*)", re.ASCII)


class Binding(NamedTuple):
    """None is "could not be read"."""

    name: str
    cpus: CpuSet
    memory: CpuSet  # nodes of its cpuset
    opened: tuple[str, ...] | None  # device nodes: "nvidia0", "dri/renderD128", "infiniband/uverbs0"
    visible: tuple[str, ...] | None  # device nodes that it could open
    asked: tuple[tuple[str, str], ...] | None  # environment variables that choose GPUs
    pci_order: bool  # CUDA_DEVICE_ORDER=PCI_BUS_ID
    bound_memory: CpuSet | None  # nodes that memory policies name; empty: the default
    hidden: tuple[str, ...]  # what could not be read, and why
    uverbs: tuple[tuple[str, str], ...]  # "uverbs0" -> "mlx5_0"


def read(host: Host, document: Json) -> Binding:
    """ValueError where the document has no CPUs: then it is no process that we may look at."""
    said = as_object(document)
    environment, opened, visible, policies = (
        said.get(key) for key in ("environment", "files", "device_nodes", "memory_policies")
    )
    answers = {"environment": environment, "open files": opened, "device nodes": visible, "memory policy": policies}
    asked = _words(environment)
    cpus = parse.cpulist(str(said.get("allowed_cpus", "")))
    if not cpus:
        raise ValueError("it does not say which CPUs it may use")
    return Binding(
        name=str(said.get("name", "")),
        cpus=cpus,
        memory=parse.cpulist(str(said.get("allowed_memory", ""))),
        opened=_names(opened),
        visible=_names(visible),
        asked=None if asked is None else tuple((key, asked[key]) for key in _VISIBLE if key in asked),
        pci_order=bool(asked) and (asked or {}).get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
        bound_memory=_bound(_words(policies)),
        hidden=tuple(f"{what}: {answer['error']}" for what, answer in answers.items()
                     if isinstance(answer, dict) and "error" in answer),
        uverbs=tuple(_uverbs(host)),
    )  # fmt: skip


def _names(answer: Json) -> tuple[str, ...] | None:
    return tuple(str(one) for one in answer) if isinstance(answer, list) else None


def _words(answer: Json) -> dict[str, str] | None:
    if not isinstance(answer, dict) or "error" in answer:
        return None
    return {key: str(value) for key, value in answer.items()}


def _bound(policies: dict[str, str] | None) -> CpuSet | None:
    """`{"bind:0-1": 3, "default": 9}` -> `{0, 1}`: mm/mempolicy.c mpol_to_str."""
    if policies is None:
        return None
    found: set[int] = set()
    for policy in policies:
        matched = _POLICY.fullmatch(policy)
        if matched:
            try:
                found |= parse.cpulist(matched[1])
            except ValueError:
                continue  # a policy of a later kernel
    return frozenset(found)


def _uverbs(host: Host) -> list[tuple[str, str]]:
    pairs = (
        (name, entry.want("ibdev", parse.clean)) for name, entry in members(host, "sys/class/infiniband_verbs", Notes())
    )
    return [(name, device) for name, device in pairs if device]
