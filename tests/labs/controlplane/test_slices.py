"""Our ResourceSlice at a real API server and scheduler: taken as it is sent, beside those of vendors, kept right."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.agent import ENOUGH, Agent
from tests.labs import golang
from tests.labs.apt import CannotStart
from tests.labs.controlplane.breaking import Answer, Cut, Fault, HalfClosed, Hang, Proxy, Silence
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.paper import DEVICES
from tests.test_cli import refused, run
from topo_agent.publishers.kube import slices
from topo_agent.publishers.kube.client import Client
from topo_agent.publishers.kube.slices import CLASSES, SLICES, Wanted, same
from topo_agent.views.slices import NumaForm, candidates, fitted

NODE, OURS, NAME = "n1", "topo-agent.io", "n1-topo-agent.io"
OF_NODE = f"{SLICES}?fieldSelector=spec.nodeName%3D{NODE}"
MACHINE = "l40s-2s-no-switch"
WITHIN = 5.0  # seconds in which our slice has to be back
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
# Agents of a cluster do not start at once here, and readings agree sooner.
SOON = """\
from topo_agent.daemon import keeper, loop, remembered, schedule
keeper._JITTER = 0.0
schedule.SETTLE, loop._CONFIRM = 0.05, 0.2
"""
# Faults one after another, each of which would wait longer than the last one.
OFTEN = (
    SOON
    + """\
from topo_agent.publishers.kube import client
keeper._PATIENCE, keeper._FIRST, keeper._LAST = (0.1,), 0.1, 0.4
client.Client._request.__kwdefaults__["read"] = 1.0
"""
)

Start = Callable[..., Agent]


@pytest.fixture(autouse=True)
def _without_slices(cluster: Cluster) -> Iterator[None]:
    """Those of a test end with it; the node they are of ends later."""
    yield
    for path in (CLASSES, SLICES):
        cluster.api("DELETE", path)


@pytest.fixture
def machine(common: Path) -> Path:
    return fixtures.tree(MACHINE, common)


@pytest.fixture
def start(machine: Path, cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Agents that publish slices of the node n1, and that are gone afterwards."""
    started: list[Agent] = []

    def run_(*arguments: str, mode: str = "inventory", kubeconfig: str = "", around: str = SOON) -> Agent:
        words = ["--state-dir", str(tmp_path / "state"), "--node", NODE, "--slice-mode", mode, *arguments]
        words += ["--kubeconfig", kubeconfig or cluster.kubeconfig]
        words += [] if "--from" in words else ["--from", str(machine)]
        agent = Agent(tmp_path / f"http{len(started)}", *words, around=around)
        started.append(agent)
        return agent.ready()

    yield run_
    for agent in started:
        if agent.running:
            agent.kill()


def listed(cluster: Cluster) -> dict[str, Any]:
    """All slices of the node, by name."""
    return {one["metadata"]["name"]: one for one in cluster.api("GET", OF_NODE)["items"]}


def ours(cluster: Cluster) -> dict[str, Any] | None:
    found: dict[str, Any] | None = listed(cluster).get(NAME)
    return found


def devices(said: Mapping[str, Any] | None) -> set[str]:
    return {one["name"] for one in said["spec"].get("devices", ())} if said else set()


def here(cluster: Cluster, found: set[str] | None = None) -> Callable[[], bool]:
    """Are exactly these devices in our slice? None: those of the whole machine."""
    wanted = EVERY if found is None else found
    return lambda: devices(ours(cluster)) == wanted


def names(*kinds: str) -> list[str]:
    return [one.name for one in candidates(fixtures.topology(MACHINE)) if one.attributes["kind"] in kinds]


EVERY = {*names("gpu", "nic", "nvme")}


def writes(cluster: Cluster, since: int = 0) -> list[str]:
    """What agents have changed, as the audit log has it; what they only asked for is none."""
    verbs = {"create", "update", "patch", "delete"}
    found = cluster.requests(agent="topo-agent")[since:]
    return [f"{one.verb} {one.uri.partition('?')[0]} {one.code}" for one in found
            if one.verb in verbs and "dryRun" not in one.uri]  # fmt: skip


def watching(cluster: Cluster, since: int, watches: int = 2) -> bool:
    """Has an agent read everything since then, and does it only watch by now: slices and classes?"""
    return sum(one.verb == "watch" for one in cluster.requests(agent="topo-agent")[since:]) >= watches


def timed(so: Callable[[], object], agent: Agent, seconds: float = ENOUGH) -> float:
    started = time.monotonic()
    agent.wait_for(so, seconds)
    return time.monotonic() - started


def one_line(agent: Agent, text: str) -> str:
    (found,) = agent.lines(text)
    return found


# What the API server takes


