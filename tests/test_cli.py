"""The real program in a process of its own: statuses, streams, files, names of devices."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

import topo_agent
from tests import machines, warm
from tests.machines import MACHINES, needs_machines
from tests.paper import function, machine, two_sockets
from topo_agent.cli import cli
from topo_agent.graph.build import build
from topo_agent.graph.find import find
from topo_agent.graph.topology import Topology
from topo_agent.host import recording
from topo_agent.host.paper import Entry, Failure
from topo_agent.ids import PciAddress
from topo_agent.scan import scan

SOURCES = str(Path(topo_agent.__file__).parents[1])
PROGRAM = [sys.executable, "-m", "topo_agent"]
_CONTEXT = click.Context(cli)
EVERY: dict[str, click.Command] = {
    name: command for name in cli.list_commands(_CONTEXT) if (command := cli.get_command(_CONTEXT, name))
}
COMMANDS = sorted(EVERY)

_OURS = ("TOPO_AGENT", "_TOPO_AGENT", "PYTHON", "NO_COLOR", "FORCE_COLOR", "CLICOLOR")
DENIED = Failure(13)
BROKEN = Failure(5)


def environment(**more: str) -> dict[str, str]:
    """That of the caller without what would change the program's answers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # Byte code is kept for the run, as an installed package has it; see conftest.byte_code.
    return kept | {"PYTHONPATH": SOURCES, "PYTHONPYCACHEPREFIX": os.environ["PYTHONPYCACHEPREFIX"]} | more


