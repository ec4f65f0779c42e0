"""Which functions other drivers publish: devices of their ResourceSlices -> PCI addresses and UUIDs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from topo_agent.host import Json

_BDF = re.compile(r"(?:0000)?([0-9a-f]{4,5})[:-]([0-9a-f]{2})[:-]([0-9a-f]{2})[.-]([0-7])", re.ASCII)
_NAMED = re.compile(r"(?:.*[^0-9a-f])?((?:0000)?[0-9a-f]{4,5}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])(?:[^0-9a-f].*)?", re.ASCII)
_ADDRESSES = ("pcibusid", "pciaddress", "pcieaddress", "pcibus", "bdf")  # what drivers call it, without its domain
_UUIDS = ("uuid", "parentuuid")


class Covered(NamedTuple):
    """What somebody else stands for."""

    addresses: frozenset[str]
    uids: frozenset[str]

    def __or__(self, other: object) -> Covered:
        if not isinstance(other, Covered):
            return NotImplemented
        return Covered(self.addresses | other.addresses, self.uids | other.uids)

    def has(self, address: str, uid: str | None) -> bool:
        return address in self.addresses or (uid is not None and uid in self.uids)


NONE = Covered(frozenset(), frozenset())


def covered(slices: Iterable[Mapping[str, Json]], *, by_others_than: str) -> Covered:
    """The functions of all slices whose driver is another one. Anybody may have written them: what fits counts.

    A device says its address in an attribute, of whatever domain, or in its name (`pci-0000-3b-00-0`); some of
    gpu.nvidia.com say their UUID only.
    """
    addresses, uids = set[str](), set[str]()
    for said in slices:
        spec = _map(said.get("spec"))
        if spec.get("driver") == by_others_than:
            continue
        devices = spec.get("devices")
        for one in devices if isinstance(devices, list) else ():
            device = _map(one)
            addresses |= {*_addresses(device)}
            uids |= {text for name, text in _strings(device) if name in _UUIDS and text}
    return Covered(frozenset(addresses), frozenset(uids))


def _addresses(device: Mapping[str, Json]) -> Iterator[str]:
    for name, text in _strings(device):
        found = _BDF.fullmatch(text.strip().lower()) if name in _ADDRESSES else None
        if found:
            yield _written(found)
    named = _NAMED.fullmatch(str(device.get("name", "")).lower())
    found = _BDF.fullmatch(named[1]) if named else None
    if found:
        yield _written(found)


def _written(found: re.Match[str]) -> str:
    return f"{found[1]}:{found[2]}:{found[3]}.{found[4]}"


def _strings(device: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """(name without its domain in lower case, text) of every string attribute. 1.31 had them below `basic`."""
    for holder in (device, _map(device.get("basic"))):
        for name, value in _map(holder.get("attributes")).items():
            text = _map(value).get("string")
            if isinstance(text, str):
                yield name.rpartition("/")[2].lower(), text


def unguarded(classes: Iterable[Mapping[str, Json]]) -> list[str]:
    """The DeviceClasses whose selector looks at devices of any driver: they would look at ours, too.

    Selectors are taken in turn, and an error of one ends the scheduling of the pod: it is the first that has to ask
    for the driver. What is not understood counts as unguarded.
    """
    return sorted(
        str(_map(one.get("metadata")).get("name", "")) for one in classes if not _guards(_first(_map(one.get("spec"))))
    )


def _first(spec: Mapping[str, Json]) -> str:
    selectors = spec.get("selectors")
    first = _map(selectors[0]) if isinstance(selectors, list) and selectors else {}
    text = _map(first.get("cel")).get("expression")
    return text if isinstance(text, str) else ""


_GUARD = re.compile(r"device\.driver\s*==\s*(['\"])[^'\"\\]+\1|(['\"])[^'\"\\]+\2\s*==\s*device\.driver", re.ASCII)
_GUARD_IN = re.compile(r"device\.driver\s+in\s*\[[^\]\\]*\]", re.ASCII)


def _guards(expression: str) -> bool:
    """Does it ask for a driver, whatever else it says: `device.driver == "gpu.example.com" && …`?"""
    text = expression.strip()
    parts = _split(text, "||")
    if parts is None:
        return False
    if len(parts) > 1:
        return all(_guards(one) for one in parts)
    conjuncts = _split(text, "&&") or []
    if len(conjuncts) > 1:
        return any(_guards(one) for one in conjuncts)
    if text.startswith("(") and text.endswith(")"):
        return _guards(text[1:-1])
    return bool(_GUARD.fullmatch(text) or _GUARD_IN.fullmatch(text))


def _split(text: str, operator: str) -> list[str] | None:
    """The operands of an operator that stands in no brackets and no quotes; None for text that is not balanced."""
    parts, depth, quote, start, at = [], 0, "", 0, 0
    while at < len(text):
        sign = text[at]
        if quote:
            at += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "?" and depth == 0 and text[at - 1 : at] != "[" and text[at - 1 : at] != ".":
            return None  # a condition: which of two is not for us to say
        elif text.startswith(operator, at) and depth == 0:
            parts.append(text[start:at])
            at += len(operator) - 1
            start = at + 1
        if depth < 0:
            return None
        at += 1
    return [*parts, text[start:]] if not depth and not quote else None


def _map(said: Json) -> Mapping[str, Json]:
    return said if isinstance(said, dict) else {}
