"""What a simulated server and a simulated learner need of the world around them.

`world.World` has all of it, and makes both.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from rlboost_jax.manager.events import Event
from rlboost_jax.messages import ToServer
from rlboost_jax.sequences.identities import Version
from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.market.kinds import MachineKind
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.virtual_clock import VirtualClock


class Surroundings(Protocol):
    """Needs of both: a configuration, the time, and a way to the manager."""

    @property
    def config(self) -> SimConfig: ...

    @property
    def clock(self) -> VirtualClock: ...

    def deliver(self, event: Event) -> None:
        """Hand an event to the manager."""


class ServerSurroundings(Surroundings, Protocol):
    @property
    def link(self) -> Link:
        """Link over which weights are pulled."""

    @property
    def published_at(self) -> float:
        """Time at which the newest weights were published, in seconds."""

    @property
    def slot_tokens(self) -> int:
        """Tokens of the longest sequence."""

    def rates_of(self, name: str, *, reserved: bool) -> EngineRates:
        """Speeds of a server's engine."""

    def kind_of(self, name: str) -> MachineKind:
        """Machine that a server of the provider runs on."""

    @property
    def reserved_device(self) -> str:
        """Device of the learner's chips, as its engines announce it."""

    def length(self, step: int, sample: int) -> int:
        """Length of a whole response, in tokens."""

    def open(self, hear: Callable[[ToServer], None]) -> int:
        """Connect a receiver of the manager's messages; returns the stream's number."""

    def ended(self, name: str, stream: int) -> None:
        """Note that a server is gone and no longer paid for."""


class SimulatedReservedEngine(Protocol):
    """An engine on the learner's chips."""

    def offer(self, version: Version, digest: str) -> None:
        """Hand the engine weights."""

    def pause(self, paused: bool) -> None:
        """Give the engine's chips to the learner, or take them back."""


class LearnerSurroundings(Surroundings, Protocol):
    published_at: float  # when the newest weights were published, in seconds

    @property
    def run_id(self) -> str: ...

    @property
    def reserved(self) -> Sequence[SimulatedReservedEngine]: ...

    def length(self, step: int, sample: int) -> int:
        """Length of a whole response, in sampled tokens."""

    def prompts(self, step: int) -> Sequence[int]:
        """Return the number of each prompt of a step in the data set."""

    @property
    def sleeps(self) -> bool:
        """Whether the learner takes its chips back when the manager says so and not before."""

    def lap(self) -> dict[str, float]:
        """Return the billed seconds, bytes and dollars since the last call."""

    def over(self, step: int) -> bool:
        """Whether no step from this one on is begun."""

    def forget(self, step: int) -> None:
        """Drop the lengths of a step's responses."""
