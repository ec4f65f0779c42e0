"""The published schemas, as readers use them and as strict as their author means them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[1] / "docs" / "schema"


def published() -> list[Path]:
    """The schema of every release whose documents today's readers must still understand."""
    return sorted(FOLDER.glob("topo-agent-v*.json"))


def readers(path: Path) -> Draft202012Validator:
    """Lenient: unknown keys are allowed, as evolution needs."""
    return Draft202012Validator(json.loads(path.read_text()))


def strict(path: Path) -> Draft202012Validator:
    """The same with every key that is not described refused: what we print must be described."""
    return Draft202012Validator(_closed(json.loads(path.read_text())))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: value if key == "if" else _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed
