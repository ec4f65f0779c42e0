"""`make image`: the image of topo-agent as an OCI archive, with the list of what is in it (SBOM) beside it.

The same commit makes the same bytes: container/requirements.txt and container/packages.*.lock pin what is in it. On
Debian or Ubuntu, with buildah; the Python that runs this has the minor version of the system's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from container import install, oci, packages, sbom
from container.base import open_bases
from making import checkout
from making.checkout import ROOT
from making.programs import Failed, same_python

REQUIREMENTS = ROOT / "container/requirements.txt"


class Built(NamedTuple):
    archive: Path
    sbom: Path


def main() -> None:
    words = argparse.ArgumentParser(prog="make image", description=(__doc__ or "").partition("\n")[0])
    words.add_argument("-o", "--output", metavar="FOLDER", type=Path, default=ROOT / "dist")
    words.add_argument("--arch", choices=sorted(install.MACHINES), default=install.own_architecture())
    words.add_argument("--base", metavar="IMAGE", help="to run on, instead of Debian's packages")
    words.add_argument("--builder", metavar="IMAGE", help="to build on: Python as in the base, and pip")
    words.add_argument("--wheels", metavar="FOLDER", type=Path, help="only fetch the wheels of that architecture to it")
    words.add_argument("--as-offered", action="store_true", help="take Debian's packages in other versions than pinned")
    words.add_argument("--update", action="store_true", help="only pin Debian's packages anew, as apt offers them")
    said = words.parse_args()
    try:
        if said.wheels:
            fetch(said.arch, said.wheels)
            return
        if said.update:
            print(*update(), sep="\n")
            return
        made = build(said.arch, said.output, base=said.base, builder=said.builder, as_offered=said.as_offered)
        print(made.archive, made.sbom, *sizes(made.archive), sep="\n")
    except (Failed, OSError) as error:
        sys.exit(f"image: {error}")


def build(
    architecture: str, output: Path, *, base: str | None = None, builder: str | None = None, as_offered: bool = False
) -> Built:
    same_python("image")
    when, version = checkout.when(), checkout.version()
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="topo-agent-image.") as folder:
        work = Path(folder)
        buildah = _Buildah(work)
        base, builder = _bases(buildah, architecture, base, builder, as_offered=as_offered)
        (work / "wheels").mkdir()
        fetch(architecture, work / "wheels")
        said = {
            "BASE": base, "BUILDER": builder, "VERSION": version, "REVISION": checkout.revision(), "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels", "BUILDPLATFORM": f"linux/{install.own_architecture()}",
            "TARGETARCH": architecture, "TARGETPLATFORM": f"linux/{architecture}",
        }  # fmt: skip
        name = f"localhost/topo-agent:{version}"
        buildah(
            "build", "--quiet", "--isolation=chroot", f"--timestamp={when}", f"--platform=linux/{architecture}",
            "--pull=missing", f"--volume={work}/wheels:/wheels:ro", "--format=oci", "--layers=false",
            "--identity-label=false",
            *(f"--build-arg={key}={value}" for key, value in said.items()),
            f"--file={ROOT}/container/Containerfile", f"--tag={name}", str(ROOT),
        )  # fmt: skip
        buildah("push", "--quiet", name, f"oci:{work}/layout:{version}")
        image = oci.archived(work / "layout", name)
    output.mkdir(parents=True, exist_ok=True)
    stem = f"topo-agent-{version}-{architecture}"
    made = Built(output / f"{stem}.oci.tar", output / f"{stem}.cdx.json")
    made.archive.write_bytes(image)
    content = oci.files(oci.read(made.archive).layers)
    made.sbom.write_text(sbom.listed(content, version, architecture, when), encoding="utf-8")
    return made


def _bases(
    buildah: _Buildah, architecture: str, base: str | None, builder: str | None, *, as_offered: bool
) -> tuple[str, str]:
    """The names of the images to run on and to build on; those that nobody named are made of Debian's packages."""
    own = install.own_architecture()
    needed = {one for one, named in ((architecture, base), (own, builder)) if not named}
    with contextlib.ExitStack() as stack:
        bases = {one: stack.enter_context(open_bases(one)) for one in sorted(needed)}
        for one, found in bases.items():
            unpinned = packages.check(one, found.offered(), as_offered=as_offered)
            if unpinned:
                print(f"image: {unpinned}", file=sys.stderr)
        return (
            base or buildah.pulled(bases[architecture].runtime()),
            builder or buildah.pulled(bases[own].builder()),
        )


