"""`topo-agent shape`: which machines are wired alike."""

from __future__ import annotations

import click

from topo_agent.commands.answer import COULD_NOT, LOST, CouldNot, as_json, give, option
from topo_agent.commands.look import Look, finish, looking, lost, machine


@click.command(short_help="One word for the wiring, equal for machines wired alike.")
@click.argument("files", metavar="[FILE]...", nargs=-1)
@option("-f", "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@looking
def shape(look: Look, files: tuple[str, ...], form: str) -> None:
    """Print the shape of this machine: a word that is equal for machines wired alike, and fit for a Kubernetes label.

    FILEs are recordings, directories or archives; they are grouped by shape, the largest group first. One that is no
    machine is named on stderr, and the status is 3; the others are grouped all the same. The wiring, models of parts
    and the most that links can do make a shape; serials, names, addresses, kernel and settings do not change it.
    """
    from topo_agent.graph import shape as fingerprint
    from topo_agent.views import groups as view

    if files:
        _grouped(look, files, form)
        return
    topology, _ = machine(look)
    found = fingerprint.shape(topology)
    give(as_json(view.one_as_data(found)) if form == "json" else f"{found}\n", look.output)
    finish(topology, look)


def _grouped(look: Look, files: tuple[str, ...], form: str) -> None:
    """As grep does with a file that it cannot read: trouble is the status, and what the others say is said."""
    from topo_agent.graph import shape as fingerprint
    from topo_agent.views import groups as view

    if look.source is not None:
        raise click.UsageError("FILEs are the machines to look at: give them, or --from")
    found: dict[str, list[str]] = {}
    bad = incomplete = False
    for file in files:
        try:
            topology, _ = machine(look._replace(source=file))
        except CouldNot as error:
            error.show()
            bad = True
            continue
        found.setdefault(fingerprint.shape(topology), []).append(file)
        incomplete = lost(topology, look, f"{file}: ") or incomplete
    if found:
        give(as_json(view.as_data(found)) if form == "json" else view.as_text(found), look.output)
    if bad or incomplete:
        raise click.exceptions.Exit(COULD_NOT if bad else LOST)
