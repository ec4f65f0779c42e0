"""The kernel's text formats -> values. No I/O; ValueError when the text does not fit.

Attribute text may end in newline, NUL or both (kernels before 4.x and 5.15-rc print "0-3\\n\\0"), and `int()`
takes "1_000", Arabic digits and "-1" with base 16: every number is matched before it is converted.
"""

from __future__ import annotations

import re
from functools import lru_cache

from topo_agent.ids import CpuSet

_DECIMAL = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_MASK_GROUP = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) GT/s(?: PCIe)?", re.ASCII)
_KIB = re.compile(r"([0-9]{1,18}) kB", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)", re.ASCII)

CPUS_AT_MOST = 8192  # the largest NR_CPUS that any architecture's Kconfig allows (x86 MAXSMP, powerpc)

FILLERS = frozenset(
    {
        "",
        "n/a",
        "none",
        "default string",
        "system product name",
        "system manufacturer",
        "to be filled by o.e.m.",
        "not specified",
        "unknown",
        "0123456789",
        "empty",
    }
)
"""What boards say when nobody filled in the field, lower case."""


def clean(text: str) -> str:
    """`"0-3\\n\\0"` -> `"0-3"`."""
    return text.strip(" \t\r\n\0")


def decimal(text: str) -> int:
    """`"-1\\n"` -> `-1`, `"128"` -> `128`."""
    said = clean(text)
    if not _DECIMAL.fullmatch(said):
        raise ValueError(f"{said[:40]!r} is no decimal number")
    return int(said)


def count(text: str) -> int:
    """A decimal number that is not negative: `"16"` -> `16`."""
    value = decimal(text)
    if value < 0:
        raise ValueError(f"{value} is negative")
    return value


def numbered(name: str, prefix: str = "") -> int | None:
    """The number of a directory: `("cpu12", "cpu")` -> `12`, `("cpufreq", "cpu")` -> None."""
    digits = name.removeprefix(prefix)
    return int(digits) if name.startswith(prefix) and _NUMBER.fullmatch(digits) else None


def hexadecimal(text: str, bits: int = 16) -> int:
    """`"0x15b3\\n"` -> `0x15b3`, `"10DE"` -> `0x10de`; ValueError beyond `bits`."""
    digits = clean(text)
    if not _HEX.fullmatch(digits) or int(digits, 16) >> bits:
        raise ValueError(f"{digits[:40]!r} is no hexadecimal number of {bits} bits")
    return int(digits, 16)


def class_code(text: str) -> int:
    """`"0x120000\\n"` -> `0x120000`, `"60400"` -> `0x060400`: uevent prints no leading zeros."""
    return hexadecimal(text, 24)


def word(text: str) -> str | None:
    """`"PowerEdge XE9680\\n"` -> the same, what a terminal would obey left out; None for an empty file."""
    return "".join(sign for sign in clean(text) if sign.isprintable())[:120] or None


@lru_cache(maxsize=64)
def cpulist(text: str) -> CpuSet:
    """`"0-3,8"` -> `{0, 1, 2, 3, 8}`, `"\\n"` -> nothing (Documentation/admin-guide/cputopology.rst)."""
    said = clean(text)
    if not said:
        return frozenset()
    found: set[int] = set()
    listed = 0
    for part in said.split(","):
        matched = _RANGE.fullmatch(part.strip())
        if not matched:
            raise ValueError(f"{said[:40]!r} is no list of CPUs")
        first = int(matched[1])
        last = int(matched[2] or first)
        listed += last - first + 1
        if last < first or last >= CPUS_AT_MOST or listed > CPUS_AT_MOST:
            raise ValueError(f"{part[:40]!r} is no range of CPUs")
        found.update(range(first, last + 1))
    return frozenset(found)


@lru_cache(maxsize=64)
def cpumask(text: str) -> CpuSet:
    """`"0000,00000003,00000001"` -> `{0, 32, 33}`: 32 bits for each group, the first may be shorter."""
    said = clean(text).removeprefix("0x")
    groups = said.split(",")
    if len(groups) > CPUS_AT_MOST // 32 or not all(map(_MASK_GROUP.fullmatch, groups)):
        raise ValueError(f"{said[:40]!r} is no mask of CPUs")
    mask = int("".join([groups[0], *(group.zfill(8) for group in groups[1:])]), 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def numbers(text: str) -> tuple[int, ...]:
    """`" 10 21\\n"` -> `(10, 21)`: a SLIT row may start with a space (drivers/base/node.c)."""
    return tuple(count(said) for said in clean(text).split())


def link_speed(text: str) -> float | None:
    """`"16.0 GT/s PCIe"` -> `16.0`, `"8 GT/s"` -> `8.0`; None for "Unknown": a function without a link."""
    said = clean(text)
    if said in ("Unknown", "Unknown speed"):  # drivers/pci/probe.c pci_speed_string
        return None
    matched = _SPEED.fullmatch(said)
    if not matched or float(matched[1]) == 0:
        raise ValueError(f"{said[:40]!r} is no link speed")
    return float(matched[1])


def link_width(text: str) -> int | None:
    """`"16"` -> `16`; None for 0 and 255 (no link) and 63 (a lost device answers all ones)."""
    value = decimal(text)
    if value in (0, 63, 255):
        return None
    if value not in (1, 2, 4, 8, 12, 16, 32):  # PCI Express Base Specification, Maximum Link Width
        raise ValueError(f"{value} is no link width")
    return value


def uevent(text: str) -> dict[str, str]:
    """`"DRIVER=nvme\\nPCI_CLASS=10802\\n"` -> `{"DRIVER": "nvme", "PCI_CLASS": "10802"}`."""
    pairs = (line.partition("=") for line in text.replace("\0", "").splitlines())
    return {key: value for key, equals, value in pairs if equals}


def meminfo(text: str, key: str) -> int:
    """Bytes of one line of a meminfo: `"Node 1 MemTotal:  67108864 kB"` -> `68719476736`."""
    for line in text.splitlines():
        before, colon, after = line.partition(":")
        if colon and before.split()[-1:] == [key]:
            matched = _KIB.fullmatch(after.strip())
            if matched:
                return int(matched[1]) * 1024
            break
    raise ValueError(f"no line {key} in kB")


def size(text: str) -> int:
    """Bytes of a cache size: `"32K"` -> `32768`, `"260M"` -> `272629760`."""
    said = clean(text)
    matched = _SIZE.fullmatch(said)
    if not matched:
        raise ValueError(f"{said[:40]!r} is no size")
    return int(matched[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[matched[2]]


def filler(text: str) -> bool:
    """Is an id none: `"N/A"`, `"To be filled by O.E.M."`, `"00000000-0000"`, `"ffff"`."""
    plain = text.strip().lower()
    said = set(plain) - set(" .:-_0")
    return plain in FILLERS or not said or said in ({"f"}, {"x"})
