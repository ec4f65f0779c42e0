"""The labels of a node: their names, their keys, and how a value is written where only 63 signs fit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

NAMES = (
    "nvlink-clique", "nvlink-domain", "rack", "block", "leaf", "gpu-count", "gpu-model", "nic-count",
    "gpus-with-nic-on-switch", "gpus-with-nic-on-root", "gpus-with-nic-on-numa", "shape",
)  # fmt: skip
"""The labels below the operator's domain."""

GPU_CLIQUE = "nvidia.com/gpu.clique"
"""Written on request, and only where nobody else does."""

RAW_AT_MOST = 256
"""Signs of a raw value: it is kept in an annotation, and found there again."""

_LONGEST = 63  # signs of a label's value: k8s.io/apimachinery, validation.LabelValueMaxLength
_FILLERS = frozenset(
    {
        "n/a", "na", "none", "null", "unknown", "undefined", "default", "default string", "not specified",
        "not available", "not applicable", "no-imds-data", "empty", "chassis serial number", "system serial number",
        "to be filled by o.e.m.", "to be filled by o.e.m", "o.e.m.", "oem", "invalid", "tbd", "123456789", "0123456789",
        "1234567890",
    }
)  # fmt: skip
_ROW = 4  # signs: "0000", "ffff"
_LEGAL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_ENDS = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", re.ASCII)
_MARKED = re.compile(r".*-x[0-9a-f]{10}", re.ASCII | re.DOTALL)  # how `value` ends what it had to change


def filler(raw: str) -> bool:
    """Does a name say nothing: empty, a row of one sign, or what makers leave in for somebody to fill in?

    A single 0 may well be the name of a rack.
    """
    plain = " ".join(raw.split()).lower()
    said = set(plain) - set(" .:-_/")
    return plain in _FILLERS or not said or (len(plain) >= _ROW and len(said) == 1)


def value(raw: str) -> str:
    """`raw`, which is not empty, as the value of a label: itself where that fits, else what is legal of it and a hash.

    Two different raw values never give the same one, but for a hash of 40 bits.
    """
    legal = _ENDS.sub("", _ILLEGAL.sub("-", raw))
    if raw and legal == raw and len(raw) <= _LONGEST and not _MARKED.fullmatch(raw):
        return raw
    mark = "x" + hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    stem = _ENDS.sub("", legal[: _LONGEST - len(mark) - 1])
    return f"{stem}-{mark}" if stem else mark


def legal(text: str) -> bool:
    """Is it the value of a label, and not the empty one?"""
    return bool(_LEGAL.fullmatch(text))


def keys(domain: str, extra: Iterable[tuple[str, str]], *, gpu_clique: bool) -> dict[str, str]:
    """Key of a label -> name of its reading: `{"topo-agent.io/rack": "rack", …}`. `extra`: keys that the operator
    names, each with the name whose value it gets, too.
    """
    found = {f"{domain}/{name}": name for name in NAMES}
    found |= dict(extra)
    return found | ({GPU_CLIQUE: GPU_CLIQUE} if gpu_clique else {})
