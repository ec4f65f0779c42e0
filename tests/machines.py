"""Machines that somebody else recorded, and what another program said about each.

They are no part of this repository. A test over them is marked `needs_machines`: it is skipped where the
folder is absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from topo_agent.host import Host
from topo_agent.host.opening import open_host

SHARED = Path(os.environ.get("TOPO_AGENT_SHARED") or Path(__file__).parents[2] / "shared").resolve()

MACHINES = sorted(folder.parent.name for folder in SHARED.glob("machines/*/sysfs.tar.xz"))

needs_machines = pytest.mark.skipif(not MACHINES, reason=f"no recorded machines in {SHARED}/machines")


def archive(name: str) -> Path:
    return SHARED / "machines" / name / "sysfs.tar.xz"


@cache
def host(name: str) -> Host:
    """The machine in its archive, read once: a host is not changed by who asks."""
    return open_host(str(archive(name)))


def expected(name: str) -> dict[str, Any]:
    """What another program said about this machine; a key that is absent was not asked."""
    found: dict[str, Any] = json.loads((SHARED / "machines" / name / "expected.json").read_text(encoding="utf-8"))
    return found


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, filled by whichever process asks first: `make` is given a new one."""
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        fresh.chmod(0o755)
        make(fresh)
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
            shutil.rmtree(fresh)
    return folder


def tree(name: str, base: Path) -> Path:
    """The root directory of a machine below `base`."""
    packed = archive(name)

    def extract(fresh: Path) -> None:
        with tarfile.open(packed) as tar:
            # Links that leave the folder are part of some machines. Python before 3.10.12 and 3.11.4 has no filters.
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            tar.extractall(fresh)

    return once(base / f"{name}-{hashlib.sha256(packed.read_bytes()).hexdigest()[:16]}", extract)
