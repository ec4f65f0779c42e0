"""The settings file (TOML) -> its keys and values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from topo_agent.host import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST = 64 << 10  # bytes
_EXPECTED = "settings (TOML)"


def document(file: str | None, usual: str) -> tuple[str, dict[str, Any]]:
    """The path of the file, and what it holds: nothing where no file is named and the usual one is not there.

    files.Unreadable for a file that is none, or no TOML.
    """
    if file is None and not _there(usual):
        return usual, {}
    path = usual if file is None else file
    text = files.text(path, _EXPECTED, _MOST)
    try:
        return path, tomllib.loads(text)
    except RecursionError:
        raise files.Unreadable(f"{path}: expected {_EXPECTED}, and this is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one, and a number of 5000 digits is another
        raise files.Unreadable(_located(path, str(error))) from None


def _there(path: str) -> bool:
    """Not whether it can be read: settings that are there and cannot be read are an error."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _located(path: str, said: str) -> str:
    """`"Expected '=' … (at line 2, column 5)"` -> `"FILE:2: expected settings (TOML): Expected '=' …"`."""
    found = re.fullmatch(r"(.*) \(at line ([0-9]+), column [0-9]+\)", said, re.DOTALL)
    what, line = (found[1], f":{found[2]}") if found else (said, "")
    return f"{path}{line}: expected {_EXPECTED}: {' '.join(what.split())[:200]}"


def near(word: str, words: Iterable[str]) -> str:
    """What goes behind "no setting is called …"."""
    import difflib

    found = difflib.get_close_matches(word[:60], list(words), n=1)
    return f"; did you mean {found[0]}?" if found else "; docs/settings.md lists them"


def shown(value: object) -> str:
    """A value in an error, short whatever it is: a table may be nested deeper than repr() goes."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:59]}…"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 10**18:
        return str(value)
    return {int: "a huge number", list: "a list", dict: "a table"}.get(type(value), "a value of another type")
