"""`topo-agent check`: what is wrong with the machine, or cannot be known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from topo_agent.commands.answer import NO, as_json, give, option
from topo_agent.commands.look import Look, finish, looking, machine, width

if TYPE_CHECKING:
    from topo_agent.graph.findings import Severity


@click.command(short_help="What is wrong with the machine, or cannot be known of it.")
@option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@option(
    "--fail-on", type=click.Choice(["warning", "error"]), default="error", show_default=True, help="Status 1 from here."
)
@option("--ignore", multiple=True, metavar="CODE[:SUBJECT]", help="May be given several times.")
@option("--info", is_flag=True, help="Print what is only worth knowing, too.")
@option("--probe", type=click.Choice(["acs"]), help="Read more, as root: acs is what switch ports say of redirection.")
@looking
def check(
    look: Look, form: str, fail_on: Severity, ignore: tuple[str, ...], info: bool, probe: str | None
) -> None:  # fmt: skip
    """Print findings, each with a stable code, its evidence and what to do; docs/findings.md lists the codes.

    Status 1 is the answer that something is wrong. `--probe acs` reads the PCI configuration space of switch ports,
    GPUs and NICs, which is slow and for root, and which nothing else here opens; devices that sleep are left asleep.
    """
    from topo_agent.graph import checks, pairing
    from topo_agent.graph.findings import SEVERITIES
    from topo_agent.views import findings as view

    codes = {one.code for one in checks.CHECKS}
    wrong = [word for word in ignore if word.partition(":")[0] not in codes]
    if wrong:
        raise click.UsageError(f"--ignore: no finding is called {', '.join(wrong)}")
    topology, operator = machine(look, readiness=True, acs=probe == "acs")
    choices = pairing.pairs(topology, operator)
    found = list(checks.kept(checks.findings(topology, choices), ignore))
    shown = [one for one in found if info or one.severity != "info"]
    give(as_json(view.as_data(shown)) if form == "json" else view.as_text(shown, width(look.output)), look.output)
    finish(topology, look)
    if any(SEVERITIES.index(one.severity) >= SEVERITIES.index(fail_on) for one in found):
        raise click.exceptions.Exit(NO)
