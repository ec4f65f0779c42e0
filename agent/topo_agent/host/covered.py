"""What of a machine is recorded: whole directories, so that next year's field is in last year's recording.

Nothing here knows what the sources read. What is left out is what costs (config space, VPD, firmware
mailboxes, sensors), what does something when it is opened, and what no topology needs by the thousand.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from topo_agent.host import DOCUMENTS, TEXT_LIMIT, Host, Unavailable, resolve
from topo_agent.host.paper import PATH_AT_MOST, Document, Entry, Failure, Link, PaperHost

ENTRIES_AT_MOST = 500_000
BYTES_AT_MOST = 128 << 20
DEPTH_AT_MOST = 40

_CLASSES = (
    *("accel", "block", "cxl", "dax", "dmi", "drm", "infiniband", "infiniband_mad", "infiniband_verbs", "iommu", "kfd"),
    *("mic", "misc", "nd", "net", "nvme", "nvme-fabrics", "nvme-generic", "nvme-subsystem", "pci_bus", "ptp"),
)
_BUSES = ("auxiliary", "cpu", "cxl", "dax", "memory_tiering", "nd", "node", "pci", "vdpa", "virtio", "vmbus")
_MODULES = (
    *("amdgpu", "bnxt_en", "bnxt_re", "cxl_core", "efa", "gdrdrv", "habanalabs", "i915", "ib_core", "ib_uverbs", "ice"),
    *("irdma", "kmem", "mlx4_core", "mlx5_core", "mlx5_ib", "nv_peer_mem", "nvidia", "nvidia_drm", "nvidia_fs"),
    *("nvidia_peermem", "nvidia_uvm", "nvme", "nvme_core", "rdma_cm", "vfio_pci", "vmd", "xe"),
)

_DIRECTORIES = (
    "sys/devices/system/cpu",
    "sys/devices/system/node",
    *(f"sys/bus/{bus}/{part}" for bus in _BUSES for part in ("devices", "drivers", "slots")),
    *(f"sys/class/{name}" for name in _CLASSES),
    "sys/devices/virtual/dmi",
    "sys/devices/virtual/kfd",
    "sys/devices/virtual/memory_tiering",
    "sys/devices/virtual/net",
    "sys/devices/virtual/nvme-subsystem",
    "sys/firmware/devicetree/base/compatible",
    "sys/firmware/devicetree/base/model",
    "sys/hypervisor",
    "sys/kernel/iommu_groups",
    "sys/kernel/mm/hugepages",
    "sys/kernel/pci_switch_link",
    *(f"sys/devices/{pmu}/cpus" for pmu in ("cpu_atom", "cpu_core", "cpu_lowpower")),
    *(f"sys/module/{name}/{file}" for name in _MODULES for file in ("version", "srcversion", "initstate")),
    "sys/module/nvme_core/parameters/multipath",
    "etc/hostname",  # so that a recording that kept its names can be redacted later
    "proc/cmdline",
    "proc/cpuinfo",
    "proc/driver/nvidia",
    "proc/meminfo",
    "proc/net/bonding",
    "proc/sys/kernel/hostname",
    "proc/sys/kernel/osrelease",
)

_HOST_BRIDGE = re.compile(r"(?:.*/)?pci[0-9a-f]{4,8}:[0-9a-f]{2}(?=/|$)", re.ASCII)
_NOT_FOLLOWED = re.compile(r"sys/devices/virtual/(?:block|bdi|mem|misc|tty|vc)/|sys/devices/pnp")
# A driver's files are for writing (bind, new_id, uevent); its links say which devices it has.
_LINKS_ONLY = re.compile(r"sys/bus/[^/]+/drivers/[^/]+/[^/]+")

_NEVER = re.compile(
    # opening these costs a hundred normal files, wakes devices, or does something to them
    r"config|vpd|rom|resource.*|remove|rescan|rescan_controller|reset|reset_controller|delete.*|new_id|remove_id"
    r"|demote|reclaim|bind|unbind|uevent_helper|drivers_probe|probe|release|compact|test|allocate|trace|dump|crash_notes.*"
    # secrets that no pseudonym helps, and contents of memories
    r"|.*secret.*|.*passw.*|.*psk.*|tls_key|edid|nvmem|eeprom|psp_vbflash.*|usbc_pd_fw"
    # sensors, firmware mailboxes, and what wakes the SMU of an AMD GPU
    r"|hwmon.*|thermal.*|cpufreq|cpuidle|microcode|feedback_ctrs|pp_.*|gpu_metrics|pm_metrics|apu_metrics"
    r"|(?:gpu|mem|vcn)_busy_percent|power_dpm_.*|pcie_bw|pcie_replay_count|smartshift_.*|ras|ip_discovery"
    # other subsystems, counters, processes
    r"|statistics|queues|counters|hw_counters|stats|stat|inflight|vmstat|numastat|ecn|mq|integrity|proc"
    r"|i2c-.*|usb[0-9-].*|usb|ata[0-9].*|host[0-9].*|sound|leds|tty.*|input.*|backlight|graphics|wakeup.*"
    r"|video4linux|drm_dp_aux.*|memory[0-9]+",
    re.ASCII,
)
# A RoCE port has 256 GIDs with three files each, and a PF with many ports has thousands; the first ones tell.
_MANY = re.compile(r".*/(?:gids|ndevs|types|pkeys)/(?:1[6-9]|[2-9][0-9]|[0-9]{3,})", re.ASCII)


def left_out(path: str) -> bool:
    """Is this path one that a recording never opens? Every component counts: `…/power/control` is one."""
    tail = path.partition("/power/")[2]
    if tail and tail != "runtime_status":
        return True
    below = path.split("/")[1:]
    return any(map(_NEVER.fullmatch, below)) or _MANY.fullmatch(path) is not None


def copy(host: Host) -> PaperHost:
    """Everything of `host` that is recorded, on paper, as it is: nothing is redacted."""
    walk = _Walk(host)
    walk.everything()
    source = host.source._replace(kind="recording", complete=host.source.complete and not walk.cut)
    return PaperHost(walk.found, dict(_answers(host)), source=source)


def _answers(host: Host) -> Iterator[tuple[str, Document]]:
    names = {*DOCUMENTS, *host.documents} if isinstance(host, PaperHost) else set(DOCUMENTS)
    for name in sorted(names):
        try:
            yield name, host.document(name)
        except Unavailable as error:
            if error.reason != "not_recorded":
                yield name, error


class _Walk:
    """Goes through directories, each once; links are kept and not gone through, save those of a class or bus."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.found: dict[str, Entry] = {}
        self.cut = False  # was something left out because there was too much?
        self._bytes = 0

    def everything(self) -> None:
        if self.host.source.kind == "recording":
            self.directory("")  # whoever recorded it chose already, perhaps by a longer list
            return
        for root in self._roots():
            self.directory(root)
        for path in _DIRECTORIES:
            self.entry(path)
        for path in sorted(self._targets()):
            self.entry(path)
        for path in sorted(self.found):
            directory, _, irq = path.rpartition("/")
            if directory.endswith("/msi_irqs"):  # of all interrupts, those of recorded functions
                for name in ("effective_affinity_list", "smp_affinity_list"):
                    self.entry(f"proc/irq/{irq}/{name}")

    def _roots(self) -> list[str]:
        """The directories of the PCI host bridges, wherever they hang, and the devices they hang on."""
        roots = {f"sys/devices/{name}" for name in self._names("sys/devices") if _HOST_BRIDGE.fullmatch(name)}
        for name in self._names("sys/bus/pci/devices"):
            matched = _HOST_BRIDGE.match(self._target(f"sys/bus/pci/devices/{name}") or "")
            if matched:
                roots.add(_topmost(matched[0]))
        for root in sorted(roots):
            parts = root.split("/")
            for depth in range(3, len(parts)):  # ACPI, VMBus and platform devices: their own files only
                self.directory("/".join(parts[:depth]), deep=False)
        return sorted(roots)

    def _targets(self) -> Iterator[str]:
        """Where the links of classes and buses lead: devices that are below no PCI host bridge."""
        for link, entry in list(self.found.items()):
            if isinstance(entry, Link) and link.startswith(("sys/class/", "sys/bus/")):
                target = resolve(link.rpartition("/")[0], entry.target) or ""
                if target.startswith("sys/devices/") and not _NOT_FOLLOWED.match(target) and not left_out(target):
                    yield from _device(target)

    def directory(self, path: str, *, deep: bool = True) -> None:
        """Files and links of a directory first, then what is below: it stays open meanwhile."""
        try:
            names = self.host.names(path)
        except OSError as error:
            self._keep(path, Failure(error.errno or errno.EIO, directory=True))
            return
        if path:
            self._keep(path, None)
        rest: dict[str, int] = {}
        for name in names:
            below = f"{path}/{name}".lstrip("/")
            number = self._file(below)
            if number:
                rest[below] = number
        for below, number in rest.items() if deep else ():
            self._directory_or_failure(below, number)

    def entry(self, path: str) -> None:
        """A file, a link, or a directory with everything below it."""
        error = self._file(path)
        if error:
            self._directory_or_failure(path, error)

    def _directory_or_failure(self, path: str, error: int) -> None:
        """Something that gave no text: a directory, listed or not, or a file with an error of its own."""
        if error in (errno.ENOENT, errno.ENODEV) or path.count("/") > DEPTH_AT_MOST:
            return
        try:
            directory = bool(self.host.names(path)) or self._failure(f"{path}/.") != errno.ENOTDIR
        except OSError:
            directory = True
        if directory:
            self.directory(path)
        else:
            self._keep(path, Failure(error))

    def _file(self, path: str) -> int:
        """Keep a link, or a file that can be read; the error of what may be a directory. Nothing is read twice."""
        if path in self.found or left_out(path):
            return 0
        try:
            target = self.host.link(path)
            if target is None and _LINKS_ONLY.match(path):
                return 0
            self._keep(path, Link(target) if target is not None else self.host.text(path, TEXT_LIMIT))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _failure(self, path: str) -> int:
        try:
            self.host.text(path, 1)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _keep(self, path: str, entry: Entry) -> None:
        self._bytes += len(path) + (len(entry) if isinstance(entry, str) else 0)
        long = max(len(path), len(entry.target) if isinstance(entry, Link) else 0) > PATH_AT_MOST
        if long or len(self.found) >= ENTRIES_AT_MOST or self._bytes > BYTES_AT_MOST:
            self.cut = True
        else:
            self.found.setdefault(path, entry)

    def _names(self, path: str) -> list[str]:
        try:
            return self.host.names(path)
        except OSError:
            return []

    def _target(self, path: str) -> str | None:
        try:
            written = self.host.link(path)
        except OSError:
            return None
        return None if written is None else resolve(path.rpartition("/")[0], written)


def _device(path: str) -> Iterator[str]:
    """A device and the one it belongs to: "sys/devices/platform/hmem.0/dax0.0" has its region beside it."""
    yield path
    parts = path.split("/")[:-1]
    if parts[-1] in _CLASSES:
        parts.pop()
    if len(parts) > 3 and parts[2] not in ("system", "virtual"):
        yield "/".join(parts)


def _topmost(path: str) -> str:
    """A VMD domain is inside another root: "…/pci0000:5d/0000:5d:05.5/pci10001:00" -> "…/pci0000:5d"."""
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part))
    return "/".join(parts[: first + 1])
