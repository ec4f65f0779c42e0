"""docs/kubernetes-troubleshooting.md: every message of the policy is there, and what it quotes is said somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/kubernetes-troubleshooting.md").read_text(encoding="utf-8")
# Words of Kubernetes and of kernels: tests/labs has the API server say most of them.
THEIRS = {
    "violates PodSecurity", 'RuntimeClass "nvidia" not found', "no matches for kind", "exec format error",
    'namespaces "node-feature-discovery" not found', "MountVolume.SetUp failed", 'cannot patch resource "nodes"',
}  # fmt: skip


def quoted() -> set[str]:
    """What stands in the first column and has a blank in it: sentences, not names."""
    cells = [line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| ")]
    return {words for cell in cells for words in re.findall(r"`([^`]+)`", cell) if " " in words}


def sources() -> str:
    """Sentences that a line break divides are whole again."""
    paths = [*(ROOT / "agent/topo_agent").rglob("*.py"), *(ROOT / "daemonset").rglob("*.yaml")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_every_message_of_the_policies_is_there() -> None:
    found = set()
    for path in (ROOT / "daemonset").rglob("policy.yaml"):
        found |= {*re.findall(r"(?m)^    message: (.*)$", path.read_text(encoding="utf-8"))}
    assert len(found) >= 14
    assert {one for one in found if f"`{one}`" not in TEXT} == set()


def test_what_it_quotes_is_said() -> None:
    text = sources()
    parts = {part.strip(" :…") for words in quoted() - THEIRS for part in words.split("…")}
    assert {part for part in parts if part and part not in text} == set()
    assert quoted() >= THEIRS
