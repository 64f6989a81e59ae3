"""What a simulated server and a simulated learner need of the world around them.

`world.World` has all of it, and makes both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from rlboost_jax.manager.events import Event
from rlboost_jax.messages import ToServer
from rlboost_jax.sequences.identities import Version
from rlboost_jax.simulator.clock import Clock
from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.market.kinds import MachineKind
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.records import SimConfig


class Surroundings(Protocol):
    """What both need: a configuration, the time, and a way to the manager."""

    @property
    def config(self) -> SimConfig: ...

    @property
    def clock(self) -> Clock: ...

    def deliver(self, event: Event) -> None:
        """Hand an event to the manager."""


class ServerSurroundings(Surroundings, Protocol):
    @property
    def link(self) -> Link:
        """What weights are pulled over."""

    @property
    def published_at(self) -> float:
        """When the newest weights were published, in seconds."""

    @property
    def slot_tokens(self) -> int:
        """Tokens of the longest sequence."""

    def rates_of(self, name: str, *, reserved: bool) -> EngineRates:
        """How fast the engine of a server is."""

    def kind_of(self, name: str) -> MachineKind:
        """What a server of the provider runs on."""

    @property
    def reserved_device(self) -> str:
        """Of the learner's chips, as its engines announce it."""

    def length(self, step: int, sample: int) -> int:
        """Of a whole response, in tokens."""

    def open(self, hear: Callable[[ToServer], None]) -> int:
        """Connect somebody who hears the manager; returns the stream's number."""

    def ended(self, name: str, stream: int) -> None:
        """A server is gone, and no longer paid for."""


class ReservedEngine(Protocol):
    """An engine on the learner's chips."""

    def offer(self, version: Version, digest: str) -> None:
        """Hand it weights."""

    def pause(self, paused: bool) -> None:
        """The learner needs its chips, or gives them back."""


class LearnerSurroundings(Surroundings, Protocol):
    published_at: float  # when the newest weights were published, in seconds

    @property
    def run_id(self) -> str: ...

    @property
    def reserved(self) -> Sequence[ReservedEngine]: ...

    def length(self, step: int, sample: int) -> int:
        """Of a whole response, in tokens that are sampled."""

    @property
    def sleeps(self) -> bool:
        """Whether the learner takes its chips back when the manager says so and not before."""

    def lap(self) -> dict[str, float]:
        """What was paid and sent since the last call."""

    def over(self, step: int) -> bool:
        """Whether that step is not to be begun any more."""

    def forget(self, step: int) -> None:
        """The lengths of its responses are asked for no more."""
