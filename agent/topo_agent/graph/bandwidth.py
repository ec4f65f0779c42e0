"""Bytes per second of a PCIe link, one direction, after encoding: an estimate of what it can carry."""

from __future__ import annotations

from topo_agent.facts import PcieLink

# PCI Express Base Specification: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s; at 64 GT/s FLIT mode carries
# 242 of 256 bytes.
_PER_LANE = {
    2.5: 250_000_000,
    5.0: 500_000_000,
    8.0: 984_615_385,
    16.0: 1_969_230_769,
    32.0: 3_938_461_538,
    64.0: 7_562_500_000,
}


def of_lanes(gts: float | None, width: int | None) -> int | None:
    """`(32.0, 16)` -> `63015384608`; None for what is unknown, or no PCIe speed."""
    per_lane = None if gts is None else _PER_LANE.get(gts)
    return None if per_lane is None or width is None else per_lane * width


def of_link(device: PcieLink | None, port: PcieLink | None) -> int | None:
    """The link between a device and the port above it: both ends at their best, the lesser of the two.

    One end is enough where the other says nothing; an integrated function has no link at all.
    """
    ends = [end for end in (device, port) if end is not None]
    speeds = [end.max_gts for end in ends if end.max_gts is not None]
    widths = [end.max_width for end in ends if end.max_width is not None]
    return of_lanes(min(speeds, default=None), min(widths, default=None))
