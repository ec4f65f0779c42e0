"""A machine that runs Debian's own systemd: the package is installed there, as the README tells it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.debian import NoPackage, package
from tests.labs.apt import Apt, CannotStart
from tests.labs.cpio import File, Tree, cpio, link
from tests.labs.guest import REPOSITORY, _files, _release, guest
from tests.labs.qemu import X86, _unpack
from tests.test_docs import blocks

SECONDS = 1200
# deb-systemd-invoke, which asks policy-rc.d, is written in Perl; apt and wget are what the README names; dash,
# coreutils and findutils are what a maintainer script meets on a server.
PACKAGES = (
    *("apt", "coreutils", "dash", "dpkg", "findutils", "init-system-helpers", "libc-bin", "perl-base", "python3"),
    *("systemd", "systemd-sysv", "udev", "usr-is-merged", "wget"),
)

# A NIC near one NUMA node, a drive near the other.
OPTIONS = """
    -machine pc-q35-7.2 -cpu Nehalem -smp 2,sockets=2,cores=1,threads=1 -m 1536M
    -object memory-backend-ram,id=m0,size=768M -object memory-backend-ram,id=m1,size=768M
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
    -device pxb-pcie,id=root0,bus=pcie.0,addr=0x8,bus_nr=16,numa_node=0
    -device pcie-root-port,id=port0,bus=root0,addr=0x0,chassis=1,slot=1
    -device e1000e,id=nic0,bus=port0,mac=52:54:00:00:00:01,romfile=
    -device pxb-pcie,id=root1,bus=pcie.0,addr=0x9,bus_nr=32,numa_node=1
    -device pcie-root-port,id=port1,bus=root1,addr=0x0,chassis=2,slot=1
    -blockdev driver=null-co,node-name=blocks0,size=67108864
    -device nvme,id=disk0,bus=port1,serial=LAB0,drive=blocks0
    -device virtio-serial-pci,bus=pcie.0,addr=0x5
"""
NODES = {"0000:11:00.0": 0, "0000:21:00.0": 1}  # the NIC, the drive

# The root that the kernel makes cannot be left by pivot_root, which systemd needs for a service's own view of files:
# bound over itself it is a root like any other.
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
mount -t proc proc /proc
export PATH=/bin:/sbin LC_ALL=C.UTF-8
for module in $(cat /modules/order); do insmod "/modules/$module"; done
ldconfig
umount /proc
umount /dev
mkdir /root
mount --bind / /root
cd /root
mount --move . /
exec chroot . /lib/systemd/systemd
"""
LAB = """\
#!/bin/sh
cd /work
/usr/bin/python3 -I /lab.py || echo "lab: failed"
for port in /dev/vport*; do tar -C /out -cf - . >"$port"; done
sync
busybox poweroff -f
"""
UNIT = """\
[Unit]
After=systemd-user-sessions.service
[Service]
ExecStart=/lab
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
Environment=LC_ALL=C.UTF-8
"""

_LEFT_OUT = re.compile(r"usr/(share/(doc|man|locale|lintian|bash-completion|info|bug)/|lib/udev/hwdb)")
_MASKED = (
    "getty.target",
    "systemd-logind.service",
    "systemd-random-seed.service",
    "systemd-update-utmp.service",
    "systemd-timesyncd.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
)


class Ended(NamedTuple):
    results: dict[str, Any]
    console: str
    seconds: float  # from the start of QEMU to its end


def commands() -> list[str]:
    """What the README tells to type."""
    (block,) = [one for one in blocks(REPOSITORY / "README.md") if one.tag == "sh service"]
    return [line.partition("#")[0].strip() for line in block.text.splitlines()]


def run(folder: Path) -> Ended:
    """Boot once, install, try, remove."""
    if not shutil.which(X86.program):
        raise CannotStart(f"no {X86.program} here; Debian has it in the package {X86.package}")
    try:
        built = package(folder)
    except NoPackage as error:
        raise CannotStart(str(error)) from None
    first = guest("amd64")
    rest = _system(first.packages)
    (folder / "initramfs").write_bytes(
        first.initramfs.read_bytes() + rest.read_bytes() + cpio(_lab(built) | _byte_code(built))
    )
    console, output = folder / "console", folder / "output.tar"
    command = [
        X86.program,
        *("-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"),
        *OPTIONS.split(),
        *("-serial", f"file:{console}"),
        *("-chardev", f"file,id=output,path={output}", "-device", "virtserialport,chardev=output,nr=1"),
        *("-kernel", str(first.kernel), "-initrd", str(folder / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1 systemd.show_status=1"),
    ]
    started = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as qemu:
        try:
            status = qemu.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"not switched off after {SECONDS} s; its console said last:\n{_tail(console)}"
            ) from None
        finally:
            if qemu.poll() is None:
                os.killpg(qemu.pid, signal.SIGKILL)
    seconds = time.monotonic() - started
    (folder / "initramfs").unlink()
    if status or not output.stat().st_size:
        raise RuntimeError(f"QEMU ended with {status}, and this was on the console last:\n{_tail(console)}")
    _unpack(output, folder)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if "error" in results:
        raise RuntimeError(f"in the guest failed: {results['error']}\n{_tail(console)}")
    return Ended(results, console.read_text(encoding="utf-8", errors="replace"), seconds)


def _tail(console: Path) -> str:
    return console.read_text(encoding="utf-8", errors="replace")[-4000:] if console.exists() else "nothing"


# What the guest holds


def _lab(built: Path) -> Tree:
    """What changes with every run: the package, and what is done with it."""
    script = (REPOSITORY / "tests/labs/service_guest.py").read_bytes()
    said = json.dumps([one for one in commands() if not one.startswith("make ")])
    return {
        "init": _program(INIT),
        "lab": _program(LAB),
        "lab.py": _text(script.decode()),
        "commands.json": _text(said),
        f"work/dist/{built.name}": File(stat.S_IFREG | 0o644, built.read_bytes()),
    }


def _byte_code(built: Path) -> Tree:
    """Emulated, compiling takes a minute: the first installation finds it done, and the upgrade does it itself."""
    with tempfile.TemporaryDirectory(prefix="topo-agent-deb.") as folder:
        subprocess.run(["dpkg-deb", "--extract", built, folder], check=True)
        library = f"{folder}/usr/lib/topo-agent"
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-s", folder, "-p", "/", library], check=True,
                       env={"PATH": os.environ["PATH"]})  # fmt: skip
        return {
            str(path.relative_to(folder)): File(stat.S_IFREG | 0o644, path.read_bytes())
            for path in Path(folder).rglob("*.pyc")
        }


