"""Do the tests notice? `python -m tests.faults [NAME…]` puts one fault at a time into a copy of this tree.

Each `<name>.patch` beside this file is one fault of the program. Its first line names the test that has to fail,
`test: tests/test_numa.py::test_power9`, the next ones say what it breaks, the rest is a diff (`git diff -U1`).
Faults are put in with `git apply`, so a patch that no longer fits the program is an error here, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("agent", "tests", "fixtures", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FAILED = 1  # pytest's status; 2, 4 and 5 are an interruption, a test that is not there, nothing to run
SECONDS = 120


class Fault(NamedTuple):
    name: str
    test: str
    patch: Path


def main(names: list[str]) -> int:
    faults = [_fault(patch) for patch in sorted(HERE.glob("*.patch"))]
    strange = set(names) - {fault.name for fault in faults}
    if strange or not faults:
        print(f"no such fault: {', '.join(sorted(strange))}" if strange else f"no patches in {HERE}", file=sys.stderr)
        return 2
    faults = [fault for fault in faults if not names or fault.name in names]
    with tempfile.TemporaryDirectory(prefix="topo-agent-faults-") as folder:
        whole = _copy(ROOT, Path(folder, "whole"))
        status, said = _pytest(whole, sorted({fault.test for fault in faults}))
        if status != 0:
            print(f"{said}\nwithout any fault these tests have to pass; pytest ended with {status}")
            return 1
        with ThreadPoolExecutor(max_workers=4) as pool:
            verdicts = list(pool.map(lambda fault: _verdict(fault, whole), faults))
    name_width, test_width = max(len(fault.name) for fault in faults), max(len(fault.test) for fault in faults)
    for fault, verdict in zip(faults, verdicts, strict=True):
        print(f"{fault.name:{name_width}}  {fault.test:{test_width}}  {verdict}")
    caught = verdicts.count("caught")
    print(f"{caught} of {len(faults)} faults caught")
    return int(caught != len(faults))


def _fault(patch: Path) -> Fault:
    first, _, _ = patch.read_text(encoding="utf-8").partition("\n")
    key, _, test = first.partition(": ")
    if key != "test" or "::" not in test:
        raise SystemExit(f"{patch}: the first line is not `test: <file>::<test>`")
    return Fault(patch.stem, test, patch)


def _copy(source: Path, target: Path) -> Path:
    """Without bytecode: a fault that keeps the size of a file could otherwise run as what was there before."""
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif (source / name).exists():
            shutil.copy2(source / name, target / name)
    return target


def _verdict(fault: Fault, whole: Path) -> str:
    tree = _copy(whole, whole.parent / fault.name)
    # Only the program: a patch that changes a test would prove nothing.
    command = ["git", "apply", "--include=agent/topo_agent/*", str(fault.patch)]
    applied = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=False)
    if applied.returncode != 0:
        return f"NOT CAUGHT: does not apply: {' '.join(applied.stderr.split())}"
    status, said = _pytest(tree, [fault.test])
    if status != FAILED:
        return f"NOT CAUGHT: pytest ended with {status}"
    # A crash of a fixture or of the program is status 1, too: that is a broken patch, and no wrong answer noticed.
    noticed = rf"^FAILED {re.escape(fault.test)}\b.* - (assert\b|AssertionError|Failed: DID NOT)"
    if not re.search(noticed, said, re.MULTILINE):
        return f"NOT CAUGHT: failed, but not by an assertion:\n{said}"
    return "caught"


def _pytest(tree: Path, tests: list[str]) -> tuple[int, str]:
    """Exit status and output. Tests that use golden files are left out: those show a change, not a fault."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider", "-m", "not golden"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=_environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer in {SECONDS} s"
    return done.returncode, done.stdout


def _environment(tree: Path) -> dict[str, str]:
    """PYTHONPATH goes before the installed program, which is the one without the fault."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTEST_"))}
    return kept | {
        "PYTHONPATH": str(tree / "agent"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CI": "true",  # the summary is not cut at the width of a terminal
        "GIT_CEILING_DIRECTORIES": str(tree.parent),  # inside another repository git apply would pass over these files
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
