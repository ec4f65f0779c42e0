"""Programs of the labs that Go builds from modules of this folder, kept between runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.labs.apt import CannotStart

_SECONDS = 1800.0
_DAYS_KEPT = 30  # after its last use


def built(module: Path, *, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Path:
    """The program of `module`, a folder with go.mod, go.sum and package main.

    What its files and the flags say is its name in the cache: the same ones are built once. CannotStart where Go is
    missing or refuses.
    """
    return _kept(module, ".", flags, environment or {})


def tools(module: Path, *, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Path:
    """A folder with the programs that `module` names as `tool` in its go.mod; kept like those of `built`."""
    return _kept(module, "tool", flags, environment or {})


def _kept(module: Path, packages: str, flags: Sequence[str], environment: Mapping[str, str]) -> Path:
    """A file where `packages` is one, a folder where it is several."""
    chosen = {"CGO_ENABLED": "0", **environment}
    found = _cache() / f"{module.name}-{_key(module, flags, chosen)}"
    if found.exists():
        os.utime(found)
        return found
    if not shutil.which("go"):
        raise CannotStart(f"no go here, and no {found}")
    found.parent.mkdir(parents=True, exist_ok=True)
    for other in found.parent.glob(f"{module.name}-*"):
        if other.stat().st_mtime < time.time() - _DAYS_KEPT * 86400:
            _remove(other)
    with tempfile.TemporaryDirectory(dir=found.parent) as fresh:
        output = f"{fresh}/{found.name}" + ("" if packages == "." else "/")
        command = ["go", "build", "-mod=readonly", "-trimpath", *flags, "-o", output, packages]
        try:
            done = subprocess.run(
                command,
                cwd=module,
                env=os.environ | chosen,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotStart(f"go build in {module} took more than {_SECONDS:g} s") from None
        if done.returncode:
            raise CannotStart(f"go build in {module}: {done.stderr.strip()[-500:]}")
        try:
            os.rename(output, found)
        except OSError:
            if not found.exists():  # no other run was faster
                raise
    return found


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "topo-agent-labs")


def _key(module: Path, flags: Sequence[str], environment: Mapping[str, str]) -> str:
    found = hashlib.sha256(repr((flags, sorted(environment.items()))).encode())
    for path in sorted(p for p in module.rglob("*") if p.suffix == ".go" or p.name in {"go.mod", "go.sum"}):
        found.update(f"\0{path.relative_to(module)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]