def taken(cluster: Cluster, numa: NumaForm) -> tuple[int, list[str]]:
    """Writes the slice of every fixture as the agent does: how many were taken and read back as they were sent."""
    client, uid = Client(kubeconfig=cluster.kubeconfig), cluster.node(NODE)["metadata"]["uid"]
    good, wrong = 0, []
    for name in fixtures.NAMES:
        found = candidates(fixtures.topology(name), numa=numa)
        fit = fitted(found, {"rack": "r" * 70, "nvlinkClique": "日" * 30}, taint=slices.taint(OURS))
        want = Wanted(NODE, uid, OURS, fit.devices, skip_node_operations=False)
        slices.write(client, want, None, last=0)
        said = ours(cluster)
        good += said is not None and same(said, want)
        wrong += [] if said is not None and same(said, want) else [name]
        cluster.api("DELETE", f"{SLICES}/{NAME}")
    return good, wrong


def test_every_fixture_is_taken(cluster: Cluster) -> None:
    good, wrong = taken(cluster, "scalar")
    print(f"taken and read back: {good}/{len(fixtures.NAMES)}")
    assert wrong == []


def test_where_the_gates_are_on(
    start_cluster: Callable[..., Cluster], start: Start, machine: Path
) -> None:  # fmt: skip
    """Lists are taken, and devices whose claims need no plugin are given away."""
    cluster = start_cluster(gates=["DRAListTypeAttributes", "DRAOptionalNodeOperations", "NodeDeclaredFeatures"])
    good, wrong = taken(cluster, "list")
    print(f"with lists taken and read back: {good}/{len(fixtures.NAMES)}")
    assert wrong == []
    done = kube(cluster, machine, "publish", "--slices", "--slice-numa", "list")
    assert done.returncode == 0
    assert '"ints"' in json.dumps(ours(cluster))
    start(mode="allocatable", kubeconfig=cluster.kubeconfig)
    cluster.wait(lambda: "skipNodeOperations" in (ours(cluster) or {}).get("spec", {}), "allocatable slice")
    assert "taints" not in json.dumps(ours(cluster))
    # As a kubelet would: without it a claim of such a device waits.
    declared = {"status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}}
    cluster.api("PATCH", f"/api/v1/nodes/{NODE}/status", declared, kind="application/merge-patch+json")
    asked(cluster, "class", GUARDED.format(OURS))
    asked(cluster, "pod", "class")
    cluster.wait(lambda: allocated(cluster, "pod"), "allocation")
    (result,) = allocated(cluster, "pod")
    assert (result["driver"], result["pool"]) == (OURS, NODE)
    print(f"allocated: {result['device']} of {result['driver']}")


def kube(cluster: Cluster, machine: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    source = ("--from", str(machine)) if command == "publish" else ()
    return run("kube", command, *source, "--node", NODE, "--kubeconfig", cluster.kubeconfig, *more)


@pytest.mark.parametrize(
    ("words", "gate"),
    [
        (["--slice-numa", "list"], "DRAListTypeAttributes"),
        (["--slice-mode", "allocatable"], "DRAOptionalNodeOperations"),
    ],
)
def test_where_a_gate_is_off(cluster: Cluster, start: Start, machine: Path, words: list[str], gate: str) -> None:
    """One line, and nothing of it is there even for a moment."""
    cluster.node(NODE)
    before = len(cluster.requests(agent="topo-agent"))
    done = kube(cluster, machine, "publish", "--slices", *words)
    print(done.stderr.splitlines()[-1])
    assert done.returncode == 3
    assert gate in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    agent = start(*(words if words[0] == "--slice-numa" else ()), mode=words[1] if "mode" in words[0] else "inventory")
    agent.wait_for_line("slices held: held back: ")
    assert gate in one_line(agent, "slices held: ")
    assert agent.metrics()["topo_slice_held"] == 1
    (found,) = [one for one in json.loads(agent.get("/findings.json").body) if one["code"] == "slice_held"]
    assert gate in found["evidence"]
    assert not listed(cluster)
    assert not [one for one in writes(cluster, before) if "resourceslices" in one and one.endswith("201")]
    time.sleep(1.0)
    one_line(agent, "slices held: ")


def test_where_taints_are_dropped(start_cluster: Callable[..., Cluster], start: Start, machine: Path) -> None:
    """Without them our devices would be given away."""
    cluster = start_cluster(gates=["DRADeviceTaints=false", "DRADeviceTaintRules=false"])
    cluster.node(NODE)
    done = kube(cluster, machine, "publish", "--slices")
    assert done.returncode == 3
    print(done.stderr.splitlines()[-1])
    agent = start(kubeconfig=cluster.kubeconfig)
    agent.wait_for_line("slices held: held back: ")
    assert "DRADeviceTaints" in one_line(agent, "slices held: ")
    assert agent.metrics()["topo_slice_held"] == 1
    assert not listed(cluster)
    assert not [one for one in writes(cluster) if "resourceslices" in one]


def test_a_server_that_is_too_old(cluster: Cluster, proxy: Proxy, start: Start, machine: Path) -> None:
    cluster.node(NODE)
    config = through(cluster, proxy)
    with proxy.breaking(Answer(200, said={"major": "1", "minor": "35+"}), path="/version"):
        done = run("kube", "publish", "--slices", "--from", str(machine), "--node", NODE, "--kubeconfig", config)
        assert done.returncode == 3
        assert "slices need Kubernetes 1.36" in done.stderr.splitlines()[-1]
        agent = start(kubeconfig=config, around=OFTEN)
        agent.wait_for_line("held back: ")
        assert "slices need Kubernetes 1.36" in one_line(agent, "held back: ")
        assert agent.metrics()["topo_slice_held"] == 1
        assert not listed(cluster)
    agent.wait_for(here(cluster))
    assert agent.metrics()["topo_slice_held"] == 0


def through(cluster: Cluster, proxy: Proxy) -> str:
    return cluster.kubeconfig_for(cluster.user_token("admin"), "proxied", server=proxy.server, ca=proxy.ca)


# What the scheduler does with it

GUARDED = 'device.driver == "{}"'
# Behind ours in the order of the allocator, which would else find it first: that of 1.37's gates sorts the pools.
VENDOR = "vendor.example.com"
READY = f'device.attributes["{VENDOR}"].type == "gpu"'


def asked(cluster: Cluster, kind: str, *words: str) -> None:
    """`class`: with that selector, none where it is empty. Else a pod with a claim for one device, or for all:
    name, class, selector, mode, or one device "tolerated".
    """
    if kind == "class" or kind.startswith("class-"):
        selectors = [{"cel": {"expression": one}} for one in words if one]
        cluster.api("POST", CLASSES, {"metadata": {"name": kind}, "spec": {"selectors": selectors}})
        return
    class_, selector, mode = (*words, "", "")[:3]
    exactly: dict[str, Any] = {"deviceClassName": class_, "allocationMode": "All" if mode == "All" else "ExactCount"}
    if mode == "tolerated":
        exactly["tolerations"] = [{"key": slices.taint(OURS), "operator": "Exists"}]
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    requests = [{"name": "only", "exactly": exactly}]
    cluster.api("POST", CLAIMS, {"metadata": {"name": kind}, "spec": {"devices": {"requests": requests}}})
    spec = {
        "containers": [{"name": "only", "image": "localhost/none", "resources": {"claims": [{"name": "only"}]}}],
        "resourceClaims": [{"name": "only", "resourceClaimName": kind}],
    }
    cluster.api("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": kind}, "spec": spec})


