"""Labels that the program publishes, as the API server has them: whose they are, who may, and what goes wrong."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import fixtures
from tests.agent import Agent, wait_for
from tests.labs.controlplane import definitions
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.labs.controlplane.publishing import (
    ANNOTATION,
    BASE,
    NODE,
    PLAIN,
    QUICK,
    Publishing,
    open_publishing,
    quickly,
)
from tests.labs.controlplane.test_cluster import POD, pod
from tests.test_cli import refused, run

RACK, CLIQUE = "topo-agent.io/rack", "nvidia.com/gpu.clique"
ACCOUNT = "system:serviceaccount:topo-agent:topo-agent"
PATH = f"/api/v1/nodes/{NODE}"


def state(agent: Agent, key: str) -> str:
    """Of a label, by the agent's own metrics; "" while it has none."""
    found = [name for name in agent.metrics() if name.startswith(f'topo_label_info{{key="{key}",')]
    assert len(found) <= 1
    return "".join(found).partition('state="')[2].partition('"')[0]


# Which labels


def test_labels_of_every_machine(cluster: Cluster, tmp_path: Path, common: Path) -> None:
    """The API server takes them under strict validation, and has afterwards what `dump` says."""
    mapping = tmp_path / "nodes.csv"
    lines = (f"{name},rack {number},block-{number % 3}" for number, name in enumerate(fixtures.NAMES))
    mapping.write_text("\n".join(["node,rack,block", *lines]), encoding="utf-8")
    good = 0
    for name in fixtures.NAMES:
        before = cluster.node(name)["metadata"]["labels"]
        words = ["--from", str(fixtures.tree(name, common)), "--node", name, "--mapping", str(mapping)]
        said = quickly(cluster, tmp_path, "dump", "-f", "labels", *words)
        assert quickly(cluster, tmp_path, "kube", "publish", *words) == said
        assert cluster.api("GET", f"/api/v1/nodes/{name}")["metadata"]["labels"] == before | said
        good += 1
    patches = [one for one in cluster.requests(agent="topo-agent") if one.verb == "patch"][-good:]
    assert all("fieldValidation=Strict" in one.uri and one.code == 200 for one in patches)
    print(f"{good}/{len(fixtures.NAMES)} machines: the labels of the Node are those of dump")


def test_the_command(publishing: Publishing) -> None:
    """One GET and one PATCH; the second time nothing is written; what is taken back is ours, of any domain."""
    done = publishing.publish()
    assert (done.returncode, publishing.labels()) == (0, publishing.said())
    assert done.stderr.endswith(f"topo-agent: Node {NODE}: written\n")
    assert publishing.verbs() == {"get": 1, "patch": 1}
    print(f"requests of the first publish: {dict(publishing.verbs())}")
    publishing.mark()
    assert "nothing to change" in publishing.publish().stderr
    assert publishing.verbs() == {"get": 1}
    raw = json.loads(publishing.node()["metadata"]["annotations"][ANNOTATION])["rack"]
    assert (raw["raw"], raw["source"]) == ("r1", "mapping")


def test_what_is_ours_is_taken_back(publishing: Publishing) -> None:
    """Also what an earlier domain left behind, and nothing of others."""
    cluster = publishing.cluster
    before = publishing.all()
    cluster.kubectl("label", "node", NODE, "topo-agent.io/mine=1", "example.com/theirs=2")
    publishing.publish("--domain", "old.example.com")
    assert len(publishing.labels("old.example.com")) > 5
    where = ["--kubeconfig", cluster.kubeconfig, "--node", NODE]
    done = run("kube", "unpublish", *where)
    assert done.returncode == 0, done
    assert publishing.all() == before | {"topo-agent.io/mine": "1", "example.com/theirs": "2"}
    said = cluster.api("GET", PATH)["metadata"]
    assert not said.get("annotations")
    assert "topo-agent" not in {one["manager"] for one in said["managedFields"]}
    again = run("kube", "unpublish", *where)
    assert again.stderr == f"topo-agent: Node {NODE}: no label of ours is there\n"


