"""A machine whose devices come and go: QEMU with a monitor, and the agent inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.labs.apt import CannotStart
from tests.labs.cpio import File, cpio
from tests.labs.guest import REPOSITORY, agent, guest, uevents
from tests.labs.qemu import X86, _unpack

CYCLES = 5  # over QMP; the others are done inside
SECONDS = 900

# A PCIe root for each NUMA node; a switch with a NIC and a drive below the first.
OPTIONS = """
    -machine pc-q35-7.2 -cpu Nehalem -smp 2,sockets=2,cores=1,threads=1 -m 1024M
    -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
    -device pxb-pcie,id=root0,bus=pcie.0,addr=0x8,bus_nr=16,numa_node=0
    -device pcie-root-port,id=port0,bus=root0,addr=0x0,chassis=1,slot=1
    -device x3130-upstream,id=up0,bus=port0
    -device xio3130-downstream,id=down0,bus=up0,addr=0x0,chassis=2,slot=0
    -device xio3130-downstream,id=down1,bus=up0,addr=0x1,chassis=2,slot=1
    -device e1000e,id=nic0,bus=down0,mac=52:54:00:00:00:01,romfile=
    -blockdev driver=null-co,node-name=blocks0,size=67108864
    -device nvme,id=disk0,bus=down1,serial=LAB0,drive=blocks0
    -device pxb-pcie,id=root1,bus=pcie.0,addr=0x9,bus_nr=32,numa_node=1
    -device pcie-root-port,id=port1,bus=root1,addr=0x0,chassis=4,slot=0
    -device virtio-net-pci,bus=port1,mac=52:54:00:00:00:02,romfile=
    -device virtio-serial-pci,bus=pcie.0,addr=0x5
"""
NIC, DISK = "0000:13:00.0", "0000:14:00.0"

INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mkdir -p /run
mount -t tmpfs run /run
ldconfig
export PATH=/bin:/sbin PYTHONPATH=/agent LC_ALL=C.UTF-8
hostname guest
ip link set lo up
for module in $(cat /modules/order) $(cat /modules/more); do insmod "/modules/$module"; done
mkdir /out
sleep 2
python3 /lab.py {NIC} {DISK} {CYCLES} || echo "lab: failed"
for port in /dev/vport*; do tar -C /out -cf - . >"$port"; done
sync
poweroff -f
"""


class Monitor:
    """QEMU's monitor (QMP): one command at a time, events in between."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        for _ in range(100):
            try:
                self._socket.connect(path)
                break
            except OSError:
                time.sleep(0.1)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self.events: list[dict[str, Any]] = []
        self._lines.readline()
        self.do("qmp_capabilities")

    def do(self, command: str, **arguments: Any) -> None:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            said = json.loads(self._lines.readline())
            if "event" in said:
                self.events.append(said)
            elif "error" in said:
                raise RuntimeError(f"{command}: {said['error']['desc']}")
            else:
                return

    def wait(self, event: str, device: str) -> None:
        """Until this device has this event."""
        while not any(one["event"] == event and one["data"].get("device") == device for one in self.events):
            said = json.loads(self._lines.readline())
            if "event" in said:
                self.events.append(said)

    def unplug(self, device: str) -> None:
        self.events.clear()
        self.do("device_del", id=device)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def run(folder: Path) -> tuple[dict[str, Any], str]:
    """results.json of the guest, and all that its console said."""
    if not shutil.which(X86.program):
        raise CannotStart(f"no {X86.program} here; Debian has it in the package {X86.package}")
    built = guest("amd64")
    more = {
        "init": File(stat.S_IFREG | 0o755, INIT.encode()),
        "lab.py": File(stat.S_IFREG | 0o644, (REPOSITORY / "tests/labs/hotplug_guest.py").read_bytes()),
        **uevents(),
    }
    (folder / "initramfs").write_bytes(built.initramfs.read_bytes() + agent() + cpio(more))
    console, output, monitor = folder / "console", folder / "output.tar", folder / "qmp"
    command = [
        X86.program,
        *("-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"),
        *OPTIONS.split(),
        *("-serial", f"file:{console}", "-qmp", f"unix:{monitor},server=on,wait=off"),
        *("-chardev", f"file,id=output,path={output}", "-device", "virtserialport,chardev=output,nr=1"),
        *("-kernel", str(built.kernel), "-initrd", str(folder / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as qemu:
        try:
            plug(Monitor(str(monitor)), console)
            qemu.wait(SECONDS)
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            said = console.read_text(encoding="utf-8", errors="replace") if console.exists() else ""
            raise RuntimeError(f"{error!r}; its console said last:\n{said[-3000:]}") from None
        finally:
            if qemu.poll() is None:
                os.killpg(qemu.pid, signal.SIGKILL)
    (folder / "initramfs").unlink()
    if qemu.returncode or not output.exists() or not output.stat().st_size:
        raise RuntimeError(f"QEMU ended with {qemu.returncode}, and brought nothing out")
    said = console.read_text(encoding="utf-8", errors="replace")
    _unpack(output, folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8")), said


def plug(monitor: Monitor, console: Path) -> None:
    """Unplug the NIC and the drive, and plug them again, whenever the guest says that it is ready."""
    try:
        heard(console, r"lab: ready")
        for cycle in range(CYCLES):
            for device in ("nic0", "disk0"):
                monitor.unplug(device)
                monitor.wait("DEVICE_DELETED", device)
            heard(console, rf"lab: gone {cycle}\b")
            monitor.do("device_add", driver="e1000e", id="nic0", bus="down0", mac="52:54:00:00:00:01", romfile="")
            monitor.do("device_add", driver="nvme", id="disk0", bus="down1", serial="LAB0", drive="blocks0")
            heard(console, rf"lab: back {cycle}\b")
    finally:
        monitor.close()


def heard(console: Path, pattern: str, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    text = ""
    while time.monotonic() < end:
        text = console.read_text(encoding="utf-8", errors="replace") if console.exists() else ""
        if re.search(pattern, text):
            return
        if "lab: failed" in text:
            break
        time.sleep(0.2)
    raise RuntimeError(f"the guest did not say {pattern!r}; its console said last:\n{text[-3000:]}")