def allocated(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    said = cluster.api("GET", f"{CLAIMS}/{name}").get("status", {}).get("allocation", {})
    found: list[dict[str, Any]] = said.get("devices", {}).get("results", [])
    return found


def pending(cluster: Cluster, name: str) -> str:
    """Why the scheduler did not place it; empty while it has not tried."""
    said = cluster.api("GET", f"/api/v1/namespaces/default/pods/{name}")["status"].get("conditions", [])
    return next((one["message"] for one in said if one["reason"] in {"Unschedulable", "SchedulerError"}), "")


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {key.replace("__", "/"): {"string": text} for key, text in attributes.items()},
    }


def published(cluster: Cluster, driver: str, *found: dict[str, Any], node: str = NODE) -> str:
    """The slice of another driver, its name."""
    spec = {"driver": driver, "nodeName": node, "devices": [*found],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}  # fmt: skip
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"generateName": f"{node}-{driver}-"}, "spec": spec}  # fmt: skip
    name: str = cluster.api("POST", SLICES, made)["metadata"]["name"]
    return name


def gpus(count: int) -> list[dict[str, Any]]:
    return [device(f"gpu-{number}", type="gpu") for number in range(count)]


def test_tainted_devices_are_never_allocated(cluster: Cluster, start: Start) -> None:
    cluster.node(NODE)
    published(cluster, VENDOR, *gpus(4))
    agent = start()
    agent.wait_for(here(cluster))
    asked(cluster, "class", GUARDED.format(OURS))
    asked(cluster, "class-gpu", f"{GUARDED.format(VENDOR)} && {READY}")
    cluster.settled()
    for mode in ("ExactCount", "All"):
        asked(cluster, f"ours-{mode.lower()}", "class", "", mode)
    asked(cluster, "one", "class-gpu")
    cluster.wait(lambda: allocated(cluster, "one"), "allocation of the vendor's")
    assert [one["driver"] for one in allocated(cluster, "one")] == [VENDOR]
    for name in ("ours-exactcount", "ours-all"):
        cluster.wait(lambda name=name: pending(cluster, name), "answer of the scheduler")  # type: ignore[misc]
        print(f"{name}: {pending(cluster, name)}")
        assert not allocated(cluster, name)
    # It is the taint that they wait for: who tolerates it does not.
    asked(cluster, "tolerant", "class", "", "tolerated")
    cluster.wait(lambda: allocated(cluster, "tolerant"), "allocation of what tolerates the taint")
    assert not allocated(cluster, "ours-exactcount")
    assert not allocated(cluster, "ours-all")


