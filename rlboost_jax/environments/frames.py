"""What the trainer and its environment workers say to each other, as frames of a socket.

Trainer → worker: `Setup`, then `Reset`, `GiveTurn`, `Known`, `Close`, `Ping`.
Worker → trainer: `Ready`, then `Opened`, `Calling`, `CallEnded`, `Taken`, `Broken`, `Pong`.
Where a worker is another host's, that host says `Ended` as the last.
An episode is known by a number that is never given twice on one connection.
"""

import asyncio
from typing import Any, Final

import msgspec
import numpy as np

from rlboost_jax.environments.protocol import Observation, Step, ToolCall, ToolResult, Turn
from rlboost_jax.rewards.frames import MAX_FRAME_BYTES, FrameTooLong
from rlboost_jax.settings.environment import Isolation

_LENGTH_BYTES: Final = 4


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all frames."""


class Setup(Frame, frozen=True, kw_only=True):
    """The first: all that a worker needs to know of the run."""

    name: str
    options: dict[str, Any]
    time_limit_seconds: float
    memory_mb: int
    isolation: Isolation
    sandbox_required: bool = True  # of tools that run code


class Ready(Frame, frozen=True, kw_only=True):
    """The answer to `Setup`."""

    mistake: str = ""  # why the environment cannot be used


class WireObservation(msgspec.Struct, frozen=True, kw_only=True):
    """An observation: one of these."""

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


class Reset(Frame, frozen=True, kw_only=True):
    """Make an environment and reset it."""

    episode: int
    example: dict[str, Any]
    seed: int


class Opened(Frame, frozen=True, kw_only=True):
    episode: int
    said: WireObservation
    tools: tuple[ToolSpec, ...]


class GiveTurn(Frame, frozen=True, kw_only=True):
    """A turn: carry its calls out, and step."""

    episode: int
    turn: Turn
    key: str


class Calling(Frame, frozen=True, kw_only=True):
    """What is known of these calls?"""

    episode: int
    calls: tuple[ToolCall, ...]
    lasting: tuple[bool, ...]


class Known(Frame, frozen=True, kw_only=True):
    """What is known of the calls that were asked about; those that are new have been noted."""

    episode: int
    calls: tuple[ToolResult | str, ...]  # "new", "begun", or its result


class CallEnded(Frame, frozen=True, kw_only=True):
    episode: int
    result: ToolResult


class Taken(Frame, frozen=True, kw_only=True):
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


class Broken(Frame, frozen=True, kw_only=True):
    """In place of `Opened` or `Taken`: the environment failed, and is gone."""

    episode: int
    why: str
    for_good: bool = False  # to try again is of no use
    stuck: bool = False


class Close(Frame, frozen=True, kw_only=True):
    """The episode is over, whatever is under way."""

    episode: int


class Ping(Frame, frozen=True, kw_only=True):
    number: int


class Pong(Frame, frozen=True, kw_only=True):
    number: int


class Ended(Frame, frozen=True, kw_only=True):
    """A worker of another host is gone, and so is this connection."""

    why: str
    outside: bool  # somebody has ended it


ToWorker = Setup | Reset | GiveTurn | Known | Close | Ping
FromWorker = Ready | Opened | Calling | CallEnded | Taken | Broken | Pong | Ended

decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


async def received(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's bytes; None where the other side has closed. Raises FrameTooLong."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
        if length > MAX_FRAME_BYTES:
            raise FrameTooLong(f"a frame of {length} bytes, {MAX_FRAME_BYTES} allowed")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
