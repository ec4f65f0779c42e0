"""Debian's packages for any architecture, fetched without installing anything and without being root."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from making.programs import Failed

FETCH_SECONDS = 300


class Offered(NamedTuple):
    """A package that apt would fetch."""

    file: str  # libc6_2.36-9+deb12u10_amd64.deb
    sha256: str

    @property
    def name(self) -> str:
        return self.file.partition("_")[0]

    @property
    def version(self) -> str:
        return unquote(self.file.split("_")[1])  # an epoch ends with %3a


class Apt:
    """apt with the sources and keys of this machine, and with lists, a status and archives of its own."""

    def __init__(self, architecture: str, work: Path) -> None:
        self._work = work
        for name in ("state/lists/partial", "cache/archives/partial"):
            (work / name).mkdir(parents=True)
        (work / "status").touch()
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "Debug::NoLocking": "1",
            "Dir::State": work / "state",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        self.run("apt-get", "update")

    def closure(self, names: Iterable[str]) -> list[Path]:
        """These packages and all that they depend on, and what was fetched before."""
        self.run("apt-get", "install", "--yes", "--download-only", "--no-install-recommends", *names)
        return sorted((self._work / "cache/archives").glob("*.deb"))

    def offered(self, names: Iterable[str]) -> list[Offered]:
        """What `closure` would fetch, without what was fetched before."""
        printed = self.run("apt-get", "install", "--yes", "--print-uris", "--no-install-recommends", *names)
        found = re.findall(r"(?m)^'[^']+' (\S+\.deb) \d+(?: SHA256:([0-9a-f]{64}))?", printed)
        for file, sha256 in found:
            if not sha256:
                raise Failed(f"apt's lists have no SHA-256 of {file}")
        return sorted(Offered(*one) for one in found)

    def run(self, tool: str, *words: str, cwd: Path | None = None) -> str:
        command = [tool, *self._options, "-q", *words]
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        except FileNotFoundError:
            raise Failed(f"no {tool} here: it is made of Debian's packages") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"{tool} {words[0]} took more than {FETCH_SECONDS} s") from None
        if done.returncode:
            said = "; ".join(done.stderr.strip().splitlines())
            raise Failed(f"{tool} {' '.join(words)}: {said[-500:] or done.returncode}")
        return done.stdout
