"""When an engine on a shared device may run."""

from typing import Any, Final, Protocol

AGAIN_SECONDS: Final = 0.05  # until it is asked again whatever was said


class Turns(Protocol):
    """Called in the engine's thread."""

    def wait_seconds(self, engine: Any) -> float:
        """0: now, and the engine knows what; else when to ask again, if nothing comes before."""
        ...

    def ended(self, engine: Any, dispatch: Any, seconds: float) -> None:
        """A dispatch has."""
        ...

    def loaded(self, version: int) -> None:
        """The engine has other parameters: a step of the run begins with that."""
        ...
