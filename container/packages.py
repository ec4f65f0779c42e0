"""The versions of Debian's packages that the image is made of: container/packages.amd64.lock and its like.

The release in the first line, `# debian bookworm`, then a line for each package: NAME VERSION SHA256.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from making.apt import Offered
from making.programs import Failed

FOLDER = Path(__file__).parent
UPDATE, AS_OFFERED = "make image ARGS=--update", "make image ARGS=--as-offered"
_LINE = re.compile(r"([a-z0-9][a-z0-9.+-]+) ([A-Za-z0-9.+:~-]+) ([0-9a-f]{64})")


class Pinned(NamedTuple):
    version: str
    sha256: str


class Lock(NamedTuple):
    name: str  # container/packages.amd64.lock
    system: str
    packages: Mapping[str, Pinned]


def own_system() -> str:
    """The release of this machine, which apt's packages are of: `debian bookworm`."""
    said = platform.freedesktop_os_release()
    return f"{said['ID']} {said.get('VERSION_CODENAME') or said.get('VERSION_ID', '')}".rstrip()


def check(architecture: str, offered: Iterable[Offered], *, as_offered: bool) -> str:
    """Fails if apt offers something else than the lock says; what is not as it says and yet taken, as one line or "".

    `as_offered`: other versions are taken. Never another content of the same version: no update makes that.
    """
    lock, system = read(architecture), own_system()
    if lock.system != system:
        return f"{lock.name} is of {lock.system}, and this is {system}: what apt offers is taken"
    found = {one.name: Pinned(one.version, one.sha256) for one in offered}
    for name, package in found.items():
        pinned = lock.packages.get(name)
        if pinned and pinned.version == package.version and pinned.sha256 != package.sha256:
            raise Failed(
                f"{lock.name}: {name} {pinned.version} is pinned with SHA-256 {pinned.sha256}, and apt offers another "
                f"content of that version, {package.sha256}"
            )
    differing = [*_differing(lock.packages, found)]
    if as_offered and differing:
        count = "1 package differs" if len(differing) == 1 else f"{len(differing)} packages differ"
        return f"{count} from {lock.name}: {'; '.join(differing)}"
    if differing:
        more = f" (and {len(differing) - 1} more differ)" if differing[1:] else ""
        raise Failed(
            f"{lock.name}: {differing[0]}{more}; {UPDATE} pins what apt offers, {AS_OFFERED} takes it this time"
        )
    return ""


def _differing(pinned: Mapping[str, Pinned], found: Mapping[str, Pinned]) -> Iterator[str]:
    for name in sorted({*pinned, *found}):
        if name not in pinned:
            yield f"{name} is not pinned, and apt offers {found[name].version}"
        elif name not in found:
            yield f"{name} {pinned[name].version} is pinned, and nothing needs it"
        elif pinned[name] != found[name]:
            yield f"{name} {pinned[name].version} is pinned, and apt offers {found[name].version}"


def read(architecture: str) -> Lock:
    path = _path(architecture)
    name = f"container/{path.name}"
    try:
        first, *lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    except FileNotFoundError:
        raise Failed(f"{name}: not there; {UPDATE} writes it") from None
    if not first.startswith("# "):
        raise Failed(f"{name}:1: {first!r}, and a release such as '# debian bookworm' was expected")
    packages: dict[str, Pinned] = {}
    for number, line in enumerate(lines, 2):
        said = _LINE.fullmatch(line)
        if not said:
            raise Failed(f"{name}:{number}: {line!r}, and NAME VERSION SHA256 was expected")
        if said[1] in packages:
            raise Failed(f"{name}:{number}: {said[1]} is pinned above, and one line for each package was expected")
        packages[said[1]] = Pinned(said[2], said[3])
    return Lock(name, first.removeprefix("# "), packages)


def write(architecture: str, offered: Iterable[Offered]) -> Path:
    """The lock anew: of what apt offers here and now."""
    lines = sorted({f"{one.name} {one.version} {one.sha256}\n" for one in offered})
    path = _path(architecture)
    path.write_text("".join([f"# {own_system()}\n", *lines]), encoding="utf-8")
    return path


def _path(architecture: str) -> Path:
    return FOLDER / f"packages.{architecture}.lock"
