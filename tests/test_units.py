"""Numbers as people read them, against the PCI Express Base Specification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_agent.graph.bandwidth import of_lanes
from topo_agent.views.units import binary_size, link_name, plural


@pytest.mark.parametrize(
    ("gts", "payload", "total"), [(2.5, 8, 10), (5.0, 8, 10), (8.0, 128, 130), (16.0, 128, 130), (32.0, 128, 130)]
)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 12, 16, 32])
def test_raw_bandwidth(gts: float, payload: int, total: int, width: int) -> None:
    """8b/10b up to 5 GT/s, 128b/130b from 8 GT/s."""
    exact = gts * 1e9 * payload / total / 8 * width
    assert of_lanes(gts, width) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(
    ("gts", "per_lane"), [(2.5, 0.25), (5.0, 0.5), (8.0, 0.985), (16.0, 1.969), (32.0, 3.938), (64.0, 7.56)]
)
def test_bandwidth_of_a_lane(gts: float, per_lane: float) -> None:
    """The table of pairing.md, section 8."""
    assert (of_lanes(gts, 1) or 0) / 1e9 == pytest.approx(per_lane, abs=0.003)


def test_gen5_x16() -> None:
    assert (of_lanes(32.0, 16) or 0) / 1e9 == pytest.approx(63.015, abs=0.001)


@pytest.mark.parametrize(("gts", "width"), [(None, 16), (16.0, None), (None, None), (3.0, 16)])
def test_no_bandwidth(gts: float | None, width: int | None) -> None:
    assert of_lanes(gts, width) is None


@pytest.mark.parametrize(
    ("gts", "width", "name"),
    [
        (2.5, 1, "Gen1 x1"),
        (32.0, 16, "Gen5 x16"),
        (64.0, 8, "Gen6 x8"),
        (None, 16, "? x16"),
        (8.0, None, "Gen3 x?"),
        (25.0, 4, "25 GT/s x4"),
    ],
)
def test_link_name(gts: float | None, width: int | None, name: str) -> None:
    assert link_name(gts, width) == name


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (512 * 2**30, "512 GiB"),
        (2 * 2**40, "2 TiB"),
        (3 * 2**29, "1.5 GiB"),
        (126 * 2**30 + 5 * 2**28, "127 GiB"),
    ],
)
def test_binary_size(count: int, text: str) -> None:
    assert binary_size(count) == text


UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


@given(st.integers(0, 2**53))
def test_a_size_is_near_what_it_says(count: int) -> None:
    number, unit = binary_size(count).split()
    assert float(number) * 2 ** UNITS[unit] == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize("count", [2**20 - 1, 2**30 - 1, 2**40 - 2**25])
def test_a_size_is_short(count: int) -> None:
    """1024 KiB is 1 MiB."""
    assert float(binary_size(count).split()[0]) < 1024


def test_plural() -> None:
    assert [plural(count, "core") for count in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
    assert plural(2, "NVSwitch", "NVSwitches") == "2 NVSwitches"