def run(
    *arguments: str, env: dict[str, str] | None = None, around: str | None = None, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """The program; `around` is what a shell does around it: `"$@" >&-`. `cold`: Python is started for it."""
    if not cold and around is None and all(name.startswith("TOPO_AGENT_") for name in env or {}):
        return warm.run(arguments, environment(**env or {}))
    command = [*PROGRAM, *arguments]
    if around is not None:
        command = ["sh", "-c", around, "sh", *command]
    return subprocess.run(
        command, env=environment(**env or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def answer(*arguments: str, env: dict[str, str] | None = None, cold: bool = False) -> str:
    """What it prints when nothing goes wrong: data on stdout, nothing on stderr."""
    done = run(*arguments, env=env, cold=cold)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Contract, section 1, and issue 3.6: status 3, no data, one line that is no traceback."""
    assert done.returncode == 3, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("\n")
    assert done.stderr.startswith("topo-agent: ")
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done.stderr


# A small machine: two GPUs, two NICs with one short address, nothing of whoever runs the tests.


def _card(address: str, under: str, **more: Entry) -> dict[str, Entry]:
    return function(address, under=under, files=more, numa_node="0\n")


GPU0 = function(
    "0000:1b:00.0", under="pci0000:16", class_="0x030200", vendor="0x10de", device="0x2330", numa_node="0\n"
)
GPU1 = function(
    "0000:3d:00.0", under="pci0000:37", class_="0x030200", vendor="0x10de", device="0x2330", numa_node="1\n"
)
NICS = _card("0000:02:00.0", "pci0000:00") | _card("0001:02:00.0", "pci0001:00")
SMALL = two_sockets() | GPU0 | GPU1 | NICS
PLACE = "sys/devices/pci0000:16/0000:1b:00.0"


def text_of(files: dict[str, Entry]) -> str:
    return "".join(line + "\n" for line in recording.lines(machine(files)))


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.topo"
    path.write_text(text_of(SMALL), encoding="utf-8")
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """The same machine with a file that cannot be read."""
    path = tmp_path / "broken.topo"
    path.write_text(text_of(SMALL | {f"{PLACE}/numa_node": BROKEN}), encoding="utf-8")
    return str(path)


# Bad input


def _tar(name: str, data: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        about = tarfile.TarInfo(name)
        about.size, about.type, about.linkname = len(data), kind, link
        file.addfile(about, io.BytesIO(data))
    return out.getvalue()


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1, /) -> bytes:
        taken = min(self.left, size if size >= 0 else self.left)
        self.left -= taken
        return bytes(taken)


@cache
def _bomb() -> bytes:
    """A megabyte or two that unpacks to more than a gigabyte."""
    out = io.BytesIO()
    with gzip.open(out, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as file:
        for number in range(9):
            about = tarfile.TarInfo(f"sys/zeros{number}")
            about.size = 128 << 20
            file.addfile(about, _Zeros(about.size))
    return out.getvalue()


def _archive_of_small() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as file:
        for path in sorted(SMALL):
            text = str(SMALL[path]).encode() * 40
            about = tarfile.TarInfo(path)
            about.size = len(text)
            file.addfile(about, io.BytesIO(text))
    return out.getvalue()


LINES = text_of(SMALL).splitlines(keepends=True)

BAD: dict[str, Callable[[Path], object]] = {
    "missing": lambda _: None,
    "below a file": lambda path: path.write_bytes(b"x"),
    "empty": lambda path: path.touch(),
    "cut in a line": lambda path: path.write_text("".join(LINES)[: len("".join(LINES)) // 2]),
    "cut between lines": lambda path: path.write_text("".join(LINES[: len(LINES) // 2])),
    "another version": lambda path: path.write_text("".join(["# topo-agent recording v2\n", *LINES[1:]])),
    "no JSON": lambda path: path.write_text("".join([*LINES[:-1], '@nvml {"gpus": [\n', LINES[-1]])),
    "no line": lambda path: path.write_text("".join([*LINES[:-1], "sys/x ? y\n", LINES[-1]])),
    "path out": lambda path: path.write_text("".join([*LINES[:-1], '../../etc/passwd = "x"\n', LINES[-1]])),
    "no UTF-8": lambda path: path.write_bytes("".join(LINES).encode() + b"\xff\xfe\n"),
    "only the first line": lambda path: path.write_text(LINES[0]),
    "cut tar.xz": lambda path: path.write_bytes(_archive_of_small()[: len(_archive_of_small()) // 2]),
    "cut tar": lambda path: path.write_bytes(_tar("sys/devices/system/cpu/online", b"0-3\n" * 1000)[:3000]),
    "random bytes": lambda path: path.write_bytes(random.Random(1).randbytes(20_000)),  # noqa: S311
    "random behind gzip's magic": lambda path: path.write_bytes(b"\x1f\x8b\x08" + random.Random(2).randbytes(999)),  # noqa: S311
    "zeros": lambda path: path.write_bytes(bytes(10240)),
    "bomb": lambda path: path.write_bytes(_bomb()),
    "hostile names only": lambda path: path.write_bytes(_tar("../../sys/devices/system/cpu/online", b"0\n")),
    "a link only": lambda path: path.write_bytes(_tar("sys", b"", tarfile.SYMTYPE, "/sys")),
    "no machine in it": lambda path: path.write_bytes(_tar("etc/motd", b"hello\n")),
    "directory without sys": Path.mkdir,
    "FIFO": os.mkfifo,
    "JSON": lambda path: path.write_text('{"schema": "topo-agent/v1"}\n'),
}  # fmt: skip


@pytest.mark.parametrize("command", ["dump", "record"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    BAD[kind](path)
    named = str(path / "x" if kind == "below a file" else path)
    said = refused(run(command, "--from", named))
    assert named in said
    assert "expected" in said


@pytest.mark.parametrize(
    "command", ["list pci", "list numa -f json", "pairs", "dump -f matrix", "dump -f yaml gpu0", "shape"]
)
@pytest.mark.parametrize("kind", ["missing", "cut in a line", "random bytes"])
def test_bad_input_of_every_command(kind: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    BAD[kind](path)
    said = refused(run(*command.split(), "--from", str(path)))
    assert f"{path}: " in said
    assert "expected" in said


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_of_synth(kind: str, tmp_path: Path) -> None:
    path, made = tmp_path / "input", tmp_path / "made"
    BAD[kind](path)
    named = str(path / "x" if kind == "below a file" else path)
    assert named in refused(run("synth", named, "-o", str(made)))
    assert not made.exists()


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_file_is_no_input(device: str) -> None:
    assert f"{device}: expected" in refused(run("dump", "--from", device))


def test_a_bomb_is_given_up_early(tmp_path: Path) -> None:
    """The time and memory it takes are bounded: 1 GiB of address space more than Python needs is enough."""
    (tmp_path / "bomb").write_bytes(_bomb())
    started = time.monotonic()
    done = run("dump", "--from", str(tmp_path / "bomb"), around='ulimit -v 1500000; exec "$@"')
    refused(done)
    assert time.monotonic() - started < 60


def test_no_input_of_the_bad_ones_reaches_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "input"
    path.parent.mkdir(parents=True)
    path.write_bytes(_tar("../../escape", b"x"))
    refused(run("dump", "--from", str(path)))
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "b", "input"]


@pytest.mark.parametrize("option", ["--from", "-o"])
def test_a_name_with_a_line_break_is_one_line(option: str, tmp_path: Path) -> None:
    refused(run("dump", option, str(tmp_path / "no such" / "a\nb")))


def test_the_live_machine_is_not_unpacked(tmp_path: Path) -> None:
    assert "/: " in refused(run("synth", "/", "-o", str(tmp_path / "made")))


# Output


@pytest.fixture
def where(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("old")
    return lambda name: name if name.startswith("/") else str(tmp_path / name)


@pytest.mark.parametrize("name", ["missing/file", "file/below", "directory", "/dev/full", "/proc/nothing"])
@pytest.mark.parametrize("command", ["dump", "list pci", "pairs", "record", "shape"])
def test_output_that_cannot_be_written(
    command: str, name: str, where: Callable[[str], str], small: str, tmp_path: Path
) -> None:
    path = where(name)
    assert f"{path}: " in refused(run(*command.split(), "--from", small, "-o", path))
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["directory", "file", "small.topo"]


@pytest.mark.parametrize("name", ["missing/file", "file", "file/below", "/proc/nothing"])
def test_synth_that_cannot_be_written(name: str, where: Callable[[str], str], small: str, tmp_path: Path) -> None:
    path = where(name)
    assert f"{path}: " in refused(run("synth", small, "-o", path))
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["directory", "file", "small.topo"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_disk_that_fills_up_keeps_the_old_file(small: str, tmp_path: Path) -> None:
    """`ulimit -f` is a disk of 512 bytes: some are written, then no more."""
    old = tmp_path / "out.json"
    old.write_text("old")
    said = refused(run("dump", "-f", "json", "--from", small, "-o", str(old), around='ulimit -f 1; exec "$@"'))
    assert f"{old}: " in said
    assert old.read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.json", "small.topo"]
    assert answer("dump", "-f", "json", "--from", small, "-o", str(old)) == ""
    assert json.loads(old.read_text())["schema"] == "topo-agent/v1"


@pytest.mark.parametrize("command", ["dump", "dump -f json", "list pci", "record", "--help"])
def test_a_full_disk_behind_stdout(command: str, small: str) -> None:
    source = [] if command == "--help" else ["--from", small]
    assert "No space left" in refused(run(*command.split(), *source, around='exec "$@" >/dev/full'))


@pytest.mark.parametrize("command", ["dump", "list pci"])
def test_a_closed_stdout(command: str, small: str) -> None:
    refused(run(*command.split(), "--from", small, around='exec "$@" >&-'))


@needs_machines
def test_nothing_is_lost_in_silence(tmp_path: Path, tree: Callable[[str], Path]) -> None:
    """PYTHONUNBUFFERED=1 is in every second container; 64 KiB fit on the disk, the document is longer."""
    out = tmp_path / "out.json"
    arguments = ["dump", "-f", "json", "--from", str(tree("dell-xe9680-snc2"))]
    done = run(*arguments, env={"PYTHONUNBUFFERED": "1"}, around=f'ulimit -f 128; exec "$@" >{out}')
    assert out.stat().st_size < len(answer(*arguments).encode())
    assert done.returncode == 3


BIG = ["dump -f json", "dump -f yaml", "record", "list pci -f json", "list pci", "dump --all"]


def _closed_early(command: str, tree: Path, env: dict[str, str]) -> tuple[int, str, bytes]:
    arguments = [*PROGRAM, *command.split(), "--from", str(tree)]
    with subprocess.Popen(
        arguments, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        first = program.stdout.read(1)
        program.stdout.close()
        said = program.stderr.read().decode()
        return program.wait(60), said, first


@needs_machines
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", BIG)
def test_head_is_quiet(command: str, unbuffered: str, tree: Callable[[str], Path]) -> None:
    _, said, first = _closed_early(command, tree("dell-xe9680-snc2"), {"PYTHONUNBUFFERED": unbuffered})
    assert first
    assert said == ""


@pytest.mark.parametrize("command", ["dump", "record", "--help"])
def test_a_reader_that_never_was_is_quiet(command: str, small: str) -> None:
    source = [] if command == "--help" else ["--from", small]
    assert _without_reader(*command.split(), *source)[1] == ""


def test_a_reader_that_has_gone_is_no_answer(small: str) -> None:
    """Contract, section 1: 1 is always an answer."""
    assert _without_reader("dump", "--from", small)[0] != 1


def _without_reader(*arguments: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM, *arguments], env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_locale_without_letters_is_no_trouble(locale: dict[str, str], small: str) -> None:
    for command in ("dump", "list pci", "--help"):
        source = [] if command == "--help" else ["--from", small]
        assert answer(*command.split(), *source, env=locale)


def test_the_same_machine_gives_the_same_bytes(small: str, tmp_path: Path) -> None:
    """Each time from the start: what hangs on the order of a set differs from one Python to the next."""
    for command in ("dump", "dump -f json", "dump -f matrix", "list pci", "pairs", "shape", "shape -f json"):
        told = answer(*command.split(), "--from", small, cold=True)
        assert answer(*command.split(), "--from", small, "-o", str(tmp_path / "out"), cold=True) == ""
        assert (tmp_path / "out").read_text(encoding="utf-8") == told
        assert answer(*command.split(), "--from", small, "-o", "-", cold=True) == told


# Statuses


@pytest.mark.parametrize(
    "arguments",
    [
        "", "nosuch", "dump --nosuch", "dump -f nosuch", "dump a b", "dump --color red",
        "dump --kinds gpu,gpu -f matrix", "dump --p2p read", "dump -f matrix --p2p all",
        "dump --kinds ssd -f matrix", "list", "list nosuch",
        "list pci --columns nosuch", "list pci -f yaml",
        "pairs -f nosuch", "shape -f csv", "shape a --from b", "synth", "synth file", "record file", "dump --from",
        "dump -o",
    ],
)  # fmt: skip
def test_usage_is_status_2(arguments: str) -> None:
    done = run(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "\nError: " in f"\n{done.stderr}" or not arguments  # without a command it is the help
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["dump", "dump -f json", "dump -f matrix", "list pci", "list gpus -f csv", "pairs", "shape"]
)
def test_strict(command: str, small: str, broken: str) -> None:
    """Facts were lost: status 4, and the answer is given all the same."""
    kept = run(*command.split(), "--from", broken)
    strict = run(*command.split(), "--from", broken, "--strict")
    assert (kept.returncode, strict.returncode) == (0, 4)
    assert strict.stdout == kept.stdout != ""
    assert run(*command.split(), "--from", small, "--strict").returncode == 0


@pytest.mark.parametrize("failure", [DENIED, BROKEN], ids=["EACCES", "EIO"])
@pytest.mark.parametrize("names", [["numa_node"], ["uevent"], ["class", "uevent"], ["vendor", "device", "uevent"]])
def test_strict_for_a_field_and_for_a_device(names: list[str], failure: Failure, tmp_path: Path) -> None:
    path = tmp_path / "machine.topo"
    path.write_text(text_of(SMALL | {f"{PLACE}/{name}": failure for name in names}), encoding="utf-8")
    assert run("dump", "--from", str(path), "--strict").returncode == 4
    assert run("dump", "--from", str(path)).returncode == 0
    said = json.loads(answer("dump", "-f", "json", "--from", str(path)))["diagnostics"]
    assert any(one["level"] in ("degraded", "lost") and PLACE in one["subject"] for one in said)


def test_strict_is_not_about_what_a_machine_does_not_have(tmp_path: Path) -> None:
    """A link that is down answers EINVAL: nothing of the structure is lost."""
    path = tmp_path / "down.topo"
    net = "sys/devices/pci0000:00/0000:00:01.0/net/eth0"
    files = two_sockets() | function("0000:00:01.0", under="pci0000:00", numa_node="0\n")
    files |= {f"{net}/speed": Failure(22), f"{net}/carrier": Failure(22), f"{net}/type": "1\n"}
    path.write_text(text_of(files), encoding="utf-8")
    assert run("dump", "--from", str(path), "--strict").returncode == 0


def test_quiet_and_verbose(broken: str) -> None:
    usual, loud = run("dump", "--from", broken), run("dump", "--from", broken, "-v")
    assert usual.stderr == ""
    assert f"{PLACE}/numa_node" in usual.stdout  # the foot of the tree
    assert f"{PLACE}/numa_node" in loud.stderr
    assert all(line.startswith("topo-agent: ") for line in loud.stderr.splitlines())
    assert loud.stdout == usual.stdout
    assert run("dump", "--from", broken, "-q", "--strict").returncode == 4


def test_quiet_is_quiet(broken: str) -> None:
    done = run("dump", "--from", broken, "-q")
    assert done.stderr == ""
    assert "diagnostic" not in done.stdout
    assert f"{PLACE}/numa_node" not in done.stdout


def test_stdout_is_data_only(broken: str) -> None:
    for form in ("json", "yaml"):
        done = run("dump", "-f", form, "-v", "--from", broken)
        assert yaml.safe_load(done.stdout)["schema"] == "topo-agent/v1"
        assert done.stderr
    done = run("list", "pci", "-f", "json", "-v", "--from", broken)
    assert len(json.loads(done.stdout)) == 4
    assert done.stderr


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_yaml_is_json(name: str) -> None:
    source = ["--from", str(machines.archive(name))]
    told = json.loads(answer("dump", "-f", "json", *source))
    assert yaml.safe_load(answer("dump", "-f", "yaml", *source)) == told
    assert told["source"]["kind"] == "archive"


# Colour


def on_a_terminal(*arguments: str, **env: str) -> str:
    """What a terminal gets."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *arguments], env=environment(TERM="xterm-256color", **env), stdout=slave, stderr=subprocess.PIPE
    ) as program:
        os.close(slave)
        got = b"".join(_all_of(master))
        assert program.wait(60) == 0
    os.close(master)
    return got.decode()


def _all_of(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # Linux: EIO when the last writer has gone
            return
        if not data:
            return
        yield data


ESCAPE = "\x1b["


def test_colour_is_for_terminals(small: str, tmp_path: Path) -> None:
    source = ("dump", "--from", small)
    assert ESCAPE in on_a_terminal(*source)
    assert ESCAPE in on_a_terminal(*source, NO_COLOR="")  # no-color.org: when present and not empty
    assert ESCAPE not in on_a_terminal(*source, NO_COLOR="1")
    assert ESCAPE not in on_a_terminal(*source, "--color", "never")
    assert ESCAPE in on_a_terminal(*source, "--color", "always", NO_COLOR="1")  # the flag is nearer than the variable
    assert ESCAPE not in on_a_terminal(*source, TOPO_AGENT_COLOR="never")
    assert ESCAPE not in answer(*source)
    assert ESCAPE in answer(*source, "--color", "always")
    on_a_terminal(*source, "-o", str(tmp_path / "out"))
    assert ESCAPE not in (tmp_path / "out").read_text(encoding="utf-8")


def test_colour_changes_no_letter(small: str) -> None:
    colored = answer("dump", "--from", small, "--color", "always")
    assert click.unstyle(colored) == answer("dump", "--from", small)
    for form in ("json", "yaml", "matrix"):
        assert ESCAPE not in answer("dump", "-f", form, "--from", small, "--color", "always")


# Settings from the environment


@pytest.mark.parametrize(
    ("variable", "value", "command", "option"),
    [
        ("FORMAT", "json", "dump", "-f json"),
        ("FORMAT", "csv", "list pci", "-f csv"),
        ("ALL", "1", "dump", "--all"),
        ("KINDS", "nic", "dump -f matrix", "--kinds nic"),
        ("COLOR", "always", "dump", "--color always"),
        ("COLUMNS", "address,class", "list pci", "--columns address,class"),
        ("STRICT", "1", "dump", "--strict"),
        ("VERBOSE", "1", "dump", "-v"),
        ("QUIET", "true", "dump", "-q"),
        ("KEEP_NAMES", "1", "record", "--keep-names"),
    ],
)
def test_every_option_is_a_variable(variable: str, value: str, command: str, option: str, broken: str) -> None:
    plain = run(*command.split(), "--from", broken)
    by_option = run(*command.split(), *option.split(), "--from", broken)
    by_variable = run(*command.split(), env={f"TOPO_AGENT_{variable}": value, "TOPO_AGENT_FROM": broken})
    seen = (by_option.returncode, by_option.stdout, by_option.stderr)
    assert (by_variable.returncode, by_variable.stdout, by_variable.stderr) == seen
    assert (plain.returncode, plain.stdout, plain.stderr) != seen


def test_variables_of_source_and_output(small: str, broken: str, tmp_path: Path) -> None:
    told = answer("dump", "--from", small)
    assert answer("dump", env={"TOPO_AGENT_FROM": small}) == told
    assert answer("dump", "--from", small, env={"TOPO_AGENT_FROM": broken}) == told  # the flag is nearer
    assert answer("dump", "--from", small, env={"TOPO_AGENT_OUTPUT": str(tmp_path / "out")}) == ""
    assert (tmp_path / "out").read_text(encoding="utf-8") == told
    assert "nosuch: expected" in refused(run("dump", env={"TOPO_AGENT_FROM": str(tmp_path / "nosuch")}))


def test_every_option_has_its_variable() -> None:
    """Contract, section 1. Options that print help or the version and leave are none."""
    for name, command in EVERY.items():
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("help", "output" if name == "synth" else None):
                long = max(option.opts, key=len)
                assert option.envvar == "TOPO_AGENT_" + long[2:].upper().replace("-", "_"), (name, long)


# Help, completion, version


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str) -> None:
    told = answer(*command.split(), "--help")
    assert answer(*command.split(), "-h") == told
    assert told.startswith(f"Usage: topo-agent {command}".rstrip())
    assert "--help" in told
    sentences = [line for line in told.splitlines() if line.startswith("  ") and line.strip().endswith(".")]
    assert sentences, told


def test_help_names_every_command_with_examples() -> None:
    told = answer("--help")
    assert all(f"\n  {command} " in told for command in COMMANDS)
    assert told.count("    topo-agent ") >= 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    if shell == "bash" and not shutil.which("bash"):
        pytest.skip("no bash here: click asks it for its version")
    script = answer(env={"_TOPO_AGENT_COMPLETE": f"{shell}_source"})
    assert "_TOPO_AGENT_COMPLETE" in script
    assert "topo-agent" in script
    program = shutil.which(shell)
    if program:  # its own opinion of the grammar
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=20)


def test_completion_completes() -> None:
    words = {"_TOPO_AGENT_COMPLETE": "bash_complete", "COMP_WORDS": "topo-agent du", "COMP_CWORD": "1"}
    assert answer(env=words) == "plain,dump\n"
    words |= {"COMP_WORDS": "topo-agent list n", "COMP_CWORD": "2"}
    assert answer(env=words).split() == ["plain,nics", "plain,nvme", "plain,numa"]


def test_version() -> None:
    assert answer("--version") == f"topo-agent {topo_agent.__version__}\n"


# Names of devices


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("1b:00.1", "1b:00.0"),
        ("0000:1b:00.1", "0000:1b:00.0"),
        ("gpu7", "gpu0"),
        ("numa:9", "numa:1"),
        ("NIC9", "NIC0"),
    ],
)
@pytest.mark.parametrize("command", ["dump", "dump -f json", "pairs"])
def test_unknown_device(command: str, typed: str, near: str, small: str) -> None:
    said = refused(run(*command.split(), typed, "--from", small))
    assert typed in said
    assert near in said


