"""docs/findings.md is made from the checks: `make golden` writes it anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from topo_agent.graph.checks import CHECKS
from topo_agent.graph.findings import SEVERITIES

DOCUMENT = Path(__file__).parents[1] / "docs" / "findings.md"

HEAD = f"""# Findings

What `topo-agent check` may say. A code never changes its meaning. Severities: {", ".join(SEVERITIES)}; `info` is
printed with `--info` only. `--ignore CODE` or `--ignore CODE:SUBJECT` leaves findings out, `--fail-on warning`
makes warnings an answer of status 1 as errors are.

"""


def test_the_document_lists_every_code(golden: Callable[[Path, str], None]) -> None:
    parts = [f"## {check.code}\n\n{check.means}\n\nWhat to do: {check.advice}\n" for check in CHECKS]
    golden(DOCUMENT, HEAD + "\n".join(parts))


def test_codes_are_codes() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)
