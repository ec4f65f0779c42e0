"""Runs beside a lab that has a node: starts what the node consists of in namespaces of its own, and cleans up after it.

In a PID namespace everything ends with its first process, whoever started it and however it hides; in a mount namespace
all mounts go with the last process. What is left then are cgroups, settings of the kernel and the node's folder.

`guard.py FOLDER` is the guard. It starts itself once more as `guard.py FOLDER init`, the first process of the
namespaces. That reads its standard input, which ends with the lab whatever ended it: `+ NAME` starts a program of
FOLDER/programs.json, `- NAME` ends it; each is answered with a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# What a kubelet sets for the whole machine: setupKernelTunables in its container_manager_linux.go.
SYSCTLS = (
    "kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
    "vm/overcommit_memory", "vm/panic_on_oom",
)  # fmt: skip
# Places of the machine that containerd, kubelet and CNI have no setting for, or not one for all of it.
OWN = ("/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
GRACE = 5.0


def guard(folder: Path) -> None:
    saved = {name: path.read_text() for name in SYSCTLS if (path := Path("/proc/sys", name)).exists()}
    made = [path for path in _with_parents(OWN) if not path.exists()]
    for path in made:
        path.mkdir()
    groups = [path / folder.name for path in _hierarchies()]
    for group in groups:
        group.mkdir(exist_ok=True)
    names = ["--mount", "--propagation=slave", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run(["unshare", *names, sys.executable, "-I", __file__, str(folder), "init"], check=False)
    finally:
        for group in groups:
            _remove_group(group)
        for name, text in saved.items():
            if Path("/proc/sys", name).read_text() != text:
                Path("/proc/sys", name).write_text(text)
        for path in reversed(made):
            with contextlib.suppress(OSError):  # somebody else uses it by now
                path.rmdir()
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def _with_parents(paths: tuple[str, ...]) -> list[Path]:
    return sorted({parent for path in paths for parent in (Path(path), *Path(path).parents)})


def _hierarchies() -> list[Path]:
    """The roots of cgroups: one in version 2; in version 1, one for each controller."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if not path.is_symlink() and (path / "cgroup.procs").exists()]


def _remove_group(group: Path) -> None:
    """With those below it. It is busy as long as a process in it has not quite gone."""
    for _ in range(100):
        folders = [Path(top) for top, _, _ in os.walk(group, topdown=False)]
        for path in folders:
            with contextlib.suppress(OSError):
                path.rmdir()
        if not group.exists():
            return
        time.sleep(0.05)


def init(folder: Path) -> None:
    for place in OWN:
        own = folder / "own" / place.strip("/").replace("/", "-")
        own.mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(own), place], check=True)
    commands = json.loads((folder / "programs.json").read_text())
    running: dict[str, subprocess.Popen[bytes]] = {}
    waiting = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.1)
        if ready:
            said = os.read(0, 4096)
            if not said:
                return
            *lines, waiting = (waiting + said).split(b"\n")
            for line in lines:
                sign, name = line.decode().split()
                if sign == "+":
                    running[name] = _started(folder, name, commands[name])
                elif name in running:
                    _ended(running.pop(name))
                print("done", flush=True)
        for name, process in [*running.items()]:
            if process.poll() is not None:
                del running[name]
                (folder / f"{name}.ended").touch()
        _reap({process.pid for process in running.values()})


def _started(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    environment = {
        "PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
    }
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reap(known: set[int]) -> None:
    """Orphans come to the first process of a namespace; those that are waited for elsewhere are left alone."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in known:
            return
        os.waitpid(found.si_pid, 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the lab, which then ends this one in order
    (init if sys.argv[2:] == ["init"] else guard)(Path(sys.argv[1]))
