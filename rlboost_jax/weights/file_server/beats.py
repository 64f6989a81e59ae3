"""Heartbeat of a child process: a byte on standard output each second."""

import asyncio
import os
from typing import Final

BEAT_SECONDS: Final = 1.0


async def beat() -> None:
    """Write a heartbeat each second until cancelled."""
    while True:
        os.write(1, b".")
        await asyncio.sleep(BEAT_SECONDS)
