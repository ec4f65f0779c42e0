"""The command line. Each command imports what it runs, so that `--help` and `dump` stay quick."""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast

import click

from topo_agent import __version__
from topo_agent.commands.answer import COULD_NOT, LOST, NO, CouldNot, F, option
from topo_agent.commands.answer import as_json as _json
from topo_agent.commands.answer import give as _give

if TYPE_CHECKING:
    from topo_agent.graph.applied import Resolved
    from topo_agent.graph.findings import Severity
    from topo_agent.graph.nodes import Device, DeviceKind
    from topo_agent.graph.overlay import Overlay
    from topo_agent.graph.topology import Topology
    from topo_agent.host import Host
    from topo_agent.ids import Ref


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


class Look(NamedTuple):
    """What every command that looks at a machine is told: where, and how to say what it saw."""

    source: str | None
    output: str | None
    strict: bool
    quiet: bool
    verbose: bool
    overlay: str | None
    timeout: int


_SOURCE = "A directory, a recording or a tar archive instead of this machine."

_timeout = option(
    "--timeout", type=click.IntRange(1), metavar="S", default=60, show_default=True, help="Seconds a driver may take."
)

_LOOK_OPTIONS = (
    option("--from", "source", metavar="SOURCE", help=_SOURCE),
    option("--overlay", metavar="FILE", help="What firmware hides: NUMA nodes of roots, roles of NICs, pairs (YAML)."),
    option("-o", "--output", metavar="FILE", help="Write there, whole or not at all."),
    _timeout,
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
    for decorate in reversed(_LOOK_OPTIONS):
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


_MODULES = {"config": "config", "history": "run", "run": "run"}
"""Commands whose options are the settings: their module makes a class of them, and is imported when it is named."""


class _Commands(click.Group):
    """The commands below, and those of _MODULES."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        from importlib import import_module

        found: click.Command = getattr(import_module(f"topo_agent.commands.{_MODULES[cmd_name]}"), cmd_name)
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

    \b
    Shell completion: eval "$(_TOPO_AGENT_COMPLETE=bash_source topo-agent)"   (zsh_source, fish_source)
    """,
)
@click.version_option(__version__, message="topo-agent %(version)s")
def cli() -> None:
    """How a server is wired: CPUs, NUMA nodes, PCI, and what is near what."""


@cli.command(short_help="The machine, or what surrounds one device.")
@click.argument("device", required=False)
@option(
    "-f", "--format", "form", type=click.Choice(["tree", "matrix", "json", "yaml", "metrics"]), default="tree",
    show_default=True,
)  # fmt: skip
@option("--all", "everything", is_flag=True, help="Every function and bridge, nothing folded or counted.")
@option("--caches", is_flag=True, help="Read the caches of every CPU too: slow on a large machine.")
@option("--kinds", metavar="A,B", default="gpu,nic", show_default=True, help="matrix: which of gpu, nic, nvme.")
@option(
    "--p2p",
    type=click.Choice(["read", "write", "nvlink", "atomics", "pci"]),
    help="matrix: what the driver lets GPUs do with each other's memory, instead of distances.",
)
@option("--metrics-pairs", "every_pair", is_flag=True, help="metrics: every pair of a GPU and a NIC or GPU, too.")
@option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@looking
def dump(
    look: Look, device: str | None, form: str, everything: bool, caches: bool, kinds: str, p2p: str | None,
    every_pair: bool, color: str,
) -> None:  # fmt: skip
    """Show the machine, or what surrounds DEVICE (a PCI address such as 1b:00.0, or an id such as numa:0)."""
    if p2p is not None and form != "matrix":
        raise click.UsageError("--p2p is a matrix: give -f matrix with it")
    if every_pair and form != "metrics":
        raise click.UsageError("--metrics-pairs is of the metrics: give -f metrics with it")
    if device is not None and form in ("matrix", "metrics"):
        raise click.UsageError(f"-f {form} is of the whole machine: it takes no DEVICE")
    chosen = _kinds(kinds) if form == "matrix" else []
    topology, operator = _machine(look, caches=caches)
    start = None if device is None else _find(topology, device)
    if form == "tree":
        from topo_agent.views.summary import DIAGNOSTICS_AT_MOST
        from topo_agent.views.tree import tree

        text = tree(
            topology,
            everything=everything,
            start=start,
            width=_width(look.output),
            color=_colored(color, look.output),
            diagnostics=0 if look.quiet else DIAGNOSTICS_AT_MOST,
        )
    elif form == "matrix":
        from topo_agent.views.matrix import matrix, peer_access

        text = matrix(topology, chosen) if p2p is None else peer_access(topology, p2p)
    elif form == "metrics":
        text = _metrics(topology, operator, pairs=every_pair)
    else:
        text = _document(topology, form, start)
    _give(text, look.output)
    _finish(topology, look)


def _metrics(topology: Topology, operator: Resolved, *, pairs: bool) -> str:
    from topo_agent.graph import checks, pairing
    from topo_agent.publishers.metrics import exposition
    from topo_agent.views.metrics import families

    choices = pairing.pairs(topology, operator)
    body, _ = exposition(families(topology, choices, checks.findings(topology, choices), pairs=pairs))
    return body.decode()


