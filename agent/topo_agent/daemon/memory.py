"""How memory is taken, so that the agent stays as small as it is.

From the C library: a document is a text of some hundred kB, and there is a new one after every change. glibc learns
from the first that such texts stay, takes them from its heap from then on, and the heap grows holes (mallopt(3),
"dynamic mmap threshold"). With a threshold that is set each goes back to the kernel when it is dropped.

From the kernel: where huge pages are given to everybody (transparent_hugepage/enabled is `always`), a page of 2 MiB
may stand for the few kB of a thread's stack or of a heap's end that are in use. Children inherit that there are none.
"""

from __future__ import annotations

import contextlib

_BYTES = 64 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PR_SET_THP_DISABLE = 41  # linux/prctl.h, PR_SET_THP_DISABLE(2const); EINVAL where the kernel has no such pages

FOR_CHILDREN = {"MALLOC_TRIM_THRESHOLD_": str(_BYTES), "MALLOC_MMAP_THRESHOLD_": str(_BYTES)}
"""The same of the C library, for a process that is still to be started."""


def take_little() -> None:
    """For this process; nothing where the C library is another one."""
    import ctypes  # pyudev has it imported already

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.prctl(_PR_SET_THP_DISABLE, *(ctypes.c_ulong(one) for one in (1, 0, 0, 0)))
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            library.mallopt(parameter, _BYTES)
