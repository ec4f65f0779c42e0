"""`make deb`: the Debian package, with dpkg-deb and pip alone. The same commit and wheels make the same bytes.

It is for the Python that runs this script: compiled parts of its libraries are of that minor version.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from email import message_from_string
from email.utils import formatdate
from pathlib import Path

from making import checkout
from making.checkout import ROOT
from making.programs import MINOR, SYSTEM_PYTHON, Failed, said, same_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = ROOT / "systemd"
LIBRARY, DOCUMENTATION = "usr/lib/topo-agent", "usr/share/doc/topo-agent"
MAINTAINER = "topo-agent <noreply@topo-agent.io>"

# Of a wheel what nobody imports, and what tells of this installation of it.
LEFT_OUT = {"bin", "example.py"}
LEFT_OUT_OF_METADATA = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "licenses"}
LICENCES = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*")

# Debian has these texts (policy 12.5): a file that is one of them is named and not repeated.
COMMON = (
    (r"\s*Apache License\s+Version 2\.0, January 2004\s", "Apache-2.0"),
    (r"\s*GNU GENERAL PUBLIC LICENSE\s+Version 2, June 1991\s", "GPL-2"),
    (r"\s*GNU LESSER GENERAL PUBLIC LICENSE\s+Version 2\.1, February 1999\s", "LGPL-2.1"),
)


def main() -> None:
    words = argparse.ArgumentParser(description="Build the Debian package.")
    words.add_argument("-o", "--output", metavar="FOLDER", type=Path, default=ROOT / "dist")
    try:
        print(build(words.parse_args().output))
    except (Failed, OSError) as error:
        sys.exit(f"deb: {error}")


def build(output: Path) -> Path:
    if not shutil.which("dpkg-deb"):
        raise Failed("no dpkg-deb here: a package is built on Debian or Ubuntu")
    if os.access(SYSTEM_PYTHON, os.X_OK):
        same_python("deb")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    os.umask(0o022)
    when = checkout.when()
    with tempfile.TemporaryDirectory(prefix="topo-agent-deb.") as work:
        tree = Path(work, "tree")
        _libraries(project["dependencies"], tree / LIBRARY)
        licences = [*_licences(tree / LIBRARY)]
        shutil.copytree(ROOT / "agent/topo_agent", tree / LIBRARY / "topo_agent", ignore=_no_byte_code)
        _files(tree)
        _documentation(tree / DOCUMENTATION, licences, when)
        architecture = said("dpkg", "--print-architecture") if [*tree.rglob("*.so")] else "all"
        _control(tree, project["description"], architecture)
        _settle(tree, when)
        output.mkdir(parents=True, exist_ok=True)
        package = output / f"topo-agent_{_version()}_{architecture}.deb"
        # One thread: how xz cuts its blocks depends on how many there are
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(when), "DPKG_DEB_THREADS_MAX": "1"}
        said("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(package), env=environment)
    return package


def _version() -> str:
    """As Debian orders it: 0.2.0.dev1 and 0.2.0rc1 come before 0.2.0."""
    return re.sub(r"\.?(dev|a|b|rc)(?=[0-9])", r"~\1", checkout.version())


def _libraries(dependencies: Iterable[str], where: Path) -> None:
    """From wheels, as pip is set up here (PIP_NO_INDEX, PIP_FIND_LINKS)."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    how = ["install", "--target", str(where), "--only-binary", ":all:", "--no-compile"]
    said(*pip, *how, *dependencies)
    for path in [*where.iterdir()]:
        if path.name in LEFT_OUT:
            _remove(path)


def _licences(library: Path) -> Iterator[tuple[str, str, str]]:
    """(name and version, licence, its text) of each library; the files themselves go, the texts are in `copyright`."""
    for info in sorted(library.glob("*.dist-info")):
        metadata = message_from_string((info / "METADATA").read_text(encoding="utf-8"))
        files = sorted({path for name in LICENCES for path in info.rglob(name) if path.is_file()})
        texts = [_common(path.read_text(encoding="utf-8", errors="replace")) for path in files]
        texts = texts or [*_heads(library, info)]
        if not texts:
            raise Failed(f"{info.name}: a file {' or '.join(LICENCES)} was expected in it, or a module that it names")
        yield (
            f"{metadata['Name']} {metadata['Version']}",
            metadata["License-Expression"] or metadata["License"] or "",
            "\n".join(texts),
        )
        for path in (*files, *(info / name for name in LEFT_OUT_OF_METADATA)):
            _remove(path)