def update() -> Iterator[Path]:
    """The locks of Debian's packages, written anew."""
    for architecture in install.MACHINES:
        with open_bases(architecture) as found:
            yield packages.write(architecture, found.offered())


def fetch(architecture: str, folder: Path) -> None:
    """The wheels of requirements.txt, as pip is set up here (PIP_INDEX_URL, PIP_NO_INDEX, PIP_FIND_LINKS)."""
    words = [*install.pip_flags(architecture), f"--requirement={REQUIREMENTS}", f"--dest={folder}"]
    try:
        install.pip("download", *words)
    except subprocess.CalledProcessError:
        raise Failed("pip does not get the wheels of container/requirements.txt") from None


class _Buildah:
    """With a storage of its own, that goes away with the folder."""

    def __init__(self, work: Path) -> None:
        self._options = ["--storage-driver=vfs", f"--root={work}/storage", f"--runroot={work}/run"]
        # Nobody signed what comes from here.
        self._policy = work / "policy.json"
        self._policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}), encoding="utf-8")
        # Else it makes /etc/cni, for networks that are not used here.
        network = f'[network]\nnetwork_backend = "cni"\nnetwork_config_dir = "{work}/networks"\n'
        (work / "containers.conf").write_text(network, encoding="utf-8")
        self._environment = os.environ | {"TMPDIR": str(work), "CONTAINERS_CONF": f"{work}/containers.conf"}

    def __call__(self, command: str, *words: str) -> str:
        policy = [f"--signature-policy={self._policy}"] if command in {"build", "pull", "push"} else []
        call = ["buildah", *self._options, command, *policy, *words]
        try:
            done = subprocess.run(call, check=False, capture_output=True, text=True, env=self._environment)
        except OSError as error:
            raise Failed(f"buildah: {error.strerror}; Debian and Ubuntu have a package of that name") from None
        if done.returncode:
            raise Failed(f"buildah {command}: {done.stderr.strip()[-2000:] or done.returncode}")
        return done.stdout.strip()

    def pulled(self, archive: Path) -> str:
        self("pull", "--quiet", f"oci-archive:{archive}")
        return oci.name(archive)


_KUBERNETES = (
    r"annotated|certifi|charset|dateutil|durationpy|idna|kubernetes|oauthlib|pydantic|requests|t[yz]|urllib3|web"
)
_PARTS = (
    (r"usr/lib/topo-agent/topo_agent/", "the program"),
    (rf"usr/lib/topo-agent/({_KUBERNETES})", "the Kubernetes library and what it needs"),
    (r"usr/lib/topo-agent/", "the other libraries"),
    (r"usr/(bin|lib)/(python3|[^/]*/libsqlite3)", "Python and its library"),
    (r"usr/lib/[^/]*/(libssl|libcrypto|engines|ossl)", "OpenSSL"),
    (r"(usr/lib|usr/sbin|lib64)", "libc and other libraries of the system"),
    (r"", "certificates, licences, lists"),
)


def sizes(archive: Path) -> Iterator[str]:
    """How big the image is, and why."""
    image = oci.read(archive)
    parts: Counter[str] = Counter()
    for entry, content in oci.files(image.layers):
        parts[next(name for pattern, name in _PARTS if re.match(pattern, entry.name))] += len(content)
    yield f"{_mb(sum(image.sizes))} to fetch, {_mb(sum(parts.values()))} unpacked:"
    for name, size in parts.most_common():
        yield f"{_mb(size):>9}  {name}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
