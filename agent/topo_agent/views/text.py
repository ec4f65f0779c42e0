"""Text that machines wrote, made fit for a terminal: no control characters, and as wide as it may be."""

from __future__ import annotations

from unicodedata import category, east_asian_width

_ELLIPSIS = "…"


def clean(text: str) -> str:
    """`"Dell\\x1b[31m"` -> `"Dell?[31m"`: what a terminal would obey, and what no encoding can hold, is a "?"."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") else sign for sign in text)


def width(text: str) -> int:
    """Columns of a cleaned text on a terminal: `"华为"` -> 4."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(sign) in ("W", "F") else 0 if category(sign) == "Mn" else 1 for sign in text)


def fit(text: str, columns: int) -> str:
    """Cut to so many columns, with an ellipsis where something is missing."""
    if width(text) <= columns:
        return text
    kept = ""
    for sign in text:
        if width(kept + sign) >= columns:
            break
        kept += sign
    return kept + _ELLIPSIS if columns > 0 else ""


def wrap(words: list[str], joint: str, columns: int) -> list[str]:
    """Words on as few lines as fit; a word that is too long for a line is cut."""
    lines: list[str] = []
    for one in words:
        longer = f"{lines[-1]}{joint}{one}" if lines else one
        if lines and width(longer) <= columns:
            lines[-1] = longer
        else:
            lines.append(fit(one, columns))
    return lines