def test_another_domain_takes_the_place_of_the_first(publishing: Publishing) -> None:
    publishing.publish("--domain", "old.example.com")
    publishing.publish()
    assert not publishing.labels("old.example.com")
    assert publishing.labels() == publishing.said()
    assert list(publishing.node()["metadata"]["annotations"]) == [ANNOTATION]


def test_dry_runs_change_nothing(publishing: Publishing) -> None:
    before = publishing.node()
    done = publishing.publish("--dry-run", "client")
    assert json.loads(done.stdout)["metadata"]["labels"] == publishing.said()
    assert not publishing.requests()
    done = publishing.publish("--dry-run", "server")
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == publishing.said()
    assert "would be written" in done.stderr
    assert publishing.node() == before
    publishing.publish()
    before = publishing.node()
    for how in ("client", "server"):
        words = ["--kubeconfig", publishing.cluster.kubeconfig, "--node", NODE, "--dry-run", how]
        assert run("kube", "unpublish", *words).returncode == 0
        assert publishing.node() == before


# Labels of others


def test_labels_of_others_stay(publishing: Publishing) -> None:
    """Put by kubectl, and by another manager of server-side apply. Ours comes when theirs is gone."""
    cluster = publishing.cluster
    cluster.kubectl("label", "node", NODE, f"{RACK}=by-hand")
    applied = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"topo-agent.io/block": "b9"}}}
    path = f"{PATH}?fieldManager=other"
    cluster.api("PATCH", path, applied, kind="application/apply-patch+yaml")
    theirs = {RACK: "by-hand", "topo-agent.io/block": "b9"}
    expected = publishing.said()
    done = publishing.publish()
    assert publishing.labels() == expected | theirs
    assert f"topo-agent: {RACK}: kubectl-label says by-hand, not r1: left\n" in done.stderr
    assert "topo-agent: topo-agent.io/block: other says b9, not b1: left\n" in done.stderr
    agent = publishing.start()
    agent.wait_for_line("other says b9, and we would say b1: left")
    agent.wait_for_line("kubectl-label says by-hand, and we would say r1: left")
    agent.wait_for(lambda: state(agent, RACK) == state(agent, "topo-agent.io/block") == "foreign")
    assert state(agent, "topo-agent.io/nvlink-clique") == "published"
    cluster.kubectl("label", "node", NODE, "--overwrite", f"{RACK}=by-hand-2")
    agent.wait_for_line("kubectl-label says by-hand-2")
    for _ in range(3):
        agent.rescan()
    assert publishing.labels() == expected | theirs | {RACK: "by-hand-2"}
    assert len(agent.lines("says b9")) == 1
    publishing.mark()
    cluster.kubectl("label", "node", NODE, f"{RACK}-")
    cluster.api("PATCH", path, applied | {"metadata": {"name": NODE}}, kind="application/apply-patch+yaml")
    publishing.wait_for_said(agent)
    agent.wait_for_line("nobody says otherwise any more")
    agent.wait_for(lambda: state(agent, RACK) == state(agent, "topo-agent.io/block") == "published")
    assert publishing.writes() <= 2


def test_who_takes_ours_over_keeps_it(publishing: Publishing) -> None:
    """While the agent runs: what somebody overwrites is his."""
    agent = publishing.published()
    publishing.mark()
    publishing.cluster.kubectl("label", "node", NODE, "--overwrite", f"{RACK}=by-hand")
    agent.wait_for_line("kubectl-label says by-hand, and we would say r1: left")
    publishing.rack("r2")
    agent.wait_for_line("kubectl-label says by-hand, and we would say r2: left")
    agent.rescan()
    assert publishing.labels()[RACK] == "by-hand"
    memory = json.loads(publishing.node()["metadata"]["annotations"][ANNOTATION])
    assert memory["nvlink-clique"]["source"] == "nvml"


