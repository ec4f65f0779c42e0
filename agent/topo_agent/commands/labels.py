"""What commands that deal with labels have in common: the settings of the daemon, and one look at the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from topo_agent.commands.answer import CouldNot, F, option
from topo_agent.commands.config import loaded, settings_file_option
from topo_agent.settings import SETTINGS, values

if TYPE_CHECKING:
    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.covered import Covered
    from topo_agent.graph.fabric import Reading
    from topo_agent.graph.topology import Topology
    from topo_agent.publishers.kube.slices import Wanted
    from topo_agent.settings import Settings

_NAMES = ("node", "mapping", "label_keys", "gpu_clique", "slice_mode", "slice_numa", "slice_vfs", "domain")


def label_options(*more: str) -> Callable[[F], F]:
    """Give a command an option for each setting that labels go by, and the settings as its last argument `settings`.

    What is not said is as the daemon has it: variables, its file, defaults.
    """
    chosen = [one for one in SETTINGS if one.field in (*_NAMES, *more)]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_settings(*args: Any, settings_file: str | None, **given: Any) -> Any:
            context = click.get_current_context()
            flags = {}
            for one in chosen:
                said = given.pop(one.field)
                if context.get_parameter_source(one.field) is ParameterSource.COMMANDLINE:
                    flags[one.name] = one.kind.text(said) if one.kind is values.SWITCH else said
            return command(*args, settings=loaded(flags, settings_file).settings, **given)

        decorated: Any = with_settings
        for one in reversed(chosen):
            name = f"{one.flag}/--no-{one.name}" if one.kind is values.SWITCH else one.flag
            how: dict[str, Any] = {"default": None} if one.kind is values.SWITCH else {"metavar": one.kind.metavar}
            decorated = option(name, one.field, help=one.help, **how)(decorated)
        return cast("F", settings_file_option(decorated))

    return decorate


def readings_of(
    topology: Topology, operator: Resolved, settings: Settings, *, system_uuid: str | None = None
) -> dict[str, Reading]:
    """What the labels of this machine should say; a mapping that cannot be read is an error here, and told."""
    from topo_agent.daemon.start import settled
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
            place = mapping.find(mapping.parse(text, settings.mapping), names, settings.mapping)
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
    from topo_agent.daemon.start import node_name
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
