"""Other programs that `make deb` and `make image` ask, and the Python that both are for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

SYSTEM_PYTHON = "/usr/bin/python3"
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Failed(Exception):
    """One line: why nothing was made."""


def said(*command: str, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; `env` is its whole environment."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise Failed(f"{' '.join(command[:4])}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def same_python(target: str) -> None:
    """What `make TARGET` makes runs with a Python of the system's release: byte code and libraries are of one minor."""
    theirs = said(SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if theirs != MINOR:
        raise Failed(f"this is Python {MINOR}, and {SYSTEM_PYTHON} is {theirs}: make {target} PYTHON={SYSTEM_PYTHON}")
