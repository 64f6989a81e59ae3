"""Interface that decides when an engine on a shared device may run."""

from typing import Any, Final, Protocol

AGAIN_SECONDS: Final = 0.05  # until it is asked again whatever was said


class Turns(Protocol):
    """Scheduler of a shared device. Called in the engine's thread."""

    def wait_seconds(self, engine: Any) -> float:
        """Seconds until to ask again; 0: a program may run, which the engine learns."""
        ...

    def ended(self, engine: Any, dispatch: Any, seconds: float) -> None:
        """Record a finished dispatch."""
        ...

    def loaded(self, version: int) -> None:
        """Record that the engine has loaded a version: a step of the run begins with that."""
        ...
