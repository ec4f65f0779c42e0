"""The unit, as systemd itself judges it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = shutil.which("systemd-analyze")
UNIT = Path(__file__).parents[1] / "systemd/topo-agent.service"

# In CI it must be there: without it the tests fail on the missing program.
pytestmark = pytest.mark.skipif(
    not PROGRAM and not os.environ.get("CI"), reason="no systemd-analyze here; Debian has it in the package systemd"
)


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROGRAM, "systemd-analyze is not installed"
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False)


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    return analyze("verify", "--man=no", unit)


def test_it_is_valid(tmp_path: Path) -> None:
    """With a program that is there in place of ours, which is not installed here."""
    text = UNIT.read_text(encoding="utf-8")
    assert "ExecStart=/usr/bin/topo-agent run\n" in text
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/usr/bin/topo-agent", shutil.which("true") or ""), encoding="utf-8")
    done = verify(unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(unit.read_text(encoding="utf-8").replace("WatchdogSec=", "WatchdogSecs="), encoding="utf-8")
    assert "WatchdogSecs" in verify(unit).stderr  # it does look


def test_files_can_be_given_to_a_group() -> None:
    """For `state-group`. @privileged has fchown, and a later line adds to an earlier one: systemd.exec(5)."""
    filters = re.findall(r"(?m)^SystemCallFilter=(.+)", UNIT.read_text(encoding="utf-8"))
    assert filters.index("fchown") > filters.index("~@privileged @resources")


def test_it_is_hardened() -> None:
    """At most 2.0 of 10."""
    done = analyze("security", "--offline=true", "--threshold=20", "--no-pager", UNIT)
    found = re.search(r"Overall exposure level for topo-agent.service: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    print(f"exposure {found[1]}")
    assert float(found[1]) <= 2.0
    assert done.returncode == 0
