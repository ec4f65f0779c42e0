"""A file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
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
