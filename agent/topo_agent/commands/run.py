"""`topo-agent run`, the daemon, and `topo-agent history`, what it saw change."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import click

from topo_agent.commands.answer import CouldNot, as_json, give, option
from topo_agent.commands.config import loaded, options
from topo_agent.commands.look import SOURCE
from topo_agent.settings import Settings


@click.command(short_help="The daemon: live topology, metrics, a page.")
@option("--from", "source", metavar="SOURCE", help=SOURCE)
@options
def run(flags: Mapping[str, str], settings_file: str | None, source: str | None) -> None:
    """Keep the topology of this server current and offer it, until SIGTERM.

    The page http://127.0.0.1:19738/ shows it, /metrics is for Prometheus, and topology.json in the state directory
    for workloads. SIGHUP reads the settings anew. docs/settings.md describes every setting.
    """
    from topo_agent.daemon.start import start

    def reload() -> Settings:
        return loaded(flags, settings_file).settings

    settings = reload()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that goes ends its own answer only
    try:
        start(settings, source=None if source is None else os.path.abspath(source), reload=reload,
              environment=os.environ)  # fmt: skip
    except OSError as error:
        raise CouldNot(str(error)) from None


@click.command(short_help="Changes that the daemon saw.")
@option("-f", "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
@options
def history(flags: Mapping[str, str], settings_file: str | None, form: str, output: str | None) -> None:
    """Print the changes of the machine's structure that the daemon has seen, oldest first, from its state directory."""
    from topo_agent.publishers import state
    from topo_agent.views.text import clean

    directory = loaded(flags, settings_file).settings.state_dir
    try:
        found = state.history(directory)
    except OSError as error:
        raise CouldNot(f"{error.filename}: cannot be read: {error.strerror}") from None
    if form == "json":
        give(as_json([*found]), output)
    else:
        give("".join(f"{clean(str(one.get('time')))}  {clean(str(one.get('what')))}\n" for one in found), output)