def test_guarded_claims_for_all_count_the_vendors_alone(cluster: Cluster, start: Start) -> None:
    cluster.node(NODE)
    published(cluster, VENDOR, *gpus(3))
    agent = start()
    agent.wait_for(here(cluster))
    asked(cluster, "class-gpu", f"{GUARDED.format(VENDOR)} && {READY}")
    cluster.settled()
    asked(cluster, "all", "class-gpu", "", "All")
    cluster.wait(lambda: allocated(cluster, "all"), "allocation")
    assert sorted(one["device"] for one in allocated(cluster, "all")) == ["gpu-0", "gpu-1", "gpu-2"]


def test_who_asks_for_no_driver(cluster: Cluster) -> None:
    """Our slice put there by hand, for the agent would hold it back: why it does."""
    uid = cluster.node(NODE)["metadata"]["uid"]
    fit = fitted(candidates(fixtures.topology(MACHINE)), {}, taint=slices.taint(OURS))
    slices.write(Client(kubeconfig=cluster.kubeconfig), Wanted(NODE, uid, OURS, fit.devices, False), None, last=0)
    published(cluster, VENDOR, *gpus(4))
    asked(cluster, "class-guarded", GUARDED.format(VENDOR))
    asked(cluster, "class-open")
    cluster.settled()
    asked(cluster, "guarded-open", "class-guarded", READY)
    asked(cluster, "open-guarded", "class-open", f"{GUARDED.format(VENDOR)} && {READY}")
    asked(cluster, "open-open", "class-open", READY)
    for name in ("guarded-open", "open-guarded"):
        cluster.wait(lambda name=name: allocated(cluster, name), f"allocation of {name}")  # type: ignore[misc]
        assert {one["driver"] for one in allocated(cluster, name)} == {VENDOR}
    cluster.wait(lambda: "no such key" in pending(cluster, "open-open"), "answer of the scheduler")
    print(f"open class, open claim: {pending(cluster, 'open-open')[:200]}")
    assert not allocated(cluster, "open-open")
    # Without our slice it goes through: that is what holding back is for.
    cluster.api("DELETE", f"{SLICES}/{NAME}")
    cluster.wait(lambda: allocated(cluster, "open-open"), "allocation without our slice")


def test_held_back_while_a_class_names_no_driver(cluster: Cluster, start: Start) -> None:
    cluster.node(NODE)
    asked(cluster, "class-gpu", GUARDED.format(VENDOR))
    agent = start()
    agent.wait_for(here(cluster))
    assert agent.metrics()["topo_slice_held"] == 0
    for _ in range(3):  # again and again, and no slower
        asked(cluster, "class-open", READY)
        gone = timed(lambda: not ours(cluster), agent, WITHIN)
        assert agent.metrics()["topo_slice_held"] == 1
        cluster.api("DELETE", f"{CLASSES}/class-open")
        back = timed(here(cluster), agent, WITHIN)
        agent.wait_for(lambda: agent.metrics()["topo_slice_held"] == 0)
        print(f"withdrawn after {gone:.2f} s, back after {back:.2f} s")
    lines = agent.lines("slices held: ")
    assert len(lines) == 6
    assert "DeviceClass class-open names no driver" in lines[0]


# Beside the slices of others


