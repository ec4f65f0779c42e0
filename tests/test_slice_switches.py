"""What a device of a slice says of the switches and of the link above it, where an AMD GPU has a switch inside."""

from __future__ import annotations

import yaml

from tests import fixtures
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host import Json
from topo_agent.scan import scan
from topo_agent.synthesis.build import from_text
from topo_agent.views.slices import candidates


def said(topology: Topology) -> dict[str, dict[str, Json]]:
    return {one.address: one.attributes for one in candidates(topology)}


def test_the_switch_inside_a_gpu_is_none() -> None:
    """The GPU and the NIC of the example box of AMD are at one switch: `matchAttribute` on it has to find the pair."""
    found = said(fixtures.topology("mi300x"))
    gpu, nic = found["0000:05:00.0"], found["0000:09:00.0"]
    assert (gpu["nearestNicPath"], gpu["nearestNic"]) == ("PIX", "0000:09:00.0")
    assert gpu["nearestSwitch"] == nic["nearestSwitch"] == "0000:01:00.0"
    assert gpu["switch"] == nic["switch"] == "0000:01:00.0"


def test_a_switch_between_counts() -> None:
    """On a DGX H100 the GPU is behind a second switch."""
    found = said(fixtures.topology("dgx-h100"))
    gpu, nic = found["0000:1b:00.0"], found["0000:18:00.0"]
    assert (gpu["switch"], gpu["nearestSwitch"]) == ("0000:16:00.0", "0000:19:00.0")
    assert (nic["switch"], nic["nearestSwitch"]) == ("0000:16:00.0", "0000:16:00.0")


def test_the_link_is_the_one_to_the_board() -> None:
    """The one inside the package says x16 whatever the slot is."""
    described = yaml.safe_load((fixtures.FOLDER / "mi300x/machine.yaml").read_text(encoding="utf-8"))
    edits = [
        {"of": "0000:03:00.0", "file": "max_link_width", "says": 8},
        {"of": "0000:03:00.0", "file": "max_link_speed", "says": "16.0 GT/s PCIe"},
    ]
    found = said(build(scan(from_text(yaml.safe_dump({**described, "edits": edits})))))
    narrow, other = found["0000:05:00.0"], found["0000:2b:00.0"]
    assert (narrow["maxLinkGeneration"], narrow["maxLinkWidth"]) == (4, 8)
    assert (other["maxLinkGeneration"], other["maxLinkWidth"]) == (5, 16)
