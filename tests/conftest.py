"""Options and fixtures that every test may ask for."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import machines

# No test is about time. On CI what hypothesis chooses there counts besides.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - pytest makes its own folder there
_ROOM = 2 << 30  # bytes; the machines that one run has unpacked at a time are a fourth of it


def _in_memory() -> bool:
    """A root directory is ten thousand small files, and /sys itself is memory. Libraries are loaded from there, too."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > _ROOM


if "TMPDIR" not in os.environ and _in_memory():
    os.environ["TMPDIR"] = _SHARED_MEMORY
    tempfile.tempdir = None  # asked anew


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files anew instead of comparing with them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


def pytest_collection_finish() -> None:
    """Thousands of tests stay in memory to the end: to look for cycles among them was a seventh of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)`: the text is what the file holds; with `--update` the file holds the text."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is not there yet: make golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def byte_code(common: Path) -> Iterator[None]:
    """Programs that tests start keep their byte code, as an installed package has it, and none in the checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPYCACHEPREFIX", str(common / "byte-code"))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def tree(common: Path) -> Callable[[str], Path]:
    """`tree("dgx-a100")`: the root directory of a recorded machine, unpacked once for all workers."""
    return lambda name: machines.tree(name, common)
