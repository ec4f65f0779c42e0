"""Debian's packages for any architecture, fetched without installing anything and without being root."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

FETCH_SECONDS = 300


class CannotStart(Exception):
    """The lab cannot run on this machine; the message tells what is missing."""


class Apt:
    """apt with the sources and keys of this machine, and with lists, a status and archives of its own."""

    def __init__(self, architecture: str, work: Path) -> None:
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if not shutil.which(tool):
                raise CannotStart(f"no {tool} here: it is made of Debian's packages")
        self._work = work
        for name in ("state/lists/partial", "cache/archives/partial"):
            (work / name).mkdir(parents=True)
        (work / "status").touch()
        said = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "Debug::NoLocking": "1",
            "Dir::State": work / "state",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
        }
        self._options = [word for key, value in said.items() for word in ("-o", f"{key}={value}")]
        self._run("apt-get", "update")

    def closure(self, names: Iterable[str]) -> list[Path]:
        """These packages and all that they depend on."""
        self._run("apt-get", "install", "--yes", "--download-only", "--no-install-recommends", *names)
        return sorted((self._work / "cache/archives").glob("*.deb"))

    def names(self, names: Iterable[str]) -> list[str]:
        """File names, with versions, of what `closure` would fetch."""
        said = self._run("apt-get", "install", "--yes", "--print-uris", "--no-install-recommends", *names)
        return sorted(re.findall(r"(?m)^'[^']+' (\S+\.deb) ", said))

    def download(self, name: str) -> list[Path]:
        folder = self._work / name
        folder.mkdir()
        self._run("apt-get", "download", name, cwd=folder)
        return [*folder.glob("*.deb")]

    def depends(self, name: str, prefix: str) -> str:
        """`("linux-image-arm64", "linux-image-")` -> `"linux-image-6.1.0-57-arm64"`."""
        said = self._run("apt-cache", "depends", name)
        found = re.search(rf"Depends: ({re.escape(prefix)}\S+)", said)
        if not found:
            raise CannotStart(f"{name} depends on no {prefix}…")
        return found[1]

    def _run(self, tool: str, *words: str, cwd: Path | None = None) -> str:
        command = [tool, *self._options, "-q", *words]
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise CannotStart(f"{tool} {words[0]} took more than {FETCH_SECONDS} s") from None
        if done.returncode:
            raise CannotStart(f"{tool} {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout
