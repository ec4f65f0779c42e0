"""The two images that `make image` builds on, of Debian's packages: one to run on, one with pip to build on.

Nothing is installed here and nobody has to be root. What was made is kept; other packages, or another version of one,
make it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from container import install, oci
from making.apt import Apt, Offered
from making.programs import Failed, said

NOBODY = 65532  # as other images without a shell number theirs
DAYS_KEPT = 30
# base-files tells scanners which Debian it is; ldconfig, of libc-bin, is how ctypes finds libudev.
RUNTIME = ("base-files", "ca-certificates", "libc-bin", "libpython3-stdlib", "libudev1", "python3-minimal")
BUILD = ("python3-minimal", "python3-pip")
_KINDS = {"base": RUNTIME, "builder": BUILD}
# Something depends on them, and nothing here calls them: package managers, a shell's tools, and the libraries of those
# of Python's modules that _LEFT_OUT takes away.
NOT_NEEDED = (
    "debconf", "dpkg", "libacl1", "libcom-err2", "libdb5.3", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1",
    "libkrb5-3", "libkrb5support0", "libmd0", "libncursesw6", "libnsl2", "libpcre2-8-0", "libreadline8",
    "libselinux1", "libtinfo6", "libtirpc-common", "libtirpc3", "libzstd1", "mawk", "openssl",
    "readline-common", "tar",
)  # fmt: skip

_DOCUMENTS = re.compile(
    # Licences stay.
    r"usr/share/(doc/(?!.*/copyright$|[^/]*$)|doc-base/|man|locale|lintian|bash-completion|info|bug|perl5|pixmaps|apps|menu|debconf|base-files)"
)
_LEFT_OUT = re.compile(
    r"usr/(lib/locale|lib/[^/]+/(gconv|audit|perl[^/]*)|include)/"
    r"|usr/s?bin/(?!(ldconfig|python3[.0-9]*)$)"
    r"|usr/lib/[^/]+/lib(mvec|memusage|pcprofile|thread_db|BrokenLocale)\b"
    r"|usr/lib/python3[^/]*/(curses|dbm|distutils|ensurepip|idlelib|lib2to3|msilib|pydoc_data|test|tkinter|turtle[^/]*)(/|$)"
    r"|usr/lib/python3[^/]*/lib-dynload/(_crypt|_ctypes_test|_curses|_curses_panel|_dbm|_test[a-z]+|nis|readline|xxlimited[_0-9]*|_xx[a-z]+)\."
    r"|usr/share/(ca-certificates|common-licenses/GFDL.*|python3|sensible-utils)(/|$)"
    r"|(var|etc/(init\.d|default|cron[^/]*|apt|dpkg|update-motd\.d|profile\.d|kernel|logrotate\.d|ca-certificates))/"
)

# glibc's sysdeps/generic/dl-cache.h
_LIBC6_64 = {"amd64": 0x0303, "arm64": 0x0A03}
_E_MACHINE = {"amd64": 62, "arm64": 183}


@contextlib.contextmanager
def open_bases(architecture: str) -> Iterator[Bases]:
    with tempfile.TemporaryDirectory(prefix="topo-agent-apt.") as work:
        yield Bases(architecture, Path(work))


class Bases:
    """Of one architecture; apt is asked once."""

    def __init__(self, architecture: str, work: Path) -> None:
        self._architecture = architecture
        self._folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topo-agent-image"
        self._work = work
        self._apt = Apt(architecture, work / "apt")
        # Now: later apt leaves out what it has fetched already.
        self._offered = {kind: self._apt.offered(names) for kind, names in _KINDS.items()}

    def offered(self) -> set[Offered]:
        """Every package that one of the two is made of."""
        return {one for packages in self._offered.values() for one in packages}

    def runtime(self) -> Path:
        """The OCI archive of what the program runs on."""
        return self._kept("base")

    def builder(self) -> Path:
        return self._kept("builder")

    def _kept(self, kind: str) -> Path:
        inputs = [sys.version, *(path.read_text("utf-8") for path in _SOURCES), *map(str, self._offered[kind])]
        key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
        made = self._folder / f"{kind}-{self._architecture}-{key}.oci.tar"
        if made.exists():
            os.utime(made)
            return made
        self._folder.mkdir(parents=True, exist_ok=True)
        self._forget()
        layer = self._layer(kind, whole=kind == "builder")
        config: dict[str, Any] = {
            "architecture": self._architecture,
            "config": {"Env": ["PATH=/usr/sbin:/usr/bin"]},
        }
        if self._architecture == "arm64":
            config["variant"] = "v8"  # buildah asks for it
        fresh = self._work / made.name
        fresh.write_bytes(oci.packed([layer], config, f"localhost/topo-agent-{kind}:latest"))
        arrived = made.with_suffix(f".{os.getpid()}")
        shutil.copyfile(fresh, arrived)
        arrived.replace(made)
        return made

    def _forget(self) -> None:
        """What was made and not used for long."""
        for other in self._folder.iterdir():
            if other.stat().st_mtime < time.time() - DAYS_KEPT * 86400:
                other.unlink(missing_ok=True)

    def _layer(self, kind: str, *, whole: bool) -> bytes:
        root = Path(tempfile.mkdtemp(dir=self._work))
        certificates: list[bytes] = []
        status: list[str] = []
        for package in self._fetched(kind, () if whole else NOT_NEEDED):
            for path, entry, content in _contents(package):
                if path.startswith("usr/share/ca-certificates/") and entry.isreg():
                    certificates.append(content)
                if not _DOCUMENTS.match(path) and (whole or not _LEFT_OUT.match(path)):
                    _lay(root / path, entry, content)
            status.append(_control(package))
        self._skeleton(root, status, certificates)
        if not whole:
            # In a process of its own: what marshal writes depends on what else the process holds.
            code = "import sys; from pathlib import Path; import install; install.compiled(Path(sys.argv[1]))"
            words = [sys.executable, "-c", code, str(root)]
            done = subprocess.run(words, cwd=Path(install.__file__).parent, env={"PYTHONHASHSEED": "0"}, check=False)
            if done.returncode:
                raise Failed(f"container/install.py: no byte code for the base ({done.returncode})")
        return oci.tar(_entries(root))

    def _fetched(self, kind: str, without: Container[str]) -> Iterator[Path]:
        files = {path.name: path for path in self._apt.closure(_KINDS[kind])}
        for one in self._offered[kind]:
            if one.name in without:
                continue
            if hashlib.sha256(files[one.file].read_bytes()).hexdigest() != one.sha256:
                raise Failed(f"{one.file}: what was fetched has not the SHA-256 that apt's lists say, {one.sha256}")
            yield files[one.file]

    def _skeleton(self, root: Path, status: list[str], certificates: list[bytes]) -> None:
        """What scripts of the packages would have made, as far as it is needed."""
        for name in ("dev", "etc/ssl/certs", "proc", "run", "sys", "tmp", "usr/lib/ssl", "var/lib/dpkg/status.d"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / name).mkdir(exist_ok=True)
            if not (root / name).is_symlink():
                (root / name).symlink_to(f"usr/{name}")
        _write(root / "etc/passwd", f"root:x:0:0:root:/:/nonexistent\nnobody:x:{NOBODY}:{NOBODY}::/:/nonexistent\n")
        _write(root / "etc/group", f"root:x:0:\nnobody:x:{NOBODY}:\n")
        _write(root / "etc/ssl/certs/ca-certificates.crt", b"".join(certificates).decode())
        (root / "usr/lib/ssl/cert.pem").unlink(missing_ok=True)
        (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")
        for one in status:  # one file each: scanners know this form of images without dpkg
            (package,) = re.findall(r"(?m)^Package: (.*)$", one)
            _write(root / "var/lib/dpkg/status.d" / package, one)
        (root / "etc/ld.so.cache").write_bytes(_library_cache(root, self._architecture))


_SOURCES = (Path(__file__), Path(install.__file__), Path(oci.__file__))


def _contents(package: Path) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Files and links of a package, as if /bin, /lib, /lib64 and /sbin were links into /usr."""
    done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=False)
    if done.returncode:
        raise Failed(f"{package.name}: dpkg-deb cannot unpack it: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        seen: dict[str, bytes] = {}
        for member in tar:
            path = re.sub(r"^(?=(bin|sbin|lib|lib64)(/|$))", "usr/", member.name.removeprefix("./").rstrip("/"))
            content = tar.extractfile(member) if member.isreg() else None
            seen[member.name] = content.read() if content else seen.get(member.linkname, b"")
            if member.isreg() or member.issym() or member.islnk():
                yield path, member, seen[member.name]


def _lay(path: Path, entry: tarfile.TarInfo, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if entry.issym():
        path.symlink_to(entry.linkname)
    else:
        path.write_bytes(content)
        path.chmod(entry.mode & 0o777)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _control(package: Path) -> str:
    return said("dpkg-deb", "--field", str(package)) + "\nStatus: install ok installed\n"


def _entries(root: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for path in sorted(root.rglob("*")):
        entry = tarfile.TarInfo(str(path.relative_to(root)))
        mode = path.lstat().st_mode
        entry.mode = stat.S_IMODE(mode)
        content = b""
        if stat.S_ISLNK(mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif stat.S_ISDIR(mode):
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if mode & stat.S_ISVTX else 0o755
        else:
            content = path.read_bytes()
            entry.mode = 0o755 if mode & 0o100 else 0o644
        yield entry, content


def _library_cache(root: Path, architecture: str) -> bytes:
    """/etc/ld.so.cache, as ldconfig writes it; that one only runs on its own architecture."""
    folders = [path for path in root.glob("usr/lib/*-linux-gnu") if path.is_dir()]
    found = {
        path.name: f"/{path.relative_to(root).relative_to('usr')}"
        for folder in folders
        for path in folder.glob("lib*.so.*")
        if _is_library(path, architecture)
    }
    # Backwards in ldconfig's order, which puts libx.so.10 behind libx.so.9: the loader's search is a binary one.
    names = sorted(found, key=_numbered, reverse=True)
    strings = b""
    at = 48 + 24 * len(names)
    entries = []
    for name in names:
        key = at + len(strings)
        strings += name.encode() + b"\0"
        value = at + len(strings)
        strings += found[name].encode() + b"\0"
        entries.append(struct.pack("<iIIIQ", _LIBC6_64[architecture], key, value, 0, 0))
    # Flags: 2 is little-endian.
    head = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI3I", len(names), len(strings), 2, 0, 0, 0, 0)
    return head + b"".join(entries) + strings


def _numbered(name: str) -> list[tuple[int, int]]:
    return [(1, int(one)) if one.isdigit() else (0, ord(one)) for one in re.findall(r"\d+|\D", name)]


def _is_library(path: Path, architecture: str) -> bool:
    """Of that machine, and under the name that programs ask for: its soname is a link or the file itself."""
    head = path.resolve().read_bytes()[:20] if path.exists() else b""
    return head[:4] == b"\x7fELF" and struct.unpack_from("<H", head, 18)[0] == _E_MACHINE[architecture]
