"""What a guest of the labs boots: Debian's kernel, and an initramfs with Python, hwloc and busybox.

What was built is kept outside the work tree.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import lzma
import marshal
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.labs.apt import Apt
from tests.labs.cpio import File, Tree, cpio, link

REPOSITORY = Path(__file__).parents[2]
# Pure Python, from the environment that runs the test: what is imported, and which package has it.
DEPENDENCIES = {
    "click": "click",
    "prometheus_client": "prometheus-client",
    "pyroute2": "pyroute2",
    "pyudev": "pyudev",
    "yaml": "PyYAML",
}
PACKAGES = (
    "busybox-static",
    "hwloc-nox",
    "libc-bin",
    "libpython3-stdlib",
    "libseccomp2",
    "libudev1",
    "python3-minimal",
    "python3-psutil",
)
# Something depends on them, and nothing here runs them.
NOT_NEEDED = ("dpkg", "gcc-12-base", "libdb5.3", "libtirpc-common", "media-types", "readline-common", "tar")
MODULES = ("virtio_pci", "virtio_console", "virtio_net", "e1000e", "nvme")  # loaded in this order
MORE_MODULES = ("8021q", "bonding", "overlay")  # loaded by a lab that needs them
DAYS_KEPT = 30
UEVENTS = "agent/tests/labs/uevents.py"

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
export PATH=/bin:/sbin PYTHONPATH=/agent LC_ALL=C.UTF-8
hostname guest
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "init: no $module"; done

live() { for one in /sys/class/nvme/nvme*/state; do [ "$(cat "$one")" = live ] || return 1; done; }
tries=0
until live || [ "$tries" = 100 ]; do tries=$((tries + 1)); sleep 0.1; done
for device in /sys/bus/pci/devices/*; do
  [ -e "$device/sriov_numvfs" ] || continue
  echo 0 >"$device/sriov_drivers_autoprobe" # QEMU starts secondary controllers offline
  cat "$device/sriov_totalvfs" >"$device/sriov_numvfs"
done
sleep 1
echo "init: ready after $(cut -d' ' -f1 /proc/uptime) s"

mkdir /out
say() { # say FILE COMMAND…: what it prints, and its status if that is not 0
  local file=$1
  shift
  "$@" >"/out/$file" 2>"/out/$file.stderr" || echo "$? $*" >>/out/failed
}
say host.topo python3 -m topo_agent record
say kept.topo python3 -m topo_agent record --keep-names
say dump.json python3 -m topo_agent dump -f json
say acs.json python3 -c 'import json; from topo_agent.host.live import LiveHost
print(json.dumps(LiveHost("/").document("acs")))'
say lstopo.xml lstopo-no-graphics --whole-io --of xml -
cut -d' ' -f1 /proc/uptime >/out/uptime
for port in /dev/vport*; do tar -C /out -cf - . >"$port"; done
sync
poweroff -f
"""

# Of a package only what runs: no documentation, no other character sets, no parts of Python that nobody imports here.
_LEFT_OUT = re.compile(
    r"usr/(share/(doc|man|locale|lintian|bash-completion|hwloc|info|bug|perl5)|include|lib/locale)/"
    r"|usr/lib/[^/]+/(gconv|perl[^/]*)/"
    r"|usr/lib/python3[^/]*/(idlelib|lib2to3|ensurepip|test|pydoc_data|tkinter|distutils|turtle[^/]*)(/|$)"
    r"|(var|etc/(init\.d|default|cron[^/]*))/"
)


class Guest(NamedTuple):
    kernel: Path
    initramfs: Path
    packages: str  # one file name of a package a line


