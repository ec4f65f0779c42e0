"""Who may see what: docs/privileges.md row by row, the program as nobody, and with parts of the machine hidden."""

from __future__ import annotations

import errno
import importlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.paper import Files, function, machine, two_sockets
from tests.test_cli import SMALL, environment, refused, run, text_of
from topo_agent.graph.build import build
from topo_agent.host import Json, recording
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Document, Failure, Link
from topo_agent.scan import scan
from topo_agent.views.document import document

PAGE = Path(__file__).parents[1] / "docs" / "privileges.md"

NIC = "sys/devices/pci0000:16/0000:1d:00.0"
KFD = "sys/class/kfd/kfd/topology/nodes"
DMI = "sys/class/dmi/id"

# A machine that has everything the table speaks of.


def _kfd(node: int, bus: int, peer: int) -> Files:
    said = f"simd_count 1216\nsimd_per_cu 4\nvendor_id 4098\nlocation_id {bus << 8}\ndomain 0\n"
    said += f"unique_id {node}1\nhive_id 7\n"
    link = f"type 11\nnode_from {node}\nnode_to {peer}\nweight 15\nmax_bandwidth 64000\n"
    return {f"{KFD}/{node}/properties": said, f"{KFD}/{node}/io_links/0/properties": link}


def _gpu(address: str) -> Files:
    return function(
        address,
        under="pci0000:16",
        class_="0x120000",
        vendor="0x1002",
        device="0x74a1",
        numa_node="0\n",
        driver="amdgpu",
    )


_NETDEV = {"type": "1\n", "address": "02:00:00:00:00:01\n", "carrier": "1\n", "speed": "400000\n", "mtu": "9000\n"}
_NIC = {**{f"net/eth0/{name}": text for name, text in _NETDEV.items()}, "msi_irqs/24": "msix\n"}
_DMI = {"sys_vendor": "Maker\n", "product_name": "Box\n", "board_name": "Board\n", "bios_version": "1\n"}
MACHINE: Files = (
    two_sockets()
    | _gpu("0000:1b:00.0")
    | _gpu("0000:3d:00.0")
    | function("0000:1d:00.0", under="pci0000:16", numa_node="0\n", driver="mlx5_core", files=_NIC)
    | {"sys/class/net/eth0": Link("../../devices/pci0000:16/0000:1d:00.0/net/eth0")}
    | {f"{DMI}/{name}": text for name, text in {**_DMI, "product_serial": "S\n", "board_serial": "S\n"}.items()}
    | {f"{KFD}/0/properties": "cpu_cores_count 8\nsimd_count 0\n", **_kfd(1, 0x1B, 2), **_kfd(2, 0x3D, 1)}
    | {"proc/irq/24/effective_affinity_list": "1\n", "proc/irq/24/smp_affinity_list": "0-3\n"}
    | {"proc/cpuinfo": "processor : 0\nmodel name : Model\nflags : fpu\n", "proc/sys/kernel/osrelease": "6.8.0\n"}
)

PROCESS: dict[str, Document] = {"process": {"allowed_cpus": [*range(8)], "architecture": "x86_64"}}


