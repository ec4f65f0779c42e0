"""The command line: which command is where, and what a user sees when one fails. Each is imported when it is named."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

from topo_agent import __version__
from topo_agent.commands.answer import COULD_NOT, CouldNot


def main() -> NoReturn:
    """The program: no traceback ever reaches a user, and `| head` is quiet."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has gone ends us as it ends `cat`
    status = _status()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        status = status or _lost_stdout(error)
    sys.exit(status)


def _lost_stdout(error: OSError) -> int:
    """Say it once: what is still to be flushed goes nowhere, or Python would say it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    CouldNot(f"stdout: cannot be written: {error.strerror}").show()
    return COULD_NOT


def _status() -> int:
    """What the command says, or what kept it from saying anything."""
    try:
        return int(cli.main(standalone_mode=False, prog_name="topo-agent") or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:  # of click's own words, --help among them; all others are caught where they happen
        return _lost_stdout(error)
    except Exception as error:
        if os.environ.get("TOPO_AGENT_DEBUG"):
            raise
        click.echo(f"topo-agent: internal error: {type(error).__name__}: {error}", err=True)
        click.echo("TOPO_AGENT_DEBUG=1 shows where; please report it with `topo-agent record`.", err=True)
        return COULD_NOT


_MODULES = {
    "check": "check:check",
    "config": "config:config",
    "dump": "dump:dump",
    "explain": "near:explain",
    "history": "run:history",
    "kube": "kube:kube",
    "list": "dump:list_",
    "pairs": "near:pairs",
    "record": "paper:record",
    "run": "run:run",
    "shape": "shape:shape",
    "synth": "paper:synth",
    "where": "near:where",
}
"""Each command, and where it is: its module is imported when it is named, or for `--help`."""


class _Commands(click.Group):
    """The commands of _MODULES."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module, _, function = _MODULES.get(cmd_name, "").partition(":")
        if not module:
            return None
        from importlib import import_module

        found: click.Command = getattr(import_module(f"topo_agent.commands.{module}"), function)
        return found


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""
    \b
    Examples:
      topo-agent dump                              how this server is wired
      topo-agent dump 1b:00.0                      what surrounds one device
      topo-agent dump -f json -o topology.json     the same for programs
      topo-agent list pci --columns address,name,numa
      topo-agent record -o host.topo               this machine as one text file, redacted
      topo-agent dump --from host.topo             … and read anywhere
      topo-agent shape *.topo                      which servers are wired alike

    \b
    Shell completion: eval "$(_TOPO_AGENT_COMPLETE=bash_source topo-agent)"   (zsh_source, fish_source)
    """,
)
@click.version_option(__version__, message="topo-agent %(version)s")
def cli() -> None:
    """How a server is wired: CPUs, NUMA nodes, PCI, and what is near what."""