def _system(there: str) -> Path:
    """systemd and what else the first guest has not: an archive that follows it, built now or kept from earlier."""
    inputs = [Path(__file__).read_text(encoding="utf-8"), there, _release()]
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topo-agent-labs"
    path = base / f"systemd-{key}" / "archive"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="topo-agent-apt.") as work:
            packages = Apt("amd64", Path(work)).closure(PACKAGES)
            tree = {**_contents(packages, {*there.split()}), **_database(packages), **_configuration()}
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f"new.{os.getpid()}")
        fresh.write_bytes(cpio(tree))
        fresh.rename(path)
    return path


def _contents(packages: Iterable[Path], there: set[str]) -> Tree:
    return {
        path: file
        for one in packages
        if one.name not in there
        for path, file in _files(one)
        if not _LEFT_OUT.match(path) and path.startswith(("etc/", "usr/"))
    }


def _database(packages: Iterable[Path]) -> Tree:
    """dpkg's own, of what is there: so it judges what ours depends on."""
    tree: Tree = {}
    stanzas = []
    for one in packages:
        control = subprocess.run(["dpkg-deb", "--field", one], capture_output=True, text=True, check=True).stdout
        stanzas.append(f"{control.rstrip()}\nStatus: install ok installed\n")
        said = dict(line.split(": ", 1) for line in control.splitlines() if re.match(r"[A-Z][A-Za-z-]*: ", line))
        same = said.get("Multi-Arch") == "same"
        name = f"{said['Package']}:{said['Architecture']}" if same else said["Package"]
        tree[f"var/lib/dpkg/info/{name}.list"] = _text("/.\n")
    tree["var/lib/dpkg/status"] = _text("\n".join(stanzas))
    for name in ("var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/apt/lists/partial",
                 "var/cache/apt/archives/partial", "var/log/apt"):  # fmt: skip
        tree[name] = File(stat.S_IFDIR | 0o755)
    return tree


def _configuration() -> Tree:
    tree = {
        "etc/passwd": _text("root:x:0:0:root:/:/bin/sh\n_apt:x:42:65534::/:/bin/false\n"),
        "etc/group": _text("root:x:0:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nkmem:x:15:\nutmp:x:43:\nnogroup:x:65534:\n"),
        "etc/nsswitch.conf": _text("passwd: files\ngroup: files\n"),
        "etc/hostname": _text("guest\n"),
        "etc/machine-id": _text("0123456789abcdef0123456789abcdef\n"),
        "etc/fstab": _text(""),
        "etc/os-release": _text('ID=debian\nNAME="Debian"\nPRETTY_NAME="Debian in a lab"\n'),
        "etc/apt/apt.conf.d/lab": _text('APT::Get::Assume-Yes "true";\nAPT::Sandbox::User "root";\n'),
        "etc/systemd/system/default.target": link("/lib/systemd/system/multi-user.target"),
        "etc/systemd/system/lab.service": _text(UNIT),
        "etc/systemd/system/multi-user.target.wants/lab.service": link("/etc/systemd/system/lab.service"),
        "usr/bin/sudo": _program('#!/bin/sh\nexec "$@"\n'),
        "out": File(stat.S_IFDIR | 0o755),
        "var/tmp": File(stat.S_IFDIR | 0o1777),
        "var/log": File(stat.S_IFDIR | 0o755),
        "var/run": link("/run"),
    }
    tree |= {f"etc/systemd/system/{name}": link("/dev/null") for name in _MASKED}
    return tree


def _text(text: str) -> File:
    return File(stat.S_IFREG | 0o644, text.encode())


def _program(text: str) -> File:
    return File(stat.S_IFREG | 0o755, text.encode())
