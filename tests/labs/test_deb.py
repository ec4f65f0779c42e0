"""The Debian package: what is in it, that it runs, and that the same commit makes the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.debian import ROOT, NoPackage, package
from tests.paper import cpus, nodes
from tests.test_cli import text_of
from topo_agent import __version__

CONFFILES = ["/etc/default/topo-agent", "/etc/topo-agent/topo-agent.toml"]
LIBRARIES = {"click", "prometheus_client", "psutil", "pynvml.py", "pyroute2", "pyudev", "yaml"}
LAYS_DOWN = (  # path below the root, its source here
    ("etc/default/topo-agent", "systemd/topo-agent.default"),
    ("etc/topo-agent/topo-agent.toml", "systemd/topo-agent.toml"),
    ("lib/systemd/system/topo-agent.service", "systemd/topo-agent.service"),
    ("usr/bin/topo-agent", "systemd/topo-agent"),
    ("usr/lib/topo-agent/topo_agent/cli.py", "agent/topo_agent/cli.py"),
    ("usr/share/doc/topo-agent/README.md", "README.md"),
    ("usr/share/doc/topo-agent/CHANGELOG.md", "CHANGELOG.md"),
    ("usr/share/doc/topo-agent/docs/settings.md", "docs/settings.md"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return package(tmp_path_factory.mktemp("deb"))
    except NoPackage as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tree(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it lays down, and its control files in DEBIAN."""
    folder = tmp_path_factory.mktemp("tree")
    deb("--raw-extract", built, folder)
    return folder


def deb(*words: str | Path) -> str:
    return subprocess.run(["dpkg-deb", *words], capture_output=True, text=True, timeout=60, check=True).stdout


def test_it_says_what_it_is_and_needs(built: Path) -> None:
    said = dict(line.split(": ", 1) for line in deb("--field", built).splitlines() if not line.startswith(" "))
    assert built.name == f"topo-agent_{said['Version']}_{said['Architecture']}.deb"
    assert (said["Package"], said["Version"]) == ("topo-agent", __version__)
    assert said["Depends"].startswith(f"python3 (>= 3.{sys.version_info[1]}), libudev1")
    assert 2000 < int(said["Installed-Size"]) < 20_000  # KiB


def test_it_lays_down_what_is_here(tree: Path) -> None:
    for path, source in LAYS_DOWN:
        assert (tree / path).read_bytes() == (ROOT / source).read_bytes(), path
    assert {path.name for path in (tree / "usr/lib/topo-agent").iterdir()} >= {*LIBRARIES, "topo_agent"}
    modules = {str(path.relative_to(ROOT / "agent")) for path in (ROOT / "agent").rglob("*.py")}
    assert {str(path.relative_to(tree / "usr/lib/topo-agent")) for path in tree.rglob("topo_agent/**/*.py")} == modules
    assert (tree / "DEBIAN/conffiles").read_text(encoding="utf-8").splitlines() == CONFFILES


def test_nothing_else_is_in_it(tree: Path) -> None:
    """No byte code, no traces of this machine, nothing that another package may have."""
    files = ("etc/default/topo-agent", "lib/systemd/system/topo-agent.service", "usr/bin/topo-agent")
    folders = ("DEBIAN/", "etc/topo-agent/", "usr/lib/topo-agent/", "usr/share/doc/topo-agent/")
    for path in (str(one.relative_to(tree)) for one in tree.rglob("*") if not one.is_dir()):
        assert path in files or path.startswith(folders), path
        assert not re.search(
            r"__pycache__|\.pyc$|/(RECORD|direct_url\.json|INSTALLER)$|/example\.py$|/bin/(?!topo)", path
        )


def test_owner_and_modes(built: Path) -> None:
    programs = []
    for line in deb("--contents", built).splitlines():
        mode, owner, *_, path = line.split(maxsplit=5)
        assert owner == "root/root", line
        assert mode in ("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"), line
        if mode == "-rwxr-xr-x":
            programs.append(path)
    assert programs == ["./usr/bin/topo-agent"]


def test_every_library_has_its_licence(tree: Path) -> None:
    text = (tree / "usr/share/doc/topo-agent/copyright").read_text(encoding="utf-8")
    assert "/usr/share/common-licenses/Apache-2.0" in text
    parts = re.split(r"\n\n\n(?=[\w-]+ [0-9][0-9.a-z]*: )", text)[1:]
    assert len(parts) == len([*(tree / "usr/lib/topo-agent").glob("*.dist-info")]) >= len(LIBRARIES)
    for part in parts:
        text = part.partition("\n")[2]
        assert re.search(r"(?i)copyright", text) or "/usr/share/common-licenses/" in text, part
    common = {*re.findall(r"/usr/share/common-licenses/([\w.-]+)\.\n", text)}
    assert all(Path("/usr/share/common-licenses", name).exists() for name in common)


