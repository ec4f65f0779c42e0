"""Links between GPUs, each once, from what both ends tell."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.paper import NVIDIA, Files, answers, between, grown, nvlink, nvml, topology
from topo_agent.facts import GpuLink, NvLinkState
from topo_agent.graph import links
from topo_agent.host import Json
from topo_agent.ids import PciAddress, pci_ref

A, B, C = (PciAddress(0, bus, 0, 0) for bus in (0x17, 0x18, 0x19))
BOX: Files = (
    grown("pci0000:16/16:01.0/17:00.0", NVIDIA)
    | grown("pci0000:16/16:03.0/18:00.0", NVIDIA)
    | grown("pci0000:16/16:05.0/19:00.0", NVIDIA)
)
HIDDEN = "FFFFFFFF:FF:FF.0"


def link(here: PciAddress, there: PciAddress | None, count: int | None, rate: int | None = None) -> GpuLink:
    return GpuLink(
        function=here,
        kind="nvlink",
        peer=there,
        peer_kind="switch" if there is None else "gpu",
        links=count,
        bytes_per_second=rate,
    )


def test_nobody_tells() -> None:
    assert links.read(None) is None
    assert links.read(()) == ()


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_both_ends_are_one_link(order: tuple[int, ...]) -> None:
    """In whichever order it is told: ends ascending, links ascending."""
    told = [link(A, B, 4), link(B, A, 4), link(A, C, 2), link(C, A, 2)]
    found = links.read(tuple(told[place] for place in order))
    assert [(one.a, one.b, one.links) for one in found or ()] == [
        (pci_ref(A), pci_ref(B), 4),
        (pci_ref(A), pci_ref(C), 2),
    ]


def test_the_end_that_tells_more_is_believed() -> None:
    (one,) = links.read((link(A, B, 4), link(B, A, 4, 100))) or ()
    assert one.bytes_per_second == 100


def test_one_end_is_enough() -> None:
    assert [(one.a, one.b) for one in links.read((link(B, A, 4),)) or ()] == [(pci_ref(A), pci_ref(B))]


def test_a_link_that_one_end_sees_down_is_down() -> None:
    assert links.now((NvLinkState(A, B, "gpu", 4), NvLinkState(B, A, "gpu", 3))) == (
        (pci_ref(A), pci_ref(B), "gpu", 3),
    )


def word(*gpus: Json, ends: tuple[PciAddress, PciAddress] = (A, B)) -> str:
    return between(topology(BOX, documents=nvml(*gpus)), str(ends[0]), str(ends[1])).class_


def to_switch(count: int, state: int = 1, kind: Json = 2) -> list[Json]:
    return [nvlink(number, HIDDEN, kind, state) for number in range(count)]


def test_through_switches() -> None:
    """HGX B200: NV18, although no switch is to be seen."""
    assert word(answers(str(A), 0, to_switch(18)), answers(str(B), 1, to_switch(18))) == "NV18"


def test_the_lesser_of_two() -> None:
    assert word(answers(str(A), 0, to_switch(18)), answers(str(B), 1, to_switch(16))) == "NV16"


def test_a_gpu_with_all_links_down() -> None:
    """Traps 96: B200 (vllm#16336), GPU2 has the PCI words and seven others NV18."""
    gpus = [answers(str(A), 0, to_switch(18)), answers(str(B), 1, to_switch(18)), answers(str(C), 2, to_switch(18, 0))]
    assert word(*gpus) == "NV18"
    assert word(*gpus, ends=(A, C)) == word(*gpus, ends=(B, C)) == "PHB"


def test_unequal_direct_links() -> None:
    """Traps 95: counted for each pair."""
    a = [*[nvlink(number, str(B), 0) for number in range(4)], *[nvlink(number, str(C), 0) for number in range(4, 6)]]
    gpus = [answers(str(A), 0, a), answers(str(B), 1), answers(str(C), 2)]
    assert (word(*gpus), word(*gpus, ends=(A, C)), word(*gpus, ends=(B, C))) == ("NV4", "NV2", "PHB")


@pytest.mark.parametrize("own", ["00000000:17:00.0", "0000:17:00.0"])
def test_itself_as_the_other_end(own: str) -> None:
    """Traps 94: Azure NC A100 v4: the peer is unknown, so the word is that of PCI."""
    assert word(answers(str(A), 0, [nvlink(one, own, 0) for one in range(12)]), answers(str(B), 1)) == "PHB"


@pytest.mark.parametrize("other", [1, {"error": "UNKNOWN"}], ids=["processor", "refused"])
def test_two_kinds_of_hidden_peers(other: Json) -> None:
    """16 links to switches are up; 2 to something else that has no address either are down. Nobody sees 0 of 16."""
    gpus = [answers(str(one), index, [*to_switch(16), *to_switch(2, 0, other)]) for index, one in enumerate((A, B))]
    assert word(*gpus) == "NV16"


def test_gpus_of_two_fabric_partitions() -> None:
    """nvml.md, section 6: "peers are the GPUs whose links also end on switches and whose fabric ids agree"."""

    def fabric(clique: int) -> Json:
        return {
            "api": "v3",
            "state": 3,
            "status": 0,
            "uuid": "11111111-2222-3333-4444-555555555555",
            "cliques": [{"type": 0, "id": clique}],
        }

    one, other = (
        answers(str(A), 0, to_switch(18), fabric=fabric(1)),
        answers(str(B), 1, to_switch(18), fabric=fabric(2)),
    )
    assert word(one, other) == "PHB"
