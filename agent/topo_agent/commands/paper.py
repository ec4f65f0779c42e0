"""`topo-agent record` and `topo-agent synth`: a machine on paper, and as a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from topo_agent.commands.answer import CouldNot, give, option
from topo_agent.commands.look import SOURCE, host, timeout_option

if TYPE_CHECKING:
    from topo_agent.host import Host


@click.command(short_help="The machine as one text file.")
@option("--from", "source", metavar="SOURCE", help=SOURCE)
@option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
@option("--keep-names", is_flag=True, help="Keep addresses, GUIDs, serials, UUIDs and the host name as they are.")
@timeout_option
def record(source: str | None, output: str | None, keep_names: bool, timeout: int) -> None:
    """Record the machine as one text file that can be read before it is sent, and dumped anywhere.

    Addresses, GUIDs, serial numbers, UUIDs and the host name become pseudonyms, the same one everywhere.
    """
    from topo_agent.host import recording

    give(recording.write(host(source, timeout), keep_names=keep_names), output)


@click.command(short_help="A described machine, or a recording, as a directory.")
@click.argument("file")
@option(
    "-o", "--output", metavar="DIR|FILE.topo", required=True,
    help="A directory that does not exist yet, or is empty; or a recording, if the name ends in .topo.",
)  # fmt: skip
def synth(file: str, output: str) -> None:
    """Make the machine that FILE describes (docs/machines.md) or records: a directory, or a recording.

    A directory is what lstopo (HWLOC_FSROOT=DIR) and `--from DIR` read. Every PCI function in it gets a 64-byte
    `config` header made from its class, ids and buses.
    """
    from topo_agent.host import BadSource, recording
    from topo_agent.host.unpack import unpack

    try:
        described = _described(file) if file.endswith((".yaml", ".yml")) else host(file)
        if output.endswith(".topo"):
            give(recording.write(described, keep_names=True), output)
            return
        skipped = unpack(described, output)
    except BadSource as error:
        raise CouldNot(str(error)) from None
    except OSError as error:
        raise CouldNot(f"{output}: cannot be written: {error.strerror or error}") from None
    for path in skipped:
        click.echo(f"topo-agent: left out: {path}", err=True)


def _described(file: str) -> Host:
    from topo_agent.synthesis.build import from_file

    return from_file(file)
