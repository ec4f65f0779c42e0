"""What runs pods: containerd and runc, which Go builds from their modules, and Debian's programs of CNI."""

from __future__ import annotations

from pathlib import Path

from tests.labs.apt import CannotStart
from tests.labs.golang import tools

HERE = Path(__file__).parent
CNI = Path("/usr/lib/cni")
# The drivers of file systems and block devices that no lab has; each wants a C library.
_CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs"
_FLAGS = ("-buildvcs=false", "-p=2", "-ldflags=-s -w")


def containerd() -> Path:
    """The folder with containerd, containerd-shim-runc-v2 and ctr; two minutes on 2 cores when it is not kept."""
    return tools(HERE / "containerd", flags=(*_FLAGS, f"-tags={_CONTAINERD_TAGS}"))


def runc() -> Path:
    """Needs gcc, pkg-config and libseccomp-dev to be built."""
    return tools(HERE / "runc", flags=(*_FLAGS, "-tags=seccomp"), environment={"CGO_ENABLED": "1"}) / "runc"


def cni() -> Path:
    """The folder of CNI's programs."""
    missing = [name for name in ("host-local", "loopback", "ptp") if not (CNI / name).exists()]
    if missing:
        raise CannotStart(f"no {CNI}/{missing[0]} here; Debian has it in containernetworking-plugins")
    return CNI
