"""Memory that is free inside this process, back to the machine."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_LIBRARY = ctypes.CDLL(None)


def give_back() -> None:
    """Hand freed memory back, which allocators keep for themselves; takes some milliseconds for each gigabyte."""
    pa.default_memory_pool().release_unused()
    if hasattr(_LIBRARY, "malloc_trim"):  # glibc's; other libraries need no asking
        _LIBRARY.malloc_trim(0)
