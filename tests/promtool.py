"""Prometheus' own promtool: what it says of an exposition, of rules, and of expressions."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

PROGRAM = shutil.which("promtool")

# In CI it must be there: without it the tests fail on the missing program.
needs_promtool = pytest.mark.skipif(
    not PROGRAM and not os.environ.get("CI"), reason="no promtool here; Debian has it in the package prometheus"
)


def promtool(*arguments: str, stdin: str = "") -> str:
    """What it prints, nothing if all is well; AssertionError with its words if it is not satisfied."""
    assert PROGRAM, "promtool is not installed"
    command = [PROGRAM, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def evaluated(folder: Path, series: Iterable[str], expressions: Mapping[str, Iterable[tuple[str, float]]]) -> None:
    """Each expression over constant series (lines `name{…} 3`) gives exactly these samples, as promtool sees it."""
    lines = [line.rpartition(" ") for line in series]
    expected = [
        {
            "expr": expression,
            "eval_time": "5m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
        }
        for expression, samples in expressions.items()
    ]
    inputs = [{"series": name, "values": f"{float(value):.17g}x10"} for name, _, value in lines]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": expected}
    file = folder / "expressions.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    promtool("test", "rules", str(file))
