"""The container image: what is in it, that it runs, and that the same commit makes the same bytes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from container import image, install, oci, packages
from topo_agent import __version__

ROOT = Path(__file__).parents[2]
OTHER = "arm64" if install.own_architecture() == "amd64" else "amd64"
MOST = 30_000_000  # bytes to fetch
E_MACHINE = {"amd64": 62, "arm64": 183}

Files = dict[str, tuple[tarfile.TarInfo, bytes]]


def make(folder: Path, *words: str, **environment: str) -> image.Built:
    """As offered: a day on which Debian publishes an update is a day like others."""
    command = [sys.executable, "-m", "container.image", "--as-offered", "-o", str(folder), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        if os.environ.get("CI") or not re.match("image: .*(Debian|Python)", done.stderr):
            raise AssertionError(done.stderr)
        pytest.skip(done.stderr.strip())
    archive, sbom, *sizes = done.stdout.splitlines()
    print(done.stderr, *sizes, sep="\n")
    return image.Built(Path(archive), Path(sbom))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> image.Built:
    return make(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> image.Built:
    return make(tmp_path_factory.mktemp("other"), "--arch", OTHER)


def files_of(built: image.Built) -> Files:
    return {entry.name.strip("/"): (entry, content) for entry, content in oci.files(oci.read(built.archive).layers)}


@pytest.fixture(scope="module")
def files(built: image.Built) -> Files:
    return files_of(built)


@pytest.fixture(scope="module")
def root(built: image.Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = unpacked(built, tmp_path_factory.mktemp("root"))
    if not os.getuid():
        os.mknod(root / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a runtime brings it; ctypes opens it
        (root / "dev/null").chmod(0o666)
    return root


def unpacked(built: image.Built, folder: Path) -> Path:
    for layer in oci.read(built.archive).layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as entries:
            entries.extractall(folder)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def run(root: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run("dump")`: in a root of its own, as nobody, with what the user of the image may do."""
    if os.getuid():
        pytest.skip("only root may change its root directory")

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(shutil.which("chroot")), "--userspec=65532:65532", str(root), "/usr/bin/topo-agent", *words]
        return subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=120, check=False)

    return inside


def test_the_same_commit_makes_the_same_bytes(built: image.Built, tmp_path: Path) -> None:
    """Whatever the folder, the user's mask and the clock of the place."""
    (tmp_path / "work").mkdir()
    old = os.umask(0o077)
    try:
        again = make(tmp_path / "again", TMPDIR=str(tmp_path / "work"), TZ="Asia/Tokyo")
    finally:
        os.umask(old)
    assert again.archive.read_bytes() == built.archive.read_bytes()
    assert again.sbom.read_bytes() == built.sbom.read_bytes()
    assert not [*(tmp_path / "work").iterdir()]


@pytest.mark.parametrize("name", ["built", "other"])
def test_it_says_what_it_is(name: str, request: pytest.FixtureRequest) -> None:
    found: image.Built = request.getfixturevalue(name)
    architecture = install.own_architecture() if name == "built" else OTHER
    assert found.archive.name == f"topo-agent-{__version__}-{architecture}.oci.tar"
    config = oci.read(found.archive).config
    assert (config["os"], config["architecture"]) == ("linux", architecture)
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["/usr/bin/topo-agent"]
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == __version__
    assert sum(oci.read(found.archive).sizes) < MOST


def test_it_holds_what_is_here(files: Files) -> None:
    theirs = {path: content for path, (_, content) in files.items()}
    sources = [path for path in (ROOT / "agent").rglob("*.py") if "__pycache__" not in path.parts]
    for path in sources:
        inside = f"usr/lib/topo-agent/{path.relative_to(ROOT / 'agent')}"
        assert theirs[inside] == path.read_bytes(), inside
    assert len(sources) == len([path for path in theirs if re.match(r"usr/lib/topo-agent/topo_agent/.*\.py$", path)])


def test_every_module_is_compiled(files: Files) -> None:
    """By the hash of its source, and not compared at run time."""
    modules = [PurePosixPath(path) for path in files if path.endswith(".py")]
    assert len(modules) > 500
    for path in modules:
        cached = str(path.parent / f"__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc")
        assert files[cached][1][4:8] == b"\1\0\0\0", path


def test_nothing_else_is_in_it(files: Files) -> None:
    """Neither a shell nor a package manager; nobody's files but root's, and none that gives its rights away."""
    programs = {path for path in files if re.match(r"usr/s?bin/", path)}
    python = f"python3.{sys.version_info[1]}"
    assert programs == {"usr/bin/python3", f"usr/bin/{python}", "usr/bin/topo-agent", "usr/sbin/ldconfig"}
    for path, (entry, _) in files.items():
        assert not re.search(r"(^|/)(pip|ensurepip|setuptools|busybox)(/|-|$)|^(root|home|build|image)/.", path), path
        assert (entry.uid, entry.gid) == (0, 0), path
        assert not entry.mode & 0o6000, path
        assert entry.issym() or not entry.mode & 0o022 or path == "tmp", path


