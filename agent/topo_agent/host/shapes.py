"""Addresses that are known by their shape, in any text: MAC, GUID, GID, UUID, IP, NQN -> pseudonyms of that shape.

One number has one pseudonym however it is written: `b8ce:f603:0012:3456` as a node_guid, `0xb8cef60300123456`,
and the last eight bytes of an InfiniBand netdev's address stay equal to each other.
"""

from __future__ import annotations

import ipaddress
import re

from topo_agent.host.pseudonyms import Pseudonyms, placeholder

_X = "[0-9a-fA-F]"
_ALONE = "(?<![0-9A-Za-z:])", "(?![0-9A-Za-z:])"
_SHAPE = re.compile(
    rf"(?P<uuid>(?<!{_X}){_X}{{8}}-{_X}{{4}}-{_X}{{4}}-{_X}{{4}}-{_X}{{12}}(?!{_X}))"
    rf"|(?P<octets>{_ALONE[0]}{_X}{{2}}(?P<mark>[:-]){_X}{{2}}(?:(?P=mark){_X}{{2}}){{4,18}}{_ALONE[1]})"
    rf"|(?P<groups>{_ALONE[0]}{_X}{{4}}(?::{_X}{{4}}){{3}}(?::{_X}{{4}}:{_X}{{4}}:{_X}{{4}}:{_X}{{4}})?{_ALONE[1]})"
    rf"|(?P<named>(?<![0-9A-Za-z])(?:(?:en|wl|ww|sl|ib)x(?={_X}{{12}}(?!{_X}))|(?:eui|naa)\.))(?P<digits>{_X}{{12,32}})"
    rf"|(?P<bridge>(?<![0-9A-Za-z]){_X}{{4}}\.)(?P<mac>{_X}{{12}})(?![0-9A-Za-z])"
    rf"|(?P<nqn>nqn\.[0-9]{{4}}-[0-9]{{2}}\.[^\s\"',]+)"
    rf"|(?P<bare>(?<![0-9A-Za-z])(?:0x)?{_X}{{12,40}}(?![0-9A-Za-z]))"
    rf"|(?P<ipv6>(?<![\w:.]){_X}{{0,4}}(?::{_X}{{0,4}}){{2,7}}(?![\w:.]))"
    r"|(?P<ipv4>(?<![\w.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9]))",
    re.ASCII,
)
_PUBLIC = frozenset({"44c4f61d444444009d52802e27ede19f"})  # the class of every PCI device on Hyper-V's VMBus
_NETMASK = re.compile(r"0\.|127\.|255\.|22[4-9]\.|23[0-9]\.")


class Shapes:
    """Replaces what it finds with the names that `names` gives."""

    def __init__(self, names: Pseudonyms) -> None:
        self.names = names
        self._done: dict[tuple[str, bool], str] = {}  # few names make many paths, and many files say the same

    def forget(self) -> None:
        """The names are other ones from now on."""
        self._done.clear()

    def replaced(self, text: str, *, ip: bool = True) -> str:
        """`"OUI 00:11:22:33:44:55"` -> `"OUI 02:00:00:00:00:01"`; with `ip=False` dotted numbers are versions."""
        made = self._done.get((text, ip))
        if made is None:
            made = self._done[text, ip] = _SHAPE.sub(lambda found: self._one(found, ip=ip), text)
        return made

    def is_one(self, word: str) -> bool:
        found = _SHAPE.fullmatch(word)
        return found is not None and found.lastgroup != "bare"

    def whole(self, word: str) -> str | None:
        """A word that a file's name says to be an id: `"0xb8cef60300123456"`, `"00 25 38 …"`, a decimal number.

        None when it is no number, and nothing in it has the shape of one.
        """
        if word.isdigit() and 17 <= len(word) <= 20:  # a u64 in decimal (KFD's unique_id)
            return str(int(self._digits(f"{int(word):016x}"), 16))
        bare = re.sub(r"[\s:.-]", "", word.lower().removeprefix("0x"))
        if not self.is_one(word) and len(bare) >= 6 and re.fullmatch(r"[0-9a-f]+", bare):
            return _written(word, self._digits(bare))
        made = self.replaced(word)
        return made if made != word or _SHAPE.search(word) else None

    def _one(self, found: re.Match[str], *, ip: bool) -> str:
        text = found[0]
        if found["octets"]:
            return _written(text, self._octets(re.sub("[:-]", "", text).lower()))
        if found["groups"]:
            return _written(text, self._groups(text.replace(":", "").lower()))
        if found["uuid"]:
            return _written(text, self._digits(text.replace("-", "").lower()))
        if found["digits"]:
            return found["named"] + _written(found["digits"], self._digits(found["digits"].lower()))
        if found["mac"]:
            return found["bridge"] + _written(found["mac"], self._digits(found["mac"].lower()))
        if found["nqn"]:
            return text if text.endswith(".discovery") else self.names.of("nqn", text)
        if found["bare"]:
            return self._bare(text)
        if found["ipv6"]:
            return self._ipv6(text)
        return self._ipv4(text) if ip else text

    def _bare(self, text: str) -> str:
        """Digits alone may be anything: only those that are known as an address elsewhere."""
        digits = text.lower().removeprefix("0x")
        known = self.names.knows(f"hex{len(digits)}", digits)
        return _written(text, self._digits(digits)) if known else text

    def _digits(self, digits: str) -> str:
        return digits if placeholder(digits) or digits in _PUBLIC else self.names.of(f"hex{len(digits)}", digits)

    def _octets(self, digits: str) -> str:
        """6 octets are a MAC, 8 a GUID, 20 an InfiniBand address: queue pair, subnet prefix, GUID."""
        if len(digits) == 40:
            return digits if digits.endswith("ffffffff") else digits[:8] + self._groups(digits[8:])
        return self._digits(digits)

    def _groups(self, digits: str) -> str:
        """16 digits are a GUID, 32 a GID: its first half is the subnet, which many ports have in common."""
        if len(digits) == 16:
            return self._digits(digits)
        prefix, port = digits[:16], digits[16:]
        if digits.startswith("ff") or placeholder(digits) or int(digits, 16) == 1:
            return digits
        if prefix == "0" * 16 and port.startswith("0000ffff"):  # an IPv4 address (RoCE v2)
            made = self._ipv4(str(ipaddress.IPv4Address(int(port[8:], 16))))
            return digits[:24] + f"{int(ipaddress.IPv4Address(made)):08x}"
        if not prefix.startswith(("fe80", "fec0")) and not placeholder(prefix):
            prefix = self.names.of("prefix", prefix)
        return prefix + self._digits(port)

    def _ipv6(self, text: str) -> str:
        try:
            digits = f"{int(ipaddress.IPv6Address(text)):032x}"
        except ValueError:
            return text
        made = self._groups(digits)
        return text if made == digits else str(ipaddress.IPv6Address(int(made, 16)))

    def _ipv4(self, text: str) -> str:
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            return text  # "300.1.2.3", or a zero in front: a version
        return text if _NETMASK.match(text) else self.names.of("ipv4", text)


def _written(like: str, digits: str) -> str:
    """The digits as the text has them: ("0xAB:CD", "0201") -> "0x02:01"; letters in its case."""
    if re.search("[A-F]", like) and not re.search("[a-f]", like.removeprefix("0x")):
        digits = digits.upper()
    rest = iter(digits)
    start = "0x" if like[:2] in ("0x", "0X") else ""
    return start + "".join(next(rest) if mark.isalnum() else mark for mark in like[len(start) :])
