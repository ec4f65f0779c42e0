"""Findings -> text and plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from topo_agent.graph.findings import Finding
from topo_agent.host import Json
from topo_agent.views.text import clean, fit

_SUBJECTS_AT_MOST = 3


def as_text(found: Sequence[Finding], width: int) -> str:
    """Three lines a finding: what and where, the evidence, the advice. Nothing where nothing is wrong."""
    return "".join(fit(clean(line), width) + "\n" for one in found for line in _lines(one))


def _lines(one: Finding) -> Iterator[str]:
    more = len(one.subjects) - _SUBJECTS_AT_MOST
    subjects = " ".join(one.subjects[:_SUBJECTS_AT_MOST]) + (f" and {more} more" if more > 0 else "")
    yield f"{one.severity}: {one.code}: {subjects}"
    yield f"  {one.evidence}"
    yield f"  {one.advice}"


def as_data(found: Iterable[Finding]) -> list[Json]:
    """The part `findings` of the document."""
    return [
        {
            "code": one.code,
            "severity": one.severity,
            "subjects": [*one.subjects],
            "evidence": one.evidence,
            "advice": one.advice,
        }
        for one in found
    ]
