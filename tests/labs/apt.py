"""Debian's packages for labs."""

from __future__ import annotations

import re
from pathlib import Path

from making import apt
from making.programs import Failed


class CannotStart(Exception):
    """The lab cannot run on this machine; the message tells what is missing."""


class Apt(apt.Apt):
    def download(self, name: str) -> list[Path]:
        folder = self._work / name
        folder.mkdir()
        self.run("apt-get", "download", name, cwd=folder)
        return [*folder.glob("*.deb")]

    def depends(self, name: str, prefix: str) -> str:
        """`("linux-image-arm64", "linux-image-")` -> `"linux-image-6.1.0-57-arm64"`."""
        said = self.run("apt-cache", "depends", name)
        found = re.search(rf"Depends: ({re.escape(prefix)}\S+)", said)
        if not found:
            raise CannotStart(f"{name} depends on no {prefix}…")
        return found[1]

    def run(self, tool: str, *words: str, cwd: Path | None = None) -> str:
        try:
            return super().run(tool, *words, cwd=cwd)
        except Failed as error:
            raise CannotStart(str(error)) from None
