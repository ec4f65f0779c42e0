"""What was published, remembered at the object that has the labels: a restart must not forget it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from topo_agent.graph.held import Fact
from topo_agent.graph.labels import RAW_AT_MOST
from topo_agent.host import as_object

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def written(facts: Mapping[str, Fact]) -> str:
    """What was published, for the annotation: each with its raw value, its source, and since when."""
    said = {name: {"raw": fact.raw, "source": fact.source, "since": fact.since} for name, fact in sorted(facts.items())}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def read(text: str | None, names: Iterable[str]) -> dict[str, Fact]:
    """The facts of an annotation. Anybody may have written it: what does not look like ours does not count."""
    try:
        said = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    found = {}
    for name in names:
        one = as_object(as_object(said).get(name))
        values = [one.get(part) for part in ("raw", "source", "since")]
        if all(isinstance(value, str) and 0 < len(value) <= RAW_AT_MOST for value in values):
            raw, source, since = (str(value) for value in values)
            if _TIME.fullmatch(since) and len(source) <= 64:
                found[name] = Fact(raw, source, since)
    return found
