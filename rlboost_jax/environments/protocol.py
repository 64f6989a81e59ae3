"""Protocol of environments: what an episode begins with, and what follows each turn.

    environment = factory(**options)                # `environment.name` and `environment.options`
    observation = environment.reset(example, seed)
    step = environment.step(turn)                   # until `step.done`, or a budget is used up
    environment.close()

Any class with `reset` and `step` is one; either may be `async def`. `tools`, `calls`, `close` and
`demonstration` are optional. Each episode has an environment of its own.

Two rules make an episode outlive the process it is in:

- An environment that is lost is made again and gets the same example, seed and turns. It must
  answer the same: all that is random in it comes from `seed`.
- What reaches out of it (a file, a service, a purchase) is a tool's business. A call is carried
  out once; its result is written down before anything is built on it, and an environment that is
  made again gets that result instead of another call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]


class Message(TypedDict, total=False):
    """One message of a conversation, in the form chat templates take."""

    role: str  # "system", "user", "tool"; "assistant" only in what an episode begins with
    content: str
    name: str  # of the tool that answers
    tool_call_id: str
    tool_calls: Sequence[Mapping[str, Any]]  # of an assistant's message
    reasoning_content: str  # of an assistant's message: its thinking


# Text is one user's message. Token ids are given to the policy as they are.
Observation = str | Sequence[Message] | NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call that the policy requests in a turn.

    Attributes:
        key: names the call for good: equal for the same call of the same episode, in whichever
            process and however often it is tried. A tool hands it on where the other side can tell
            repetitions.
        problem: why it cannot be carried out (no JSON, no such argument); "": it can.
    """

    name: str
    arguments: Mapping[str, Any]
    key: str = ""
    id: str = ""  # that a template wants the answer to name; "": it has none
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """Result of a call. A failure is an observation like any other."""

    call: ToolCall
    content: str
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Tokens that the policy sampled until it stopped, and their content.

    Attributes:
        index: 0, 1, 2, … in the episode.
        tokens: that were sampled, the one that ended the turn included.
        text: without special tokens, thinking and calls.
        thinking: what stood between the marks for it; "" without any.
        calls: in the order in which they stand in the turn.
        results: of these, in the same order.
        finish: "length": it was cut off, so that nothing of it need be whole.
    """

    index: int
    tokens: tuple[int, ...]
    text: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    finish: FinishReason = "stop"
    logprobs: tuple[float, ...] = ()  # of its tokens, nats; (): not known


@dataclass(frozen=True, kw_only=True)
class Step:
    """An environment's answer to a turn.

    Attributes:
        observation: that the policy goes on with; nothing where the episode is done.
        reward: of this turn. An episode's reward is the sum over its turns.
        done: nothing is sampled after it.
        metrics: numbers for the records, such as {"solved": 1.0}; those of the last turn count.
        anew: nothing of what was said before stays: the observation begins another sequence of
            the same episode, and assistants may have said something in it.
    """

    observation: Observation = ()
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    anew: bool = False


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that the policy may call; `rlboost_jax.environments.tools.tool` makes one.

    Attributes:
        parameters: JSON schema of the arguments.
        run: (arguments, key) → what the policy reads; may be `async def`. What it raises is
            an observation, too.
        idempotent: it may be carried out again where nobody knows whether it was.
        outcome: key → the result of a call that was carried out, or None: it never was. Asked
            for a tool that is not idempotent, where nobody knows whether the call was carried
            out. Without `outcome` the episode then fails.
        time_limit_seconds: of one call.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Mapping[str, Any], str], str | Awaitable[str]]
    idempotent: bool = False
    outcome: Callable[[str], str | None] | None = None
    time_limit_seconds: float = 60.0


@runtime_checkable
class Environment(Protocol):
    """One episode. Optional members besides `reset` and `step`:

    - `tools: Mapping[str, Tool]`, once it is reset. The calls of a turn are carried out side by
      side before `step` gets it, and the prompt says what the tools are if the chat template has a
      place for that.
    - `calls(turn) -> Sequence[ToolCall]`: what a turn calls, in place of what was read in it
      (`turn.calls`); for policies that speak in token ids, or where others carry the calls out. It
      may be `async def`, and follows from the turn alone: a turn that is replayed must call the
      same. Keys are set by the caller.
    - `close()`: the episode is over. What it raises changes nothing.
    - `demonstration(rng, worked)`: the next turn, as text or token ids, of somebody who knows how
      (`worked`) or who guesses; for the warm-up of a model that is made from scratch.
    """

    def reset(
        self, example: Mapping[str, Any], seed: int, /
    ) -> Observation | Awaitable[Observation]:
        """Return what the policy reads first.

        Args:
            example: a row of the data set, or {"index": i} without one.
            seed: of all that is random in the episode; the same for all episodes of a group.
        """
        ...

    def step(self, turn: Turn, /) -> Step | Awaitable[Step]:
        """Return what follows a turn.

        An exception is never the policy's fault: see `environment.on_failure`.
        """
        ...