def _common(text: str) -> str:
    for beginning, name in COMMON:
        if re.match(beginning, text):
            return f"Debian has this text in /usr/share/common-licenses/{name}.\n"
    return text


def _heads(library: Path, info: Path) -> Iterator[str]:
    """What stands at the head of the modules of a wheel that brings no file with its licence."""
    names = info / "top_level.txt"  # some tools that make wheels write none
    for name in names.read_text(encoding="utf-8").split() if names.exists() else ():
        module = library / f"{name}.py"
        if module.exists():
            head = re.match(r"(?:#.*\n)*", module.read_text(encoding="utf-8"))
            yield re.sub(r"(?m)^# ?#*", "", head[0] if head else "")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _no_byte_code(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def _files(tree: Path) -> None:
    for source, target in (
        ("topo-agent", "usr/bin/topo-agent"),
        ("topo-agent.service", "lib/systemd/system/topo-agent.service"),
        ("topo-agent.toml", "etc/topo-agent/topo-agent.toml"),
        ("topo-agent.default", "etc/default/topo-agent"),
    ):
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / source, tree / target)


def _documentation(folder: Path, licences: Iterable[tuple[str, str, str]], when: int) -> None:
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "copyright").write_text("".join(_copyright(licences)), encoding="utf-8")
    entry = f"topo-agent ({_version()}) unstable; urgency=medium\n\n  * CHANGELOG.md tells what changed.\n\n"
    entry += f" -- {MAINTAINER}  {formatdate(when)}\n"
    (folder / "changelog.gz").write_bytes(gzip.compress(entry.encode(), 9, mtime=0))


def _copyright(licences: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield "topo-agent: Apache License, Version 2.0; Debian has its text in /usr/share/common-licenses/Apache-2.0.\n"
    yield "Copyright: the authors of topo-agent.\n"
    yield f"\n/{LIBRARY} holds these libraries as well, each with the licence that it came with:\n"
    for name, licence, text in licences:
        yield f"\n\n{name}: {licence}\n\n"
        yield textwrap.indent(textwrap.dedent(text.expandtabs()).strip("\n"), "  ") + "\n"


def _control(tree: Path, description: str, architecture: str) -> None:
    folder = tree / "DEBIAN"
    paths = sorted(path for path in tree.rglob("*") if path.is_file())
    size = sum(-(-path.stat().st_size // 1024) for path in paths)
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in paths)  # noqa: S324
    conffiles = (f"/{path.relative_to(tree)}\n" for path in paths if path.is_relative_to(tree / "etc"))
    libc = "" if architecture == "all" else ", libc6 (>= 2.17)"  # that of manylinux2014
    control = f"""\
        Package: topo-agent
        Version: {_version()}
        Architecture: {architecture}
        Maintainer: {MAINTAINER}
        Installed-Size: {size}
        Depends: python3 (>= {MINOR}), libudev1{libc}
        Recommends: pci.ids
        Section: admin
        Priority: optional
        Description: which GPU is near which NIC: how a server is wired
        """
    long = textwrap.wrap(f"{description} A service keeps it current, with a page and metrics for Prometheus.", 78)
    folder.mkdir()
    for name, text in (
        ("control", textwrap.dedent(control) + "".join(f" {line}\n" for line in long)),
        ("conffiles", "".join(conffiles)),
        ("md5sums", "".join(sums)),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    for script in sorted((HERE / "debian").iterdir()):
        shutil.copyfile(script, folder / script.name)


def _settle(tree: Path, when: int) -> None:
    """Modes and times, whatever pip and this machine made of them."""
    programs = {tree / "usr/bin/topo-agent", *(tree / "DEBIAN" / one.name for one in (HERE / "debian").iterdir())}
    for path in (tree, *tree.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path in programs else 0o644)
        os.utime(path, (when, when))


if __name__ == "__main__":
    main()
