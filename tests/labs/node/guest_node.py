"""A node of a lab's cluster that is a machine of its own: two sockets, PCIe switches, devices that come and go.

QEMU builds and emulates it; `guest_witness.py` runs in it, and is asked over HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from container import oci
from tests.labs.apt import CannotStart
from tests.labs.controlplane.cluster import ENOUGH, Cluster
from tests.labs.controlplane.programs import programs
from tests.labs.cpio import File, Tree, cpio, link
from tests.labs.exporters import free_port
from tests.labs.guest import agent, guest, uevents
from tests.labs.hotplug import Monitor
from tests.labs.node import kubelet
from tests.labs.node import programs as ours
from tests.labs.node.node import Node, pause
from tests.labs.qemu import X86

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).parent
FOLDER = Path("/node")  # in the guest

# Below the first NUMA node's root a switch with a NIC, a drive and a display; below the second's a NIC. On the root of
# the chipset is the NIC that leads to the cluster: host's 127.0.0.1 is 10.0.2.2 there.
OPTIONS = """
    -machine pc-q35-7.2 -cpu Nehalem -smp 4,sockets=2,cores=2,threads=1 -m 4096M
    -object memory-backend-ram,id=m0,size=2048M -object memory-backend-ram,id=m1,size=2048M
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1
    -device pxb-pcie,id=root0,bus=pcie.0,addr=0x8,bus_nr=16,numa_node=0
    -device pcie-root-port,id=port0,bus=root0,addr=0x0,chassis=1,slot=1
    -device x3130-upstream,id=up0,bus=port0
    -device xio3130-downstream,id=down0,bus=up0,addr=0x0,chassis=2,slot=0
    -device xio3130-downstream,id=down1,bus=up0,addr=0x1,chassis=2,slot=1
    -device xio3130-downstream,id=down2,bus=up0,addr=0x2,chassis=2,slot=2
    -device e1000e,id=nic0,bus=down0,mac=52:54:00:00:00:01,romfile=
    -blockdev driver=null-co,node-name=blocks0,size=67108864
    -device nvme,id=disk0,bus=down1,serial=LAB0,drive=blocks0
    -device bochs-display,bus=down2
    -device pxb-pcie,id=root1,bus=pcie.0,addr=0x9,bus_nr=32,numa_node=1
    -device pcie-root-port,id=port1,bus=root1,addr=0x0,chassis=4,slot=0
    -device e1000e,bus=port1,mac=52:54:00:00:00:02,romfile=
    -device virtio-net-pci,netdev=cluster,bus=pcie.0,addr=0x4,mac=52:54:00:00:00:10,romfile=
"""
NIC = "0000:13:00.0"

# What kubelet and containerd read there.
ETC = {
    "group": "root:x:0:\n",
    "hosts": "127.0.0.1 localhost\n",
    "machine-id": "0123456789abcdef0123456789abcdef\n",
    "passwd": "root:x:0:0:root:/:/bin/sh\n",
    "resolv.conf": "",
}
INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
mount -t proc proc /proc
export PATH=/bin:/sbin:{FOLDER}/bin PYTHONPATH=/agent LC_ALL=C.UTF-8
for module in $(cat /modules/order) $(cat /modules/more); do insmod "/modules/$module"; done
ldconfig
umount /proc
# The root that the kernel makes cannot be left by pivot_root, which every container does: bound over itself it can.
mkdir -p /root
mount --bind / /root
cd /root
mount --move . /
exec chroot . {FOLDER}/init
"""
SECOND = f"""\
#!/bin/busybox sh
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroups /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm /run /var/lib /var/log
mount -t devpts devpts /dev/pts
for place in /dev/shm /run /tmp /var/lib {FOLDER}/state; do mount -t tmpfs tmp $place; done
mount --make-rshared /
for one in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$one" >/sys/fs/cgroup/cgroup.subtree_control; done
mkdir /sys/fs/cgroup/node
ip link set lo up
for one in /sys/class/net/*; do
  [ "$(cat $one/address 2>/dev/null)" = 52:54:00:00:00:10 ] || continue
  ip link set "${{one##*/}}" up
  ip addr add 10.0.2.15/24 dev "${{one##*/}}"
done
ip route add default via 10.0.2.2
(python3 {FOLDER}/witness.py {FOLDER} || echo "witness: failed") &
while :; do sleep 1; done # the first process: whenever it waits, orphans go as well
"""


