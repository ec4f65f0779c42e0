"""Made-up values of the same shape for what must not be told; the same secret always gets the same one.

Two passes over one machine: in the first every secret is met and kept, in the order of the recording; after
`settle` each has its pseudonym. So none depends on a key, and none can be another secret of that machine.
"""

from __future__ import annotations

import re

# One shape for each kind. The hexadecimal ones are locally administered (02…), IPv4 is the block for benchmarks
# (RFC 2544), IPv6 prefixes are unique local (RFC 4193), names are under .example (RFC 2606).
_SHAPES = {
    "serial": ("SERIAL{:04d}", re.compile(r"SERIAL\d{4,}")),
    "host": ("host{}", re.compile(r"host\d+")),
    "nqn": (
        "nqn.2014-08.org.nvmexpress:uuid:{:08x}-0000-4000-8000-0000000000ff",
        re.compile(r"nqn\.2014-08\.org\.nvmexpress:uuid:[0-9a-f]{8}-0000-4000-8000-0000000000ff"),
    ),
    "prefix": ("fd00{:012x}", re.compile(r"fd0{8}[0-9a-f]{6}")),
    "hex32": ("{:08x}000040008000000000000000", re.compile(r"[0-9a-f]{8}000040008000000000000000")),
}

_PLACEHOLDERS = frozenset(
    {
        *(
            "",
            "none",
            "(none)",
            "n/a",
            "na",
            "null",
            "(null)",
            "unknown",
            "default",
            "empty",
            "oem",
            "o.e.m.",
            "invalid",
        ),
        *("undefined", "localhost", "localhost.localdomain", "not specified", "not available", "not applicable"),
        *("not provided", "not set", "not present", "no enclosure", "no asset tag", "no asset information"),
        *("to be filled by o.e.m.", "default string", "default_string", "asset tag", "board serial number"),
        *("system serial number", "chassis serial number", "base board serial number", "chassis asset tag"),
        *("base board asset tag", "0123456789", "123456789", "1234567890", "0123456789abcdef", "redacted"),
        # what clouds write there for everybody
        *("amazon ec2", "7783-7084-3265-9085-8269-3286-77", "oraclecloud.com", "huaweicloud", "googlecloud"),
    }
)


def placeholder(word: str) -> bool:
    """Says nothing of anybody: `"To be filled by O.E.M."`, `"00000000"`, `"........"`."""
    plain = word.strip().lower()
    said = set(plain) - set(" .:-_0")
    return plain in _PLACEHOLDERS or not said or said in ({"f"}, {"x"})


class Pseudonyms:
    """`known`: the machine was redacted before, so what looks like a pseudonym is one and stays."""

    def __init__(self, *, known: bool) -> None:
        self._known = known
        self._met: dict[tuple[str, str], str] = {}
        self._settled = False

    def of(self, kind: str, secret: str) -> str:
        """The pseudonym; before `settle` the secret itself. Kinds: serial, host, nqn, ipv4, prefix, hex<digits>."""
        if placeholder(secret):
            return secret
        if self._settled:
            return self._met.get((kind, secret), secret)
        self._met.setdefault((kind, secret), secret)
        return secret

    def knows(self, kind: str, secret: str) -> bool:
        return (kind, secret) in self._met

    def settle(self) -> None:
        self._settled = True
        numbers: dict[str, int] = {}
        for kind, secret in self._met:
            if self._known and _is_pseudonym(kind, secret):
                continue
            shape = f"digits{len(secret)}" if kind == "serial" and secret.isdigit() and len(secret) >= 8 else kind
            while True:
                numbers[shape] = numbers.get(shape, 0) + 1
                made = _make(shape, numbers[shape])
                if (kind, made) not in self._met:
                    break
            self._met[kind, secret] = made


def _make(shape: str, number: int) -> str:
    """("hex12", 1) -> "020000000001", ("digits13", 1) -> "1000000000001", ("ipv4", 1) -> "198.18.0.1"."""
    if shape in _SHAPES:
        return _SHAPES[shape][0].format(number)
    if shape == "ipv4":
        return f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}"
    if shape.startswith("digits"):
        return "1" + str(number).zfill(int(shape[6:]) - 1)
    width = int(shape[3:])
    return ("02" + f"{number:x}".zfill(width - 2)) if width > 2 else f"{number % 256:02x}"


def _is_pseudonym(kind: str, word: str) -> bool:
    if kind in _SHAPES and _SHAPES[kind][1].fullmatch(word):
        return True
    if kind == "ipv4":
        return word.startswith(("198.18.", "198.19."))
    if kind == "serial":
        return len(word) >= 8 and word.isdigit() and word.startswith("1" + "0" * (len(word) - 5))
    return kind.startswith("hex") and re.fullmatch(r"020*[0-9a-f]{0,6}", word) is not None