def guest(architecture: str) -> Guest:
    """The guest of this architecture (`"amd64"`, `"arm64"`), built now or kept from an earlier run."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topo-agent-labs"
    folder = base / f"{architecture}-{_key()}"
    if not (folder / "kernel").exists():
        base.mkdir(parents=True, exist_ok=True)
        _forget_old(base)
        fresh = Path(tempfile.mkdtemp(prefix="new.", dir=base))
        try:
            _build(architecture, fresh)
            fresh.rename(folder)
        except OSError:
            if not (folder / "kernel").exists():  # no other run was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    packages = (folder / "packages").read_text(encoding="utf-8")
    return Guest(folder / "kernel", folder / "initramfs", packages)


def _key() -> str:
    """Of everything that goes in and is not asked of apt: this file, the dependencies, the release of Debian."""
    inputs = [Path(__file__).read_text(encoding="utf-8"), sys.version, _release()]
    inputs += [f"{name} {importlib.metadata.version(name)}" for name in DEPENDENCIES.values()]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


def _release() -> str:
    try:
        said = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "".join(line for line in said.splitlines(keepends=True) if line.startswith(("ID=", "VERSION_ID=")))


def _forget_old(base: Path) -> None:
    for folder in base.iterdir():
        if folder.stat().st_mtime < time.time() - DAYS_KEPT * 86400:
            shutil.rmtree(folder, ignore_errors=True)


def _build(architecture: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="topo-agent-apt.") as work:
        apt = Apt(architecture, Path(work))
        kernel = apt.depends(f"linux-image-{architecture}", "linux-image-")
        packages = [one for one in apt.closure(PACKAGES) if one.name.partition("_")[0] not in NOT_NEEDED]
        packages += apt.download(kernel)
        tree, kernel_files = _contents(packages)
        image = next(path for path in kernel_files if path.startswith("boot/vmlinuz-"))
        tree.update(_modules(kernel_files))
        for name in DEPENDENCIES:
            tree.update(python(_package(name), f"agent/{name}"))
        tree.update(_compiled(tree))
        tree["init"] = File(stat.S_IFREG | 0o755, INIT.encode())
        (folder / "initramfs").write_bytes(cpio(tree))
        (folder / "packages").write_text("".join(f"{one.name}\n" for one in packages), encoding="utf-8")
        (folder / "kernel").write_bytes(kernel_files[image].data)  # last: it says that all is there


def _contents(packages: Iterable[Path]) -> tuple[Tree, Tree]:
    """The files of all packages with /usr merged, and apart from them the kernel's image and modules."""
    tree: Tree = {}
    kernel: Tree = {}
    for package in packages:
        for path, file in _files(package):
            if path.startswith(("boot/", "usr/lib/modules/")):
                kernel[path] = file
            elif not _LEFT_OUT.match(path):
                tree[path] = file
    for name in ("bin", "sbin", "lib", "lib64"):
        tree[name] = link(f"usr/{name}")
        tree[f"usr/{name}"] = File(stat.S_IFDIR | 0o755)
    for name in ("dev", "proc", "sys", "tmp"):
        tree[name] = File(stat.S_IFDIR | 0o755)
    return tree, kernel


def _files(package: Path) -> Iterator[tuple[str, File]]:
    """Files and links of a package, as if /bin, /lib, /lib64 and /sbin were links into /usr."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as unpack:
        assert unpack.stdout
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
            for member in tar:
                path = re.sub(r"^(?=(bin|sbin|lib|lib64)/)", "usr/", member.name.removeprefix("./"))
                if member.issym():
                    yield path, link(member.linkname)
                elif member.isreg():
                    content = tar.extractfile(member)
                    yield path, File(stat.S_IFREG | member.mode & 0o777, content.read() if content else b"")


def _modules(found: Tree) -> Iterator[tuple[str, File]]:
    """The modules of MODULES and what they need, and `modules/order`, the order to load them in."""
    by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in found if ".ko" in path}
    order: list[str] = []

    def add(name: str) -> Iterator[tuple[str, File]]:
        path = by_name.get(name)
        if path is None or name in order:  # None: built in
            return
        file = found[path]
        data = lzma.decompress(file.data) if path.endswith(".xz") else file.data
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in depends[1].decode().split(",") if depends else ():
            yield from add(other.replace("-", "_"))
        order.append(name)
        yield f"modules/{name}", File(file.mode, data)

    for name in MODULES:
        yield from add(name)
    yield "modules/order", File(stat.S_IFREG | 0o644, "\n".join(order).encode())
    at_boot = len(order)
    for name in MORE_MODULES:
        yield from add(name)
    yield "modules/more", File(stat.S_IFREG | 0o644, "\n".join(order[at_boot:]).encode())


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found
    assert found.origin
    return Path(found.origin).parent


def python(folder: Path, where: str) -> Iterator[tuple[str, File]]:
    """The modules of a Python package, to be laid down at `where`."""
    for path in sorted(folder.rglob("*.py")):
        yield f"{where}/{path.relative_to(folder)}", File(stat.S_IFREG | 0o644, path.read_bytes())


def agent() -> bytes:
    """The program as it is in the work tree, as an archive that follows the one of the guest."""
    tree: Tree = dict(python(REPOSITORY / "agent/topo_agent", "agent/topo_agent"))
    tree.update(_compiled(tree))
    return cpio(tree)


def uevents() -> Tree:
    """What the witnesses in guests import."""
    return {UEVENTS: File(stat.S_IFREG | 0o644, (REPOSITORY / UEVENTS.removeprefix("agent/")).read_bytes())}


def _compiled(tree: Mapping[str, File]) -> Tree:
    """Compiling under emulation takes long, so it is done here; a guest with another Python ignores it."""
    made: Tree = {}
    for path, file in tree.items():
        if not path.endswith(".py"):
            continue
        try:
            code = compile(file.data, f"/{path}", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        flags = 1  # by the hash of the source, which is not to be checked: PEP 552
        head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(file.data)
        folder, _, name = path.rpartition("/")
        cached = f"{folder}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc"
        made[cached] = File(file.mode, head + marshal.dumps(code))
    return made
