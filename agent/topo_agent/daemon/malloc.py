"""How the C library keeps memory: a document is a text of some hundred kB, and there is a new one after every change.

glibc learns from the first that such texts stay, takes them from its heap from then on, and the heap grows holes
(mallopt(3), "dynamic mmap threshold"). With a threshold that is set each goes back to the kernel when it is dropped.
"""

from __future__ import annotations

import contextlib

_BYTES = 64 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

FOR_CHILDREN = {"MALLOC_TRIM_THRESHOLD_": str(_BYTES), "MALLOC_MMAP_THRESHOLD_": str(_BYTES)}
"""The same, for a process that is still to be started."""


def large_ones_go_back() -> None:
    """For this process; nothing where the C library is another one."""
    import ctypes  # pyudev has it imported already

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            library.mallopt(parameter, _BYTES)
