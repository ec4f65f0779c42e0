"""Tar archives from anywhere: the layouts that exist, and what hostile ones cannot do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.machines import MACHINES, needs_machines
from tests.machines import host as machine
from topo_agent.host import BadSource, archive, recording
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host

ONLINE = "sys/devices/system/cpu/online"


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.size = kind, link, len(data)
    return about, data


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for about, data in members:
            file.addfile(about, io.BytesIO(data))
    return out.getvalue()


def written(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "machine"
    path.write_bytes(data)
    return str(path)


PLAIN = tar(member("sys/", kind=tarfile.DIRTYPE), member(ONLINE, b"0-3\n"), member("proc/cpuinfo", b"processor : 0\n"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_every_compression_by_its_content(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    host = open_host(written(tmp_path, pack(PLAIN)))
    assert host.text(ONLINE) == "0-3\n"
    assert host.source.kind == "archive"
    assert not host.source.complete


@pytest.mark.parametrize("top", ["", "./", "node17/", "./node17/", "tmp/node17/"])
def test_the_folder_that_holds_sys_is_the_root(tmp_path: Path, top: str) -> None:
    data = tar(member(f"{top}proc/sys/kernel/osrelease", b"6.8\n"), member(f"{top}{ONLINE}", b"0\n"))
    host = archive.read(written(tmp_path, data))
    assert host.text(ONLINE) == "0\n"
    assert host.text("proc/sys/kernel/osrelease") == "6.8\n"
    assert host.names("") == ["proc", "sys"]


def test_hostile_members_stay_inside(tmp_path: Path) -> None:
    data = tar(
        member(ONLINE, b"0\n"),
        member("/etc/passwd", b"root\n"),
        member("../../escape", b"x"),
        member("sys/../../escape", b"x"),
        member("sys/out", kind=tarfile.SYMTYPE, link="/etc"),
        member("sys/up", kind=tarfile.SYMTYPE, link="../../../../.."),
        member("sys/loop", kind=tarfile.SYMTYPE, link="loop"),
        member("sys/null", kind=tarfile.CHRTYPE),
        member("sys/pipe", kind=tarfile.FIFOTYPE),
        member("sys/hard", kind=tarfile.LNKTYPE, link=ONLINE),
        member("sys/stolen", kind=tarfile.LNKTYPE, link="../../etc/shadow"),
    )
    before = sorted(os.listdir(tmp_path))
    host = archive.read(written(tmp_path, data))
    assert host.names("sys") == ["devices", "hard", "loop", "out", "up"]
    assert host.text("sys/hard") == "0\n"
    assert host.names("") == ["sys"]
    assert host.names("sys/up") == ["sys"]  # ".." at the root stays at the root, as below chroot
    assert host.names("sys/out") == []
    with pytest.raises(FileNotFoundError):
        host.text("sys/out/passwd")
    with pytest.raises(OSError, match="Too many levels"):
        host.text("sys/loop/x")
    assert sorted(os.listdir(tmp_path)) == [*before, "machine"]


def test_a_long_file_is_cut(tmp_path: Path) -> None:
    host = archive.read(written(tmp_path, tar(member("sys/long", b"a" * 100_000), member(ONLINE, b"0\n"))))
    assert len(host.text("sys/long", 1 << 20)) == 65536
    assert host.text(ONLINE) == "0\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_every_truncation_is_noticed(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(tar(*(member(f"sys/f{number}", b"x" * 700) for number in range(12))))
    step = max(1, len(whole) // 60)
    for length in range(0, len(whole) - 9300 if pack is bytes else len(whole) - 1, step):
        with pytest.raises(BadSource, match=r"machine: expected"):
            open_host(written(tmp_path, whole[:length]))


def test_a_damaged_header_is_noticed(tmp_path: Path) -> None:
    data = bytearray(tar(*(member(f"sys/f{number}", b"x") for number in range(8))))
    data[4 * 512 + 3] ^= 0xFF
    with pytest.raises(BadSource, match="cut off or damaged"):
        archive.read(written(tmp_path, bytes(data)))


def test_a_decompression_bomb_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "BYTES_AT_MOST", 8 << 20)
    data = gzip.compress(tar(member(ONLINE, b"0\n"), member("sys/big", bytes(32 << 20))), 1)
    with pytest.raises(BadSource, match="more than a machine"):
        archive.read(written(tmp_path, data))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_gigabytes_is_given_up(tmp_path: Path, kind: bytes) -> None:
    about = tarfile.TarInfo("pax")
    about.type, about.size = kind, 64 << 20
    data = gzip.compress(about.tobuf() + bytes(64 << 20), 1)
    with pytest.raises(BadSource, match="more than a machine"):
        archive.read(written(tmp_path, data))


def test_too_many_members_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MEMBERS_AT_MOST", 10)
    data = tar(*(member(f"sys/{number}") for number in range(12)))
    with pytest.raises(BadSource, match="more than a machine"):
        archive.read(written(tmp_path, data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\n",
        b"\x1f\x8bnot gzip",
        b"BZhnot bzip2",
        b"\xfd7zXZ\0no",
        gzip.compress(b"hello\n", mtime=0),
        tar(member("etc/motd", b"x")),
        tar(member("proc/sys/kernel/osrelease", b"6.8\n")),
        tar(member("sys/a", b"x"), member("sys/a/b", b"x")),
        bytes(10240),
    ],
)
def test_what_is_no_machine_says_so_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    with pytest.raises(BadSource) as caught:
        open_host(path)
    assert str(caught.value).startswith(f"{path}: expected ")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "missing"), str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "with\0nul"):
        with pytest.raises(BadSource, match="expected"):
            open_host(name)


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_an_archive_answers_as_its_unpacked_tree(name: str, tree: Callable[[str], Path]) -> None:
    packed = recording.write(machine(name), keep_names=True)
    assert packed == recording.write(LiveHost(str(tree(name))), keep_names=True)