@pytest.mark.parametrize("command", ["dump", "dump -f yaml", "pairs"])
def test_ambiguous_device(command: str, small: str) -> None:
    said = refused(run(*command.split(), "02:00.0", "--from", small))
    assert "0000:02:00.0" in said
    assert "0001:02:00.0" in said
    assert "0001:02:00.0" in answer("list", "pci", "--from", small)


def test_what_is_no_gpu_has_no_pairs(small: str) -> None:
    assert "NIC0" in refused(run("pairs", "NIC0", "--from", small))


@pytest.mark.parametrize("typed", ["0000:1b:00.0", "1b:00.0", "1B:00.0", "pci:0000:1b:00.0", "gpu0", "GPU0"])
def test_every_name_of_a_gpu(typed: str, small: str) -> None:
    for command in ("dump", "dump -f json", "pairs"):
        told = answer(*command.split(), typed, "--from", small)
        assert "1b:00.0" in told
        assert "3d:00.0" not in told or "json" in command  # a path ends at it
        assert told == answer(*command.split(), "0000:1b:00.0", "--from", small)


@pytest.mark.parametrize(("typed", "kept", "gone"), [("numa:1", "3d:00.0", "1b:00.0"), ("pkg:0", "1b:00.0", "3d:00.0")])
def test_names_of_places(typed: str, kept: str, gone: str, small: str) -> None:
    told = answer("dump", typed, "--from", small)
    assert kept in told
    assert gone not in told