@pytest.mark.parametrize("name", ["built", "other"])
def test_every_library_finds_those_it_needs(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Packages were left out: nothing that is there calls them. And all is of one architecture."""
    found: image.Built = request.getfixturevalue(name)
    architecture = install.own_architecture() if name == "built" else OTHER
    files = files_of(found)
    names = {PurePosixPath(path).name for path in files}
    wanted = []
    for path, (_, content) in files.items():
        if content[:4] != b"\x7fELF":
            continue
        assert struct.unpack_from("<H", content, 18)[0] == E_MACHINE[architecture], path
        (tmp_path / "one").write_bytes(content)
        said = subprocess.run(["readelf", "-d", tmp_path / "one"], capture_output=True, text=True, check=True).stdout
        wanted += [(path, one) for one in re.findall(r"\(NEEDED\).*\[(.*)\]", said)]
    assert len(wanted) > 50
    assert not [one for one in wanted if one[1] not in names]


@pytest.mark.parametrize("name", ["built", "other"])
def test_libraries_are_found_by_name(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """ctypes asks ldconfig for libudev; what the image's list says is read by the real one here."""
    found: image.Built = request.getfixturevalue(name)
    (tmp_path / "cache").write_bytes(files_of(found)["etc/ld.so.cache"][1])
    said = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", tmp_path / "cache"], capture_output=True, text=True, check=True
    ).stdout
    kind = "x86-64" if "amd64" in found.archive.name else "AArch64"
    assert re.search(rf"libudev\.so\.1 \(libc6,{kind}\) => /lib/\S+/libudev\.so\.1\n", said), said


def test_it_runs(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"topo-agent {__version__}\n"), done.stderr
    done = run("--help")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    done = run("kube", "--help")
    assert done.returncode == 0, done.stderr


def test_its_libraries_are_there(root: Path) -> None:
    """Those that are imported only when they are needed: of the Kubernetes library a part is left out."""
    if os.getuid():
        pytest.skip("only root may change its root directory")
    lines = [
        "import sys", "sys.path.insert(0, '/usr/lib/topo-agent')",
        "import bz2, lzma, ssl, click, prometheus_client, psutil, pynvml, pyroute2, pyudev, yaml",
        "from kubernetes import config", "from kubernetes.client.rest import RESTClientObject",
        "from kubernetes.client import ApiClient, Configuration", "RESTClientObject(Configuration())", "ApiClient()",
        "pyudev.Context()", "print(ssl.create_default_context().cert_store_stats()['x509_ca'] > 100)",
    ]  # fmt: skip
    command = [
        str(shutil.which("chroot")),
        "--userspec=65532:65532",
        str(root),
        "/usr/bin/python3",
        "-IB",
        "-c",
        "\n".join(lines),
    ]
    done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_other_architecture_runs_too(other: image.Built, tmp_path: Path) -> None:
    emulator = shutil.which(f"qemu-{install.MACHINES[OTHER]}-static") or shutil.which(f"qemu-{install.MACHINES[OTHER]}")
    if not emulator:
        pytest.skip("no emulator of that architecture here; Debian has it in qemu-user-static")
    root = unpacked(other, tmp_path)
    command = [emulator, "-L", str(root), f"{root}/usr/bin/python3", "-IB", f"{root}/usr/bin/topo-agent", "--version"]
    environment = {"PYTHONHOME": f"{root}/usr"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, f"topo-agent {__version__}\n"), done.stderr


def test_the_list_of_what_is_in_it(built: image.Built, files: Files) -> None:
    text = built.sbom.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    said: dict[str, Any] = json.loads(text)
    kinds: dict[str, dict[str, str]] = {"deb": {}, "pypi": {}}
    for one in said["components"]:
        kind = re.match(r"pkg:(deb|pypi)/", one.get("purl", ""))
        if kind:
            kinds[kind[1]][one["name"]] = one["version"]
    locked = re.findall(r"(?m)^([\w-]+)==(\S+)(?: ; (.*))? \\$", image.REQUIREMENTS.read_text(encoding="utf-8"))
    wanted = {name: version for name, version, marker in locked if "< '3.11'" not in marker and "win32" not in marker}
    if sys.version_info >= (3, 11):
        assert kinds["pypi"] == wanted
    assert all(one.get("licenses") for one in said["components"] if one.get("purl", "").startswith("pkg:pypi/"))
    assert kinds["deb"].keys() >= {"libc6", "libssl3", "libudev1", "python3-minimal"}
    licences = {path.split("/")[3] for path in files if re.match(r"usr/share/doc/[^/]+(/copyright)?$", path)}
    assert kinds["deb"].keys() <= licences


@pytest.mark.parametrize("name", ["built", "other"])
def test_its_packages_are_those_of_the_lock(name: str, request: pytest.FixtureRequest) -> None:
    """Where Debian has published others since, that is no fault of this commit; the summary says which."""
    found: image.Built = request.getfixturevalue(name)
    lock = packages.read(install.own_architecture() if name == "built" else OTHER)
    if lock.system != packages.own_system():
        pytest.skip(f"{lock.name} is of {lock.system}")
    listed = json.loads(found.sbom.read_text(encoding="utf-8"))["components"]
    debs = {one["name"]: one["version"] for one in listed if one.get("purl", "").startswith("pkg:deb/")}
    pinned = {package: one.version for package, one in lock.packages.items()}
    differing = [f"{package} {version}" for package, version in debs.items() if pinned.get(package) != version]
    if differing:
        pytest.skip(f"{len(differing)} packages of the image differ from {lock.name}: {', '.join(differing)}")


def test_the_lock_is_of_this_program() -> None:
    """Every dependency of pyproject.toml is in it, in a version that it takes."""
    from packaging.requirements import Requirement

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"(?m)^([\w-]+)==([^ ]+)", image.REQUIREMENTS.read_text(encoding="utf-8")):
        locked.setdefault(name, []).append(version)
    for words in (*project["dependencies"], *project["optional-dependencies"]["kubernetes"]):
        wanted = Requirement(words)
        assert any(wanted.specifier.contains(one) for one in locked[wanted.name.lower()]), words
