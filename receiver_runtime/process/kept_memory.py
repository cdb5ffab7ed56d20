"""Have the C library keep some of the memory that is freed, for what is made next.

By default glibc gives memory back to the system as soon as a few hundred KiB of it are free. A receiver makes and
frees some MiB of arrays for each block, so it would get new pages for each: that costs as much as half of what it does
with them. Changes nothing where the C library is another one, or where the environment says how it shall be.
"""

from __future__ import annotations

import ctypes
import os

# glibc's numbers of the parameters, see mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
# Bytes: what is kept of each of glibc's areas (it has at most eight for each processor).
_KEPT_BYTES = 8 * 2**20
# Bytes from which an array has pages of its own, which are given back at once: glibc's own maximum.
_LARGE_BYTES = 32 * 2**20


def keep_freed_memory() -> bool:
    """Keep it, from now on; return whether that could be set."""
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None or any(name in os.environ for name in _SET_BY_USER):
        return False
    return bool(set_parameter(_MMAP_THRESHOLD, _LARGE_BYTES) and set_parameter(_TRIM_THRESHOLD, _KEPT_BYTES))