def test_what_is_above_a_node_is_named(small: str) -> None:
    assert answer("dump", "numa:1", "--from", small).splitlines()[0].startswith("package 1")


def test_a_matrix_of_one_device(small: str) -> None:
    done = run("dump", "gpu0", "-f", "matrix", "--from", small)
    assert (done.returncode, done.stdout) == (2, "")
    assert "takes no DEVICE" in done.stderr


def _machine(name: str) -> Topology:
    return build(scan(machines.host(name)))


def _names(name: str) -> dict[str, list[str]]:
    """Function -> every name by which another program called it; a short address only where it is the only one."""
    functions = machines.expected(name).get("functions", {})
    shorts = [bdf.split(":", 1)[1] for bdf in functions]
    found = {}
    for bdf, said in functions.items():
        short = bdf.split(":", 1)[1]
        found[bdf] = [bdf, bdf.upper(), f"pci:{bdf}", *said.get("os_devices", ())]
        found[bdf] += [short] if shorts.count(short) == 1 else []
    return found


def _numbered(name: str, kind: str) -> list[str]:
    """Physical functions of one kind in PCI order: contract, section 2."""
    functions = machines.expected(name).get("functions", {})
    mine = [bdf for bdf, said in functions.items() if said.get("kind") == kind and not said.get("sriov_parent")]
    return sorted(mine, key=PciAddress.parse)


