"""What this process and its children cost, for /metrics. The only importer of psutil."""

from __future__ import annotations

import os
from typing import NamedTuple


class Usage(NamedTuple):
    cpu_seconds: float  # user and system, of this process and of children that it has waited for
    memory_bytes: int  # proportional set size, living children included
    descriptors: int  # of this process
    threads: int


def usage() -> Usage:
    """Of now. A child that ends while it is looked at counts nothing."""
    import psutil

    me = psutil.Process()
    memory = 0
    for process in (me, *me.children(recursive=True)):
        try:
            memory += process.memory_full_info().pss
        except psutil.Error:
            continue
    return Usage(sum(os.times()[:4]), memory, me.num_fds(), me.num_threads())
