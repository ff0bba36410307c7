"""Limits on freed memory that the C library keeps."""

import ctypes
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Their numbers in glibc's `malloc.h`."""


def keep_memory(block_bytes: int, all_bytes: int) -> None:
    """Keep freed memory for later requests: blocks up to a size, and so much at the end of the heap.

    By itself the library gives back blocks from 128 KiB on, and when they are wanted again the kernel clears them page by page.
    In a burst of large writes and answers that took a sixth of the time. Libraries other than glibc keep their ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, block_bytes)
        mallopt(M_TRIM_THRESHOLD, all_bytes)
