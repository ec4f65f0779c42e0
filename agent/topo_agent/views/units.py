"""Numbers as people read them."""

from __future__ import annotations

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def binary_size(count: int) -> str:
    """`549755813888` -> `"512 GiB"`: three digits at most, as `free -h` rounds."""
    value = float(min(count, 1 << 80))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"


def link_name(gts: float | None, width: int | None) -> str:
    """`(32.0, 16)` -> `"Gen5 x16"`."""
    generation = None if gts is None else _GENERATIONS.get(gts)
    speed = f"Gen{generation}" if generation else ("?" if gts is None else f"{gts:g} GT/s")
    return f"{speed} x{width if width is not None else '?'}"


def bit_rate(bits_per_second: int) -> str:
    """`400000000000` -> `"400 Gb/s"`, `100000000` -> `"100 Mb/s"`."""
    if bits_per_second < 1_000_000_000:
        return f"{bits_per_second / 1e6:g} Mb/s"
    return f"{bits_per_second / 1e9:g} Gb/s"


def byte_rate(bytes_per_second: int) -> str:
    """`63015384608` -> `"63 GB/s"`."""
    value = bytes_per_second / 1e9
    return f"{value:.0f} GB/s" if value >= 10 else f"{value:.1f} GB/s"


def plural(count: int, singular: str, many: str | None = None) -> str:
    """`(1, "core")` -> `"1 core"`, `(2, "core")` -> `"2 cores"`."""
    return f"{count} {singular if count == 1 else many or singular + 's'}"