class GuestNode(Node):
    """`with GuestNode(cluster, "g1", images) as node:` is Ready; CannotStart where the machine does not do.

    `images` are names and OCI archives. `cluster` knows the user system:node:NAME, as for NodeOf, and is found at the
    same address by the guest.
    """

    ready_within = 300.0

    def __init__(self, cluster: Cluster, name: str, images: Mapping[str, Path]) -> None:
        if not shutil.which(X86.program):
            raise CannotStart(f"no {X86.program} here; Debian has it in the package {X86.package}")
        for tool in ("gcc", "setpriv"):
            if not shutil.which(tool):
                raise CannotStart(f"no {tool} here")
        super().__init__(cluster, name)
        self._images = images
        self._guest = guest("amd64")
        self._qemu: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except AssertionError as error:  # emulated machines hang now and then
            print(f"booted once more: {error}")
            return super().__enter__()

    def _start(self) -> None:
        initramfs = self.folder / "initramfs"
        initramfs.write_bytes(self._guest.initramfs.read_bytes() + agent() + cpio(self._tree()))
        self._port = free_port()
        monitor = self.folder / "qmp"
        user = f"user,id=cluster,hostfwd=tcp:127.0.0.1:{self._port}-:8080"
        command = [
            *("setpriv", "--pdeathsig", "KILL", "--", X86.program),  # its end, even where the test is killed
            *("-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"),
            *("-netdev", user, *OPTIONS.split()),
            *("-serial", f"file:{self.folder}/console", "-qmp", f"unix:{monitor},server=on,wait=off"),
            *("-kernel", str(self._guest.kernel), "-initrd", str(initramfs)),
            *("-append", "console=ttyS0 quiet panic=-1"),
        ]
        self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.monitor = Monitor(str(monitor))

    def _tree(self) -> Tree:
        """What the guest has besides Python and the agent."""
        paths = programs(self.folder / "bin")
        found = {path.name: path for path in (*ours.containerd().iterdir(), ours.runc())}
        found |= {"kubelet": Path(paths["kubelet"]).resolve(), "loopback": ours.cni() / "loopback"}
        tree: Tree = {f"node/bin/{name}": _program(path.read_bytes()) for name, path in found.items()}
        images = {kubelet.PAUSE: pause(self.folder), **self._images}
        order = []
        for number, (name, archive) in enumerate(images.items()):
            tree[f"node/images/{number}.tar"] = _file(archive.read_bytes())
            order.append((f"{FOLDER}/images/{number}.tar", oci.name(archive), name))
        binaries, user = FOLDER / "bin", f"system:node:{self.name}"
        kubeconfig = Path(self.cluster.kubeconfig_for(self.cluster.user_token(user), user))
        said = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        said["clusters"][0]["cluster"]["certificate-authority"] = f"{FOLDER}/ca.crt"
        loopback = {"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "loopback"}]}
        settings = {
            "ca.crt": self.cluster.ca.read_text(encoding="utf-8"),
            "kubeconfig": yaml.safe_dump(said),
            "containerd.toml": kubelet.containerd(FOLDER, binaries / "runc", binaries),
            "kubelet.yaml": kubelet.kubelet(FOLDER, 10250, {}),
            "cni/lab.conflist": json.dumps(loopback),
            "about.json": json.dumps(
                {"name": self.name, "images": order, "apiserver": int(self.cluster.server.rpartition(":")[2])}
            ),
            "witness.py": (HERE / "guest_witness.py").read_text(encoding="utf-8"),
        }
        tree |= {f"node/{name}": _file(text.encode()) for name, text in settings.items()}
        tree |= {f"etc/{name}": _file(text.encode()) for name, text in ETC.items()}
        for name in ("cdi", "logs", "state", "tmp"):
            tree[f"node/{name}"] = File(stat.S_IFDIR | 0o755)
        # What containerd writes is on a file system that overlays can be on.
        tree["node/containerd"] = link("state")
        return tree | uevents() | {"init": _program(INIT.encode()), "node/init": _program(SECOND.encode())}

    def stop(self) -> None:
        qemu, self._qemu = self._qemu, None
        if qemu:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(qemu.pid, signal.SIGKILL)
            qemu.wait()
            self.monitor.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, so: Callable[[], object], what: str, seconds: float = ENOUGH) -> None:
        def found() -> object:
            assert self._qemu
            assert self._qemu.poll() is None, f"QEMU ended: {self.console()}"
            assert "witness: failed" not in self.console(), self.console()
            return so()

        try:
            self.cluster.wait(found, what, seconds)
        except AssertionError as error:
            logs = [self.console()]
            for name in ("containerd", "kubelet"):
                with contextlib.suppress(OSError):
                    logs.append(f"{name}: {self.ask(f'log/{name}')[-3000:]}")
            raise AssertionError("\n".join([str(error), *logs])) from None

    def console(self) -> str:
        return (self.folder / "console").read_text(encoding="utf-8", errors="replace")[-3000:]

    # What the guest says

    def ask(self, path: str, seconds: float = ENOUGH) -> str:
        """What the witness says: `pci`, `dump/labels`, `metrics`, `age`, `log/kubelet`, and so on."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=seconds) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise OSError(f"{path}: {error.read().decode(errors='replace')}") from None

    def since_event(self) -> float:
        """Seconds since the last uevent of what the agent looks at, by the guest's clock."""
        return float(self.ask("age"))

    def logs(self, pod: str, namespace: str = "default") -> str:
        with contextlib.suppress(OSError):
            return self.ask(f"pods/{namespace}_{pod}")
        return ""

    # What its slots hold

    def unplug(self) -> None:
        """The NIC of the switch: the guest gives it back after the five seconds of an attention button."""
        self.monitor.unplug("nic0")
        self.monitor.wait("DEVICE_DELETED", "nic0")

    def plug(self) -> None:
        self.monitor.do("device_add", driver="e1000e", id="nic0", bus="down0", mac="52:54:00:00:00:01", romfile="")


def _file(content: bytes) -> File:
    return File(stat.S_IFREG | 0o644, content)


def _program(content: bytes) -> File:
    return File(stat.S_IFREG | 0o755, content)
