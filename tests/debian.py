"""The Debian package, built as `make deb` builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class NoPackage(Exception):
    """It cannot be built on this machine; the message tells why."""


def package(folder: Path, **variables: str) -> Path:
    if not shutil.which("dpkg-deb"):
        raise NoPackage("no dpkg-deb here; Debian has it in the package dpkg")
    command = [sys.executable, "-m", "systemd.deb", "--output", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    if done.returncode:
        raise NoPackage(done.stderr.strip())
    return Path(done.stdout.strip())
