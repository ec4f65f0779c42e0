"""Who owns which field of an object: the book that server-side apply keeps (metadata.managedFields)."""

from __future__ import annotations

from topo_agent.host import Json, as_array, as_object
from topo_agent.publishers.kube.answers import Trouble
from topo_agent.publishers.kube.client import MANAGER


def owners(managed: Json, *path: str) -> dict[str, frozenset[str]]:
    """The managers of each field below a path, `"metadata", "labels"`."""
    found: dict[str, set[str]] = {}
    for entry in as_array(managed):
        manager = str(as_object(entry).get("manager", ""))
        applied = as_object(entry).get("operation") == "Apply"
        fields = as_object(as_object(entry).get("fieldsV1"))
        for part in path:
            fields = as_object(fields.get(f"f:{part}"))
        for field in fields:
            if field.startswith("f:"):
                # Somebody else may call himself topo-agent; ours are applied.
                who = manager if applied or manager != MANAGER else f"{manager} ({as_object(entry).get('operation')})"
                found.setdefault(field[2:], set()).add(who)
    return {key: frozenset(who) for key, who in found.items()}


def owns_condition(managed: Json) -> bool:
    """Is a condition of its status ours?"""
    for entry in as_array(managed):
        one = as_object(entry)
        if one.get("manager") == MANAGER and one.get("operation") == "Apply" and one.get("subresource") == "status":
            return bool(as_object(as_object(as_object(one.get("fieldsV1")).get("f:status")).get("f:conditions")))
    return False


def taken(error: Trouble) -> bool:
    """Is it a conflict of fields that somebody else owns? A uid that does not fit is another."""
    causes = as_object(as_object(error.answer).get("details")).get("causes")
    return error.kind == "conflict" and any(
        as_object(one).get("reason") == "FieldManagerConflict" for one in as_array(causes)
    )
