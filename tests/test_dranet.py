"""The webhook of dranet, asked as its client asks: dra.md, section 13 (kubernetes-sigs/dranet, webhook.go)."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fixtures
from tests.agent import Agent

NIC = "0000:18:00.0"  # of a DGX H100: ConnectX-7 behind the switch of GPU 1b:00.0 (layouts.md)


class Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10.0)  # dranet's own
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class Client:
    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = Unix(self._path)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json"} if raw else {})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(said) if is_json else said.decode()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("dranet")
    box = fixtures.tree("dgx-h100", folder)
    agent = Agent(folder / "http", "--from", str(box), "--state-dir", "", "--dranet-socket", str(folder / "dranet"))
    try:
        agent.ready()
        yield Client(folder / "dranet")
    finally:
        agent.stop()


def test_what_it_offers(client: Client) -> None:
    assert client.ask("GET", "/health") == (200, {"cloudProvider": True, "profileProvider": False})


def test_a_nic(client: Client) -> None:
    """The standard attributes are those of the NIC, never those of a GPU."""
    asked = {"mac_address": "02:00:00:00:00:01", "pci_address": NIC, "name": "eth3"}
    status, said = client.ask("POST", "/GetDeviceAttributes", asked)
    assert status == 200
    assert said["resource.kubernetes.io/pciBusID"] == {"string": NIC}
    assert said["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:15"}
    assert said["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert said["topo-agent.io/nearestGpu"] == {"string": "0000:1b:00.0"}
    assert said["topo-agent.io/nearestGpuPath"] == {"string": "PXB"}
    assert said["topo-agent.io/topoAgent"] == {"bool": True}


def test_every_name_and_value_is_one_that_dranet_may_publish(client: Client) -> None:
    """One that is not gets its whole slice refused: resource/v1 types.go, QualifiedName and DeviceAttribute."""
    _, said = client.ask("POST", "/GetDeviceAttributes", {"pci_address": NIC, "name": "eth3"})
    for name, value in said.items():
        domain, _, own = name.rpartition("/")
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", domain)
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", own)
        ((kind, text),) = value.items()
        assert kind in ("string", "int", "bool")
        assert kind != "string" or 0 < len(text.encode()) <= 64


@pytest.mark.parametrize("asked", [{"name": "veth1"}, {"pci_address": "0000:ff:1f.7", "name": "x"}, {"pci_address": 7}])
def test_a_device_that_is_not_here(client: Client, asked: dict[str, object]) -> None:
    assert client.ask("POST", "/GetDeviceAttributes", asked) == (200, {})


def test_there_is_no_configuration(client: Client) -> None:
    assert client.ask("POST", "/GetDeviceConfig", {"name": "net-eth3"}) == (200, {})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/GetProfileConfig", {}, 404),
        ("GET", "/GetDeviceAttributes", None, 404),
        ("GET", "/", None, 404),
        ("POST", "/GetDeviceAttributes", b"[]", 400),
        ("POST", "/GetDeviceAttributes", b"{", 400),
        ("POST", "/GetDeviceAttributes", b"[" * 4000, 400),
        ("POST", "/GetDeviceAttributes", b"x" * 5000, 413),
        ("PUT", "/GetDeviceAttributes", {}, 405),
    ],
)
def test_other_requests(client: Client, method: str, path: str, body: object, status: int) -> None:
    assert client.ask(method, path, body)[0] == status


def test_a_body_without_a_length(client: Client) -> None:
    connection = Unix(client._path)
    connection.request("POST", "/GetDeviceAttributes", iter([b"{}"]), {}, encode_chunked=True)
    assert connection.getresponse().status == 411
    connection.close()


def test_nothing_is_posted_to_the_pages(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "http", "--from", str(fixtures.tree("flat-vm", tmp_path)), "--state-dir", "")
    try:
        agent.ready()
        assert Client(tmp_path / "http").ask("POST", "/", {})[0] == 405
    finally:
        agent.stop()
