"""Which functions other drivers publish: devices of their ResourceSlices -> PCI addresses and UUIDs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from topo_agent.host import Json, as_array, as_object

_BDF = re.compile(r"([0-9a-f]{4,8})[:-]([0-9a-f]{2})[:-]([0-9a-f]{2})[.-]([0-7])", re.ASCII)
_NAMED = re.compile(r"(?:.*[^0-9a-f])?([0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])(?:[^0-9a-f].*)?", re.ASCII)
_ADDRESSES = ("pcibusid", "pciaddress", "pciaddr", "pcieaddress", "pcibus", "bdf")  # what drivers call it
_UUIDS = ("uuid", "parentuuid")


class Covered(NamedTuple):
    """What somebody else stands for."""

    addresses: frozenset[str]
    uids: frozenset[str]

    def has(self, address: str, uid: str | None) -> bool:
        return address in self.addresses or (uid is not None and uid in self.uids)

    def also(self, words: Iterable[str]) -> Covered:
        """With what is known by one of these words, addresses and UUIDs."""
        more = frozenset(words)
        return Covered(self.addresses | more, self.uids | more)


NONE = Covered(frozenset(), frozenset())


def covered(slices: Iterable[Mapping[str, Json]], *, by_others_than: str) -> Covered:
    """The functions of all slices whose driver is another one. Anybody may have written them: what fits counts.

    A device says its address in an attribute, of whatever domain, or in its name (`pci-0000-3b-00-0`); some of
    gpu.nvidia.com say their UUID only.
    """
    addresses, uids = set[str](), set[str]()
    for said in slices:
        spec = as_object(said.get("spec"))
        if spec.get("driver") == by_others_than:
            continue
        devices = spec.get("devices")
        for one in as_array(devices):
            device = as_object(one)
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
    """As the kernel does: NVML fills the domain up to eight digits."""
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def _strings(device: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """(name without its domain in lower case, text) of every string attribute. 1.31 had them below `basic`."""
    for holder in (device, as_object(device.get("basic"))):
        for name, value in as_object(holder.get("attributes")).items():
            text = as_object(value).get("string")
            if isinstance(text, str):
                yield name.rpartition("/")[2].lower(), text


def unguarded(classes: Iterable[Mapping[str, Json]]) -> list[str]:
    """The DeviceClasses whose selector looks at devices of any driver: they would look at ours, too.

    Selectors are taken in turn, and an error of one ends the scheduling of the pod: it is the first that has to ask
    for the driver. What is not understood counts as unguarded.
    """
    open_to_all = (one for one in classes if not _guards(_first(as_object(one.get("spec")))))
    return sorted(str(as_object(one.get("metadata")).get("name", "")) for one in open_to_all)


def _first(spec: Mapping[str, Json]) -> str:
    selectors = spec.get("selectors")
    first = as_object(selectors[0]) if isinstance(selectors, list) and selectors else {}
    text = as_object(first.get("cel")).get("expression")
    return text if isinstance(text, str) else ""


_GUARD = re.compile(r"device\.driver\s*==\s*(['\"])[^'\"\\]+\1|(['\"])[^'\"\\]+\2\s*==\s*device\.driver", re.ASCII)
_TEXT = r"\s*(?:'[^'\\]*'|\"[^\"\\]*\")\s*"
_GUARD_IN = re.compile(rf"device\.driver\s+in\s*\[{_TEXT}(?:,{_TEXT})*,?\s*\]", re.ASCII)

# Raw strings, bytes and triple quotes have rules of their own: nobody needs them for the name of a driver.
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)|(?P<odd>[A-Za-z]["']|"{3}|'{3})|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\|\||&&|.""",
    re.ASCII | re.DOTALL,
)


def _guards(expression: str) -> bool:
    """Does it ask for a driver, whatever else it says: `device.driver == "gpu.example.com" && …`?"""
    alternatives = _split(expression, "||")
    if alternatives is None:
        return False
    if len(alternatives) > 1:
        return all(map(_guards, alternatives))
    parts = _split(alternatives[0], "&&") or [""]
    if len(parts) > 1:
        return any(map(_guards, parts))
    text = parts[0].strip()
    if text.startswith("(") and text.endswith(")"):
        return _guards(text[1:-1])
    return bool(_GUARD.fullmatch(text) or _GUARD_IN.fullmatch(text))


def _split(text: str, operator: str) -> list[str] | None:
    """The operands of an operator that stands in no brackets, without comments; None for what is not understood."""
    parts, depth, before = [""], 0, ""
    for found in _TOKEN.finditer(text):
        sign = " " if found["comment"] is not None else found[0]
        if found["odd"] is not None or sign in ("'", '"'):
            return None
        if sign == "?" and depth == 0 and before not in (".", "["):
            return None  # a condition: which of two is not for us to say
        depth += (sign in ("(", "[", "{")) - (sign in (")", "]", "}"))
        if depth < 0:
            return None
        before = sign
        if sign == operator and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts if depth == 0 else None