def test_the_clique_of_others(publishing: Publishing) -> None:
    """It is left to GPU feature discovery where that writes it, with whatever value."""
    cluster, ours = publishing.cluster, publishing.said("--gpu-clique")[CLIQUE]
    for value in ("other.1", ours):
        cluster.kubectl("label", "node", NODE, "--overwrite", f"{CLIQUE}={value}")
        done = publishing.publish("--gpu-clique")
        assert (f"{CLIQUE}: kubectl-label says other.1, not {ours}: left" in done.stderr) == (value != ours)
        assert publishing.all()[CLIQUE] == value
        said = cluster.api("GET", PATH)["metadata"]["managedFields"]
        owners = {one["manager"] for one in said if f"f:{CLIQUE}" in json.dumps(one["fieldsV1"])}
        assert owners == {"kubectl-label"}
    cluster.kubectl("label", "node", NODE, f"{CLIQUE}-")
    publishing.publish("--gpu-clique")
    assert publishing.all()[CLIQUE] == ours
    publishing.publish()
    assert CLIQUE not in publishing.all()


# A mapping


def test_a_node_known_by_its_system_uuid(publishing: Publishing) -> None:
    """Only the Node says it, and that may be late: here a machine has been looked at twice before."""
    uuid = "4c4c4544-0051-3010-8054-b4c04f565831"
    names = "machineID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion kubeProxyVersion"
    info = dict.fromkeys(names.split(), "") | {"systemUUID": uuid, "operatingSystem": "linux", "architecture": "arm64"}
    patch = {"status": {"nodeInfo": info}}
    publishing.cluster.api("PATCH", f"{PATH}/status", patch, kind="application/merge-patch+json")
    publishing.mapping.write_text(f"node,rack\n{uuid.upper()},by-uuid\n", encoding="utf-8")
    late = "\nfrom topo_agent.daemon import keeper\nkeeper._JITTER = 0.0\n"
    late += "def run(self, run=keeper.Keeper._run): __import__('time').sleep(3); run(self)\nkeeper.Keeper._run = run"
    agent = publishing.start(around=PLAIN.replace("3600.0", "3600.0; loop._CONFIRM = 0.1") + late)
    agent.wait_for(lambda: publishing.labels().get(RACK) == "by-uuid")


# Who may


@pytest.fixture
def rights(cluster: Cluster) -> str:
    """What daemonset/base grants, and nothing more."""
    cluster.kubectl("apply", "-k", str(BASE))
    yes = cluster.kubectl("auth", "can-i", "--list", f"--as={ACCOUNT}")
    assert "secrets" not in yes
    return ACCOUNT


def test_with_the_rights_of_the_project(publishing: Publishing, rights: str) -> None:
    """A token that is bound to the Node; without the rights an error that says what is missing."""
    cluster = publishing.cluster
    token = cluster.token("topo-agent", "topo-agent", node=NODE)
    mine = cluster.kubeconfig_for(token, "topo-agent")
    done = publishing.publish(kubeconfig=mine)
    assert (done.returncode, publishing.labels()) == (0, publishing.said())
    agent = publishing.start(kubeconfig=mine)
    publishing.rack("r2")
    publishing.wait_for_said(agent)
    agent.wait_for(lambda: any(one.verb == "watch" for one in publishing.requests(rights)))
    codes = {(one.verb, one.code) for one in publishing.requests(rights)}
    assert codes == {("get", 200), ("patch", 200), ("watch", 200)}
    agent.stop()
    for method, path, body in (
        ("POST", "/api/v1/nodes", {"metadata": {"name": "other"}}),
        ("GET", "/api/v1/nodes", None),
        ("DELETE", PATH, None),
        ("GET", "/api/v1/pods", None),
    ):
        with pytest.raises(Refused) as error:
            cluster.api(method, path, body, token=token)
        assert error.value.code == 403
    cluster.kubectl("delete", "clusterrolebinding", "topo-agent")
    wait_for(lambda: publishing.publish(kubeconfig=mine).returncode == 3)
    said = refused(publishing.publish(kubeconfig=mine))
    assert "403" in said
    assert "this account needs the right to get and patch nodes" in said
    agent = publishing.start(kubeconfig=mine)
    agent.wait_for_line("labels: https://127.0.0.1")
    assert len(agent.lines("403")) == 1
    agent.wait_for(lambda: state(agent, RACK) == "pending")
    cluster.kubectl("apply", "-k", str(BASE))
    publishing.wait_for_said(agent)
    agent.wait_for_line("the API server answers again")
    assert state(agent, RACK) == "published"


