"""The page `/`: tree, matrix and findings as plain HTML, without a script, a picture or anything from elsewhere."""

from __future__ import annotations

from html import escape

_STYLE = "body{font:14px/1.4 monospace;margin:1.5em;max-width:110ch}pre{overflow-x:auto}h2{font-size:1em}"

LINKS = ("topology.json", "matrix.txt", "findings.json", "metrics")


def page(title: str, *, tree: str, matrix: str, findings: str, note: str = "") -> str:
    """Every text is escaped: names of devices come from the machine."""
    links = " · ".join(f'<a href="{name}">{name}</a>' for name in LINKS)
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{links}</p>",
        f"<p><strong>{escape(note)}</strong></p>" if note else "",
        f"<h2>How it is wired</h2><pre>{escape(tree)}</pre>",
        f"<h2>How far apart</h2><pre>{escape(matrix)}</pre>",
        f"<h2>Findings</h2><pre>{escape(findings or 'none')}</pre></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"
