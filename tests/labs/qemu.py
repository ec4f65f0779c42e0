"""Two machines that QEMU builds and emulates: boot one, let the agent record it inside, bring out what it wrote.

Never with KVM: an emulated processor is the same on every machine, so a recording can be compared with one.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.labs.apt import CannotStart
from tests.labs.guest import Guest, agent, guest

BOOT_SECONDS = 170
OUTPUT_BYTES = 32 << 20

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str  # of the folder in fixtures/
    program: str
    package: str
    architecture: str  # as Debian names it
    console: str
    options: str  # the truth that fixtures/*/expected.json is typed from; a line that ends in a comma goes on


X86 = Machine(
    name="qemu-x86",
    program="qemu-system-x86_64",
    package="qemu-system-x86",
    architecture="amd64",
    console="ttyS0",
    options="""
        -machine pc-q35-7.2
        -cpu Nehalem
        -smp 8,sockets=2,cores=2,threads=2
        -m 1280M
        -object memory-backend-ram,id=m0,size=512M
        -object memory-backend-ram,id=m1,size=512M
        -object memory-backend-ram,id=m2,size=256M
        -numa node,nodeid=0,cpus=0-3,memdev=m0
        -numa node,nodeid=1,cpus=4-7,memdev=m1
        -numa node,nodeid=2,memdev=m2
        -numa dist,src=0,dst=1,val=21
        -numa dist,src=0,dst=2,val=17
        -numa dist,src=1,dst=0,val=22
        -numa dist,src=1,dst=2,val=28
        -numa dist,src=2,dst=0,val=18
        -numa dist,src=2,dst=1,val=29

        -device pxb-pcie,id=root0,bus=pcie.0,addr=0x8,bus_nr=16,numa_node=0
        -device pcie-root-port,id=port0,bus=root0,addr=0x0,chassis=1,slot=1
        -device x3130-upstream,id=up0,bus=port0
        -device xio3130-downstream,id=down00,bus=up0,addr=0x0,chassis=2,slot=0
        -device xio3130-downstream,id=down01,bus=up0,addr=0x1,chassis=2,slot=1
        -device e1000e,bus=down00,mac=52:54:00:00:00:01,romfile=
        -device x3130-upstream,id=up1,bus=down01
        -device xio3130-downstream,id=down10,bus=up1,addr=0x0,chassis=3,slot=0
        -device xio3130-downstream,id=down11,bus=up1,addr=0x1,chassis=3,slot=1
        -blockdev driver=null-co,node-name=disk0,size=67108864
        -device nvme-subsys,id=subsystem0
        -device nvme,id=nvme0,bus=down10,serial=QEMU0000,subsys=subsystem0,
            sriov_max_vfs=3,sriov_vq_flexible=6,sriov_vi_flexible=3
        -device nvme-ns,bus=nvme0,drive=disk0,nsid=1
        -device bochs-display,bus=down11

        -device pxb-pcie,id=root1,bus=pcie.0,addr=0x9,bus_nr=32,numa_node=1
        -device pcie-root-port,id=port1,bus=root1,addr=0x0,chassis=4,slot=0
        -device pcie-root-port,id=port2,bus=root1,addr=0x1,chassis=5,slot=0
        -device virtio-net-pci,bus=port1,mac=52:54:00:00:00:02,romfile=
        -blockdev driver=null-co,node-name=disk1,size=67108864
        -device nvme,bus=port2,serial=QEMU0001,drive=disk1

        -device pxb-pcie,id=root2,bus=pcie.0,addr=0xa,bus_nr=48,numa_node=2
        -device pcie-root-port,id=port3,bus=root2,addr=0x0,chassis=6,slot=0
        -device e1000e,bus=port3,mac=52:54:00:00:00:03,romfile=

        -device virtio-net-pci,bus=pcie.0,addr=0x4,mac=52:54:00:00:00:04,romfile=
        -device virtio-serial-pci,bus=pcie.0,addr=0x5
    """,
)

ARM64 = Machine(
    name="qemu-arm64",
    program="qemu-system-aarch64",
    package="qemu-system-arm",
    architecture="arm64",
    console="ttyAMA0",
    options="""
        -machine virt-7.2,gic-version=3
        -cpu cortex-a72
        -smp 4,sockets=2,clusters=1,cores=2,threads=1
        -m 1024M
        -object memory-backend-ram,id=m0,size=512M
        -object memory-backend-ram,id=m1,size=512M
        -numa node,nodeid=0,cpus=0-1,memdev=m0
        -numa node,nodeid=1,cpus=2-3,memdev=m1
        -numa dist,src=0,dst=1,val=40
        -numa dist,src=1,dst=0,val=44

        -device pcie-root-port,id=port0,bus=pcie.0,addr=0x2,chassis=1,slot=0
        -blockdev driver=null-co,node-name=disk0,size=67108864
        -device nvme,bus=port0,serial=QEMU0000,drive=disk0

        -device pcie-root-port,id=port1,bus=pcie.0,addr=0x3,chassis=2,slot=0
        -device x3130-upstream,id=up0,bus=port1
        -device xio3130-downstream,id=down0,bus=up0,addr=0x0,chassis=3,slot=0
        -device xio3130-downstream,id=down1,bus=up0,addr=0x1,chassis=3,slot=1
        -device virtio-net-pci,bus=down0,mac=52:54:00:00:00:01,romfile=
        -device e1000e,bus=down1,mac=52:54:00:00:00:02,romfile=

        -device virtio-net-pci,bus=pcie.0,addr=0x4,mac=52:54:00:00:00:03,romfile=
        -device virtio-serial-pci,bus=pcie.0,addr=0x5
    """,
)

MACHINES = (X86, ARM64)


@dataclass(frozen=True, kw_only=True)
class Boot:
    """What one boot left behind."""

    folder: Path  # host.topo, kept.topo (with names), dump.json, lstopo.xml
    seconds: float  # from the start of QEMU to its end
    ready: float  # what the guest's own clock said when the agent was started


def booted(boot: Callable[[Path], T], folders: Callable[[], Path]) -> T:
    """What a boot gives; an emulated machine that dies, or hangs, without having said why, is booted once more."""
    try:
        return boot(folders())
    except RuntimeError as error:
        print(f"booted once more: {error}")
        return boot(folders())


def boot(machine: Machine, folder: Path) -> Boot:
    """Boot the machine once and wait until it is switched off; `folder` gets what it wrote."""
    if not shutil.which(machine.program):
        raise CannotStart(f"no {machine.program} here; Debian has it in the package {machine.package}")
    built = guest(machine.architecture)
    initramfs = folder / "initramfs"
    initramfs.write_bytes(built.initramfs.read_bytes() + agent())
    console, output = folder / "console", folder / "output.tar"
    started = time.monotonic()
    status = _run([*_command(machine, built, initramfs, console, output)], BOOT_SECONDS)
    seconds = time.monotonic() - started
    initramfs.unlink()
    said = console.read_text(encoding="utf-8", errors="replace") if console.exists() else ""
    if status:
        raise RuntimeError(f"{machine.name}: {status}; the console said last:\n{said[-3000:]}")
    ready = re.search(r"init: ready after ([0-9.]+) s", said)
    assert ready, said[-3000:]
    _unpack(output, folder)
    if (folder / "failed").exists():
        what = "".join(one.read_text(encoding="utf-8") for one in (folder / "failed", *folder.glob("*.stderr")))
        raise RuntimeError(f"{machine.name}: in the guest failed: {what}")
    return Boot(folder=folder, seconds=seconds, ready=float(ready[1]))


def _command(machine: Machine, built: Guest, initramfs: Path, console: Path, output: Path) -> list[str]:
    boot = f"console={machine.console} quiet panic=-1"
    return [
        machine.program,
        *("-accel", "tcg", "-nodefaults", "-display", "none", "-no-reboot"),
        *re.sub(r",\s+", ",", machine.options).split(),
        *("-serial", f"file:{console}"),
        *("-chardev", f"file,id=output,path={output}", "-device", "virtserialport,chardev=output,nr=1"),
        *("-kernel", str(built.kernel), "-initrd", str(initramfs), "-append", boot),
    ]


def _run(command: list[str], seconds: int) -> str | None:
    """What went wrong, or None; whatever happens, nothing is left running."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as qemu:
        try:
            _, said = qemu.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"not switched off after {seconds} s"
        finally:
            if qemu.poll() is None:
                os.killpg(qemu.pid, signal.SIGKILL)
    return f"QEMU ended with {qemu.returncode}: {said.strip()}" if qemu.returncode else None


def _unpack(archive: Path, folder: Path) -> None:
    """The files of the archive that came out of the guest, each at its own name."""
    assert archive.stat().st_size <= OUTPUT_BYTES
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content:
                (folder / Path(member.name).name).write_bytes(content.read())
