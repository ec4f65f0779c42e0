"""A file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from topo_agent.publishers import files

_DESCRIPTORS = files._DESCRIPTORS


def fails(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.replace(str(tmp_path / "new"), "é\n")
        assert os.umask(0o027) == 0o027, "the umask is what it was"
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == "é\n".encode()
    assert mode(tmp_path / "new") == 0o640


@pytest.mark.parametrize("kept", [0o600, 0o644, 0o664, 0o755])
def test_the_mode_is_kept(kept: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(kept)
    files.replace(str(tmp_path / "file"), "new")
    assert (tmp_path / "file").read_text() == "new"
    assert mode(tmp_path / "file") == kept


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/file")
    files.replace(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").readlink() == Path("elsewhere/file")
    assert (tmp_path / "elsewhere/file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "file", "link"]


def test_shared_memory_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in /dev/shm are files: only a descriptor's name is written through."""
    monkeypatch.setattr(files, "_DESCRIPTORS", (f"{tmp_path}/fd/",))
    (tmp_path / "fd").mkdir()
    for place, text in ((tmp_path / "file", "new"), (tmp_path / "fd/1", "oldnew")):
        place.write_text("old")
        files.replace(str(place), "new")
        assert place.read_text() == text
    assert not "/dev/shm/fd/1".startswith(_DESCRIPTORS)  # noqa: S108 - only a name
    assert all(name.startswith(_DESCRIPTORS) for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"))


def test_a_link_to_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    files.replace(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace", "fchmod"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_keeps_the_old_file(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, step, fails(error))
    with pytest.raises(type(error)):
        files.replace(str(tmp_path / "file"), "new")
    assert (tmp_path / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("before", [None, "old"])
def test_text_without_bytes_leaves_everything_as_it_was(before: str | None, tmp_path: Path) -> None:
    if before is not None:
        (tmp_path / "file").write_text(before)
    with pytest.raises(ValueError, match="surrogates"):
        files.replace(str(tmp_path / "file"), "x" * 100_000 + "\ud800")
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if before is None else [before])


KILLED = """\
import os, signal, sys
from topo_agent.publishers import files
os.getpid = lambda: 1
os.fsync = lambda _: os.kill(0, signal.SIGKILL)
files.replace(sys.argv[1], "half of")
"""


def test_a_process_that_was_killed_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod, where each is number 1: the next one writes, and nothing is left of those before."""
    (tmp_path / "file").write_text("old")
    for _ in range(3):
        words = [sys.executable, "-c", KILLED, str(tmp_path / "file")]
        done = subprocess.run(words, check=False, start_new_session=True)
        assert done.returncode == -signal.SIGKILL
        assert (tmp_path / "file").read_text() == "old"
        assert len([*tmp_path.iterdir()]) == 2
    monkeypatch.setattr(os, "getpid", lambda: 1)
    files.replace(str(tmp_path / "file"), "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "new"}


def left(target: Path, number: int = 0) -> Path:
    """What a process of our number leaves of a file."""
    beside, handle = files._beside(str(target))
    os.close(handle)
    return Path(beside).with_name(f"{Path(beside).name[:-16]}{number:016x}")


def test_what_is_left_and_no_file(tmp_path: Path) -> None:
    """A link is removed and not followed, a folder stays where it is, and neither keeps a file from being written."""
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "victim").write_text("untouched")
    folder, link, broken = (left(place / "file", number) for number in range(3))
    folder.mkdir()
    link.symlink_to(tmp_path / "victim")
    broken.symlink_to("nowhere")
    files.replace(str(place / "file"), "new")
    assert {path.name for path in place.iterdir()} == {"file", folder.name}
    assert (place / "file").read_text() == "new"
    assert (tmp_path / "victim").read_text() == "untouched"


def test_what_others_have_is_kept(tmp_path: Path) -> None:
    """Of a process with another number, of another file, and what only looks like it."""
    ours = left(tmp_path / "file").name
    other = ours.replace(f".{os.getpid()}.", f".{os.getpid() + 1}.")
    kept = [ours.replace(".file.", ".file2."), other, f"{ours}.bak", f".file.{os.getpid()}"]
    for name in kept:
        (tmp_path / name).write_text("theirs")
    files.replace(str(tmp_path / "file"), "new")
    assert {path.name for path in tmp_path.iterdir()} == {"file", *kept}


def test_somebody_took_it_for_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the same number in another pod, while ours writes: no half of a file ever takes its place."""
    (tmp_path / "file").write_text("old")
    really = os.fsync

    def fsync(handle: int) -> None:
        really(handle)
        monkeypatch.setattr(os, "fsync", really)
        files.replace(str(tmp_path / "file"), "theirs")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(FileNotFoundError):
        files.replace(str(tmp_path / "file"), "ours")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "theirs"}


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", fails(PermissionError(errno.EACCES, "Permission denied")))
    files.replace(str(tmp_path / "file"), "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])  # NAME_MAX: include/uapi/linux/limits.h
def test_the_longest_name(name: str, tmp_path: Path) -> None:
    files.replace(str(tmp_path / name), "new")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_group_that_is_not_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """chown(2), EPERM: what nobody without a capability may do."""
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fchown", fails(PermissionError(errno.EPERM, "Operation not permitted")))
    with pytest.raises(OSError, match=r"group 7: Operation not permitted: '.*/file'") as said:
        files.replace(str(tmp_path / "file"), "new", group=7)
    assert said.value.errno == errno.EPERM
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """A reader that opened the file before keeps what it opened."""
    (tmp_path / "file").write_text("old" * 100_000)
    with (tmp_path / "file").open() as reader:
        assert reader.read(3) == "old"
        files.replace(str(tmp_path / "file"), "new")
        assert set(reader.read().split("old")) == {""}
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("path", ["", "missing/file", "file/below"])
def test_where_nothing_can_be_written(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on what is in the way
        files.replace(path, "new")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_a_directory_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        files.replace(str(tmp_path), "new")
    assert tmp_path.is_dir()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.replace(str(tmp_path / "pipe"), "new")
    reader.join(10)
    assert said == ["new"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_device_is_written_to() -> None:
    files.replace("/dev/null", "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_stdout_that_is_a_file_is_written_to(tmp_path: Path) -> None:
    """`-o /dev/stdout >> log`: the shell asked for the end of that file, and others hold it open."""
    (tmp_path / "log").write_text("old\n")
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND)
    try:
        files.replace(f"/dev/fd/{log}", "new\n")
    finally:
        os.close(log)
    assert (tmp_path / "log").read_text() == "old\nnew\n"
