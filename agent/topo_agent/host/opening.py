"""`--from SOURCE` -> the machine to ask: the live one, a directory, a recording, or a tar archive."""

from __future__ import annotations

import os

from topo_agent.host import Host, Watch
from topo_agent.host.live import LiveHost


def open_host(source: str | None, *, timeout: float = 60.0, watch: Watch | None = None) -> Host:
    """None is this machine. A file is told by what is in it, not by its name; BadSource where it is no machine.

    `timeout` and `watch` are for the drivers of this machine: see LiveHost.
    """
    if source is None:
        return LiveHost("/", timeout=timeout, watch=watch)
    if os.path.isdir(source):
        return LiveHost(source, timeout=timeout, watch=watch)
    from topo_agent.host import archive, recording  # paper costs 15 ms to import: only for what is on paper

    first = recording.FIRST_LINE.rpartition("v")[0].encode("ascii")  # without the number of the version
    with archive.unpacked(source) as file:
        start = file.read(len(first))
    return recording.read(source) if start == first else archive.read(source)
