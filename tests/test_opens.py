"""What the program opens and imports: by Python's audit hook, and by strace as a witness that knows no Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.machines import MACHINES, archive, needs_machines
from tests.test_cli import SMALL, SOURCES, environment, run, text_of

NEVER = re.compile(r"config|vpd|rom|resource[0-9]*(_wc|_resize)?")
"""Files of a PCI function that cost a hundred times a normal one, or wake the device (issue 3)."""

HEAVY = ["kubernetes", "pyroute2", "prometheus_client", "pynvml", "psutil", "pyudev", "asyncio", "ssl"]

_WATCHED = """
import json, os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from topo_agent.cli import main
for arguments in json.loads(sys.argv[1]):
    if run := os.fork():
        if os.waitpid(run, 0)[1]:
            sys.exit(1)
        continue
    sys.argv[1:] = arguments
    try:
        main()
    finally:
        print("\\0")
        sys.stdout.flush()
        print(json.dumps({"opened": list(opened), "imported": sorted(sys.modules)}), file=sys.stderr)
"""


def each_watched(*commands: Sequence[str]) -> list[dict[str, list[str]]]:
    """What runs of the program opened (a name, or a path) and had imported in the end."""
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, json.dumps(commands)], env=environment(), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *said, rest = done.stdout.split("\0\n")
    assert (len(said), all(said), rest) == (len(commands), True, "")
    found: list[dict[str, list[str]]] = [json.loads(line) for line in done.stderr.splitlines() if line[:1] == "{"]
    assert len(found) == len(commands)
    return found


def watched(*arguments: str) -> dict[str, list[str]]:
    """The same of one run."""
    (found,) = each_watched(arguments)
    return found


def planted(root: Path) -> Path:
    """The files that must stay closed beside every function, where the shared machines have none."""
    functions = [path.resolve() for path in (root / "sys/bus/pci/devices").glob("*")]
    for function in functions:
        for name in ("config", "vpd", "rom", "resource", "resource0", "resource2_wc"):
            (function / name).write_text("never")
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small machine as a directory, with what must stay closed."""
    (tmp_path / "small.topo").write_text(text_of(SMALL), encoding="utf-8")
    assert run("synth", str(tmp_path / "small.topo"), "-o", str(tmp_path / "root")).returncode == 0
    return planted(tmp_path / "root")


COMMANDS = ["dump -f json", "dump", "list pci", "list nics", "record", "pairs", "check -f json", "shape"]


def test_both_witnesses_see(small: Path) -> None:
    """A test of the tests: what is opened is seen."""
    assert "numa_node" in watched("dump", "--from", str(small))["opened"]
    assert {"config", "resource0"} <= {path.name for path in (small / "sys").rglob("*")}
    assert NEVER.fullmatch("config")
    assert not NEVER.fullmatch("numa_node")


@pytest.mark.parametrize("command", COMMANDS)
def test_this_machine_stays_asleep(command: str) -> None:
    opened = watched(*command.split())["opened"]
    assert "online" in opened
    assert [path for path in opened if NEVER.fullmatch(os.path.basename(path))] == []