def test_in_a_pod(publishing: Publishing, rights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its account, and a token that is replaced: the old one is void, and the file has another."""
    cluster = publishing.cluster
    spec = {**POD["spec"], "nodeName": NODE, "serviceAccountName": "topo-agent"}
    made = {"metadata": {"name": "one", "namespace": "topo-agent"}, "spec": spec}
    pods = "/api/v1/namespaces/topo-agent/pods"
    cluster.api("POST", pods, made)
    token = publishing.folder / "token"
    token.write_text(cluster.token("topo-agent", "topo-agent", pod="one"), encoding="ascii")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", cluster.server.rpartition(":")[2])
    monkeypatch.delenv("KUBECONFIG", raising=False)
    there = f"from kubernetes.config import incluster_config as c; c.SERVICE_TOKEN_FILENAME = {str(token)!r}\n"
    there += f"c.SERVICE_CERT_FILENAME = {str(cluster.ca)!r}\n"
    agent = publishing.published(around=there + QUICK, named=False)
    assert {one.user for one in publishing.requests()} == {ACCOUNT}
    cluster.api("DELETE", f"{pods}/one?gracePeriodSeconds=0")
    old = token.read_text(encoding="ascii")

    def void() -> bool:
        try:
            cluster.api("GET", PATH, token=old)
        except Refused as error:
            return error.code == 401
        return False

    wait_for(void)
    publishing.mark()
    publishing.rack("r2")
    agent.wait_for_line("the token is expired or unknown there")
    cluster.api("POST", pods, made | {"metadata": {"name": "two", "namespace": "topo-agent"}})
    token.write_text(cluster.token("topo-agent", "topo-agent", pod="two"), encoding="ascii")
    publishing.wait_for_said(agent)
    assert publishing.wrote(agent, 1)


def test_another_ca(publishing: Publishing) -> None:
    """The kubeconfig is read anew where a server is not the one that it speaks of."""
    cluster = publishing.cluster
    other = certificate(publishing.folder, "20200101000000Z", "20910101000000Z")
    token = cluster.user_token("admin")
    path = cluster.kubeconfig_for(token, "replaced", ca=other)
    agent = publishing.start(kubeconfig=path)
    agent.wait_for_line("its certificate is not signed by the CA of the kubeconfig")
    assert cluster.kubeconfig_for(token, "replaced") == path
    publishing.wait_for_said(agent)


def test_a_token_in_a_file(publishing: Publishing) -> None:
    """A kubeconfig names it; it is read anew once the server does not know it."""
    token = publishing.folder / "token"
    token.write_text("nobody", encoding="ascii")
    text = Path(publishing.cluster.kubeconfig).read_text(encoding="utf-8")
    path = publishing.folder / "kubeconfig"
    path.write_text(text.replace(f"token: {publishing.cluster.user_token('admin')}", f"tokenFile: {token}"))
    agent = publishing.start(kubeconfig=str(path))
    agent.wait_for_line("the token is expired or unknown there")
    token.write_text(publishing.cluster.user_token("admin"), encoding="ascii")
    publishing.wait_for_said(agent)
    assert publishing.wrote(agent, 1)


# What goes wrong, in one line


class _Page(http.server.BaseHTTPRequestHandler):
    """A proxy that answers with a page of its own."""

    def do_CONNECT(self) -> None:
        body = b"<html>blocked</html>"
        self.send_response(403 if self.path.endswith(":1") else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_CONNECT  # noqa: N815 - its name in http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Nothing."""


@contextlib.contextmanager
def page(certificate: Path | None = None) -> Iterator[str]:
    """Its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def certificate(folder: Path, begins: str, ends: str) -> Path:
    """For 127.0.0.1, valid in that time only, signed by itself."""
    made = folder / "server.crt"
    (folder / "index.txt").touch()
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca = c\n[c]\ndatabase = index.txt\nnew_certs_dir = .\nrand_serial = yes\ndefault_md = sha256\n"
        "policy = p\nx509_extensions = x\n[p]\ncommonName = supplied\n[x]\nsubjectAltName = IP:127.0.0.1\n"
        "basicConstraints = CA:TRUE\n",
        encoding="ascii",
    )
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "server.key"]
    for command in (
        ["openssl", "req", "-new", *key, "-subj", "/CN=lab", "-out", "server.csr"],
        ["openssl", "ca", "-batch", "-config", "ca.cnf", "-selfsign", "-keyfile", "server.key", "-in", "server.csr",
         "-startdate", begins, "-enddate", ends, "-out", made.name, "-notext"],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return made


def edited(publishing: Publishing, change: Callable[[str], str]) -> str:
    path = publishing.folder / "edited.kubeconfig"
    path.write_text(change(Path(publishing.cluster.kubeconfig).read_text(encoding="utf-8")), encoding="utf-8")
    return str(path)


def test_errors_of_the_command(publishing: Publishing) -> None:
    """Status 3, no data, one line that says what to do."""
    cluster, folder = publishing.cluster, publishing.folder

    def error(*words: str, kubeconfig: str = "", **environment: str) -> str:
        return refused(publishing.publish(*words, kubeconfig=kubeconfig, **environment))

    done = run("kube", "publish", *publishing.machine, env={"HOME": str(folder), "KUBECONFIG": ""})
    assert "~/.kube/config: no way to a cluster" in refused(done)
    assert "name one with --kubeconfig" in error(kubeconfig=str(folder / "none"))
    assert "expected a kubeconfig" in error(kubeconfig=edited(publishing, lambda _: "a: ["))
    assert "expected a kubeconfig" in error(kubeconfig=edited(publishing, lambda _: "hello"))
    assert "Expected object with name nobody" in error("--context", "nobody")
    assert "there is no node n7; --node names another" in error("--node", "n7")
    assert "the token is expired or unknown there" in error(kubeconfig=cluster.kubeconfig_for("nobody", "unknown"))
    pod(cluster, "one")
    default = cluster.kubeconfig_for(cluster.token("default", pod="one"), "default")
    assert "this account needs the right to get and patch nodes, see docs/kubernetes.md" in error(kubeconfig=default)
    assert "Connection refused" in error(
        kubeconfig=cluster.kubeconfig_for("t", "closed", server="https://127.0.0.1:1", ca=cluster.ca)
    )


def test_errors_of_certificates(publishing: Publishing) -> None:
    cluster, folder = publishing.cluster, publishing.folder
    for begins, ends, said in (
        ("20200101000000Z", "20200102000000Z", "its certificate is not valid now: is the clock right?"),
        ("20900101000000Z", "20910101000000Z", "its certificate is not valid now: is the clock right?"),
        ("20200101000000Z", "20910101000000Z", "its certificate is not signed by the CA of the kubeconfig"),
    ):
        made = certificate(folder, begins, ends)
        known = cluster.ca if "signed" in said else made
        with page(made) as address:
            other = cluster.kubeconfig_for("t", "other", server=f"https://{address}", ca=known)
            assert said in refused(publishing.publish(kubeconfig=other))
        (folder / "index.txt").unlink()


def test_a_page_in_place_of_an_api_server(publishing: Publishing) -> None:
    """With a certificate that is good."""
    made = certificate(publishing.folder, "20200101000000Z", "20910101000000Z")
    with page(made) as address:
        other = publishing.cluster.kubeconfig_for("t", "other", server=f"https://{address}", ca=made)
        assert "is a proxy in the way?" in refused(publishing.publish(kubeconfig=other))


def test_errors_of_proxies(publishing: Publishing) -> None:
    """One that answers with pages, and one that is not there. NO_PROXY helps."""
    with page() as address:
        for proxy in (f"http://{address}", "http://127.0.0.1:1"):
            said = refused(publishing.publish(HTTPS_PROXY=proxy))
            assert f"the proxy {proxy}" in said, said
            assert publishing.publish(HTTPS_PROXY=proxy, NO_PROXY="127.0.0.1").returncode == 0


def test_without_the_library(publishing: Publishing) -> None:
    """The command says what to install. The agent goes on with all else and says it once."""
    missing = "import sys; sys.modules['kubernetes'] = None"
    agent = publishing.start(around=missing)
    agent.wait_for_line("the kubernetes library is missing: pip install 'topo-agent[kubernetes]'")
    agent.rescan()
    assert agent.get("/topology.json").status == 200
    assert len(agent.lines("pip install")) == 1
    (publishing.folder / "kubernetes.py").write_text("raise ImportError", encoding="ascii")
    environment = {"PYTHONPATH": f"{publishing.folder}{os.pathsep}{BASE.parents[1] / 'agent'}"}
    assert "pip install 'topo-agent[kubernetes]'" in refused(publishing.publish(**environment))


# By way of Node Feature Discovery

FEATURE = f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures/topo-agent-{NODE}"


def test_a_node_feature(start_cluster: Callable[..., Cluster], tmp_path: Path, common: Path) -> None:
    """A cluster of its own: the definition that it gets would not go away at once.

    Before it is there one line says so. Then the object is made, written once for each change, and made again.
    """
    cluster = start_cluster()

    def feature() -> tuple[dict[str, str], dict[str, str]] | None:
        try:
            said = cluster.api("GET", FEATURE)
        except Refused:
            return None
        return said["metadata"].get("labels"), said["spec"].get("labels")

    node_name = {"nfd.node.kubernetes.io/node-name": NODE}
    expected: tuple[dict[str, str], dict[str, str]] | None = None
    words = ["--labels", "nfd", "--nfd-namespace", "default"]
    with open_publishing(cluster, tmp_path, common) as publishing:
        agent = publishing.start(*words)
        agent.wait_for_line("404: the API server does not know this kind of object")
        agent.rescan()
        assert len(agent.lines("labels: ")) == 1
        definitions.define(cluster)
        for writes, rack in enumerate(("r1", "r2", "r3"), 1):
            publishing.rack(rack)
            expected = (node_name, publishing.said())
            agent.wait_for(lambda expected=expected: feature() == expected)  # type: ignore[misc]
            assert publishing.wrote(agent, writes)
        cluster.api("DELETE", FEATURE)
        agent.wait_for(lambda: feature() == expected)
        assert publishing.wrote(agent, 4)
        unlabelled = {"metadata": {"labels": {next(iter(node_name)): None}}}
        cluster.api("PATCH", FEATURE, unlabelled, kind="application/merge-patch+json")
        agent.wait_for(lambda: feature() == expected)
        assert publishing.wrote(agent, 5)
        agent.kill()
        publishing.mark()
        again = publishing.start(*words)
        again.wait_for(lambda: publishing.verbs()["watch"])
        again.rescan()
        assert publishing.writes() == 0
        again.stop()
        settings = {"TOPO_AGENT_LABELS": "nfd", "TOPO_AGENT_NFD_NAMESPACE": "default"}
        unpublish = ["kube", "unpublish", "--node", NODE, "--kubeconfig", cluster.kubeconfig]
        assert run(*unpublish, "--dry-run", "server", env=settings).returncode == 0
        assert feature() == expected
        assert run(*unpublish, env=settings).returncode == 0
        assert feature() is None
