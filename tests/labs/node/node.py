"""A node of a lab's cluster on this machine: containerd and a kubelet, in namespaces and cgroups of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from container import install, oci
from tests.labs.apt import CannotStart
from tests.labs.controlplane.cluster import ENOUGH, Cluster
from tests.labs.controlplane.programs import programs
from tests.labs.exporters import free_port
from tests.labs.node import kubelet
from tests.labs.node import programs as ours
from tests.labs.node.guard import SYSCTLS

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).parent


class Node(ABC):
    """A node of a lab's cluster, with a folder that goes away with it. `with …:` is Ready."""

    ready_within = 2 * ENOUGH

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def __enter__(self) -> Self:
        # Short: the paths of sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="topo-agent-node-"))
        try:
            started = time.monotonic()
            self._start()
            self.wait(self.ready, "node that is ready", self.ready_within)
            self.took = time.monotonic() - started
            """Seconds until the node was ready."""
            # Admission gives every new node the taint not-ready, which a controller takes away that need not run.
            taints = {"spec": {"taints": None}}
            self.cluster.api("PATCH", f"/api/v1/nodes/{self.name}", taints, kind="application/merge-patch+json")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def _start(self) -> None:
        """Until its kubelet runs."""

    @abstractmethod
    def stop(self) -> None:
        """At once, like a machine that loses its power; then nothing of it is left here. Twice does no harm."""

    @abstractmethod
    def wait(self, so: Callable[[], object], what: str, seconds: float = ENOUGH) -> None:
        """Until it is so; with what the node said where it does not come."""

    @abstractmethod
    def logs(self, pod: str, namespace: str = "default") -> str:
        """What the containers of a pod wrote, of all their starts."""

    def ready(self) -> bool:
        found = self.cluster.api("GET", f"/api/v1/nodes?fieldSelector=metadata.name={self.name}")["items"]
        conditions = found[0]["status"].get("conditions", []) if found else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def environment(self) -> list[dict[str, str]]:
        """Of a container on the host's network, that finds the API server by it: no Service leads there."""
        host, _, port = self.cluster.server.removeprefix("https://").partition(":")
        return [{"name": "KUBERNETES_SERVICE_HOST", "value": host}, {"name": "KUBERNETES_SERVICE_PORT", "value": port}]


