"""Fixtures that several labs ask for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from container import image
from container.install import own_architecture
from making.programs import Failed
from tests.labs.apt import CannotStart
from tests.labs.controlplane.breaking import Proxy
from tests.labs.controlplane.cluster import GATES, Cluster
from tests.labs.controlplane.publishing import NODE, Publishing, open_publishing
from tests.labs.node.node import NodeOf

Started = TypeVar("Started")


@contextlib.contextmanager
def entered(make: Callable[[], contextlib.AbstractContextManager[Started]]) -> Iterator[Started]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(make())
        except CannotStart as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        yield found


def _started(**options: Any) -> contextlib.AbstractContextManager[Cluster]:
    return entered(lambda: Cluster(**options))


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    with _started(gates=GATES) as found:
        found.keep_parameters()
        yield found


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """A control plane without nodes and pods; it is the same for all tests, and each leaves its servers running."""
    yield _cluster
    _cluster.clear()


@contextlib.contextmanager
def _starting() -> Iterator[Callable[..., Cluster]]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(_started(**options))


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., Cluster]]:
    """`start_cluster(gates=…)`: one of the test's own, with the parameters of Cluster."""
    with _starting() as start:
        yield start


@pytest.fixture(scope="module")
def start_shared_cluster() -> Iterator[Callable[..., Cluster]]:
    """The same for a fixture of the module: each of its tests clears what it made."""
    with _starting() as start:
        yield start


@pytest.fixture(scope="module")
def start_node() -> Iterator[Callable[..., NodeOf]]:
    """`start_node("n1", gates={…}, …)`: a node with a control plane of its own, for the tests of one module.

    `gates` are the kubelet's, and the rest are parameters of Cluster.
    """
    with contextlib.ExitStack() as stack:

        def start(name: str, *, gates: Mapping[str, bool] | None = None, **cluster: Any) -> NodeOf:
            users = {f"system:node:{name}": ["system:nodes"], **cluster.pop("users", {})}
            found = stack.enter_context(_started(users=users, **cluster))
            return stack.enter_context(entered(lambda: NodeOf(found, name, gates=gates)))

        yield start


@pytest.fixture(scope="session")
def agent_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of the work tree, an OCI archive; a minute on 2 cores."""
    try:
        return image.build(own_architecture(), tmp_path_factory.mktemp("image"), as_offered=True).archive
    except (CannotStart, Failed) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def proxy(cluster: Cluster, tmp_path: Path) -> Iterator[Proxy]:
    """Between the test's clients and the API server of `cluster`."""
    with Proxy(cluster.server, cluster.ca, tmp_path) as found:
        yield found


@pytest.fixture
def publishing(cluster: Cluster, tmp_path: Path, common: Path) -> Iterator[Publishing]:
    """The Node n1 in `cluster`, and agents that publish their labels there."""
    cluster.node(NODE)
    with open_publishing(cluster, tmp_path, common) as found:
        yield found