def rows() -> list[list[str]]:
    """The cells of the one table of the page, without its head."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    """`` `a` `b` `` -> ["a", "b"]; the word "nothing" is none."""
    found = re.findall(r"`([^`]*)`", cell)
    assert bool(found) != (cell == "nothing"), cell
    return found


def hidden(cell: str) -> Files:
    """The machine without what a row hides."""
    files = dict(MACHINE)
    for entry in quoted(cell):
        path, mark, error = entry.partition(" ! ")
        below = [at for at in files if at == path.rstrip("/") or at.startswith(path.rstrip("/") + "/")]
        assert below, f"{path} is not there anyway"
        if not mark or path.endswith("/"):
            for at in below:
                del files[at]
        if mark:
            files[path.rstrip("/")] = Failure(getattr(errno, error), directory=path.endswith("/"))
    return files


def leaves(said: Json, at: str = "", key: str = "") -> Iterator[tuple[str, str, Json]]:
    """(place, key, value): a place names the item of a list by its id, a key leaves items and ids of devices out."""
    if isinstance(said, dict):
        for name, value in said.items():
            below = key if at == ".state" else f"{key}.{name}".lstrip(".")
            yield from leaves(value, f"{at}.{name}", below)
    elif isinstance(said, list):
        for place, value in enumerate(said):
            item = value.get("id", place) if isinstance(value, dict) else place
            yield from leaves(value, f"{at}[{item}]", key)
    else:
        yield at, key, said


def known(files: Files) -> tuple[dict[str, str], dict[str, Json]]:
    """Every value that is known, with its key, and the document."""
    said = document(build(scan(machine(files, documents=PROCESS))))
    places = {at: key for at, key, value in leaves({**said}) if value is not None}
    aside = ("digest", "diagnostics", "source")
    return {at: key for at, key in places.items() if not key.startswith(aside) and ".unknown" not in f".{key}"}, said


def reasons(said: Json) -> set[str]:
    """Every code in an `unknown`, and of every diagnostic."""
    found = {str(value) for at, _, value in leaves(said) if ".unknown." in at}
    diagnostics = said["diagnostics"] if isinstance(said, dict) else []
    assert isinstance(diagnostics, list)
    return found | {str(one["code"]) for one in diagnostics if isinstance(one, dict)}


def test_there_are_rows() -> None:
    assert len(rows()) >= 8
    assert {len(row) for row in rows()} == {5}
    assert reasons(known(MACHINE)[1]) == set()


@pytest.mark.parametrize("row", rows(), ids=[row[0].split(":")[0] for row in rows()])
def test_a_row_is_true(row: list[str], tmp_path: Path) -> None:
    """Exactly what the row says is lost, is; exactly what it says is said, is."""
    _, hides, loses, says, status = row
    files = dict(MACHINE) if hides == "nothing" else hidden(hides)
    before, _ = known(MACHINE)
    after, said = known(files)
    gone = {key for at, key in before.items() if at not in after}
    claims = quoted(loses)
    assert {key for key in gone if not any(key == claim or key.startswith(f"{claim}.") for claim in claims)} == set()
    assert {claim for claim in claims if not any(key == claim or key.startswith(f"{claim}.") for key in gone)} == set()
    assert reasons({**said}) == set(quoted(says))
    path = tmp_path / "machine.topo"
    path.write_text(text_of(files), encoding="utf-8")
    assert run("dump", "--from", str(path), "--strict").returncode == int(status)
    assert run("dump", "--from", str(path)).returncode == 0


def test_a_hidden_gpu_says_hidden() -> None:
    """Contract, section 4: asked and not answered is null, with the reason beside it."""
    said = known(MACHINE | {f"{KFD}/1/properties": Failure(errno.EPERM)})[1]
    devices = said["devices"]
    assert isinstance(devices, list)
    (gpu,) = (one for one in devices if isinstance(one, dict) and one["id"] == "pci:0000:1b:00.0")
    assert gpu.get("unknown") == {"uid": "hidden"}
    assert gpu["uid"] is None


def test_cpuinfo_that_is_refused() -> None:
    said = known(MACHINE | {"proc/cpuinfo": Failure(errno.EACCES)})[1]
    assert reasons({**said}) == {"not_permitted", "file_unreadable"}


def test_interrupts_that_cannot_be_listed_cost_one_nic() -> None:
    other = function("0000:2d:00.0", under="pci0000:16", numa_node="0\n", files={**_NIC, "msi_irqs/25": "msix\n"})
    other |= {"sys/class/net/eth1": Link("../../devices/pci0000:16/0000:2d:00.0/net/eth0")}
    files = {at: it for at, it in (MACHINE | other).items() if not at.startswith(f"{NIC}/msi_irqs")}
    state = known(files | {f"{NIC}/msi_irqs": Failure(errno.EACCES, directory=True)})[1]["state"]
    assert isinstance(state, dict)
    nic = state["pci:0000:2d:00.0"]
    assert isinstance(nic, dict)
    assert "irqs" in nic


# The program as somebody else

DEPENDENCIES = ("click", "yaml", "pyroute2")
"""What the program imports to look at a machine, pyproject.toml; pure Python, or with a fallback that is."""

NOBODY = next((one for one in pwd.getpwall() if one.pw_name == "nobody"), None)


def _can(command: list[str], *, user: int | None = None, cwd: Path | None = None) -> bool:
    groups: list[int] | None = None if user is None else []
    try:
        done = subprocess.run(
            command, user=user, extra_groups=groups, cwd=cwd, capture_output=True, timeout=20, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


AsNobody = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; that of pytest is for its owner only."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def as_nobody(open_folder: Path) -> AsNobody:
    """Runs the program without any privilege: as the user nobody, from a copy that everybody may read."""
    if os.geteuid() != 0:
        return run
    if NOBODY is None:
        pytest.skip("there is no user nobody here")
    user, group = NOBODY.pw_uid, NOBODY.pw_gid
    version = "import sys; sys.exit(sys.version_info < (3, 10))"
    candidates = [sys.executable, os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin:/bin") or ""]
    python = next((one for one in candidates if one and _can([one, "-c", version], user=user)), None)
    if python is None:
        pytest.skip("no Python 3.10 here that nobody may run")
    for package in ("topo_agent", *DEPENDENCIES):
        source = Path(str(importlib.import_module(package).__file__)).parent
        shutil.copytree(source, open_folder / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    subprocess.run(["chmod", "-R", "a+rX", str(open_folder)], check=True)
    if not _can([python, "-c", "import topo_agent.cli"], user=user, cwd=open_folder):
        pytest.skip(f"nobody cannot import what is in {open_folder}")
    variables = environment(PYTHONPATH=str(open_folder), HOME="/nonexistent")

    def run_it(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "topo_agent", *arguments], env=variables, cwd="/", capture_output=True, text=True,
            timeout=60, check=False, user=user, group=group, extra_groups=[],
        )  # fmt: skip

    return run_it


def structure(text: str) -> dict[str, Json]:
    said: dict[str, Json] = json.loads(text)
    return {key: part for key, part in said.items() if key not in ("state", "source", "diagnostics")}


def test_nobody_sees_this_machine(as_nobody: AsNobody) -> None:
    """Contract: it answers, and says what it could not read. On a machine that hides nothing, that is all of it."""
    theirs, ours = as_nobody("dump", "-f", "json", "-v"), run("dump", "-f", "json")
    assert theirs.returncode == 0
    said = json.loads(theirs.stdout)
    assert said["source"]["privileged"] is False
    if not any(one["level"] in ("degraded", "lost") for one in said["diagnostics"]):
        assert structure(theirs.stdout) == structure(ours.stdout)
    for one in said["diagnostics"]:
        assert f"{one['level']}: {one['subject']}: {one['message']}" in theirs.stderr
    for command in ("dump", "dump -f matrix", "list pci", "list cpus", "list numa", "pairs"):
        done = as_nobody(*command.split())
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout


def test_nobody_can_record_this_machine(as_nobody: AsNobody) -> None:
    done = as_nobody("record")
    assert (done.returncode, done.stderr) == (0, "")
    paper = recording.parse(done.stdout)
    assert paper.source.privileged is False
    assert any(path.startswith("sys/devices/system/cpu/cpu0/") for path in paper.entries)


def test_nobody_cannot_ask_for_acs(as_nobody: AsNobody) -> None:
    """The page: 64 bytes are no answer. Whatever lists capabilities lists them beyond."""
    said = LiveHost("/").document("acs")
    functions = said["functions"] if isinstance(said, dict) else None
    assert isinstance(functions, list)
    heads = [Path(f"/sys/bus/pci/devices/{one['bdf']}/config").read_bytes()[:8] for one in functions
             if isinstance(one, dict) and one.get("error") != "SUSPENDED"]  # fmt: skip
    listing = any(head[6] & 0x10 for head in heads)  # Status, bit 4
    done = as_nobody("check", "--probe", "acs", "-v")
    assert done.returncode in (0, 1)
    assert ("was not read: NOT_PERMITTED" in done.stderr) == listing
    assert as_nobody("check", "--probe", "acs", "--strict").returncode in ((4,) if listing else (0, 1, 4))


def test_root_says_that_it_is_root() -> None:
    assert json.loads(run("dump", "-f", "json").stdout)["source"]["privileged"] is (os.geteuid() == 0)


@pytest.fixture
def closed(open_folder: Path, as_nobody: AsNobody) -> Iterator[Path]:
    """An unpacked machine with one file that nobody may read."""
    root = open_folder / "closed"
    shutil.rmtree(root, ignore_errors=True)
    (open_folder / "small.topo").write_text(text_of(SMALL), encoding="utf-8")
    assert run("synth", str(open_folder / "small.topo"), "-o", str(root)).returncode == 0
    subprocess.run(["chmod", "-R", "a+rX", str(root)], check=True)
    file = root / "sys/devices/pci0000:16/0000:1b:00.0/numa_node"
    file.chmod(0)
    yield root
    file.chmod(0o644)


def test_a_file_without_permission(closed: Path, as_nobody: AsNobody) -> None:
    usual, strict = as_nobody("dump", "--from", str(closed)), as_nobody("dump", "--from", str(closed), "--strict")
    assert (usual.returncode, strict.returncode) == (0, 4)
    assert "0000:1b:00.0/numa_node" in usual.stdout
    said = json.loads(as_nobody("dump", "-f", "json", "--from", str(closed)).stdout)
    (device,) = (one for one in said["devices"] if one["address"] == "0000:1b:00.0")
    assert device["numa_node"] is None
    assert device["unknown"]["numa_node"] == "not_permitted"
    if os.geteuid() == 0:
        assert run("dump", "--from", str(closed), "--strict").returncode == 0


def test_input_without_permission(open_folder: Path, as_nobody: AsNobody) -> None:
    folder, file, inside = open_folder / "folder", open_folder / "file.topo", open_folder / "inside"
    folder.mkdir(mode=0o700)
    folder.chmod(0)
    file.write_text(text_of(SMALL), encoding="utf-8")
    file.chmod(0)
    (inside / "sys").mkdir(parents=True)
    inside.chmod(0)
    try:
        for path in (folder, file, inside, inside / "sys"):
            said = refused(as_nobody("dump", "--from", str(path)))
            assert f"{path}: " in said
            assert "ermission denied" in said
    finally:
        for path in (folder, inside):
            path.chmod(0o755)


def test_output_without_permission(open_folder: Path, as_nobody: AsNobody) -> None:
    folder = open_folder / "readonly"
    folder.mkdir()
    folder.chmod(0o555)
    old = folder / "old"
    old.write_text("old")
    for path in (folder / "new", old):
        said = refused(as_nobody("dump", "-o", str(path)))
        assert f"{path}: " in said
    assert [one.name for one in folder.iterdir()] == ["old"]
    assert old.read_text() == "old"
    folder.chmod(0o755)


# With parts of this machine hidden, as a container hides them

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
needs_unshare = pytest.mark.skipif(
    not _can([*UNSHARE, "mount", "-t", "tmpfs", "none", "/sys"]), reason="no mount namespaces here (unshare -m as root)"
)


def without(*paths: str, arguments: list[str], more: str = "") -> subprocess.CompletedProcess[str]:
    """The program where an empty directory lies over each path, as a container runtime masks it."""
    masks = "".join(f"mount -t tmpfs none {path}; " for path in paths)
    command = [*UNSHARE, "sh", "-ec", f'{masks}{more} exec "$@"', "sh", sys.executable, "-m", "topo_agent", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


MASKED = ["/proc/irq", "/sys/firmware", "/sys/devices/virtual"]
"""Docker and containerd hide /sys/firmware, /proc/acpi, /proc/kcore … from every container; here a little more."""


@needs_unshare
def test_a_plain_container_answers() -> None:
    paths = [path for path in MASKED if os.path.isdir(path)]
    masked, usual = without(*paths, arguments=["dump", "-f", "json"]), run("dump", "-f", "json")
    assert (masked.returncode, masked.stderr) == (0, "")
    assert len(json.loads(masked.stdout).get("devices", [])) >= len(json.loads(usual.stdout).get("devices", []))
    said, seen = structure(masked.stdout), structure(usual.stdout)
    assert said["packages"] == seen["packages"]
    assert said["numa"] == seen["numa"]


@needs_unshare
@pytest.mark.parametrize("path", ["/sys", "/sys/bus", "/sys/devices/system/cpu", "/sys/devices/system/node", "/proc"])
@pytest.mark.parametrize(
    "command", ["dump", "dump -f json", "dump -f matrix", "list pci", "list cpus", "pairs", "record"]
)
def test_a_part_that_is_hidden_is_no_failure(path: str, command: str) -> None:
    done = without(path, arguments=command.split())
    assert (done.returncode, done.stderr) == (0, "")


@needs_unshare
def test_hidden_parts_are_absent() -> None:
    """Contract, section 4: a part that is not known is absent, and not an empty list."""
    said = json.loads(without("/sys", arguments=["dump", "-f", "json"]).stdout)
    assert {"packages", "numa", "roots", "devices", "paths"} & set(said) == set()
    said = json.loads(without("/sys/bus", arguments=["dump", "-f", "json"]).stdout)
    assert {"roots", "devices", "paths"} & set(said) == set()
    assert {"packages", "numa"} <= set(said)


@needs_unshare
@pytest.mark.parametrize("path", ["/sys", "/sys/devices/system/cpu"])
def test_it_says_that_sysfs_is_hidden(path: str) -> None:
    """Issue 3.6: inside a plain container it says what it could not read. Every Linux has CPUs in sysfs."""
    assert json.loads(without(path, arguments=["dump", "-f", "json"]).stdout)["diagnostics"]
    assert without(path, arguments=["dump", "--strict"]).returncode == 4


@needs_unshare
@pytest.mark.skipif(not _can(["unshare", "--net", "true"]), reason="no network namespaces here")
def test_a_network_of_its_own() -> None:
    """The row of the table, on this machine: sysfs shows the interfaces of the namespace that mounted it."""
    command = ["unshare", "--net", *UNSHARE, "sh", "-ec", 'mount -t sysfs none /sys; exec "$@"', "sh"]
    command += [sys.executable, "-m", "topo_agent", "dump", "-f", "json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    inside, outside = json.loads(done.stdout), json.loads(run("dump", "-f", "json").stdout)
    functions = [one["id"] for one in outside["devices"] if one["id"].startswith("pci:")]
    assert [one["id"] for one in inside["devices"] if one["id"].startswith("pci:")] == functions
    assert not any("netdev" in one.get("names", {}) for one in inside["devices"] if one["id"].startswith("pci:"))
