"""Numbers as people read them."""

from __future__ import annotations

# GB/s of one lane in one direction, after encoding: PCI Express Base Specification, table of data rates.
# 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 1b/1b FLIT from 64 GT/s (about 242/256 of it is payload).
_BYTES_PER_LANE = {
    2.5: 250_000_000,
    5.0: 500_000_000,
    8.0: 984_615_385,
    16.0: 1_969_230_769,
    32.0: 3_938_461_538,
    64.0: 7_562_500_000,
}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def binary_size(count: int) -> str:
    """`549755813888` -> `"512 GiB"`: three digits at most, as `free -h` rounds."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"


def link_bytes_per_second(gts: float | None, width: int | None) -> int | None:
    """Raw bytes per second of a link, one direction: `(32.0, 16)` -> `63015384608`."""
    per_lane = None if gts is None else _BYTES_PER_LANE.get(gts)
    return None if per_lane is None or width is None else per_lane * width


def link_name(gts: float | None, width: int | None) -> str:
    """`(32.0, 16)` -> `"Gen5 x16"`."""
    generation = None if gts is None else _GENERATIONS.get(gts)
    speed = f"Gen{generation}" if generation else ("?" if gts is None else f"{gts:g} GT/s")
    return f"{speed} x{width if width is not None else '?'}"


def plural(count: int, singular: str, many: str | None = None) -> str:
    """`(1, "core")` -> `"1 core"`, `(2, "core")` -> `"2 cores"`."""
    return f"{count} {singular if count == 1 else many or singular + 's'}"
