"""glibc's heap, kept from growing under many short-lived connections."""

import ctypes

M_MMAP_THRESHOLD = -3  # of malloc.h
THRESHOLD = 128 * 1024  # bytes: glibc's own value before it adapts


def keep_small() -> bool:
    """Have glibc return every large block to the system as soon as it is freed.

    Returns whether the C library could be configured so.

    asyncio reads each time into a block of 256 KiB and cuts it down to what came in. After the
    first of these has been freed, glibc takes such blocks from the heap, where what is left of each
    keeps the gaps between them: 250,000 hostile frames and requests in 100 s made a manager 13 MB
    larger. A threshold that was set does not adapt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl, macOS
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, THRESHOLD))
