"""A scan outlives whatever a machine says: a device that fails costs itself, a source that raises costs itself."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import MACHINES, needs_machines
from tests.paper import Files, bridge, fact, function, inventory, machine, two_sockets
from topo_agent.diagnostics import Level
from topo_agent.graph.build import build
from topo_agent.host import TEXT_LIMIT
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import PaperHost
from topo_agent.scan import scan
from topo_agent.sources import cpu, numa, pci
from topo_agent.sources import machine as machine_source
from topo_agent.views.document import document
from topo_agent.views.tree import tree as draw

PORT = "pci0000:16/0000:16:01.0"
NIC, GPU = f"sys/devices/{PORT}/0000:17:00.0", "sys/devices/pci0000:30/0000:30:00.0"


def small() -> Files:
    return (
        two_sockets()
        | bridge("0000:16:01.0", under="pci0000:16", numa_node="0\n")
        | function(
            "0000:17:00.0",
            under=PORT,
            numa_node="0\n",
            driver="mlx5_core",
            files={"max_link_speed": "16.0 GT/s PCIe\n", "max_link_width": "16\n"},
        )
        | function(
            "0000:30:00.0", under="pci0000:30", class_="0x030200", vendor="0x10de", device="0x2330", numa_node="1\n"
        )
        | {"sys/class/dmi/id/sys_vendor": "Dell Inc.\n", "proc/sys/kernel/osrelease": "6.1.0\n"}
    )


def broken(directory: str, error: str = "EIO") -> PaperHost:
    """Every file of a directory fails."""
    host = machine(small())
    for path in [
        one for one, entry in host.entries.items() if one.startswith(f"{directory}/") and isinstance(entry, str)
    ]:
        host = host.failing(path, error)
    return host


def test_nothing_at_all() -> None:
    found = inventory({})
    assert (found.cpus, found.numa, found.pci) == (None, None, None)
    assert not found.diagnostics


@pytest.mark.parametrize("error", ["EIO", "EACCES"])
def test_a_device_whose_every_file_fails(error: str) -> None:
    found, whole = scan(broken(NIC, error)), inventory(small())
    nic = fact(found, "0000:17:00.0")
    assert (nic.class_code, nic.vendor, nic.numa_node) == (None, None, None)
    assert any(one.subject.startswith(NIC) and one.level is Level.DEGRADED for one in found.diagnostics)
    assert {one.subject.startswith(NIC) for one in found.diagnostics} == {True}
    assert (found.cpus, found.numa, found.machine) == (whole.cpus, whole.numa, whole.machine)
    assert [one for one in found.pci or () if one != nic] == [
        one for one in whole.pci or () if str(one.address) != "0000:17:00.0"
    ]


def test_a_device_that_is_unplugged_meanwhile() -> None:
    """ENODEV between list and read is ordinary: no diagnostic."""
    found = scan(broken(NIC, "ENODEV"))
    assert len(found.pci or ()) == 3
    assert not found.diagnostics


@pytest.mark.parametrize(
    ("source", "name", "field"),
    [(cpu, "cpu", "cpus"), (numa, "numa", "numa"), (pci, "pci", "pci"), (machine_source, "machine", "machine")],
)
@pytest.mark.parametrize(
    "error", [RuntimeError("boo"), OSError(5, "Input/output error"), RecursionError(), KeyError("x")]
)
def test_a_source_that_raises_costs_itself(
    source: ModuleType, name: str, field: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    whole = inventory(small())
    monkeypatch.setattr(source, "read", fail)
    found = inventory(small())
    assert [(one.level, one.subject, one.code) for one in found.diagnostics] == [(Level.LOST, name, "source_failed")]
    kept = {"cpus", "pci", "machine"} - {field}
    assert {one: getattr(found, one) for one in kept} == {one: getattr(whole, one) for one in kept}
    assert "source_failed" in str(document(build(found)))
    assert draw(build(found))


def test_a_stop_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pci, "read", stop)
    with pytest.raises(KeyboardInterrupt):
        inventory(small())


FILES = sorted(path for path, entry in machine(small()).entries.items() if isinstance(entry, str))
TEXTS = [
    "",
    "\0",
    "-1\n",
    "(efault)",
    "0-4294967295",
    "9" * 70,
    "\x1b[2J",
    "PCI_CLASS=\nPCI_ID=:",
    "0-7\n",
    "1_0",
    "٣",
    "\ud800",
]
ERRORS = ["EIO", "EACCES", "EPERM", "ENOENT", "ENODEV", "EINVAL", "ENXIO"]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(FILES),
        st.one_of(st.sampled_from(ERRORS), st.sampled_from(TEXTS).map(lambda text: (text,))),
        max_size=12,
    )
)
def test_any_files_broken(changes: dict[str, Any]) -> None:
    """The scan never raises, no source is lost, no function vanishes, and all views still show what is left."""
    host = machine(small())
    for path, change in changes.items():
        host = host.failing(path, change) if isinstance(change, str) else host.saying(path, change[0])
    found = scan(host)
    assert [one.code for one in found.diagnostics if one.level is Level.LOST] == []
    assert len(found.pci or ()) == 3
    assert len(found.cpus or ()) == 8
    built = build(found)
    assert draw(built)
    assert draw(built, everything=True)
    assert document(built)


class Failing:
    """A machine of which a tenth of all files cannot be read."""

    def __init__(self, root: Path, turn: int) -> None:
        self._host = LiveHost(str(root))
        self._turn = turn
        self.source = self._host.source
        self.names = self._host.names
        self.link = self._host.link
        self.document = self._host.document

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        if zlib.crc32(path.encode()) % 10 == self._turn:
            raise OSError(5, "Input/output error", path)
        return self._host.text(path, most)


@needs_machines
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("name", MACHINES)
def test_a_tenth_of_all_files_broken(name: str, turn: int, tree: Callable[[str], Path]) -> None:
    """No source is lost, no function vanishes, and everything else is as it was."""
    whole, found = scan(LiveHost(str(tree(name)))), scan(Failing(tree(name), turn))
    assert [one for one in found.diagnostics if one.level is Level.LOST] == []
    assert [one.address for one in found.pci or ()] == [one.address for one in whole.pci or ()]
    assert [one.path for one in found.pci or ()] == [one.path for one in whole.pci or ()]
    for one, before in zip(found.pci or (), whole.pci or (), strict=True):
        if one != before:
            assert any(note.subject.startswith(one.path or str(one.address)) for note in found.diagnostics)


@pytest.mark.parametrize(
    "files",
    [{}, small(), two_sockets(), small() | {"sys/devices/pci0000:30/0000:30:00.0/numa_node": "-1\n"}],
    ids=["nothing", "small", "cpus", "silent"],
)
@pytest.mark.parametrize("part", ["machine", "packages", "numa", "roots", "devices"])
def test_every_null_has_its_reason(files: Files, part: str) -> None:
    """contract.md, section 4: asked and not answered is null, with the reason in `unknown`."""
    said: Any = document(build(inventory(files))).get(part, [])
    for one in [said] if isinstance(said, dict) else said:
        silent = {key for key, value in one.items() if value is None and key != "kind"}  # kind: not told apart
        assert silent <= set(one.get("unknown", {})), one.get("id", part)


@pytest.mark.parametrize("name", ["class", "vendor", "uevent"])
def test_every_null_of_a_broken_device_has_its_reason(name: str) -> None:
    files = {path: entry for path, entry in small().items() if path != f"{NIC}/uevent"}
    host = machine(files)
    if name != "uevent":
        host = host.failing(f"{NIC}/{name}", "EIO")
    said: Any = document(build(scan(host)))["devices"]
    (one,) = (one for one in said if one["address"] == "0000:17:00.0")
    assert {key for key, value in one.items() if value is None} <= set(one.get("unknown", {}))
