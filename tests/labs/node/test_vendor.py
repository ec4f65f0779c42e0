"""Drivers of vendors beside us on a real kubelet: what they register for is theirs, whatever starts anew or ends."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import fixtures
from tests.agent import Agent
from tests.labs import golang
from tests.labs.apt import CannotStart
from tests.labs.aside import Aside
from tests.labs.controlplane.cluster import ENOUGH, Cluster
from tests.labs.node import kubelet
from tests.labs.node.deployed import CONTROLLERS
from tests.labs.node.node import NodeOf
from tests.labs.node.test_node import make, pod
from topo_agent.views.slices import candidates

NODE, OURS, NVIDIA, DRANET = "v1", "topo-agent.io", "gpu.nvidia.com", "dra.net"
MACHINE = "dgx-h100"
API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
ROOT = "resource.kubernetes.io/pcieRoot"
SOON = 5.0  # seconds, for what is ours to do
UPSTREAM = 30.0  # seconds: DefaultSyncDelay of upstream's controller, defaultWipingDelay of the kubelet
# Agents of a cluster do not start at once here, and readings agree sooner. All that comes later takes its time.
AROUND = """\
from topo_agent.daemon import keeper, loop, schedule
keeper._JITTER = 0.0
schedule.SETTLE, loop._CONFIRM = 0.05, 0.2
"""

FOUND = {one.address: one.attributes for one in candidates(fixtures.topology(MACHINE))}


def of_kind(kind: str) -> list[str]:
    return [address for address, said in FOUND.items() if said["kind"] == kind]


OF = {NVIDIA: of_kind("gpu"), DRANET: of_kind("nic")}
EVERY = frozenset(FOUND)
REST = EVERY - {*OF[NVIDIA]} - {*OF[DRANET]}


class Vendor:
    """A driver on upstream's helper for kubelet plugins, in a process of its own that is started again and again."""

    def __init__(self, program: Path, node: NodeOf, machine: Path, driver: str) -> None:
        where = (node.cluster.kubeconfig, node.name, node.root, node.folder / "cdi", machine)
        self._command = [str(one) for one in (program, *where, driver, *OF[driver])]
        self.driver = driver
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            self.log.append(line.rstrip("\n"))

    def stop(self) -> None:
        """In order, as a pod that ends. Twice does no harm."""
        process, self._process = self._process, None
        if process:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            try:
                process.wait(ENOUGH)
            finally:
                process.kill()
                self._reader.join(ENOUGH)
                process.stdout.close()

    def told(self, line: str) -> int:
        """How often."""
        return self.log.count(line)

    @property
    def registered(self) -> int:
        return self.told("NotifyRegistrationStatus")


class Look(NamedTuple):
    """What is published at a moment, by driver."""

    at: float
    uids: Mapping[str, str]
    addresses: Mapping[str, frozenset[str]]
    twice: frozenset[str]  # devices of two slices, and drivers that have two


