"""The agent that keeps labels, while the API server, the network and others do what they like."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent import Agent, wait_for
from tests.cost import cpu_seconds, memory
from tests.labs.controlplane.breaking import Answer, Cut, Fault, HalfClosed, Hang, Proxy, Silence
from tests.labs.controlplane.cluster import Cluster, Refused
from tests.labs.controlplane.publishing import (
    NODE,
    PLAIN,
    QUICK,
    Publishing,
    Witness,
    idle_seconds,
    open_publishing,
)

RACK = "topo-agent.io/rack"
PATH = f"/api/v1/nodes/{NODE}"
MEMORY = 80 << 20  # bytes
# What is waited for before a server counts as silent; a watch has its bookmarks every minute.
IMPATIENT = f"""{QUICK}
keeper._LAST = 0.4
from topo_agent.publishers.kube import client
client.Client._request.__kwdefaults__["read"], client._SILENT = {{read}}, {{silent}}
"""


@pytest.fixture
def through(publishing: Publishing, proxy: Proxy) -> str:
    """A kubeconfig by way of the proxy."""
    cluster = publishing.cluster
    return cluster.kubeconfig_for(cluster.user_token("admin"), "through", server=proxy.server, ca=proxy.ca)


def strip(cluster: Cluster, *keys: str) -> None:
    """As `kubectl label node n1 KEY-`."""
    change = {"metadata": {"labels": dict.fromkeys(keys or (RACK,))}}
    cluster.api("PATCH", PATH, change, kind="application/merge-patch+json")


@contextmanager
def converging(publishing: Publishing, agent: Agent, rack: str) -> Iterator[Mapping[str, str]]:
    """That rack is published in the end, by one write; all other labels are there all the while."""
    before = publishing.labels()
    rest = {key: value for key, value in before.items() if key != RACK}
    publishing.mark()
    with Witness(publishing.cluster) as seen:
        yield rest
        agent.wait_for(lambda: publishing.labels() == rest | {RACK: rack})
        agent.wait_for(publishing.writes)  # the audit log is written after the answer
        assert seen.always(rest)
    assert publishing.writes() == 1


# Answers

FAULTS: tuple[Fault, ...] = (
    Answer(409), Answer(429), Answer(500), Answer(503, retry_after=1), Silence(), Cut(0),
    Answer(500, after=True), Answer(503, after=True), Silence(after=True), Cut(0.5),
)  # fmt: skip


def test_answers_that_fail(publishing: Publishing, proxy: Proxy, through: str) -> None:
    """To GET and to PATCH; some have done what they were asked for. The agent goes on from what it then reads."""
    agent = publishing.published(kubeconfig=through, around=IMPATIENT.format(read=1.0, silent=3600.0))
    again = "the API server answers again"
    number = 1
    for method in ("PATCH", "GET"):
        for fault in FAULTS:
            number += 1
            begun = len(agent.log)
            with (
                proxy.breaking(fault, method=method, path=PATH, watch=False, times=1) as rule,
                converging(publishing, agent, f"r{number}"),
            ):
                if method == "GET":
                    proxy.drop()  # the watch ends, and the Node is read
                publishing.rack(f"r{number}")
                agent.wait_for(lambda rule=rule: rule.hits)  # type: ignore[misc]
                agent.wait_for_line(again, after=begun)
    print(f"{2 * len(FAULTS)} broken answers to PATCH and GET: one write for each change")


def test_retry_after(publishing: Publishing, proxy: Proxy, through: str) -> None:
    agent = publishing.published(kubeconfig=through, around=IMPATIENT.format(read=5.0, silent=3600.0))
    for number, status in enumerate((429, 503), 2):
        with (
            proxy.breaking(Answer(status, retry_after=2), method="PATCH", times=1) as rule,
            converging(publishing, agent, f"r{number}"),
        ):
            publishing.rack(f"r{number}")
            agent.wait_for(lambda rule=rule: rule.hits)  # type: ignore[misc]
            agent.wait_for(lambda number=number: publishing.labels().get(RACK) == f"r{number}")  # type: ignore[misc]
            took = time.monotonic() - rule.at
        print(f"{status} with Retry-After 2: written after {took:.1f} s")
        assert took >= 1.9
    written = 'topo_agent_publish_total{result="%s",sink="node_labels"}'
    agent.wait_for(lambda: agent.metrics()[written % "ok"] == 3)  # counted once the answer is there
    assert agent.metrics()[written % "error"] == 2


@pytest.mark.parametrize("fault", [Hang(), HalfClosed(), Cut()], ids=lambda fault: type(fault).__name__)
def test_a_watch_that_fails(publishing: Publishing, proxy: Proxy, through: str, fault: Fault) -> None:
    """What happens meanwhile is seen as soon as it has been given up."""
    agent = publishing.published(kubeconfig=through, around=IMPATIENT.format(read=1.0, silent=2.0))
    with proxy.breaking(fault, watch=True, times=1) as rule:
        if isinstance(fault, Cut):
            proxy.drop()
            agent.wait_for(lambda: rule.hits)
        else:
            wait_for(lambda: rule.hits)
        with converging(publishing, agent, "r1"):
            strip(publishing.cluster)


def test_a_retraction_that_cannot_be_written(publishing: Publishing, proxy: Proxy, through: str) -> None:
    """The Node is read anew, and there the label stands: that is no reason to keep it."""
    agent = publishing.published(kubeconfig=through, around=IMPATIENT.format(read=1.0, silent=3600.0))
    with proxy.breaking(Answer(500), method="PATCH", times=1) as rule:
        publishing.mapping.write_text("node,rack,block\nother,r1,b1\n", encoding="utf-8")
        agent.wait_for(lambda: rule.hits)
        agent.wait_for(lambda: RACK not in publishing.labels(), 10)
    assert publishing.labels() == publishing.said()


def test_the_end_waits_for_no_answer(publishing: Publishing, proxy: Proxy, through: str) -> None:
    with proxy.breaking(Silence()) as rule:
        agent = publishing.start(kubeconfig=through)
        agent.wait_for(lambda: rule.hits)
        status, took = agent.stop()
    assert (status, took < 5) == (0, True)  # it would be silent for ever


# Servers that go


def test_servers_that_go(start_cluster: Callable[..., Cluster], tmp_path: Path, common: Path) -> None:
    """The API server while it is written to, etcd ended and frozen."""
    cluster = start_cluster()
    cluster.node(NODE)
    with open_publishing(cluster, tmp_path, common) as publishing:
        agent = publishing.published(around=IMPATIENT.format(read=3.0, silent=3600.0))
        rest = {key: value for key, value in publishing.labels().items() if key != RACK}

        def converges(rack: str, writes: int) -> None:
            began = time.monotonic()
            agent.wait_for(lambda: publishing.labels() == rest | {RACK: rack})
            time.sleep(1)
            took = time.monotonic() - began - 1
            print(f"{rack}: published {took:.1f} s after the end of the fault, {publishing.writes()} writes")
            assert publishing.writes() <= writes
            assert publishing.labels() == rest | {RACK: rack}
            publishing.mark()

        publishing.mark()
        cluster.stop_apiserver()
        publishing.rack("stopped")
        agent.wait_for_line("cannot be reached")
        cluster.start_apiserver()
        converges("stopped", 1)
        publishing.rack("restarted")
        time.sleep(0.4)  # some moment of the reading and writing
        cluster.restart_apiserver()
        converges("restarted", 1)
        cluster.stop_etcd()
        publishing.rack("no-etcd")
        time.sleep(2)
        cluster.start_etcd()
        converges("no-etcd", 1)
        cluster.stop_etcd(frozen=True)
        publishing.rack("frozen")
        time.sleep(5)
        cluster.start_etcd()
        # A write that the client has given up may be carried out all the same, once etcd goes on.
        converges("frozen", 2)


def test_a_node_that_is_made_anew(publishing: Publishing, proxy: Proxy, through: str) -> None:
    """What is written for the old one does not make it rise again, although this account may make Nodes."""
    cluster = publishing.cluster
    agent = publishing.published(kubeconfig=through, around=IMPATIENT.format(read=1.0, silent=3600.0))
    expected = publishing.labels()
    uids = {publishing.node()["metadata"]["uid"]}
    with proxy.breaking(Hang(), watch=True, times=1) as rule:
        wait_for(lambda: rule.hits)
        cluster.api("DELETE", PATH)
        publishing.mark()
        publishing.rack("r2")  # the agent does not know that the Node is gone
        agent.wait_for_line("409")
        agent.wait_for_line("there is no node n1")
        assert {one.code for one in publishing.requests() if one.verb == "patch"} == {409}
    for number in range(2):
        with pytest.raises(Refused):
            cluster.api("GET", PATH)
        cluster.node(NODE)
        began = time.monotonic()
        agent.wait_for(lambda: publishing.labels() == expected | {RACK: "r2"})
        print(f"labels of the new Node after {time.monotonic() - began:.1f} s")
        uids.add(publishing.node()["metadata"]["uid"])
        assert len(uids) == number + 2
        if number == 0:  # and with a watch that tells
            agent.wait_for_line("answers again")
            cluster.api("DELETE", PATH)
            agent.wait_for_line(f"Node {NODE} was deleted or made anew")
            time.sleep(0.5)


# Restarts


def test_restarts(publishing: Publishing) -> None:
    """Killed and started again nothing is written, and no label is away for a moment; the end removes nothing."""
    agent = publishing.published()
    expected = publishing.labels()
    memory = publishing.node()["metadata"]["annotations"]
    publishing.mark()
    with Witness(publishing.cluster) as seen:
        for number in range(3):
            if number == 2:
                assert agent.stop(signal.SIGTERM)[0] == 0
            else:
                agent.kill()
            watches = publishing.verbs()["watch"]
            agent = publishing.start()
            agent.wait_for(lambda watches=watches: publishing.verbs()["watch"] > watches)  # type: ignore[misc]
            agent.rescan()
            agent.rescan()
        assert seen.always(expected)
        assert publishing.writes() == 0
        # Something is still seen: a change after it all.
        publishing.rack("r2")
        agent.wait_for(lambda: any(one.get(RACK) == "r2" for one in seen.labels))
    assert publishing.wrote(agent, 1)
    agent.stop()
    assert publishing.labels() == expected | {RACK: "r2"}
    assert publishing.node()["metadata"]["annotations"].keys() == memory.keys()


def test_a_memory_that_is_lost(publishing: Publishing) -> None:
    """Of labels without their annotation only the values are left: they stay as they are."""
    publishing.rack("rack 09")
    agent = publishing.published()
    expected = publishing.labels()
    agent.kill()
    gone = {"metadata": {"annotations": None}}
    publishing.cluster.api("PATCH", PATH, gone, kind="application/merge-patch+json")
    publishing.mark()
    with Witness(publishing.cluster) as seen:
        agent = publishing.start()
        agent.wait_for(lambda: publishing.node()["metadata"].get("annotations"))
        agent.rescan()
        assert seen.watches
        assert all(one == seen.labels[0] for one in seen.labels)
    assert publishing.labels() == expected
    assert publishing.writes() <= 2


# As it is, with none of its times changed


def swap(publishing: Publishing, rack: str) -> None:
    """As the kubelet does it with the volume of a ConfigMap."""
    volume = publishing.folder / "volume"
    folder = volume / f"..{rack}"
    folder.mkdir(parents=True)
    (folder / "nodes.csv").write_text(f"node,rack,block\n{NODE},{rack},b1\n", encoding="utf-8")
    (volume / "..data_tmp").symlink_to(folder.name)
    os.rename(volume / "..data_tmp", volume / "..data")


def test_quiet_and_steady(publishing: Publishing) -> None:
    """Nothing is asked while nothing happens. A label that somebody takes away is back soon, unless he goes on.

    A mapping that the kubelet swaps is read at once: the file is a link into `..data`, and that link is replaced.
    """
    cluster, seconds = publishing.cluster, idle_seconds()
    swap(publishing, "r1")
    publishing.mapping = publishing.folder / "volume/nodes.csv"
    publishing.mapping.symlink_to("..data/nodes.csv")
    agent = publishing.published(around=PLAIN)
    agent.wait_for(lambda: publishing.verbs()["watch"])
    publishing_cost = dict(publishing.verbs())
    time.sleep(2)
    publishing.mark()
    spent = cpu_seconds(agent)
    time.sleep(seconds)
    share, size = (cpu_seconds(agent) - spent) / seconds, memory(agent)
    assert not publishing.requests()
    print(f"requests until the labels are there: {publishing_cost}; none in {seconds:g} s of idling,"
          f" {share:.3%} of a core, PSS {size / (1 << 20):.1f} MiB")  # fmt: skip
    assert size <= MEMORY
    began = time.monotonic()
    swap(publishing, "r2")
    agent.wait_for(lambda: publishing.labels().get(RACK) == "r2")
    took = time.monotonic() - began
    print(f"another rack {took:.1f} s after the mapping was swapped")
    assert took < 20
    publishing.mark()
    strip(cluster)
    began = time.monotonic()
    agent.wait_for(lambda: RACK in publishing.labels())
    took = time.monotonic() - began
    print(f"a label that was taken away is back after {took:.2f} s")
    assert took < 5
    strips, until = 1, time.monotonic() + 7
    while time.monotonic() < until:
        if RACK in publishing.labels():
            strip(cluster)
            strips += 1
        time.sleep(0.02)
    writes = publishing.writes()
    print(f"{strips} times taken away in 7 s, {writes} writes")
    assert strips - 1 <= writes <= 4
    swap(publishing, "r3")  # what has changed does not wait for the end of it
    agent.wait_for(lambda: publishing.labels().get(RACK) == "r3", 12)
