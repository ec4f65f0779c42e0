"""`--from SOURCE` -> the machine to ask: the live one, a directory, a recording, or a tar archive."""

from __future__ import annotations

import os

from topo_agent.host import Host, archive, recording
from topo_agent.host.live import LiveHost


def open_host(source: str | None) -> Host:
    """None is this machine. A file is told by what is in it, not by its name; BadSource where it is no machine."""
    if source is None:
        return LiveHost("/")
    if os.path.isdir(source):
        return LiveHost(source)
    with archive.unpacked(source) as file:
        start = file.read(len(_RECORDING))
    return recording.read(source) if start == _RECORDING else archive.read(source)


# Without the number: a recording of a later version is one, and `recording` says what it expected.
_RECORDING = recording.FIRST_LINE.rpartition("v")[0].encode("ascii")
