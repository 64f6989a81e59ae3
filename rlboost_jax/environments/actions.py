"""Questions about an episode, its environment's replies, and the actions that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rlboost_jax.environments.episode_records import EpisodeRecord, Past, TurnAnswered


@dataclass(frozen=True, kw_only=True)
class EpisodeQuestion:
    """A sequence whose newest turn is over, to be answered.

    Attributes:
        turns: of the sequence: what was sampled and then given; of the newest nothing yet.
        finished: nothing more is sampled in the episode: what is it worth?
        logprobs: of what was sampled in each turn, float32; (): not known.
        stream: on which it is asked; the answer belongs there.
    """

    attempt: int
    sequence: int
    turns: tuple[tuple[bytes, bytes | None], ...]
    finished: bool = False
    logprobs: tuple[bytes, ...] = ()
    stream: int = 0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Reply of an environment to a turn, as the policy will read it.

    Attributes: see `TurnAnswered`, and
        beyond: it is too long for any context, so nobody has made tokens of it.
    """

    given: bytes
    reward: float
    done: bool
    prompt: bytes = b""
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    messages: bytes = b""
    seconds: float = 0.0
    calls: tuple[tuple[str, bool], ...] = ()
    retokenised: int = 0
    anew: bool = False
    beyond: bool = False


@dataclass(frozen=True)
class Open:
    """Make an environment and reset it."""

    alone: bool


@dataclass(frozen=True)
class Take:
    """Give the environment a turn. `index` counts the turns of the episode."""

    index: int
    past: Past


@dataclass(frozen=True)
class Keep:
    record: EpisodeRecord


@dataclass(frozen=True)
class WaitSeconds:
    seconds: float


@dataclass(frozen=True)
class Say:
    """Send the answer to a question.

    Attributes:
        answered: None: the sequence is over, and nothing is given.
        restart: all of the episode's tokens are discarded.
    """

    question: EpisodeQuestion
    answered: TurnAnswered | None = None
    restart: bool = False


@dataclass(frozen=True)
class JudgeEpisode:
    """Report the reward of a finished episode.

    Attributes:
        turns: all of them, in order.
        left_out: why the reward is not known; "": the turns have it.
    """

    turns: tuple[TurnAnswered, ...]
    left_out: str = ""


@dataclass(frozen=True)
class Drop:
    """Close the environment, if it is there."""


@dataclass(frozen=True)
class StopRun:
    """End the run, which cannot go on."""

    why: str


Action = Open | Take | Keep | WaitSeconds | Say | JudgeEpisode | Drop | StopRun
Actions = tuple[Action, ...]
