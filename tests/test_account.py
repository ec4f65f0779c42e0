"""What a scan took and who was heard: domain/metrics.md, section 4. Nothing of it may be among the facts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import fixtures
from tests.paper import AMD, NVIDIA, Files, answers, grown, machine, nvml, two_sockets
from topo_agent.diagnostics import Level
from topo_agent.host import Json, Source, Unavailable
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Document, Link, PaperHost
from topo_agent.scan import Account, scan
from topo_agent.sources import pci

GPU = two_sockets() | grown("pci0000:16/16:01.0/17:00.0", NVIDIA)


def accounted(host: PaperHost) -> Account:
    account = Account()
    assert scan(host, readiness=True, account=account) == scan(host, readiness=True)
    return account


def up(files: Files, documents: dict[str, Document] | None = None) -> dict[str, bool]:
    return accounted(machine(files, documents=documents)).up


def test_who_was_heard() -> None:
    found = up(GPU, nvml(answers("0000:17:00.0", 0, [])))
    assert {name for name, good in found.items() if good} >= {"cpu", "numa", "pci", "gpu", "machine", "nvml"}
    assert all(found.values())


@pytest.mark.parametrize("reason", ["not_supported", "not_recorded"])
def test_what_is_not_there_is_not_down(reason: str) -> None:
    """No NVIDIA driver, no KFD, no RDMA, no drives: nothing that anybody could mend."""
    found = up(GPU, {"nvml": Unavailable(reason)})
    assert {"nvml", "kfd", "rdma", "nvme", "netlink", "gpudirect"}.isdisjoint(found)
    assert all(found.values())


@pytest.mark.parametrize("reason", ["timeout", "driver_error", "not_permitted", "unreadable"])
def test_a_driver_that_is_there_and_does_not_answer(reason: str) -> None:
    found = up(GPU, {"nvml": Unavailable(reason)})
    assert not found["nvml"]
    assert (found["pci"], found["cpu"]) == (True, True)


def test_a_kfd_that_tells_nothing() -> None:
    files = two_sockets() | grown("pci0000:16/16:01.0/17:00.0", AMD)
    files["sys/class/kfd/kfd"] = Link("../../devices/virtual/kfd/kfd")
    account = accounted(machine(files))
    assert not account.up["kfd"]
    assert account.notes["kfd", Level.LOST] == 1


def test_a_directory_that_cannot_be_listed(tmp_path: Path) -> None:
    account = accounted(machine(GPU).failing("sys/bus/pci/devices", "EACCES"))
    assert not account.up["pci"]
    assert account.notes["pci", Level.DEGRADED] == 1


def test_a_source_that_raises_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boo")

    monkeypatch.setattr(pci, "read", fail)
    account = accounted(machine(GPU))
    assert not account.up["pci"]
    assert account.notes["pci", Level.LOST] == 1
    assert account.up["cpu"]


def test_a_machine_without_sysfs_is_down() -> None:
    """A container that shows no /sys: everything is missing, and one of them says so."""
    assert accounted(PaperHost({}, source=Source(kind="live", complete=True))).up == {"cpu": False, "machine": True}


class _Slow(PaperHost):
    """Its driver takes five seconds of a clock that stands otherwise."""

    now = 0.0

    def document(self, name: str) -> Json:
        if name == "nvml":
            _Slow.now += 5
        return super().document(name)


def test_a_driver_has_an_account_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_agent.scan.time", SimpleNamespace(perf_counter=lambda: _Slow.now))
    account = Account()
    slow = _Slow(GPU, nvml(answers("0000:17:00.0", 0, [])), source=Source(kind="recording", complete=True))
    scan(slow, readiness=True, account=account)
    assert {name: took for name, took in account.seconds.items() if took} == {"nvml": 5}
    assert {*account.seconds} >= {"process", "cpu", "numa", "pci", "net", "rdma", "nvme", "gpu", "kfd", "irq"}


def test_files_are_counted(common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the kernel was asked for and gave; directories are none."""
    opened, really = [], os.open

    def watched(path: str, flags: int, *rest: int, **options: int) -> int:
        found = really(path, flags, *rest, **options)
        if not flags & os.O_DIRECTORY:
            opened.append(path)
        return found

    host = LiveHost(str(fixtures.tree("dgx-h100", common)))
    monkeypatch.setattr(os, "open", watched)
    scan(host, readiness=True)
    assert host.files_read == len(opened) > 1000
