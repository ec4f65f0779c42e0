"""What commands that deal with labels have in common: the settings of the daemon, and one look at the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from topo_agent.commands.answer import CouldNot, F, option

if TYPE_CHECKING:
    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.covered import Covered
    from topo_agent.graph.fabric import Reading
    from topo_agent.graph.topology import Topology
    from topo_agent.publishers.kube.slices import Wanted
    from topo_agent.settings import Settings

OPTIONS: tuple[tuple[str, str | None, str], ...] = (
    ("node", "NAME", "The name of this node in its cluster; empty for the host name in lower case."),
    ("kubeconfig", "FILE", "How to reach the cluster; empty for $KUBECONFIG, the pod's own account or ~/.kube/config."),
    ("context", "NAME", "The context of the kubeconfig; empty for its current one."),
    ("mapping", "FILE", "A file (CSV) that says which node is in which rack, block and leaf; empty for none."),
    ("label_keys", "KEY=NAME,…", "Further labels, each with the name of ours whose value it gets, too."),
    (
        "gpu_clique",
        None,
        "Publish nvidia.com/gpu.clique by the rule of NVIDIA's GPU feature discovery, unless somebody else does.",
    ),
    (
        "slice_mode",
        "off|inventory|allocatable",
        "Publish a ResourceSlice of this node: tainted devices that only inform, or devices to be allocated.",
    ),
    (
        "slice_numa",
        "scalar|list",
        "How numaNode is published there; list needs the feature gate DRAListTypeAttributes.",
    ),
    ("slice_vfs", None, "Publish virtual functions there, too."),
    ("domain", "DOMAIN", "The domain of labels and of the driver."),
)  # fmt: skip
"""Of the settings those that labels and slices go by: field, metavar (none is a switch), help.

Said here once more, since the settings themselves take time that `dump` has no use for; a test compares the two.
"""

_CLUSTER = ("kubeconfig", "context")


def label_options(*, cluster: bool = False) -> Callable[[F], F]:
    """Give a command an option for each setting that labels go by, and `settings`, which loads them, as an argument.

    What is not said is as the daemon has it: variables, its file, defaults. `cluster`: how to reach one, too.
    """
    chosen = [one for one in OPTIONS if cluster or one[0] not in _CLUSTER]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_settings(*args: Any, settings_file: str | None, **given: Any) -> Any:
            context = click.get_current_context()
            flags = {}
            for field, metavar, _ in chosen:
                said = given.pop(field)
                if context.get_parameter_source(field) is ParameterSource.COMMANDLINE:
                    flags[field.replace("_", "-")] = said if metavar else str(said).lower()
            return command(*args, settings=functools.partial(_loaded, flags, settings_file), **given)

        decorated: Any = with_settings
        for field, metavar, about in reversed(chosen):
            flag = f"--{field.replace('_', '-')}"
            if metavar:
                decorated = option(flag, field, metavar=metavar, help=about)(decorated)
            else:
                decorated = option(f"{flag}/--no-{flag[2:]}", field, default=None, help=about)(decorated)
        return cast("F", _settings_file(decorated))

    return decorate


_settings_file = option(
    "--config", "settings_file", metavar="FILE",
    help="Settings (TOML) instead of /etc/topo-agent/topo-agent.toml.",
)  # fmt: skip


def _loaded(flags: dict[str, str], file: str | None) -> Settings:
    from topo_agent.commands.config import loaded

    return loaded(flags, file).settings


def readings_of(
    topology: Topology, operator: Resolved, settings: Settings, *, system_uuid: str | None = ""
) -> dict[str, Reading]:
    """What the labels of this machine should say; a mapping that cannot be read is an error here, and told.

    `system_uuid`: None where there is a Node and it cannot be asked for it.
    """
    from topo_agent.daemon.settled import settled
    from topo_agent.graph import pairing
    from topo_agent.graph.fabric import Place
    from topo_agent.graph.readings import readings
    from topo_agent.host import files
    from topo_agent.readers import mapping

    names = [settled(settings).name, system_uuid or (_own_uuid() if topology.source.kind == "live" else "")]
    place = Place({}, "no mapping is set")
    if settings.mapping:
        try:
            text = files.text(settings.mapping, mapping.EXPECTED)
            unnamed = system_uuid is None and not names[1]
            place = mapping.find(mapping.parse(text, settings.mapping), names, settings.mapping, unnamed=unnamed)
        except (files.Unreadable, mapping.BadMapping) as error:
            raise CouldNot(str(error)) from None
    return readings(topology, pairing.pairs(topology, operator), place)


def _own_uuid() -> str:
    """This machine's systemUUID, as the kubelet reads it: root only."""
    from topo_agent.host import files

    try:
        return files.text("/sys/class/dmi/id/product_uuid", "a UUID", 128).strip()
    except files.Unreadable:
        return ""


def slice_of(topology: Topology, settings: Settings, readings: dict[str, Reading], others: Covered) -> Wanted:
    """The ResourceSlice of this machine, without the uid of its Node; what had to be cut is told."""
    from topo_agent.daemon.settled import node_name
    from topo_agent.publishers.kube.slices import SHARED, Wanted, taint
    from topo_agent.views.slices import candidates, fitted

    shared = {
        word: raw for name, word in SHARED.items() if name in readings and (raw := readings[name].raw) is not None
    }
    found = candidates(topology, numa=settings.slice_numa)
    left = [one for one in found if not others.has(one.address, one.uid) and (settings.slice_vfs or not one.virtual)]
    allocatable = settings.slice_mode == "allocatable"
    fit = fitted(left, shared, taint=None if allocatable else taint(settings.domain))
    for what, count in fit.cut.items():
        if count:
            click.echo(f"topo-agent: {count} {what} do not fit into one ResourceSlice and are cut", err=True)
    return Wanted(node_name(settings), "", settings.domain, fit.devices, allocatable)