def test_config_is_opened_where_it_is_asked_for(small: Path) -> None:
    """Issue 7: `check --probe acs`, and nothing else; and `config` alone, of what may matter."""
    opened = watched("check", "-f", "json", "--probe", "acs", "--from", str(small))["opened"]
    assert {os.path.basename(path) for path in opened if NEVER.fullmatch(os.path.basename(path))} == {"config"}


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_no_machine_is_woken(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert run("synth", str(archive(name)), "-o", str(root)).returncode == 0
    planted(root)
    commands = ("dump -f json", "list pci", "record", "check -f json")
    for found in each_watched(*([*command.split(), "--from", str(root)] for command in commands)):
        assert {"online", "uevent", "class"} & {*found["opened"]}
        assert [path for path in found["opened"] if NEVER.fullmatch(os.path.basename(path))] == []


@pytest.mark.parametrize("source", ["directory", "recording"])
@pytest.mark.parametrize(
    "command", ["dump", "dump -f json", "dump -f yaml", "dump -f matrix", "list gpus", "record", "shape"]
)
def test_what_is_heavy_is_not_imported(command: str, source: str, small: Path, tmp_path: Path) -> None:
    path = small if source == "directory" else tmp_path / "small.topo"
    imported = watched(*command.split(), "--from", str(path))["imported"]
    assert "topo_agent.host.live" in imported or source == "recording"
    assert [name for name in imported if name.split(".")[0] in HEAVY] == []


def test_the_public_module_costs_nothing() -> None:
    """Architecture: importing topo_agent costs nothing."""
    script = "import sys, typing; before = set(sys.modules); import topo_agent; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert {*done.stdout.split()} <= {"topo_agent", "__future__"}


# strace

STRACE = shutil.which("strace")


def _traces() -> bool:
    command = [STRACE or "", "-f", "-o", os.devnull, "true"]
    return STRACE is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(not _traces(), reason="strace is not installed, or may not trace")

_OPEN = re.compile(
    r"\d+ +(?:open|openat|openat2)\((?:(AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"
    r'"((?:[^"\\]|\\.)*)"[^)]*\) = (-?\d+)(?:<([^>]*)>)?'
)


def traced(tmp_path: Path, *arguments: str) -> list[tuple[str, str, bool]]:
    """(path as asked for, where it really is, was it opened) of every open of a run and of its children."""
    log = tmp_path / "strace"
    command = [
        STRACE or "",
        "-f",
        "-y",
        "-s",
        "4096",
        "-e",
        "trace=open,openat,openat2",
        "-e",
        "signal=none",
        "-o",
        str(log),
    ]
    done = subprocess.run(
        [*command, sys.executable, "-m", "topo_agent", *arguments], env=environment(), cwd=SOURCES,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        matched = _OPEN.match(line)
        assert matched or "open" not in line.partition("(")[0], line
        if matched and "O_PATH" not in line:  # which names a place and opens nothing
            _, directory, name, number, real = matched.groups()
            asked = os.path.normpath(os.path.join(directory or SOURCES, name))
            found.append((asked, real or asked, int(number) >= 0))
    return found


@needs_strace
@pytest.mark.parametrize("command", ["dump -f json", "list pci", "record"])
def test_strace_sees_no_such_file(command: str, small: Path, tmp_path: Path) -> None:
    for source in ([], ["--from", str(small)]):
        opened = traced(tmp_path, *command.split(), *source)
        root = str(small) if source else ""
        assert f"{root}/sys/devices/system/cpu/online" in [asked for asked, _, _ in opened]
        below = [asked for asked, _, _ in opened if asked.startswith((f"{root}/sys/", f"{root}/proc/"))]
        assert len(below) > 20
        assert [path for path in below if NEVER.fullmatch(os.path.basename(path))] == []


def _of_python() -> tuple[str, ...]:
    """Where the interpreter, its libraries and the program itself are."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, SOURCES, *site.getsitepackages()}
    paths |= {*sysconfig.get_paths().values(), os.path.dirname(sys.executable)}
    paths |= {
        os.environ["PYTHONPYCACHEPREFIX"],
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/share/locale",
        "/usr/share/zoneinfo",
    }
    paths |= {os.path.realpath(path) for path in paths}
    return tuple(f"{path}/" for path in paths if path not in ("/", "/usr"))


OF_THE_SYSTEM = re.compile(
    r"/etc/(ld\.so\.(cache|preload)|locale\.alias|localtime)|/dev/null|/.*/(pyvenv|openssl)\.(cfg|cnf)"
    r"|/.*/(python[0-9.]*\._pth|pybuilddir\.txt)"
)
"""Of the loader, of the C library, of OpenSSL, which hashlib loads."""


def outside(opened: list[tuple[str, str, bool]], root: Path) -> list[str]:
    """What was opened that is neither of Python nor below the root; real paths, whatever link led there."""
    ours = (*_of_python(), f"{root}/", f"{root.resolve()}/")
    places = [real if done else asked for asked, real, done in opened]
    return [path for path in places if not f"{path}/".startswith(ours) and not OF_THE_SYSTEM.fullmatch(path)]


@needs_strace
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_outside_the_root_is_opened(command: str, small: Path, tmp_path: Path) -> None:
    """No answer about a recorded machine comes from the one that the program runs on."""
    assert outside(traced(tmp_path, *command.split(), "--from", str(small)), small) == []


@needs_strace
@needs_machines
@pytest.mark.parametrize("name", ["dell-xe9680-snc2", "hwloc-pcidomain32", "intel-vmd"])
def test_nothing_outside_a_real_machine_is_opened(name: str, tree: Callable[[str], Path], tmp_path: Path) -> None:
    opened = traced(tmp_path, "dump", "-f", "json", "--from", str(tree(name)))
    assert outside(opened, tree(name)) == []
    assert any(asked.startswith(f"{tree(name)}/sys/") for asked, _, _ in opened)


def hostile(root: Path) -> None:
    """Links that lead to the machine the program runs on: files, directories, by absolute and relative targets."""
    beyond = root.parent / "beyond"
    (beyond / "net").mkdir(parents=True)
    (beyond / "net/type").write_text("1\n")
    (root / "sys/class/net").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/net/evil0").symlink_to(beyond / "net")
    (root / "sys/class/net/evil1").symlink_to("../../../../beyond/net")
    (root / "sys/class/dmi").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/dmi/id").symlink_to(beyond)
    (beyond / "sys_vendor").write_text("Somebody else\n")
    (root / "sys/devices/system/node/node7").symlink_to("/sys/devices/system/node/node0")
    cpu = root / "sys/devices/system/cpu"
    (cpu / "possible").unlink(missing_ok=True)
    (cpu / "possible").symlink_to("/sys/devices/system/cpu/possible")
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").symlink_to("/proc/cpuinfo")


@needs_strace
@pytest.mark.parametrize("command", ["dump -f json", "record"])
def test_no_file_outside_is_opened_through_a_link(command: str, small: Path, tmp_path: Path) -> None:
    hostile(small)
    opened = outside(traced(tmp_path, *command.split(), "--from", str(small)), small)
    assert [path for path in opened if os.path.isfile(path)] == []
    assert "Somebody else" not in run(*command.split(), "--from", str(small)).stdout


@needs_strace
@pytest.mark.parametrize("command", ["dump -f json", "list nics"])
def test_no_directory_outside_is_opened_through_a_link(command: str, small: Path, tmp_path: Path) -> None:
    hostile(small)
    assert outside(traced(tmp_path, *command.split(), "--from", str(small)), small) == []
