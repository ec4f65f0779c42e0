"""A machine below a root directory: no answer comes from outside, nothing waits, every error is the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from topo_agent.host import BadSource, Unavailable
from topo_agent.host.live import LiveHost


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cpu = tmp_path / "root/sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text("0-3\n")
    (cpu / "binary").write_bytes(b"0-3\n\0\xff")
    (tmp_path / "secret").write_text("outside\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside\n")
    return tmp_path / "root"


@pytest.fixture
def host(root: Path) -> LiveHost:
    return LiveHost(str(root))


def test_it_reads_files(host: LiveHost) -> None:
    assert host.text("sys/devices/system/cpu/online") == "0-3\n"
    assert host.text("sys/devices/system/cpu/online", 2) == "0-"
    assert host.text("sys/devices/system/cpu/binary") == "0-3\n\0\ufffd"
    assert host.names("sys/devices/system/cpu") == ["binary", "online"]
    assert host.names("sys/missing") == []
    assert host.names("sys/devices/system/cpu/online") == []


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "../secret", "sys/../../secret", "sys/.."])
def test_a_path_that_leaves_the_root_is_refused(host: LiveHost, path: str) -> None:
    for ask in (host.text, host.names, host.link):
        with pytest.raises(ValueError, match="not a path below the root"):
            ask(path)


@pytest.mark.parametrize("target", ["../secret", "../../secret", "../../../../../../../../etc/hostname", "/etc/passwd"])
def test_a_link_to_a_file_outside_is_not_followed(root: Path, host: LiveHost, target: str) -> None:
    (root / "sys/out").symlink_to(target)
    with pytest.raises(FileNotFoundError):
        host.text("sys/out")
    assert host.link("sys/out") == target


@pytest.mark.parametrize("target", ["../../outside", "/outside", "../../../../../../../../../../etc"])
def test_a_link_to_a_directory_outside_is_not_followed(root: Path, host: LiveHost, target: str) -> None:
    (root / "sys/out").symlink_to(target)
    with pytest.raises(FileNotFoundError):
        host.text("sys/out/file")
    assert host.names("sys/out") == []


def test_an_absolute_link_is_one_from_the_root_of_that_machine(root: Path, host: LiveHost) -> None:
    (root / "sys/cpu").symlink_to("/sys/devices/system/cpu")
    (root / "sys/online").symlink_to("/sys/cpu/online")
    assert host.text("sys/cpu/online") == "0-3\n"
    assert host.text("sys/online") == "0-3\n"


def test_loops_end(root: Path, host: LiveHost) -> None:
    (root / "sys/a").symlink_to("b")
    (root / "sys/b").symlink_to("a")
    for path in ("sys/a", "sys/a/file"):
        with pytest.raises(OSError, match="symbolic links") as caught:
            host.text(path)
        assert caught.value.errno == errno.ELOOP


def test_a_fifo_does_not_wait(root: Path, host: LiveHost) -> None:
    os.mkfifo(root / "sys/fifo")
    with pytest.raises(OSError, match="Invalid argument"):
        host.text("sys/fifo")


def test_errors_are_those_of_the_kernel(host: LiveHost) -> None:
    with pytest.raises(FileNotFoundError):
        host.text("sys/missing")
    with pytest.raises(FileNotFoundError):
        host.text("sys/missing/file")
    with pytest.raises(NotADirectoryError):
        host.text("sys/devices/system/cpu/online/file")
    assert host.link("sys/missing") is None
    assert host.link("sys/devices/system/cpu/online") is None


def test_a_directory_has_no_documents(host: LiveHost) -> None:
    assert host.source.kind == "directory"
    assert not host.source.complete
    with pytest.raises(Unavailable) as caught:
        host.document("process")
    assert caught.value.reason == "not_recorded"


def test_what_holds_no_sys_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"expected a directory that holds the sys/"):
        LiveHost(str(tmp_path))
    with pytest.raises(BadSource, match="missing"):
        LiveHost(str(tmp_path / "missing"))


def test_this_machine_answers() -> None:
    host = LiveHost("/")
    process = host.document("process")
    assert isinstance(process, dict)
    assert process["allowed_cpus"] == sorted(os.sched_getaffinity(0))
    assert host.source.complete
