"""How a process says each second that it lives: a byte on standard output."""

import asyncio
import os
from typing import Final

BEAT_SECONDS: Final = 1.0


async def beat() -> None:
    """Until it is cancelled."""
    while True:
        os.write(1, b".")
        await asyncio.sleep(BEAT_SECONDS)
