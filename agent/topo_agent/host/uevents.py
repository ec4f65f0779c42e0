"""What the kernel says when a device comes or goes. The only importer of pyudev.

Taken from the kernel itself, so that no udevd is needed. It is a wake-up and no fact: what changed is what the next
scan finds.
"""

from __future__ import annotations

import contextlib

from topo_agent.host import Unavailable

SUBSYSTEMS = ("pci", "net", "infiniband", "nvme", "drm", "accel")

_WHOLE = ("0", "0", "4294967295")  # /proc/self/uid_map of the first user namespace
_BURST = 1 << 20  # bytes: a switch with everything below it that comes at once
_AT_MOST = 10_000  # events heard in one go


class Uevents:
    """A socket of uevents; `Unavailable` where none arrive."""

    def __init__(self) -> None:
        """The kernel sends them only to network namespaces of its first user namespace: lib/kobject_uevent.c."""
        if _uid_map() not in (None, _WHOLE):
            raise Unavailable("not_permitted", "the kernel tells a user namespace of no devices")
        try:
            import pyudev

            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            for name in SUBSYSTEMS:
                monitor.filter_by(name)
            monitor.start()
        except ImportError as error:  # pyudev is here, and the library that it calls is not, or cannot be found
            raise Unavailable("not_supported", f"no libudev here: {error}") from None
        except OSError as error:
            raise Unavailable("not_permitted", f"no socket for kernel events: {error}") from None
        with contextlib.suppress(OSError):  # without privilege the system's own limit has to do
            monitor.set_receive_buffer_size(_BURST)
        self._monitor = monitor

    def fileno(self) -> int:
        number: int = self._monitor.fileno()
        return number

    def heard(self) -> list[str]:
        """`["remove pci 0000:41:00.0", …]`, all that has come; an overflow is one, too: something was there."""
        found: list[str] = []
        try:
            while len(found) < _AT_MOST and (event := self._monitor.poll(timeout=0)) is not None:
                said = event.properties
                place = said.get("PCI_SLOT_NAME") or said.get("INTERFACE") or said.get("DEVPATH", "").rpartition("/")[2]
                found.append(f"{said.get('ACTION', 'change')} {said.get('SUBSYSTEM', 'device')} {place}")
        except OSError as error:
            found.append(f"some were lost ({error.strerror})")
        return found


def _uid_map() -> tuple[str, ...] | None:
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return tuple(file.read(4096).split())
    except (OSError, ValueError):
        return None
