"""The kinds of values that settings have: text -> value, value -> text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from topo_agent.graph import labels
from topo_agent.publishers import addresses

Plain = str | int | bool | list[str]
"""A value as JSON and TOML have it."""

_LISTENERS = 16  # as many as anybody needs, and few enough to open at once
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_YES, _NO = ("true", "1", "yes", "y", "on", "t"), ("false", "0", "no", "n", "off", "f")  # as click reads a variable
_GROUPS = (1 << 32) - 1  # as a number of a group that one is -1, "as it is": chown(2)
_PATH_BYTES = 4095  # PATH_MAX is 4096 with the NUL: include/uapi/linux/limits.h
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"


class Kind(NamedTuple):
    """One kind of value."""

    metavar: str
    expected: str  # goes on "expected …"
    read: Callable[[str], Any]  # ValueError for text that does not fit
    plain: Callable[[Any], Plain]
    types: tuple[type, ...] = (str,)  # what a file may hold
    empty: bool = False  # may it be empty, and so off?

    def text(self, value: Any) -> str:
        """As a flag or a variable would say it: `("a:1", "b:2")` -> `"a:1,b:2"`."""
        return _text(self.plain(value))

    def toml(self, value: Any) -> str:
        """As a file says it: `300` -> `"5m"` in quotation marks."""
        import json

        return json.dumps(self.plain(value), ensure_ascii=False)

    def from_file(self, value: object) -> str:
        """What a file says as a flag would say it; ValueError for another type."""
        if type(value) not in self.types:
            raise ValueError
        if isinstance(value, list):
            if not all(type(one) is str and one and "," not in one for one in value):
                raise ValueError
            return ",".join(value)
        return _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


def _matching(pattern: str) -> Callable[[str], str]:
    compiled = re.compile(pattern, re.ASCII)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError
        return text

    return read


def _listen(text: str) -> tuple[str, ...]:
    found = [addresses.parse(one.strip(" ")) for one in text.split(",")] if text else []
    if len(found) > _LISTENERS or len({*found}) < len(found) or any(not one.path and not one.port for one in found):
        raise ValueError
    return tuple(str(one) for one in found)


ADDRESSES = Kind(
    "ADDRESS,…", f'at most {_LISTENERS} of HOST:PORT, [IPV6]:PORT and unix:/PATH, each once, or "" for none',
    _listen, list, (str, list), empty=True,
)  # fmt: skip


def duration(low: int, high: int) -> Kind:
    """Seconds between two bounds; `"5m"` -> `300`, `"90"` -> `90`."""

    def read(text: str) -> float:
        found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
        seconds = int(found[1]) * _SECONDS[found[2] or "s"] if found else -1
        if not low <= seconds <= high:
            raise ValueError
        return float(seconds)

    expected = f"a duration from {_duration(low)} to {_duration(high)}, such as 30s, 5m, 1h or 90"
    return Kind("DURATION", expected, read, _duration, (str, int))


def _duration(seconds: float) -> str:
    unit = next((unit for unit in "dhm" if seconds and seconds % _SECONDS[unit] == 0), "s")
    return f"{seconds / _SECONDS[unit]:g}{unit}"


def whole(metavar: str, low: int, high: int) -> Kind:
    """A whole number between two bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return Kind(metavar, f"a whole number from {low} to {high}", read, int, (str, int))


def one_of(*words: str) -> Kind:
    """One of some words."""
    return Kind("|".join(words), f"one of {', '.join(words)}", _matching("|".join(words)), str)


def _switch(text: str) -> bool:
    if text.lower() not in _YES + _NO:
        raise ValueError
    return text.lower() in _YES


SWITCH = Kind("", "true or false", _switch, bool, (bool,))


def _mode(text: str) -> int:
    mode = int(_matching("0?[0-7]{3}")(text), 8)
    if mode & 0o002 or not mode & 0o400:
        raise ValueError
    return mode


# Text only: TOML's 644 is a decimal number, and its 0o644 would come as 420.
MODE = Kind(
    "MODE", 'an octal mode in text, such as "0644", that its owner may read and not everybody write',
    _mode, lambda mode: f"{mode:04o}",
)  # fmt: skip


def _group(text: str) -> str:
    name = _matching(r"|[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")(text)
    if name.isdigit() and int(name) >= _GROUPS:
        raise ValueError
    return name


GROUP = Kind(
    "GROUP", f'a group by name, by number below {_GROUPS}, or "" for that of the program',
    _group, str, (str, int), empty=True,
)  # fmt: skip


def _place(text: str) -> str:
    if not (text.isprintable() and len(text.encode()) <= _PATH_BYTES):
        raise ValueError
    return text


def _file(text: str) -> str:
    if text.endswith("/"):
        raise ValueError
    return _place(text)


def _absolute(text: str) -> str:
    """One that does not depend on where the program was started, or none."""
    if text and not text.startswith("/"):
        raise ValueError
    return _place(text)


FILE = Kind("FILE", 'the path of a file, or ""', _file, str, empty=True)
FOLDER = Kind("PATH", 'an absolute path, or ""', _absolute, str, empty=True)


def path(what: str = "the absolute path of a file", ending: str = "") -> Kind:
    """A file, and that too wherever the program was started, or none."""

    def read(text: str) -> str:
        if text and not text.endswith(ending):
            raise ValueError
        return _absolute(_file(text))

    return Kind("PATH", f'{what}, or ""', read, str, empty=True)


SOCKET = Kind(
    "PATH", f'an absolute path of at most {addresses.LONGEST_PATH} bytes, or ""',
    lambda text: addresses.parse(f"unix:{text}").path if text else "", str, empty=True,
)  # fmt: skip


# 63: a DRA driver's name is one, too, and may be no longer (resource.k8s.io/v1, DeviceRequestAllocationResult).
DOMAIN = Kind(
    "DOMAIN", "a DNS name of at most 63 signs in lower case", _matching(rf"(?=.{{1,63}}$){_LABEL}(?:\.{_LABEL})*"), str
)

NODE = Kind(
    "NAME", 'the name of a node: a DNS name in lower case, or ""',
    _matching(rf"|(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*"), str, empty=True,
)  # fmt: skip


NAMESPACE = Kind(
    "NAMESPACE", "a DNS label of at most 63 signs in lower case", _matching(rf"(?=.{{1,63}}$){_LABEL}"), str
)


def _free(text: str) -> str:
    if not (text.isprintable() and len(text) <= 253):
        raise ValueError
    return text


FREE = Kind("NAME", 'a name, or ""', _free, str, empty=True)

_KEYS = 16  # as many as anybody needs
_KEY = re.compile(
    rf"(?=.{{1,253}}/){_LABEL}(?:\.{_LABEL})*/(?=.{{1,63}}$)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII
)


def _label_keys(text: str) -> tuple[tuple[str, str], ...]:
    found = [one.strip(" ").partition("=")[::2] for one in text.split(",")] if text else []
    keys = {key for key, _ in found}
    if len(found) > _KEYS or len(keys) < len(found):
        raise ValueError
    if not all(_KEY.fullmatch(key) and name in labels.NAMES for key, name in found):
        raise ValueError
    return tuple(found)


LABEL_KEYS = Kind(
    "KEY=NAME,…", f"at most {_KEYS} of KEY=NAME, such as topology.kubernetes.io/rack=rack, each key once, where NAME is"
    f" one of {', '.join(labels.NAMES)}",
    _label_keys, lambda pairs: [f"{key}={name}" for key, name in pairs], (str, list), empty=True,
)  # fmt: skip