class Witness(Aside):
    """Looks all the time at the slices of the node."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(every=0.02)
        self._cluster = cluster
        self.looks = [self._look()]

    def step(self) -> None:
        self.looks.append(self._look())

    def _look(self) -> Look:
        at = time.monotonic()
        found = self._cluster.api("GET", f"{API}/resourceslices?fieldSelector=spec.nodeName%3D{NODE}")["items"]
        uids: dict[str, str] = {}
        addresses: dict[str, frozenset[str]] = {}
        seen, twice = set[str](), set[str]()
        for one in found:
            driver = one["spec"]["driver"]
            own = frozenset(address(device) for device in one["spec"]["devices"])
            twice |= (own | {driver}) & seen
            seen |= own | {driver}
            uids[driver], addresses[driver] = one["metadata"]["uid"], own
        return Look(at, uids, addresses, frozenset(twice))

    @property
    def last(self) -> Look:
        return self.looks[-1]

    def wait(self, so: Callable[[Look], object], what: str, seconds: float = ENOUGH) -> Look:
        """The first look from now on at which it is so."""
        self._cluster.wait(lambda: so(self.last), what, seconds)
        return self.last

    def away(self, driver: str) -> float:
        """Seconds between the last look at a slice of it and the first one at the next slice, at most."""
        first = self.looks[0].uids[driver]
        gone = max(one.at for one in self.looks if one.uids.get(driver) == first)
        return min(one.at for one in self.looks if one.uids.get(driver, first) != first) - gone

    def of(self, driver: str) -> set[frozenset[str]]:
        """All that its slices have held."""
        return {one.addresses[driver] for one in self.looks if driver in one.addresses}


def address(device: Mapping[str, Any]) -> str:
    said = device["attributes"]
    found: dict[str, str] = said.get("resource.kubernetes.io/pciBusID") or said["dra.net/pciAddress"]
    return found["string"]


@pytest.fixture(scope="module")
def node(start_node: Callable[..., NodeOf]) -> NodeOf:
    return start_node(NODE, controllers=CONTROLLERS)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixtures.tree(MACHINE, tmp_path_factory.mktemp("dgx"))


@pytest.fixture(scope="module")
def agent(node: NodeOf, machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("agent")
    words = ["--from", str(machine), "--state-dir", str(folder / "state"), "--node", NODE]
    words += ["--slice-mode", "inventory", "--kubeconfig", node.cluster.kubeconfig]
    found = Agent(folder / "http", *words, around=AROUND)
    try:
        yield found.ready()
    finally:
        found.kill()


@pytest.fixture(scope="module")
def vendors(node: NodeOf, machine: Path) -> Iterator[dict[str, Vendor]]:
    """A GPU's and a NIC's, not started yet."""
    try:
        program = golang.built(Path(__file__).parent / "vendor")
    except CannotStart as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    found = {driver: Vendor(program, node, machine, driver) for driver in OF}
    yield found
    for one in found.values():
        one.stop()


def ask(node: NodeOf, name: str, *drivers: str) -> None:
    """A pod that needs a device of each, of one root if there are two; the classes are called as the drivers."""
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": one}} for at, one in enumerate(drivers)]
    devices = {"requests": requests, "constraints": [{"matchAttribute": ROOT}] if len(drivers) > 1 else []}
    node.cluster.api("POST", CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}})
    made = pod(name, kubelet.PAUSE, resourceClaims=[{"name": "devices", "resourceClaimName": name}])
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "devices"}]}
    make(node, made)


def allocated(node: NodeOf, name: str) -> dict[str, str]:
    """The device that each driver gave, by its address."""
    results = node.cluster.api("GET", f"{CLAIMS}/{name}")["status"]["allocation"]["devices"]["results"]
    devices = {
        (one["spec"]["driver"], device["name"]): address(device)
        for one in node.cluster.api("GET", f"{API}/resourceslices")["items"]
        for device in one["spec"]["devices"]
    }
    return {one["driver"]: devices[one["driver"], one["device"]] for one in results}


def given(running: Mapping[str, Any]) -> dict[str, str]:
    """What the drivers put into the environment of its container: the host sees the processes of the node's pods."""
    found: dict[str, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if running["metadata"]["uid"] in (path / "cgroup").read_text():
                words = (path / "environ").read_bytes().decode().split("\0")
                found |= dict(word.split("=", 1) for word in words if word.startswith("LAB_"))
        except OSError:
            continue
    return found


def container(running: Mapping[str, Any]) -> str:
    text: str = running["status"]["containerStatuses"][0]["containerID"]
    return text


def trouble(agent: Agent, vendors: Mapping[str, Vendor]) -> list[str]:
    metrics = agent.metrics()
    bad = [name for name, value in metrics.items() if name.startswith("topo_agent_publish_total") and value
           and 'result="ok"' not in name]  # fmt: skip
    bad += ["held"] if metrics["topo_slice_held"] else []
    bad += [line for line in agent.log if "Traceback" in line or "Error: " in line]
    return bad + [line for one in vendors.values() for line in one.log if line.startswith("error: ")]


def test_what_drivers_register_for_is_left_to_them(node: NodeOf, agent: Agent, vendors: dict[str, Vendor]) -> None:
    with Witness(node.cluster) as seen:
        seen.wait(lambda look: look.addresses.get(OURS) == EVERY, "slice of the whole machine")
        for one in vendors.values():
            began = time.monotonic()
            one.start()
            node.wait(lambda one=one: one.registered, f"registration of {one.driver}")  # type: ignore[misc]
            print(f"{one.driver}: registered after {time.monotonic() - began:.2f} s")
        seen.wait(lambda look: look.addresses.get(OURS) == REST, "slice without theirs", 2 * SOON)
        for driver, own in OF.items():
            seen.wait(lambda look, driver=driver: driver in look.uids, f"slice of {driver}")  # type: ignore[misc]
            there = min(look.at for look in seen.looks if driver in look.uids)
            both = [look.at for look in seen.looks if look.twice & {*own}]
            took = max(both, default=there) - there
            print(f"{driver}: {len(own)} devices were in both slices for {took:.2f} s at most")
            assert took < SOON
        time.sleep(1.0)  # for what it would still do
        assert not seen.last.twice
    assert seen.of(NVIDIA) == {frozenset(OF[NVIDIA])}
    assert seen.of(DRANET) == {frozenset(OF[DRANET])}
    assert trouble(agent, vendors) == []


def test_a_claim_is_prepared_by_both(node: NodeOf, agent: Agent, vendors: dict[str, Vendor]) -> None:
    """A GPU and a NIC of one root, allocated beside our slice, and known to the container by CDI."""
    for driver in OF:
        guarded = {"cel": {"expression": f'device.driver == "{driver}"'}}
        node.cluster.api(
            "POST", f"{API}/deviceclasses", {"metadata": {"name": driver}, "spec": {"selectors": [guarded]}}
        )
    with Witness(node.cluster) as seen:
        began = time.monotonic()
        ask(node, "pair", NVIDIA, DRANET)
        running = node.wait_pod("pair")
        print(f"a pod with a GPU and a NIC runs after {time.monotonic() - began:.2f} s: {given(running)}")
    found = allocated(node, "pair")
    assert given(running) == {"LAB_GPU": found[NVIDIA], "LAB_NIC": found[DRANET]}
    assert FOUND[found[NVIDIA]][ROOT] == FOUND[found[DRANET]][ROOT]
    assert [sum(line.startswith("prepared ") for line in one.log) for one in vendors.values()] == [1, 1]
    assert seen.of(OURS) == {REST}
    assert not any(look.twice for look in seen.looks)
    assert trouble(agent, vendors) == []


def test_the_kubelet_is_started_anew_and_a_driver_ends(
    node: NodeOf, agent: Agent, vendors: dict[str, Vendor]
) -> None:  # fmt: skip
    """In one: what upstream takes half a minute for, twice, goes on at the same time."""
    before = container(node.wait_pod("pair"))
    held = allocated(node, "pair")
    nvidia, dranet = vendors[NVIDIA], vendors[DRANET]
    registered = nvidia.registered
    with Witness(node.cluster) as seen:
        stood = {*seen.last.uids.values()}
        node.stop_kubelet()
        node.start_kubelet()
        # A driver that was about to look at its slice anyway may write it in the same moment.
        seen.wait(lambda look: not {*look.uids.values()} & stood, "wipe of the slices")
        # A plugin writes its slice at its start at once, else up to half a minute after somebody took it.
        dranet.stop()
        again = dranet.registered
        dranet.start()
        node.wait(lambda: dranet.registered > again, f"registration of {DRANET}")
        seen.wait(lambda look: DRANET in look.uids, f"slice of {DRANET}")
        dranet.stop()
        ended = time.monotonic()
        ask(node, "later", NVIDIA)
        seen.wait(lambda look: NVIDIA in look.uids, f"slice of {NVIDIA}", 3 * UPSTREAM)
        assert nvidia.registered > registered
        running = node.wait_pod("later")
        assert given(running) == {"LAB_GPU": allocated(node, "later")[NVIDIA]}
        assert allocated(node, "later")[NVIDIA] != held[NVIDIA]
        node.cluster.kubectl("delete", "pod", "later")
        node.wait(lambda: any(line.endswith(" of later") for line in nvidia.log), "end of what was prepared")
        gone = seen.wait(lambda look: DRANET not in look.uids, f"end of the slice of {DRANET}", 3 * UPSTREAM)
        time.sleep(1.5)  # for what ours would do
    for driver in (OURS, NVIDIA):
        print(f"{driver}: after the kubelet's start its slice was away for {seen.away(driver):.2f} s at most")
    print(f"{DRANET}: the kubelet took its slice {gone.at - ended:.2f} s after its end; {len(seen.looks)} looks")
    assert seen.away(OURS) < SOON
    # Not one look found theirs in ours: not before they were back, and not after one had gone.
    assert seen.of(OURS) == {REST}
    assert not any(look.twice for look in seen.looks)
    # What the pod holds, it still does, of the driver that is gone as well.
    assert container(node.wait_pod("pair")) == before
    claim = node.cluster.api("GET", f"{CLAIMS}/pair")["status"]["allocation"]["devices"]["results"]
    assert {one["driver"] for one in claim} == {NVIDIA, DRANET}
    assert {*OF[DRANET]} <= {*memory(node)}
    assert trouble(agent, vendors) == []
    name = 'topo_agent_publish_total{result="ok",sink="resource_slice"}'
    print(f"ours was written {agent.metrics()[name]:.0f} times in all")


def memory(node: NodeOf) -> list[str]:
    """What others cover or covered, as our agent keeps it at the Node."""
    about = node.cluster.api("GET", f"/api/v1/nodes/{NODE}")["metadata"]
    text: str = about["annotations"]["topo-agent.io/covered"]
    return text.split(",")
