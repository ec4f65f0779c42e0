"""What this checkout says of itself: the same commit makes the same bytes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from making.programs import Failed, said

ROOT = Path(__file__).resolve().parents[1]


def when() -> int:
    """Seconds since the epoch that every file is dated with: of the last commit, unless SOURCE_DATE_EPOCH says."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return int(told or said("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    except ValueError:
        raise Failed(f"SOURCE_DATE_EPOCH is {told!r}, and seconds since 1970 were expected") from None


def revision() -> str:
    """The commit."""
    return said("git", "-C", str(ROOT), "rev-parse", "HEAD")


def version() -> str:
    """Of the program."""
    text = (ROOT / "agent/topo_agent/__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'(?m)^__version__ = "(.*)"$', text)
    return str(found)
