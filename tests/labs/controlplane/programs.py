"""Kubernetes' own programs and etcd, which Go builds from their modules, and kubectl."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.labs.apt import CannotStart
from tests.labs.golang import built

VERSION = "v1.37.2"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_MODULE = Path(__file__).with_name("module")


def programs(folder: Path) -> dict[str, str]:
    """The path of each in `folder`, which need not exist; all are one file that looks at the name it is called by.

    Ten minutes on 2 cores when nothing is kept.
    """
    major, minor, _ = VERSION.removeprefix("v").split(".")
    said = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor}
    stamped = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())
    # The revision of this repository is no part of the program. Two compilers at a time: each may need 2 GB.
    program = built(_MODULE, flags=("-buildvcs=false", "-p=2", f"-ldflags=-s -w {stamped}"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(program)
    return {name: str(folder / name) for name in NAMES}


def tool(name: str, where: str) -> str:
    """Of the environment that runs the tests, or else of PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise CannotStart(f"no {name} here; {where}")
    return found