class Vendor:
    """A driver on upstream's controller of slices, in a process of its own."""

    def __init__(self, cluster: Cluster, driver: str) -> None:
        try:
            program = golang.built(Path(__file__).parents[1] / "vendor")
        except CannotStart as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        words = [str(program), cluster.kubeconfig, driver, NODE]
        self.log: list[str] = []
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr
        self.log += self._process.stderr

    def publish(self, *found: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(found) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._reader.join(ENOUGH)


@pytest.fixture
def nvidia(cluster: Cluster) -> Iterator[Vendor]:
    found = Vendor(cluster, "gpu.nvidia.com")
    yield found
    found.end()


GPUS = [one for one in candidates(fixtures.topology(MACHINE)) if one.attributes["kind"] == "gpu"]
NICS = [one for one in candidates(fixtures.topology(MACHINE)) if one.attributes["kind"] == "nic"]


def of_nvidia() -> list[dict[str, Any]]:
    """Two GPUs by their address, one as NVML writes it; the others by their UUID alone (dra.md, section 9)."""
    said = []
    for number, one in enumerate(GPUS):
        address = [one.address, f"0000{one.address.upper()}"][number % 2]
        more = {"resource.kubernetes.io__pciBusID": address} if number < 2 else {}
        said.append(device(f"gpu-{number}", type="gpu", uuid=one.uid or "", **more))
    return said


def of_dranet() -> list[dict[str, Any]]:
    """By an attribute of its own domain, or by the name alone."""
    return [
        device(one.name, dra__net="x") if number else device("eth0", **{"dra.net__pciAddress": one.address})
        for number, one in enumerate(NICS)
    ]


def wiped(cluster: Cluster) -> None:
    """As a kubelet does at its start."""
    cluster.api("DELETE", OF_NODE)


def test_beside_vendors(cluster: Cluster, start: Start, nvidia: Vendor) -> None:
    """Nothing is there twice, and after a wipe nothing of theirs is in ours, though ours is the first to be back."""
    cluster.node(NODE)
    agent = start(around=SOON + "remembered.HOLD, remembered._WIPE = 6.0, 3.0\n")
    agent.wait_for(here(cluster))
    nvidia.publish(*of_nvidia())
    agent.wait_for(here(cluster, EVERY - {*names("gpu")}), WITHIN)
    published(cluster, "dra.net", *of_dranet())
    took = timed(here(cluster, {*names("nvme")}), agent, WITHIN)
    print(f"left to the vendors after {took:.2f} s: {len(EVERY) - len(names('nvme'))} of {len(EVERY)}")
    agent.wait_for(lambda: cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"])

    # A wipe, of which dra.net comes back late.
    started = time.monotonic()
    wiped(cluster)
    back: list[float] = []
    doubled: list[set[str]] = []
    while time.monotonic() - started < 8.0:  # longer than the hold
        found = ours(cluster)
        back += [time.monotonic() - started] if found else []
        doubled += [devices(found) - {*names("nvme")}] if found else []
        time.sleep(0.05)
    print(f"after a wipe ours is back within {back[0]:.2f} s")
    assert back[0] < WITHIN
    assert not any(doubled)
    cluster.wait(lambda: any("nvidia" in name for name in listed(cluster)), "slice of gpu.nvidia.com")
    before = ours(cluster)
    published(cluster, "dra.net", *of_dranet())
    time.sleep(2.0)
    assert before == ours(cluster)

    # One of them is replaced, and that takes a while.
    for name in [name for name in listed(cluster) if "dra.net" in name]:
        cluster.api("DELETE", f"{SLICES}/{name}")
    time.sleep(1.5)
    assert before == ours(cluster)
    published(cluster, "dra.net", *of_dranet())
    time.sleep(1.5)
    assert before == ours(cluster)

    # And one goes for good.
    nvidia.end()
    gone = time.monotonic()
    for name in [name for name in listed(cluster) if "nvidia" in name]:
        cluster.api("DELETE", f"{SLICES}/{name}")
    agent.wait_for(here(cluster, EVERY - {*names("nic")}))
    took = time.monotonic() - gone
    print(f"given back after a hold of {took:.2f} s")
    assert took > 6.0
    assert cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]["topo-agent.io/covered"]
    assert not nvidia.log


def booted_beside_dranet(cluster: Cluster, start: Start) -> None:
    """An agent has seen dranet's slice; then all slices are gone, and nobody is back yet."""
    cluster.node(NODE)
    published(cluster, "dra.net", *of_dranet())
    agent = start()
    agent.wait_for(here(cluster, EVERY - {*names("nic")}))
    agent.wait_for(lambda: cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"].get("annotations"))
    agent.kill()
    wiped(cluster)


def test_the_memory_outlives_a_boot(cluster: Cluster, start: Start) -> None:
    """The agent is there before the drivers: their functions are not in ours."""
    booted_beside_dranet(cluster, start)
    agent = start()
    agent.wait_for(lambda: ours(cluster))
    assert here(cluster, EVERY - {*names("nic")})()
    # Somebody else owns the memory: no reason to end.
    agent.kill()
    cluster.kubectl("annotate", "--overwrite", "node", NODE, "topo-agent.io/covered=0000:00:00.0")
    agent = start()
    agent.wait_for(here(cluster))
    published(cluster, "dra.net", *of_dranet())
    agent.wait_for_line("slices memory: ")
    wiped(cluster)
    took = timed(lambda: ours(cluster), agent, WITHIN)
    print(f"without a memory back after {took:.2f} s: {one_line(agent, 'slices memory: ')}")


def test_a_machine_that_others_cover_wholly(cluster: Cluster, start: Start) -> None:
    """No slice of ours then; it comes when they go."""
    cluster.node(NODE)
    name = published(cluster, VENDOR, *(device(name) for name in sorted(EVERY)))
    agent = start(around=SOON + "remembered.HOLD = remembered.LONG = 1.0\n")
    agent.wait_for(lambda: cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"].get("annotations"))
    assert not ours(cluster)
    cluster.api("DELETE", f"{SLICES}/{name}")
    agent.wait_for(here(cluster))


# What may go wrong


def test_what_others_do_to_it(cluster: Cluster, start: Start) -> None:
    """Changed or deleted, it is right again at once; strange ones of our driver go, those of other drivers stay."""
    cluster.node(NODE)
    foreign = published(cluster, VENDOR, *gpus(1))
    strange = published(cluster, OURS, device("pci-0000-16-00-0"))
    elsewhere = published(cluster, OURS, device("pci-0000-16-00-0"), node="n2")
    agent = start()
    agent.wait_for(here(cluster))
    agent.wait_for(lambda: strange not in listed(cluster))
    before = ours(cluster)
    assert before
    since = len(cluster.requests(agent="topo-agent"))
    change = {"spec": {"pool": {"generation": before["spec"]["pool"]["generation"] + 5}, "devices": []}}
    cluster.api("PATCH", f"{SLICES}/{NAME}", change, kind="application/merge-patch+json")
    took = timed(here(cluster), agent, WITHIN)
    said = ours(cluster)
    assert said
    assert said["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"] + 5
    print(f"a change is undone after {took:.2f} s")
    agent.wait_for(lambda: len(writes(cluster, since)) == 1)
    assert agent.metrics()['topo_agent_publish_total{result="ok",sink="resource_slice"}'] == 2
    agent.stop()

    before_second = len(cluster.requests(agent="topo-agent"))
    agent = start()
    agent.wait_for(lambda: watching(cluster, before_second))
    cluster.api("DELETE", f"{SLICES}/{NAME}")
    took = timed(lambda: ours(cluster), agent, WITHIN)
    print(f"deleted, it is back after {took:.2f} s")
    again = ours(cluster)
    assert again
    assert again["spec"]["pool"]["generation"] > said["spec"]["pool"]["generation"]
    assert here(cluster)()
    strange = published(cluster, OURS, device("pci-0000-16-00-0"))
    agent.wait_for(lambda: strange not in listed(cluster), WITHIN)
    assert {*listed(cluster)} == {NAME, foreign}
    assert cluster.api("GET", f"{SLICES}/{elsewhere}")
    assert [one for one in writes(cluster, since) if one.endswith(" 201")] == [f"create {SLICES} 201"]


def test_a_node_that_is_made_anew(cluster: Cluster, start: Start) -> None:
    """Its slice goes with it, and the next one is owned by the new Node."""
    first = cluster.node(NODE)["metadata"]["uid"]
    agent = start(around=OFTEN)
    agent.wait_for(here(cluster))
    owners = (ours(cluster) or {})["metadata"]["ownerReferences"]
    assert [(one["kind"], one["name"], one["uid"], one["controller"]) for one in owners] == [
        ("Node", NODE, first, True)
    ]
    cluster.api("DELETE", f"/api/v1/nodes/{NODE}")
    cluster.wait(lambda: not ours(cluster), "garbage collection")
    second = cluster.node(NODE)["metadata"]["uid"]
    took = timed(
        lambda: (ours(cluster) or {}).get("metadata", {}).get("ownerReferences", [{}])[0].get("uid") == second, agent
    )
    print(f"owned by the new Node after {took:.2f} s")
    # In the same moment.
    cluster.api("DELETE", f"/api/v1/nodes/{NODE}")
    third = cluster.node(NODE)["metadata"]["uid"]
    agent.wait_for(
        lambda: (ours(cluster) or {}).get("metadata", {}).get("ownerReferences", [{}])[0].get("uid") == third
    )
    assert here(cluster)()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_writes_nothing(cluster: Cluster, start: Start, number: signal.Signals) -> None:
    cluster.node(NODE)
    published(cluster, "dra.net", *of_dranet())
    agent = start()
    agent.wait_for(here(cluster, EVERY - {*names("nic")}))
    agent.wait_for(lambda: cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"].get("annotations"))
    before = ours(cluster)
    if number == signal.SIGTERM:
        assert agent.stop()[0] == 0
    else:
        agent.kill()
    assert ours(cluster) == before
    since = len(cluster.requests(agent="topo-agent"))
    agent = start()
    agent.wait_for(lambda: watching(cluster, since))
    agent.rescan()
    agent.rescan()
    assert writes(cluster, since) == []
    assert ours(cluster) == before
    print(f"requests of a restart: {[one.verb for one in cluster.requests(agent='topo-agent')[since:]]}, no write")


def test_servers_that_go(cluster: Cluster, start: Start) -> None:
    cluster.node(NODE)
    agent = start(around=f"{SOON}keeper._LAST = 2.0\n")  # and no minutes between two tries
    agent.wait_for(here(cluster))
    since = len(writes(cluster))
    cluster.restart_apiserver()
    cluster.api("DELETE", f"{SLICES}/{NAME}")
    took = timed(here(cluster), agent)
    print(f"after a restart of the API server a slice that was deleted is back after {took:.2f} s")
    cluster.stop_etcd()
    time.sleep(1.0)
    cluster.start_etcd()
    cluster.api("DELETE", f"{SLICES}/{NAME}")
    took = timed(here(cluster), agent)
    print(f"the same after etcd was gone: {took:.2f} s")
    assert len([one for one in writes(cluster)[since:] if one.endswith(" 201")]) == 2
    cluster.settled()


# What is written comes after the question what would be kept.
WRITE, QUESTION = f"{SLICES}?fieldManager", f"{SLICES}?dryRun"
FAULTS: list[tuple[str, Fault]] = [
    ("409", Answer(409)),
    ("429", Answer(429, retry_after=1)),
    ("500", Answer(500)),
    ("503", Answer(503)),
    ("500, and it was done", Answer(500, after=True)),
    ("no answer", Silence()),
    ("no answer, and it was done", Silence(after=True)),
    ("a cut answer", Cut(0.5)),
    ("a cut connection", Cut(0)),
]


def test_answers_that_go_wrong(cluster: Cluster, proxy: Proxy, start: Start) -> None:
    """Each of two in a row, for what is written and for what is read after it."""
    cluster.node(NODE)
    agent = start(kubeconfig=through(cluster, proxy), around=OFTEN)
    agent.wait_for(here(cluster))
    faults = [("POST", what, fault, WRITE) for what, fault in FAULTS]
    faults += [("POST", f"{what}, to the question", fault, QUESTION) for what, fault in FAULTS[3:5]]
    faults += [("PUT", f"{what}, to a change", fault, f"{SLICES}/{NAME}?fieldManager") for what, fault in FAULTS[:9:4]]
    for method, what, fault, path in faults:
        since = len(cluster.requests(agent="topo-agent"))
        with (
            proxy.breaking(fault, method=method, path=path, times=2) as rule,
            proxy.breaking(fault, method="GET", path=SLICES, watch=False, times=1),
            proxy.breaking(Answer(410), method="GET", path=SLICES, watch=True, times=1),
        ):
            if method == "POST":
                cluster.api("DELETE", f"{SLICES}/{NAME}")
            else:
                empty: object = {"spec": {"devices": []}}
                cluster.api("PATCH", f"{SLICES}/{NAME}", empty, kind="application/merge-patch+json")
            took = timed(here(cluster), agent)
            hits = rule.hits
        done = [one for one in writes(cluster, since) if one.endswith((" 200", " 201"))]
        print(f"{what}: right after {took:.2f} s, {hits} broken, {len(done)} written")
        assert hits
        assert len(done) == 1
    assert not agent.lines("Traceback")
    assert not agent.lines("Error: ")


@pytest.mark.parametrize("fault", [Hang(), HalfClosed()])
def test_watches_that_fall_silent(cluster: Cluster, proxy: Proxy, start: Start, fault: Fault) -> None:
    cluster.node(NODE)
    agent = start(kubeconfig=through(cluster, proxy), around=OFTEN + "client._SILENT = 3.0\n")
    agent.wait_for(here(cluster))
    since = len(cluster.requests(agent="topo-agent"))
    with proxy.breaking(fault, path=SLICES, watch=True, times=1) as rule:
        agent.wait_for(lambda: rule.hits)
        cluster.api("DELETE", f"{SLICES}/{NAME}")
        took = timed(here(cluster), agent)
    print(f"{type(fault).__name__}: right after {took:.2f} s")
    assert [one for one in writes(cluster, since) if one.endswith(" 201")] == [f"create {SLICES} 201"]


# What changes here


def test_a_device_that_goes(cluster: Cluster, start: Start, machine: Path, tmp_path: Path) -> None:
    """One write, of another generation."""
    copy = tmp_path / "machine"
    shutil.copytree(machine, copy, symlinks=True)
    cluster.node(NODE)
    agent = start("--from", str(copy))
    agent.wait_for(here(cluster))
    before = ours(cluster)
    assert before
    since = len(cluster.requests(agent="topo-agent"))
    link = copy / DEVICES / NICS[-1].address
    shutil.rmtree(link.resolve())
    link.unlink()
    agent.rescan()
    agent.wait_for(here(cluster, EVERY - {NICS[-1].name}))
    after = ours(cluster)
    assert after
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["pool"] == {**before["spec"]["pool"], "generation": before["spec"]["pool"]["generation"] + 1}
    assert writes(cluster, since) == [f"update {SLICES}/{NAME} 200"]


def test_a_rack_is_said_by_every_device(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """And kept, by another run as well, while nobody knows it."""

    def racks() -> set[str]:
        found = (ours(cluster) or {"spec": {"devices": []}})["spec"]["devices"]
        return {one["attributes"].get("rack", {}).get("string", "") for one in found}

    cluster.node(NODE)
    mapping = tmp_path / "nodes.csv"
    mapping.write_text(f"node,rack\n{NODE},r1\n", encoding="utf-8")
    agent = start("--mapping", str(mapping))
    agent.wait_for(lambda: racks() == {"r1"})
    agent.stop()
    since = len(cluster.requests(agent="topo-agent"))
    for lost in (False, True):
        if lost:
            mapping.unlink()
        agent = start("--mapping", str(mapping))
        agent.wait_for(lambda: watching(cluster, since, 2 + 2 * lost))  # noqa: B023 called at once
        agent.rescan()
        agent.rescan()
        assert racks() == {"r1"}
        agent.stop()
    assert writes(cluster, since) == []
    # By what the kubelet says of the machine, which is known once the Node has been read.
    uuid = "4c4c4544-0051-3010-8054-b4c04f565831"
    said = {"status": {"nodeInfo": {"systemUUID": uuid}}}
    cluster.api("PATCH", f"/api/v1/nodes/{NODE}/status", said, kind="application/merge-patch+json")
    mapping.write_text(f"node,rack\n{uuid},r2\n", encoding="utf-8")
    agent = start("--mapping", str(mapping))
    agent.wait_for(lambda: watching(cluster, since, 6))
    agent.rescan()  # the first one may have been before anybody knew it
    agent.wait_for(lambda: racks() == {"r2"})
    assert len(writes(cluster, since)) == 1


# By hand


def test_publish_and_unpublish(cluster: Cluster, machine: Path) -> None:
    cluster.node(NODE)
    published(cluster, "dra.net", *of_dranet())

    def did(command: str, *words: str) -> str:
        done = kube(cluster, machine, command, *words)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if "ResourceSlice" in line][-1]

    def stored() -> tuple[Any, ...]:
        node = cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"]
        return listed(cluster), node["labels"], node.get("annotations")

    left = len(EVERY) - len(NICS)
    before = stored()
    done = kube(cluster, machine, "publish", "--slices", "--dry-run", "client")
    assert done.returncode == 0
    assert '"kind": "ResourceSlice"' in done.stdout
    said = f"topo-agent: ResourceSlice {NAME}, {left} devices: "
    assert did("publish", "--slices", "--dry-run", "server") == f"{said}would be written"
    assert stored() == before
    assert did("publish", "--slices") == f"{said}written"
    assert here(cluster, EVERY - {*names("nic")})()
    assert did("publish", "--slices") == f"{said}nothing to change"
    before = stored()
    assert did("unpublish", "--dry-run", "server") == f"topo-agent: ResourceSlice {NAME}: would be removed"
    assert kube(cluster, machine, "unpublish", "--dry-run", "client").returncode == 0
    assert stored() == before
    assert did("unpublish") == f"topo-agent: ResourceSlice {NAME}: removed"
    assert [one["spec"]["driver"] for one in listed(cluster).values()] == ["dra.net"]
    # All of it covered: no slice, and nothing is told to have been written.
    published(cluster, VENDOR, *(device(name) for name in sorted(EVERY)))
    assert did("publish", "--slices") == f"topo-agent: ResourceSlice {NAME}, 0 devices: nothing to change"


def test_publish_before_the_drivers_are_back(cluster: Cluster, start: Start, machine: Path) -> None:
    """After a boot: what an agent has left at the Node counts as covered, until it is taken back."""
    booted_beside_dranet(cluster, start)
    assert kube(cluster, machine, "publish", "--slices").returncode == 0
    assert here(cluster, EVERY - {*names("nic")})()
    assert kube(cluster, machine, "unpublish").returncode == 0
    assert kube(cluster, machine, "publish", "--slices").returncode == 0
    assert here(cluster)()


def test_publish_is_refused(cluster: Cluster, machine: Path) -> None:
    cluster.node(NODE)
    asked(cluster, "class-open")
    done = kube(cluster, machine, "publish", "--slices")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        "topo-agent: DeviceClass class-open names no driver: its claims would look at our devices, too, and could fail"
    )
    assert not listed(cluster)
    cluster.api("DELETE", f"{CLASSES}/class-open")
    # An account without rights.
    token = cluster.token("default")
    config = cluster.kubeconfig_for(token, "nobody")
    said = refused(run("kube", "unpublish", "--node", NODE, "--kubeconfig", config))
    assert "403" in said
    with pytest.raises(Refused):
        cluster.api("GET", SLICES, token=token)
