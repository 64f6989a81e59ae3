"""Messages between the trainer and its environment workers, as frames of a socket.

Trainer → worker: `EnvironmentSetup`, then `Reset`, `GiveTurn`, `Known`, `CloseEpisode`, `Ping`.
Worker → trainer: `WorkerReady`, then `Opened`, `Calling`, `CallEnded`, `Taken`, `StepFailed`,
`Pong` (`workers/worker_kind.py`). An episode is a session of a worker, known by its number.
"""

from typing import Any

import msgspec
import numpy as np

from rlboost_jax.environments.protocol import (
    Observation,
    Step,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from rlboost_jax.settings.environment_config import Isolation
from rlboost_jax.workers.worker_kind import Ping, Pong, WorkerEnded, WorkerFrame, WorkerReady


class EnvironmentSetup(WorkerFrame, frozen=True, kw_only=True, tag="Setup"):
    """First frame: everything that a worker needs to know of the run."""

    name: str
    options: dict[str, Any]
    time_limit_seconds: float
    memory_mb: int
    isolation: Isolation
    sandbox_required: bool = True  # of tools that run code


class WireObservation(msgspec.Struct, frozen=True, kw_only=True):
    """An observation: exactly one of the fields is set."""

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tokens: bytes | None = None  # int32

    @classmethod
    def of(cls, observation: Observation) -> "WireObservation":
        if isinstance(observation, str):
            return cls(text=observation)
        if isinstance(observation, np.ndarray):
            return cls(tokens=observation.astype("<i4").tobytes())
        return cls(messages=tuple(dict(message) for message in observation))

    @property
    def observation(self) -> Observation:
        if self.text is not None:
            return self.text
        if self.tokens is not None:
            return np.frombuffer(self.tokens, "<i4")
        return self.messages or ()  # type: ignore[return-value]


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a prompt describes it."""

    name: str
    description: str
    parameters: dict[str, Any]

    @classmethod
    def of(cls, tool: Tool) -> "ToolSpec":
        return cls(name=tool.name, description=tool.description, parameters=dict(tool.parameters))


class Reset(WorkerFrame, frozen=True, kw_only=True):
    """Make an environment and reset it."""

    episode: int
    example: dict[str, Any]
    seed: int


class Opened(WorkerFrame, frozen=True, kw_only=True):
    episode: int
    said: WireObservation
    tools: tuple[ToolSpec, ...]


class GiveTurn(WorkerFrame, frozen=True, kw_only=True):
    """A turn: carry its calls out, and step."""

    episode: int
    turn: Turn
    key: str


class Calling(WorkerFrame, frozen=True, kw_only=True):
    """Ask the trainer what is known of these calls."""

    episode: int
    calls: tuple[ToolCall, ...]
    lasting: tuple[bool, ...]


class Known(WorkerFrame, frozen=True, kw_only=True):
    """What is known of the calls that were asked about; those that are new have been noted."""

    episode: int
    calls: tuple[ToolResult | str, ...]  # "new", "begun", or its result


class CallEnded(WorkerFrame, frozen=True, kw_only=True):
    episode: int
    result: ToolResult


class Taken(WorkerFrame, frozen=True, kw_only=True):
    """The answer to `GiveTurn`."""

    episode: int
    turn: Turn  # with its calls and their results
    said: WireObservation
    reward: float
    done: bool
    metrics: dict[str, float]
    seconds: float  # that calls and step took
    stuck: bool = False  # a thread is still with a call that was abandoned
    anew: bool = False
    tools: tuple[ToolSpec, ...] = ()  # where it begins anew

    @property
    def step(self) -> Step:
        return Step(
            observation=self.said.observation,
            reward=self.reward,
            done=self.done,
            metrics=self.metrics,
            anew=self.anew,
        )


class StepFailed(WorkerFrame, frozen=True, kw_only=True):
    """Answer in place of `Opened` or `Taken`: the environment failed, and is gone."""

    episode: int
    why: str
    for_good: bool = False  # to try again is of no use
    stuck: bool = False


class CloseEpisode(WorkerFrame, frozen=True, kw_only=True, tag="Close"):
    """The episode is over, whatever is in progress."""

    episode: int


ToWorker = EnvironmentSetup | Reset | GiveTurn | Known | CloseEpisode | Ping
FromWorker = WorkerReady | Opened | Calling | CallEnded | Taken | StepFailed | Pong | WorkerEnded

decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
