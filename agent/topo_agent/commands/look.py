"""What every command that looks at a machine has in common: its options, and the machine itself."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from topo_agent.commands.answer import LOST, CouldNot, F, option

if TYPE_CHECKING:
    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.nodes import Device
    from topo_agent.graph.overlay import Overlay
    from topo_agent.graph.topology import Topology
    from topo_agent.host import Host
    from topo_agent.ids import Ref

SOURCE = "A directory, a recording or a tar archive instead of this machine."

timeout_option = option(
    "--timeout", type=click.IntRange(1, 86400), metavar="S", default=60, show_default=True,
    help="Seconds a driver may take.",
)  # fmt: skip


class Look(NamedTuple):
    """What every command that looks at a machine is told: where, and how to say what it saw."""

    source: str | None
    output: str | None
    strict: bool
    quiet: bool
    verbose: bool
    overlay: str | None
    timeout: int


_OPTIONS = (
    option("--from", "source", metavar="SOURCE", help=SOURCE),
    option("--overlay", metavar="FILE", help="What firmware hides: NUMA nodes of roots, roles of NICs, pairs (YAML)."),
    option("-o", "--output", metavar="FILE", help="Write there, whole or not at all."),
    timeout_option,
    option("--strict", is_flag=True, help="Exit with status 4 when facts were lost."),
    option("-q", "--quiet", is_flag=True, help="No diagnostics."),
    option("-v", "--verbose", is_flag=True, help="Every diagnostic, on stderr."),
)


def looking(command: F) -> F:
    """Give a command the options of `Look`, and the look itself as its first argument."""

    @functools.wraps(command)
    def with_look(**given: Any) -> Any:
        look = Look(**{name: given.pop(name) for name in Look._fields})
        return command(look, **given)

    decorated: Any = with_look
    for decorate in reversed(_OPTIONS):
        decorated = decorate(decorated)
    return cast("F", decorated)


class _OnTerminal:
    """Says on a terminal what takes longer than a second, and takes it away again (topo_agent.host.Watch)."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._since: float | None = None
        self._shown = ""

    def waiting(self, what: str) -> None:
        import time

        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= 1 and what != self._shown and not self._quiet and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{what}", nl=False, err=True)
            self._shown = what

    def done(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._since, self._shown = None, ""

    def remark(self, sentence: str) -> None:
        if not self._quiet:
            click.echo(f"topo-agent: note: {sentence}", err=True)


def host(source: str | None, timeout: int = 60) -> Host:
    """The machine to ask: the live one, or what `--from` names."""
    from topo_agent.host import BadSource
    from topo_agent.host.opening import open_host

    try:
        return open_host(source, timeout=timeout, watch=_OnTerminal(quiet=False))
    except BadSource as error:
        raise CouldNot(str(error)) from None


def machine(look: Look, **more: bool) -> tuple[Topology, Resolved]:
    """What a look sees, and what the operator says of it. `more` is what `discover` is asked beyond the usual."""
    from topo_agent import discover
    from topo_agent.graph.applied import Unresolved, resolve
    from topo_agent.graph.overlay import EMPTY
    from topo_agent.host import BadSource

    overlay = EMPTY if look.overlay is None else _overlay(look.overlay)
    try:
        watch = _OnTerminal(quiet=look.quiet)
        topology = discover(look.source, overlay=overlay, timeout=look.timeout, watch=watch, **more)
        return topology, resolve(overlay, topology)
    except (BadSource, Unresolved) as error:
        raise CouldNot(str(error)) from None


def _overlay(path: str) -> Overlay:
    from topo_agent.host import files
    from topo_agent.readers.overlay import BadOverlay, parse

    try:
        return parse(files.text(path, "an overlay (YAML)"), path)
    except (files.Unreadable, BadOverlay) as error:
        raise CouldNot(str(error)) from None


def find(topology: Topology, text: str) -> Ref:
    """What a user names, anything that is here."""
    from topo_agent.graph.find import NoSuchDevice, find

    try:
        return find(topology, text)
    except NoSuchDevice as error:
        raise CouldNot(str(error)) from None


def function(topology: Topology, text: str) -> Device:
    """What a user names, a PCI function."""
    device = topology.function(find(topology, text))
    if device is None:
        raise CouldNot(f"{text} is no PCI function")
    return device


def finish(topology: Topology, look: Look) -> None:
    """Diagnostics where they were asked for, and status 4 where facts were lost under --strict."""
    if lost(topology, look):
        raise click.exceptions.Exit(LOST)


def lost(topology: Topology, look: Look, name: str = "") -> bool:
    """Were facts lost under --strict? Prints diagnostics where they were asked for; `name` is before each, for many."""
    from topo_agent.diagnostics import Level
    from topo_agent.views.text import clean

    if look.verbose:
        for diagnostic in topology.diagnostics:
            click.echo(f"topo-agent: {clean(name)}{diagnostic}", err=True)
    return look.strict and any(one.level in (Level.DEGRADED, Level.LOST) for one in topology.diagnostics)


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def colored(color: str, output: str | None) -> bool:
    """Are colours wanted there?"""
    if color != "auto":
        return color == "always"
    return output is None and _on_terminal() and not os.environ.get("NO_COLOR")


def width(output: str | None) -> int:
    """A terminal's own width; 100 columns into files and pipes, so that the same machine gives the same bytes."""
    if output is None and _on_terminal():
        import shutil

        return max(shutil.get_terminal_size().columns, 40)
    return 100
