"""Status lines of a server started by hand: ready, how fast, why not at work.

A line when what it does becomes something else, and one a minute while it works. Of a server that
has nothing to do the line says why, as far as a server can know.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from rlboost_jax.rollout.health import touch

LOOK_SECONDS: Final = 1.0
SAY_SECONDS: Final = 60.0  # between two lines while it works
IDLE_SECONDS: Final = 5.0  # a pause between two steps is no news

State = Literal["no manager", "no weights", "idle", "working"]


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """Status of a server at one moment.

    Attributes:
        trouble: why no manager was reached, if that is known.
        version: of its weights; None before the first.
        tokens: that it has sampled since it began.
        held: requests that it works on, or that wait here.
    """

    connected: bool
    trouble: str
    version: int | None
    tokens: int
    held: int


class Narrator:
    """Prints lines about the status it is shown, now and then.

    Args:
        say: takes a line.
        clock: seconds.
    """

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._state: State | None = None  # that was said last
        self._version: int | None = None
        self._since, self._tokens = clock(), 0  # of the last line about speed
        self._worked_at = clock()

    def look(self, seen: ServerStatus) -> None:
        now = self._clock()
        if seen.version is not None and self._version is None:
            self._say(f"ready with version {seen.version}")
        self._version = seen.version
        state = _state(seen)
        if state == "working":
            self._worked_at = now
        elif state == "idle" and now - self._worked_at < IDLE_SECONDS:
            return
        due = state == "working" and now - self._since >= SAY_SECONDS
        if state == self._state and not due:
            return
        began = state == "working" and self._state != "working"
        self._state = state
        if not began:
            self._say(self._line(state, seen, now))
        self._since, self._tokens = now, seen.tokens

    def _line(self, state: State, seen: ServerStatus, now: float) -> str:
        match state:
            case "working":
                speed = (seen.tokens - self._tokens) / max(now - self._since, 1e-9)
                return f"version {seen.version}: {speed:,.0f} tokens/s, {seen.held} requests held"
            case "no manager":
                why = f": {seen.trouble}" if seen.trouble else ""
                return f"nothing to do: no manager is reached{why}; trying again"
            case "no weights":
                return "nothing to do yet: the run's weights are not here"
            case "idle":
                return (
                    f"nothing to do: the manager has no work for version {seen.version}; the "
                    "trainer updates or generates itself, or others hold all there is"
                )
            case _:
                assert_never(state)


def _state(seen: ServerStatus) -> State:
    if not seen.connected:
        return "no manager"
    if seen.version is None:
        return "no weights"
    return "working" if seen.held else "idle"


async def narrate(look: Callable[[], ServerStatus], narrator: Narrator) -> None:
    """Show the status to the narrator again and again, until cancelled."""
    while True:
        narrator.look(look())
        touch()
        await asyncio.sleep(LOOK_SECONDS)
