"""The proxy of the labs breaks what it is told to, and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent import wait_for
from tests.labs.controlplane.breaking import Answer, Cut, Fault, HalfClosed, Hang, Proxy, Silence
from tests.labs.controlplane.cluster import Cluster

NODE = "/api/v1/nodes/n1"
WATCH = "/api/v1/nodes?watch=1"
PATCH = "application/merge-patch+json"


class Client:
    """One connection to the proxy, as the admin."""

    def __init__(self, proxy: Proxy, cluster: Cluster) -> None:
        where = urllib.parse.urlsplit(proxy.server)
        trusted = ssl.create_default_context(cafile=proxy.ca)
        self.connection = http.client.HTTPSConnection("127.0.0.1", where.port, context=trusted, timeout=10.0)
        self._headers = {"Authorization": f"Bearer {cluster.user_token('admin')}", "Content-Type": PATCH}

    def ask(self, method: str, target: str, body: object = None) -> http.client.HTTPResponse:
        self.connection.request(method, target, None if body is None else json.dumps(body), self._headers)
        return self.connection.getresponse()

    def label(self, value: str) -> http.client.HTTPResponse:
        return self.ask("PATCH", NODE, {"metadata": {"labels": {"tried": value}}})

    def nothing_comes(self, seconds: float) -> bool:
        """And the connection is still there."""
        return not select.select([self.connection.sock], [], [], seconds)[0]


@pytest.fixture
def client(proxy: Proxy, cluster: Cluster) -> Iterator[Client]:
    cluster.node("n1")
    # A watch begins with what the cache of the API server has, and that may be the Node as it was first.
    cluster.wait(lambda: "taints" not in cluster.api("GET", f"{NODE}?resourceVersion=0")["spec"], "Node in the cache")
    found = Client(proxy, cluster)
    with contextlib.closing(found.connection):
        yield found


def label(cluster: Cluster) -> str | None:
    found: str | None = cluster.api("GET", NODE)["metadata"]["labels"].get("tried")
    return found


def event(answer: http.client.HTTPResponse) -> tuple[str, str | None]:
    said: dict[str, Any] = json.loads(answer.readline())
    return said["type"], said["object"]["metadata"]["labels"].get("tried")


def test_the_rest_goes_through(proxy: Proxy, client: Client, cluster: Cluster) -> None:
    with proxy.breaking(Answer(500), method="DELETE"), proxy.breaking(Answer(500), path="/api/v1/pods"):
        for value in ("a", "b"):  # on one connection
            answer = client.label(value)
            assert answer.status == 200
            assert json.loads(answer.read())["metadata"]["labels"]["tried"] == value
        assert client.ask("GET", "/api/v1/nodes/none").read()
    assert proxy.forwarded["PATCH", NODE, 200] == proxy.count(method="PATCH") == 2
    assert proxy.count(status=404) == 1
    path = cluster.kubeconfig_for(cluster.user_token("admin"), "through", server=proxy.server, ca=proxy.ca)
    assert "n1" in cluster.kubectl(f"--kubeconfig={path}", "get", "nodes")
    assert proxy.forwarded["GET", "/api/v1/nodes", 200] == 1


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_an_error(proxy: Proxy, client: Client, cluster: Cluster, status: int) -> None:
    with proxy.breaking(Answer(status, retry_after=7), method="PATCH", path=NODE, times=1) as rule:
        answer = client.label("a")
        assert answer.status == status
        assert answer.headers["Retry-After"] == "7"
        assert json.loads(answer.read())["code"] == status
        assert label(cluster) is None
        assert client.label("b").status == 200
    assert rule.hits == 1
    assert proxy.forwarded == {("PATCH", NODE, 200): 1}


def test_an_error_after_it_was_done(proxy: Proxy, client: Client, cluster: Cluster) -> None:
    with proxy.breaking(Answer(503, after=True)):
        answer = client.label("a")
        assert (answer.status, answer.headers["Retry-After"]) == (503, None)
    assert label(cluster) == "a"


@pytest.mark.parametrize("after", [False, True])
def test_silence(proxy: Proxy, client: Client, cluster: Cluster, *, after: bool) -> None:
    client.connection.timeout = 1.0
    with proxy.breaking(Silence(after=after)), pytest.raises(TimeoutError):
        client.label("a")
    assert label(cluster) == ("a" if after else None)


@pytest.mark.parametrize("part", [0, 0.5])
def test_half_an_answer(proxy: Proxy, client: Client, cluster: Cluster, part: float) -> None:
    with proxy.breaking(Cut(part)):
        if part:
            answer = client.label("a")
            with pytest.raises(http.client.IncompleteRead) as error:
                answer.read()
            assert len(error.value.partial) == pytest.approx(error.value.expected or 0, abs=1)
        else:
            with pytest.raises((http.client.RemoteDisconnected, ssl.SSLEOFError)):
                client.label("a")
    assert label(cluster) == "a"


def test_a_watch_comes_as_it_happens(proxy: Proxy, client: Client, cluster: Cluster) -> None:
    answer = client.ask("GET", WATCH)
    assert event(answer) == ("ADDED", None)
    for value in ("a", "b"):
        started = time.monotonic()
        cluster.api("PATCH", NODE, {"metadata": {"labels": {"tried": value}}}, kind=PATCH)
        assert event(answer) == ("MODIFIED", value)
        assert time.monotonic() - started < 2.0
    assert proxy.forwarded == {("GET", "/api/v1/nodes", 200): 1}


def test_half_an_event(proxy: Proxy, client: Client) -> None:
    with proxy.breaking(Cut(), watch=True):
        answer = client.ask("GET", WATCH)
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


@pytest.mark.parametrize("fault", [Hang(), HalfClosed()])
def test_a_watch_that_falls_silent(proxy: Proxy, client: Client, cluster: Cluster, fault: Fault) -> None:
    """One that goes on already; the requests of others are answered."""
    answer = client.ask("GET", WATCH)
    assert event(answer) == ("ADDED", None)
    with proxy.breaking(fault, path="/api/v1/nodes", watch=True, times=1) as rule:
        wait_for(lambda: rule.hits == 1)
        other = Client(proxy, cluster)
        with contextlib.closing(other.connection):
            assert other.label("a").status == 200
    if isinstance(fault, Hang):
        assert client.nothing_comes(2.0)
    else:
        with pytest.raises((http.client.HTTPException, ssl.SSLError)):
            answer.read()
    proxy.drop()
    assert not client.nothing_comes(10.0)


def test_the_api_server_goes(client: Client, proxy: Proxy, cluster: Cluster) -> None:
    answer = client.ask("GET", WATCH)
    assert event(answer) == ("ADDED", None)
    cluster.stop_apiserver()
    try:
        assert not answer.readline()
        with pytest.raises((http.client.RemoteDisconnected, ssl.SSLError)):
            client.label("a")
    finally:
        cluster.start_apiserver()
    client.connection.close()
    assert client.label("b").status == 200
