"""Runs in the build stage of the image: lays the program's libraries down, from wheels, with byte code.

`install.py FOLDER`: FOLDER holds usr/lib/topo-agent/topo_agent already. The Python that runs this has the minor version
of the image's; of the target's architecture (TARGETARCH) nothing is run.
"""

from __future__ import annotations

import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARY = "usr/lib/topo-agent"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Of a wheel what nobody imports. The Kubernetes library is 75 MB: the agent sends plain JSON with its client, and of
# the models and the calls of each API, and of all that for asyncio, nothing is loaded.
LEFT_OUT = (
    "bin", "example.py", "kubernetes/aio", "kubernetes/client/api/[!_]*.py", "kubernetes/client/models/[!_]*.py",
    "websocket/tests", "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED",
    "*.dist-info/direct_url.json",
)  # fmt: skip


def main() -> None:
    image = Path(sys.argv[1])
    library = image / LIBRARY
    here = Path(__file__).parent
    wanted = pip_flags(os.environ.get("TARGETARCH") or own_architecture())
    pip("install", *wanted, "--no-compile", "--no-cache-dir", "--root-user-action=ignore",
        "--requirement", str(here / "requirements.txt"), "--target", str(library))  # fmt: skip
    for pattern in LEFT_OUT:
        for path in [*library.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in [*library.rglob("__pycache__")]:
        shutil.rmtree(path)
    program = (here / "topo-agent").read_text(encoding="utf-8")
    (image / "usr/bin").mkdir(parents=True)
    # B: nothing is ever written to a read-only root, and what is there is compiled.
    first = f"#!{os.path.realpath(sys.executable)} -IB\n"
    (image / "usr/bin/topo-agent").write_text(re.sub(r"\A#!.*\n", first, program), encoding="utf-8")
    compiled(image)
    for path in (image, *image.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def pip_flags(architecture: str) -> list[str]:
    """For wheels of this Python's minor version, of that architecture, for a libc no newer than the one here.

    Dependencies are in the list of requirements, without those that only kubernetes/aio has.
    """
    machine = MACHINES[architecture]
    _, _, newest = platform.libc_ver()[1].partition(".")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(int(newest or 17), 4, -1)]
    platforms += [f"manylinux{year}_{machine}" for year in (2014, 2010)]
    minor = f"{sys.version_info[0]}{sys.version_info[1]}"
    return [
        "--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={minor}",
        *(f"--platform={one}" for one in platforms), *(f"--abi={one}" for one in (f"cp{minor}", "abi3", "none")),
    ]  # fmt: skip


def pip(*words: str) -> None:
    # Isolated: a module of that name in the folder one stands in is not meant.
    subprocess.run([sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "--quiet", *words], check=True)


def own_architecture() -> str:
    """As Debian and images name it."""
    found = next((ours for ours, theirs in MACHINES.items() if theirs == platform.machine()), None)
    if not found:
        sys.exit(f"image: this machine is {platform.machine()}, and one of {', '.join(MACHINES.values())} was expected")
    return found


def compiled(root: Path) -> None:
    """Byte code beside every module below `root`, the image's root.

    By the hash of its source, which is not compared at run time (PEP 552): times of files do not matter.
    """
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for path in sorted(root.rglob("*.py")):
        try:
            py_compile.compile(str(path), dfile=f"/{path.relative_to(root)}", doraise=True, invalidation_mode=unchecked)
        except py_compile.PyCompileError as error:
            print(f"{path}: no byte code: {error.exc_type_name}", file=sys.stderr)


if __name__ == "__main__":
    main()
