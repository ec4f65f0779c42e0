"""The webhook that dranet asks for attributes of its NICs (kubernetes-sigs/dranet pkg/cloudprovider/webhook).

It asks twice for each device at every look, and an answer that is late or no answer makes its slice flap: everything
is answered from memory, at once. What it is told goes into its slice as it is, and one bad value costs the whole slice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from topo_agent.daemon.offer import Offer
from topo_agent.host import Json
from topo_agent.publishers.http import Page
from topo_agent.views.slices import STANDARD, attribute

_OURS = ("nearestGpu", "nearestGpuPath", "switch")

MARK = "topoAgent"
"""Says in a slice of dranet that it asked us: it takes no webhook that is not there when it starts."""


class Webhook:
    """`pages` and `calls` of a server."""

    def __init__(self, offer: Offer, domain: str) -> None:
        self._offer, self._domain = offer, domain

    def pages(self, path: str, _: str) -> Page | None:
        if path != "/health":
            return None
        return _answer({"cloudProvider": True, "profileProvider": False})

    def calls(self, path: str, body: bytes) -> Page | None:
        answer: Callable[[dict[str, Json]], dict[str, Json]] | None = {
            "/GetDeviceAttributes": self._attributes,
            "/GetDeviceConfig": lambda _: {},
        }.get(path)
        if answer is None:
            return None
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            return Page(400, "text/plain; charset=utf-8", b"expected an object (JSON)\n")
        return _answer(answer(said))

    def _attributes(self, asked: dict[str, Json]) -> dict[str, Json]:
        """The standard ones are the function's own, whatever is near it; ours are below our domain."""
        seen, address = self._offer.seen, asked.get("pci_address")
        found = next((one[3] for one in (seen.devices if seen else ()) if one[0] == address), None)
        if found is None:
            return {}
        kept = {name: value for name, value in found.items() if name.startswith(STANDARD)}
        kept |= {f"{self._domain}/{name}": found[name] for name in _OURS if name in found}
        kept[f"{self._domain}/{MARK}"] = True
        return {name: cast("Json", attribute(value)[0]) for name, value in kept.items()}


def _answer(said: dict[str, Json]) -> Page:
    return Page(200, "application/json", json.dumps(said, separators=(",", ":")).encode())