@cli.command("list", short_help="A flat table of one kind of thing.")
@click.argument("kind", type=click.Choice(["gpus", "nics", "nvme", "numa", "cpus", "pci", "switches", "links"]))
@option("-f", "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@option("--columns", metavar="A,B,…", help="Which columns, in which order; `all` for every one.")
@looking
def list_(look: Look, kind: str, form: str, columns: str | None) -> None:
    """List the devices, NUMA nodes, CPUs or PCI functions of the machine, one a line."""
    from topo_agent.views import table

    chosen = _columns(columns, table.COLUMNS[kind], table.ALL_COLUMNS[kind])
    topology, _ = _machine(look)
    _give(table.FORMATS[form](table.rows(topology, kind), chosen), look.output)
    _finish(topology, look)


@cli.command(short_help="Which NIC for which GPU, and how sure.")
@click.argument("gpu", required=False)
@option(
    "-f", "--format", "form", type=click.Choice(["table", "json", "env", "bind"]), default="table", show_default=True
)
@option(
    "--with", "kind", type=click.Choice(["nic", "nvme"]), default="nic", show_default=True, help="NICs, or NVMe drives."
)
@looking
def pairs(look: Look, gpu: str | None, form: str, kind: Literal["nic", "nvme"]) -> None:
    """Say which NICs are nearest to each GPU, through what and why; ties are shown as ties.

    `env` is a shell fragment with NCCL, UCX and NVSHMEM variables for each local rank; `bind` prints taskset,
    numactl and srun commands for the CPUs near each GPU.
    """
    topology, operator = _machine(look)
    only = None if gpu is None else topology.function(_find(topology, gpu))
    if gpu is not None and (only is None or only.kind != "gpu"):
        raise CouldNot(f"{gpu} is no GPU")
    if form == "bind":
        from topo_agent.views.bind import bind

        text = bind(topology, only)
    else:
        text = _pairs(topology, operator, only, form, kind, _width(look.output))
    _give(text, look.output)
    _finish(topology, look)


def _pairs(
    topology: Topology, operator: Resolved, only: Device | None, form: str, kind: Literal["nic", "nvme"], width: int
) -> str:
    from topo_agent.graph import pairing
    from topo_agent.views import pairs as view

    found = pairing.pairs(topology, operator, kind=kind)
    choices = [one for one in found if only is None or one.gpu == only.ref]
    if form == "json":
        return _json(view.as_data(choices))
    if not choices:
        return "no GPU here\n"
    return view.as_environment(topology, choices) if form == "env" else view.as_table(topology, choices, width)


@cli.command(short_help="Every hop between two things, or everything near one.")
@click.argument("one")
@click.argument("other", required=False)
@option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@looking
def explain(look: Look, one: str, other: str | None, form: str) -> None:
    """Explain how ONE reaches OTHER: each hop, the class in the words of nvidia-smi and NCCL, the narrowest link.

    Without OTHER, rank everything by how near it is to ONE. Devices are PCI addresses, gpu0, interfaces, …
    """
    from topo_agent.graph import explain as ways
    from topo_agent.views import explain as view

    topology, _ = _machine(look)
    a = _function(topology, one)
    if other is not None:
        b = _function(topology, other)
        if a.ref == b.ref:
            raise CouldNot(f"{one} and {other} are the same device")
        said = ways.between(topology, a, b)
        text = _json(view.as_data(said)) if form == "json" else view.between(topology, said, _width(look.output))
    else:
        paths = ways.nearest(topology, a)
        text = _json(view.near_data(paths)) if form == "json" else view.near(topology, a, paths)
    _give(text, look.output)
    _finish(topology, look)


@cli.command(short_help="What is wrong with the machine, or cannot be known of it.")
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
    topology, operator = _machine(look, readiness=True, acs=probe == "acs")
    choices = pairing.pairs(topology, operator)
    found = list(checks.kept(checks.findings(topology, choices), ignore))
    shown = [one for one in found if info or one.severity != "info"]
    _give(_json(view.as_data(shown)) if form == "json" else view.as_text(shown, _width(look.output)), look.output)
    _finish(topology, look)
    if any(SEVERITIES.index(one.severity) >= SEVERITIES.index(fail_on) for one in found):
        raise click.exceptions.Exit(NO)


@cli.command(short_help="Is a process bound well?")
@option("--pid", type=click.IntRange(min=1), help="Which process; the caller of this command unless given.")
@option("-f", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@looking
def where(look: Look, pid: int | None, form: str) -> None:
    """Compare the CPUs, memory and RDMA devices of a process with the best that this machine has for its GPUs.

    Status 1 is the answer that it could be bound better.
    """
    from topo_agent.graph import chosen, pairing
    from topo_agent.graph import where as binding
    from topo_agent.host import Unavailable, process
    from topo_agent.sources import binding as source
    from topo_agent.views import where as view

    if look.source is not None:
        raise click.UsageError("where looks at a process of this machine: it takes no --from")
    topology, operator = _machine(look)
    try:
        found = source.read(_host(None), process.ask(pid or os.getppid()))
    except (Unavailable, ValueError, OSError) as error:
        raise CouldNot(f"process {pid or os.getppid()}: {error}") from None
    gpus, how, certain = chosen.gpus_of(
        topology, opened=found.opened, visible=found.visible, asked=found.asked, pci_order=found.pci_order
    )
    uverbs = dict(found.uverbs)
    judged = binding.judge(
        topology,
        gpus,
        cpus=found.cpus,
        memory=found.bound_memory,
        allowed=found.memory,
        rdma=[uverbs[name] for node in found.opened or () if (name := node.rpartition("/")[2]) in uverbs],
        choices=pairing.pairs(topology, operator),
    )
    said = binding.Where(judged, how, certain)
    if form == "json":
        text = _json(view.as_data(said, found.cpus, found.hidden))
    else:
        text = view.as_text(topology, said, found.name, found.cpus, found.hidden, _width(look.output))
    _give(text, look.output)
    _finish(topology, look)
    if not said.well:
        raise click.exceptions.Exit(NO)


@cli.command(short_help="The machine as one text file.")
@option("--from", "source", metavar="SOURCE", help=_SOURCE)
@option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
@option("--keep-names", is_flag=True, help="Keep addresses, GUIDs, serials, UUIDs and the host name as they are.")
@_timeout
def record(source: str | None, output: str | None, keep_names: bool, timeout: int) -> None:
    """Record the machine as one text file that can be read before it is sent, and dumped anywhere.

    Addresses, GUIDs, serial numbers, UUIDs and the host name become pseudonyms, the same one everywhere.
    """
    from topo_agent.host import recording

    _give(recording.write(_host(source, timeout), keep_names=keep_names), output)


@cli.command(short_help="A described machine, or a recording, as a directory.")
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
        host = _described(file) if file.endswith((".yaml", ".yml")) else _host(file)
        if output.endswith(".topo"):
            _give(recording.write(host, keep_names=True), output)
            return
        skipped = unpack(host, output)
    except BadSource as error:
        raise CouldNot(str(error)) from None
    except OSError as error:
        raise CouldNot(f"{output}: cannot be written: {error.strerror or error}") from None
    for path in skipped:
        click.echo(f"topo-agent: left out: {path}", err=True)


def _described(file: str) -> Host:
    from topo_agent.synthesis.build import from_file

    return from_file(file)


def _kinds(asked: str) -> list[DeviceKind]:
    from topo_agent.graph.paths import SCOPE

    chosen = [name.strip() for name in asked.split(",")]
    found = [kind for name in chosen for kind in SCOPE if kind == name]
    if len(found) != len(chosen) or len(set(found)) != len(found):
        raise click.UsageError(f"--kinds takes some of {', '.join(SCOPE)}, each once")
    return found


def _columns(asked: str | None, usual: tuple[str, ...], every: tuple[str, ...]) -> tuple[str, ...]:
    if asked is None:
        return usual
    if asked == "all":
        return every
    chosen = tuple(name.strip() for name in asked.split(","))
    wrong = [name for name in chosen if name not in every]
    if wrong:
        raise click.UsageError(f"no column {', '.join(wrong)}; there are {', '.join(every)}")
    return chosen


def _host(source: str | None, timeout: int = 60) -> Host:
    from topo_agent.host import BadSource
    from topo_agent.host.opening import open_host

    try:
        return open_host(source, timeout=timeout, watch=_OnTerminal(quiet=False))
    except BadSource as error:
        raise CouldNot(str(error)) from None


def _machine(look: Look, **more: bool) -> tuple[Topology, Resolved]:
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


def _find(topology: Topology, text: str) -> Ref:
    from topo_agent.graph.find import NoSuchDevice, find

    try:
        return find(topology, text)
    except NoSuchDevice as error:
        raise CouldNot(str(error)) from None


def _function(topology: Topology, text: str) -> Device:
    device = topology.function(_find(topology, text))
    if device is None:
        raise CouldNot(f"{text} is no PCI function")
    return device


def _document(topology: Topology, form: str, start: Ref | None) -> str:
    from topo_agent.views.document import document

    said = document(topology, start)
    if form == "json":
        from topo_agent.views.document import as_json

        return as_json(said)
    import yaml

    return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100))


def _finish(topology: Topology, look: Look) -> None:
    from topo_agent.diagnostics import Level

    if look.verbose:
        for diagnostic in topology.diagnostics:
            click.echo(f"topo-agent: {diagnostic}", err=True)
    if look.strict and any(one.level in (Level.DEGRADED, Level.LOST) for one in topology.diagnostics):
        raise click.exceptions.Exit(LOST)


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _colored(color: str, output: str | None) -> bool:
    if color != "auto":
        return color == "always"
    return output is None and _on_terminal() and not os.environ.get("NO_COLOR")


def _width(output: str | None) -> int:
    """A terminal's own width; 100 columns into files and pipes, so that the same machine gives the same bytes."""
    if output is None and _on_terminal():
        import shutil

        return max(shutil.get_terminal_size().columns, 40)
    return 100