def test_the_program_runs_with_its_own_libraries_only(tree: Path, tmp_path: Path) -> None:
    """Isolated: neither variables nor the folder one stands in lead to other modules."""
    files = cpus({0: range(2)}) | nodes({0: range(2)}, {0: (10,)})
    (tmp_path / "small.topo").write_text(text_of(files), encoding="utf-8")
    for name in ("click", "topo_agent", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n", encoding="utf-8")
    program = str(tree / "usr/bin/topo-agent")
    first = Path(program).read_text(encoding="utf-8").partition("\n")[0]
    assert first == "#!/usr/bin/python3 -I"
    for words, expected in (
        (["--version"], f"topo-agent {__version__}\n"),
        (["dump", "--from", "small.topo"], "1 package · 2 cores · 2 CPUs · 1 NUMA node"),
    ):
        done = subprocess.run(
            [sys.executable, "-IB", program, *words], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_every_library_is_found_there(tree: Path) -> None:
    library = tree / "usr/lib/topo-agent"
    lines = [f"import sys; sys.path.insert(0, {str(library)!r})"]
    lines += [f"import {name.removesuffix('.py')} as one; print(one.__file__)" for name in sorted(LIBRARIES)]
    done = subprocess.run(
        [sys.executable, "-IB", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(library)) for line in done.stdout.splitlines()), done.stdout


@pytest.fixture
def script(tree: Path, tmp_path: Path) -> Callable[..., str]:
    """`script("postinst", "configure", "")`: one of a maintainer, over a copy of the tree; and what systemctl was told.

    Of programs it has find, rm and a systemctl that fails.
    """
    shutil.copytree(tree / "usr", tmp_path / "usr")
    (tmp_path / "bin").mkdir()
    for name in ("find", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    systemctl = tmp_path / "bin/systemctl"

    def run(name: str, *words: str, systemd: bool = False) -> str:
        said = tmp_path / "said"
        said.write_text("", encoding="utf-8")
        if systemd:
            systemctl.write_text(f'#!/bin/sh\necho "$@" >>{said}\nexit 1\n', encoding="utf-8")
            systemctl.chmod(0o755)
        text = (tree / "DEBIAN" / name).read_text(encoding="utf-8").replace("/usr/bin/python3", sys.executable)
        text = text.replace("/usr/lib/topo-agent", f"{tmp_path}/usr/lib/topo-agent")
        text = text.replace("/run/systemd/system", str(tmp_path if systemd else tmp_path / "nothing"))
        done = subprocess.run(
            ["/bin/sh", "-c", text, name, *words], env={"PATH": str(tmp_path / "bin")},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        return said.read_text(encoding="utf-8")

    return run


def test_maintainer_scripts_without_systemd(tree: Path, tmp_path: Path, script: Callable[..., str]) -> None:
    """In a container: byte code comes and goes, and that is all."""
    assert all(os.access(tree / "DEBIAN" / name, os.X_OK) for name in ("postinst", "prerm", "postrm"))
    library = tmp_path / "usr/lib/topo-agent"
    before = {*library.rglob("*")}
    script("postinst", "configure", "")
    assert len([*library.rglob("*.pyc")]) == len([*library.rglob("*.py")])
    script("prerm", "remove")
    script("postrm", "remove")
    script("postrm", "purge")
    assert {*library.rglob("*")} == before


def test_maintainer_scripts_tell_systemd(script: Callable[..., str]) -> None:
    """An upgrade never enables what an administrator has disabled; nothing that systemd refuses fails dpkg."""
    unit = "topo-agent.service"
    reload, enable = "daemon-reload\n", f"enable --quiet --no-reload {unit}\n"
    assert script("postinst", "configure", "", systemd=True) == f"{enable}{reload}start {unit}\n"
    assert script("postinst", "configure", "0.0.9", systemd=True) == f"{reload}is-active --quiet {unit}\n"
    assert script("prerm", "upgrade", "0.2.0", systemd=True) == ""
    assert script("postrm", "upgrade", "0.2.0", systemd=True) == ""
    said = script("prerm", "remove", systemd=True)
    assert said == f"stop {unit}\ndisable --quiet --no-reload {unit}\n"
    assert script("postrm", "remove", systemd=True) == f"{reload}reset-failed {unit}\n"
    assert script("postrm", "purge", systemd=True) == ""


def test_checksums(tree: Path) -> None:
    subprocess.run(["md5sum", "--check", "--quiet", "DEBIAN/md5sums"], cwd=tree, timeout=60, check=True)


def test_the_same_commit_makes_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Whatever the folder, the user's mask and the clock; another date makes another package."""
    old = os.umask(0o077)
    try:
        again = package(tmp_path / "again", TMPDIR=str(tmp_path), TZ="Asia/Tokyo")
    finally:
        os.umask(old)
    assert again.read_bytes() == built.read_bytes()
    dated = package(tmp_path / "dated", SOURCE_DATE_EPOCH="1000000000")
    assert "2001-09-09" in deb("--contents", dated).splitlines()[0]
    assert dated.read_bytes() != built.read_bytes()