@needs_machines
@pytest.mark.parametrize("name", [name for name in MACHINES if machines.expected(name).get("functions")])
def test_every_name_that_others_use(name: str) -> None:
    topology = _machine(name)
    for bdf, typed in _names(name).items():
        wrong = {word: str(find(topology, word)) for word in typed if str(find(topology, word)) != f"pci:{bdf}"}
        assert wrong == {}
    for kind, word in (("gpu", "gpu"), ("gpu", "GPU"), ("nic", "NIC")):
        for number, bdf in enumerate(_numbered(name, kind)):
            assert str(find(topology, f"{word}{number}")) == f"pci:{bdf}"
    for root in {said["pcie_root"] for said in machines.expected(name)["functions"].values() if said.get("pcie_root")}:
        assert str(find(topology, root)) == str(find(topology, f"root:{root}")) == f"root:{root}"


TYPED = [
    ("dell-xe9680-snc2", "0000:1b:00.0", ["gpu0", "GPU0", "1b:00.0", "pci:0000:1b:00.0"]),
    ("dell-xe9680-snc2", "0000:1d:00.0", ["ens40f0np0", "mlx5_0", "1d:00.0", "pci:0000:1d:00.0", "NIC2"]),
    ("dell-xe9680-snc2", "0000:01:00.0", ["nvme0", "nvme0c0n1", "01:00.0"]),
    ("aws-gb200", "0000:29:00.0", ["gpu0", "29:00.0"]),
    ("aws-gb200", "0000:27:00.0", ["rdmap39s0", "27:00.0"]),
    ("dgx-a100", "0000:09:00.0", ["nvme0", "nvme0n1", "09:00.0"]),
    ("intel-vmd", "10001:84:00.0", ["nvme0", "nvme0n1", "84:00.0", "pci:10001:84:00.0"]),
    ("hwloc-2s-dax-nvme-ib", "0000:82:00.0", ["ib0", "mlx4_0", "82:00.0"]),
]


@needs_machines
@pytest.mark.parametrize(("name", "address", "typed"), TYPED)
def test_every_name_gives_the_same_answer(
    name: str, address: str, typed: list[str], tree: Callable[[str], Path]
) -> None:
    source = ["--from", str(tree(name))]
    told = answer("dump", "-f", "json", address, *source)
    document = json.loads(told)
    assert f"pci:{address}" in [device["id"] for device in document["devices"]]
    assert document["paths"]
    assert all(f"pci:{address}" in (path["a"], path["b"]) for path in document["paths"])
    for word in typed:
        assert answer("dump", "-f", "json", word, *source) == told, word


@needs_machines
def test_a_root_by_its_name(tree: Callable[[str], Path]) -> None:
    source = ["--from", str(tree("dell-xe9680-snc2"))]
    told = answer("dump", "pci0000:15", *source)
    assert answer("dump", "root:pci0000:15", *source) == told
    assert "1b:00.0" in told
    assert "3d:00.0" not in told
