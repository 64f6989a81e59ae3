"""Health check of a server in a container, for HEALTHCHECK.

    rlboost health

A rollout server with `RLBOOST_HEALTH=FILE` in its environment touches that file: every second from
its event loop, and from a thread while it prepares its engine, which may compile for minutes. Exit
status: 0 where it was touched within the last minute, 1 where not.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

VARIABLE: Final = "RLBOOST_HEALTH"
PATIENCE_SECONDS: Final = 60.0
EVERY_SECONDS: Final = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    from rlboost_jax.platform import command_parser

    command_parser.parser("health", __doc__).parse_args(arguments)
    age = age_of(os.environ)
    if age is None:
        print(f"no server has begun: {VARIABLE} names no file that is there")
        return 1
    print(f"it was at work {age:.0f} s ago")
    return 0 if age <= PATIENCE_SECONDS else 1


def age_of(environment: Mapping[str, str]) -> float | None:
    """Seconds since the last sign of life; None: there was none."""
    try:
        return max(0.0, time.time() - Path(environment[VARIABLE]).stat().st_mtime)
    except (KeyError, OSError):
        return None


def touch(environment: Mapping[str, str] = os.environ) -> None:
    """Touch the health file, if one is configured."""
    if name := environment.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(name).touch(mode=0o600)


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Touch the health file from a thread while the main one compiles."""
    over = threading.Event()

    def go_on() -> None:
        while True:
            touch()
            if over.wait(EVERY_SECONDS):
                return

    thread = threading.Thread(target=go_on, name="health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