class NodeOf(Node):
    """`with NodeOf(cluster, "n1") as node:` is Ready; CannotStart where the machine does not do.

    `cluster` was started with `users={"system:node:n1": ["system:nodes"]}`. `gates` are the kubelet's own. Everything
    that the node started, mounted and wrote is gone after it, even if the test is killed. The Node object stays, like
    that of a machine that lost its power; `Cluster.clear` takes it away.
    """

    def __init__(self, cluster: Cluster, name: str, *, gates: Mapping[str, bool] | None = None) -> None:
        if os.getuid():
            raise CannotStart("a node runs pods, for which one has to be root")
        for tool in ("gcc", "mount", "unshare"):
            if not shutil.which(tool):
                raise CannotStart(f"no {tool} here")
        super().__init__(cluster, name)
        self._gates = gates or {}
        self._containerd, self._runc, self._cni = ours.containerd(), ours.runc(), ours.cni()
        self._guard: subprocess.Popen[str] | None = None

    def _start(self) -> None:
        self.root = self.folder / "kubelet"
        """The kubelet's --root-dir: pods, plugins_registry, pod-resources/kubelet.sock."""
        for name in ("cdi", "cni", "logs", "tmp"):
            (self.folder / name).mkdir()
        paths = programs(self.folder / "bin")
        for program in (*self._containerd.iterdir(), self._runc):
            (self.folder / "bin" / program.name).symlink_to(program)
        (self.folder / "cni/lab.conflist").write_text(kubelet.network(self.folder), encoding="utf-8")
        settings = kubelet.containerd(self.folder, self._runc, self._cni)
        (self.folder / "containerd.toml").write_text(settings, encoding="utf-8")
        settings = kubelet.kubelet(self.folder, free_port(), self._gates)
        (self.folder / "kubelet.yaml").write_text(settings, encoding="utf-8")
        user = f"system:node:{self.name}"
        kubeconfig = self.cluster.kubeconfig_for(self.cluster.user_token(user), user)
        commands = {
            "containerd": [str(self._containerd / "containerd"), f"--config={self.folder}/containerd.toml"],
            "kubelet": [
                paths["kubelet"], f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={kubeconfig}",
                f"--root-dir={self.root}", f"--cert-dir={self.folder}/certs", f"--hostname-override={self.name}",
            ],
        }  # fmt: skip
        (self.folder / "programs.json").write_text(json.dumps(commands), encoding="utf-8")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(HERE / "guard.py"), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that it guards
        )
        self._tell("+", "containerd")
        self.wait(lambda: self._ctr("version", check=False), "containerd")
        self.load(pause(self.folder), kubelet.PAUSE)
        self._tell("+", "kubelet")

    def _tell(self, sign: str, name: str) -> None:
        assert self._guard
        (self.folder / f"{name}.ended").unlink(missing_ok=True)
        commands, answers = cast("IO[str]", self._guard.stdin), cast("IO[str]", self._guard.stdout)
        commands.write(f"{sign} {name}\n")
        commands.flush()
        assert answers.readline() == "done\n", f"the guard ended: {self._guard.wait(ENOUGH)}"

    # What runs

    def load(self, archive: Path, name: str) -> None:
        """An image from its OCI archive; pods that name it so say `imagePullPolicy: Never`."""
        self._ctr("images", "import", str(archive))
        if oci.name(archive) != name:
            self._ctr("images", "tag", "--force", oci.name(archive), name)

    def stop_kubelet(self) -> None:
        """Pods go on."""
        self._tell("-", "kubelet")

    def start_kubelet(self) -> None:
        self._tell("+", "kubelet")

    def restart_kubelet(self) -> None:
        """Back once it has written the node's status."""
        before = self._heartbeat()
        self.stop_kubelet()
        self.start_kubelet()
        self.wait(lambda: self._heartbeat() > before, "kubelet that is back")

    def _heartbeat(self) -> str:
        said = self.cluster.api("GET", f"/api/v1/nodes/{self.name}")["status"]["conditions"]
        return max(str(one.get("lastHeartbeatTime", "")) for one in said if one["type"] == "Ready")

    def stop(self) -> None:
        """At once, like a machine that loses its power; then nothing of it is left here. Twice does no harm."""
        guard, self._guard = self._guard, None
        if guard:
            assert guard.stdin
            guard.stdin.close()
            guard.wait(ENOUGH)
            cast("IO[str]", guard.stdout).close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Pods

    def phase(self, pod: str, namespace: str = "default") -> str:
        """Pending, Running, Succeeded or Failed."""
        return str(self.cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"].get("phase"))

    def wait_pod(
        self, pod: str, *phases: str, namespace: str = "default", seconds: float = 2 * ENOUGH
    ) -> dict[str, Any]:
        """The pod, once it is in one of these phases, by default running."""
        wanted = phases or ("Running",)
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        try:
            self.wait(lambda: self.phase(pod, namespace) in wanted, f"{pod} that is {' or '.join(wanted)}", seconds)
        except AssertionError as error:
            status = self.cluster.api("GET", path)["status"]
            events = self.cluster.kubectl("get", "events", "-n", namespace, check=False)
            raise AssertionError(f"{error}\n{json.dumps(status)}\n{events}\n{self.logs(pod, namespace)}") from None
        found: dict[str, Any] = self.cluster.api("GET", path)
        return found

    def logs(self, pod: str, namespace: str = "default", container: str = "*") -> str:
        """What its containers wrote, of all their starts."""
        lines = []
        for path in sorted((self.folder / "logs").glob(f"{namespace}_{pod}_*/{container}/*.log")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                # Its time, its stream, F for the end of a line or P for a part of one.
                _, _, tag, text = (*line.split(" ", 3), "")[:4]
                lines.append(text + ("\n" if tag == "F" else ""))
        return "".join(lines)

    # How it is

    def wait(self, so: Callable[[], object], what: str, seconds: float = ENOUGH) -> None:
        def found() -> object:
            for name in ("containerd", "kubelet"):
                assert not (self.folder / f"{name}.ended").exists(), f"{name} ended: {self.said(name)}"
            return so()

        try:
            self.cluster.wait(found, what, seconds)
        except AssertionError as error:
            logs = "\n".join(f"{name}: {self.said(name)}" for name in ("containerd", "kubelet"))
            raise AssertionError(f"{error}\n{logs}") from None

    def said(self, name: str) -> str:
        """The end of the log of containerd or of the kubelet."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-3000:].strip() if path.exists() else "did not start"

    def _ctr(self, *words: str, check: bool = True) -> str:
        command = [str(self._containerd / "ctr"), f"--address={self.folder}/containerd.sock", "-n", "k8s.io", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * ENOUGH, check=False)
        assert not check or not done.returncode, f"ctr {' '.join(words)}: {done.stderr.strip()}"
        return "" if done.returncode else done.stdout or "done"


def pause(folder: Path) -> Path:
    """The archive of an image with one program, that does nothing."""
    program, archive = folder / "pause", folder / "pause.tar"
    command = ["gcc", "-static", "-O2", "-s", "-o", str(program), str(HERE / "pause.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=ENOUGH)
    config = {"architecture": install.own_architecture(), "config": {"Entrypoint": ["/pause"], "User": "65532:65532"}}
    layer = oci.tar([(oci.entry("pause", 0o755), program.read_bytes())])
    archive.write_bytes(oci.packed([layer], config, kubelet.PAUSE))
    return archive


class Traces:
    """What a node could leave on this machine; two that are equal: it left nothing."""

    def __init__(self) -> None:
        self._found = {
            "mounts": _mounts(),
            "cgroups": {str(path) for path in Path("/sys/fs/cgroup").rglob("topo-agent-node-*") if path.is_dir()},
            "processes": {*_processes()},
            "interfaces": {*os.listdir("/sys/class/net")},
            "namespaces": {*(os.listdir("/run/netns") if Path("/run/netns").exists() else ())},
            "settings": {f"{name} {Path('/proc/sys', name).read_text()}" for name in SYSCTLS},
            "folders": {*_folders()},
        }

    def more_than(self, before: Traces) -> dict[str, set[str]]:
        return {key: found - before._found[key] for key, found in self._found.items() if found - before._found[key]}


def _mounts() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def _processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if re.search(r"topo-agent-node-|containerd|^/pause|/usr/bin/topo-agent", words):
                found.append(words)
    return found


def _folders() -> list[str]:
    places = (
        "/etc",
        "/etc/cni",
        "/opt",
        "/run",
        "/usr/libexec",
        "/var/lib",
        "/var/log",
        "/var/run",
        tempfile.gettempdir(),
    )
    names = [f"{place}/{name}" for place in places if Path(place).exists() for name in os.listdir(place)]
    return [
        name for name in names if re.search(r"cni|containerd|kube|netns|runc|topo-agent-node|/containers|/pods", name)
    ]
