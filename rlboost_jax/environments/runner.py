"""Runner of one environment, from its construction to its end, with its tool calls.

    runner = EpisodeRunner(make, ledger=…, time_limit_seconds=60)
    observation = await runner.reset(example, seed)
    taken = await runner.step(turn, key="…")          # its calls are carried out before
    await runner.close()

Calls of a turn run side by side and are answered in their order. Whatever goes wrong with a call
(no such tool, bad arguments, an exception, its time) is a result that the policy reads. Whatever
goes wrong with the environment itself is `EnvironmentFailed`, and no fault of the policy's.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, Protocol

from rlboost_jax.environments.environment_frames import Taken, ToolSpec, WireObservation
from rlboost_jax.environments.factories import Make
from rlboost_jax.environments.foreign import CallFailed, OwnThread, ResultUnusable, called
from rlboost_jax.environments.observations import (
    BadObservation,
    checked_observation,
    checked_step,
)
from rlboost_jax.environments.protocol import (
    Environment,
    Observation,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from rlboost_jax.environments.results import BadResult, text_of
from rlboost_jax.platform.mistakes import suggestion

MOST_RESULT: Final = 2**20  # characters of a call's result, which no context has room for

# What is known of a call: nothing, that it was begun, or its result.
KnownCall = Literal["new", "begun"] | ToolResult


class EnvironmentFailed(RuntimeError):
    """The environment raised, was late, or gave an invalid answer. It can be made again."""


class OutcomeUnknown(EnvironmentFailed):
    """A call was begun, its outcome is unknown, and it must not be repeated."""


class CallLedger(Protocol):
    """Record of calls, so that none is carried out twice."""

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        """Return what is known of each call; new ones count as begun from here on.

        Args:
            lasting: whether that a call was begun must outlive us, which of an idempotent one it
                need not. It does once this returns.
        """
        ...

    async def done(self, result: ToolResult) -> None:
        """Record the result of a call."""
        ...


class RememberedCalls:
    """Ledger in memory."""

    def __init__(self) -> None:
        self._known: dict[str, KnownCall] = {}

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        known = [self._known.get(call.key, "new") for call in calls]
        for call in calls:
            self._known.setdefault(call.key, "begun")
        return known

    async def done(self, result: ToolResult) -> None:
        self._known[result.call.key] = result


class EpisodeRunner:
    """Runs one environment. Nothing is made before `reset`."""

    def __init__(
        self, make: Make, *, ledger: CallLedger, time_limit_seconds: float, number: int = 0
    ) -> None:
        """
        Args:
            make: the environment.
            ledger: of all calls of this episode.
            time_limit_seconds: of one step or reset.
            number: of the episode in its worker.
        """
        self._make, self._ledger, self._limit = make, ledger, time_limit_seconds
        self._number = number
        self._environment: Environment | None = None
        # Plain methods of an environment are always called in the same thread.
        self._thread = OwnThread("environment")
        self._late: list[OwnThread] = []

    @property
    def stuck(self) -> bool:
        """Whether a thread is still in a call that was abandoned. It ends with the process."""
        return any(thread.busy for thread in self._late)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Tools of the environment, once it is reset."""
        return getattr(self._environment, "tools", None) or {}

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Tools as a prompt describes them."""
        return tuple(map(ToolSpec.of, self.tools.values()))

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        """Make and reset the environment; returns what the policy reads first.

        Raises EnvironmentFailed.
        """
        assert self._environment is None, "an environment has one episode"
        self._environment = await self._called("making it", self._make)
        said = await self._called("reset", self._environment.reset, example, seed)
        if not isinstance(self.tools, Mapping):
            raise EnvironmentFailed(f"tools are {type(self.tools).__name__}, no mapping by name")
        for name, given in self.tools.items():
            if not isinstance(given, Tool):
                raise EnvironmentFailed(
                    f"tools[{name!r}] is {type(given).__name__}, no Tool; toolbox(…) makes tools "
                    "of functions"
                )
        try:
            return checked_observation(said, first=True)
        except BadObservation as error:
            raise EnvironmentFailed(f"reset: {error}") from None

    async def step(self, turn: Turn, *, key: str) -> Taken:
        """Carry out a turn's calls, and have the environment answer.

        An environment with a method `calls` decides itself what a turn calls: `calls(turn)` →
        [ToolCall], for policies that speak no text.

        Args:
            key: names the turn for good; calls are named after it.

        Raises:
            EnvironmentFailed
        """
        assert self._environment is not None, "reset comes first"
        since, calls = time.monotonic(), turn.calls
        if (own := getattr(self._environment, "calls", None)) is not None:
            calls = await self._called("calls", own, turn)
            if not all(isinstance(call, ToolCall) for call in calls):
                raise EnvironmentFailed("calls: it returns ToolCalls")
        calls = tuple(replace(call, key=f"{key}.{place}") for place, call in enumerate(calls))
        turn = replace(turn, calls=calls, results=await self._results(calls))
        said = await self._called("step", self._environment.step, turn)
        try:
            step = checked_step(said)
        except BadObservation as error:
            raise EnvironmentFailed(str(error)) from None
        return Taken(
            episode=self._number,
            turn=turn,
            said=WireObservation.of(step.observation),
            reward=step.reward,
            done=step.done,
            metrics=dict(step.metrics),
            seconds=time.monotonic() - since,
            stuck=self.stuck,
            anew=step.anew,
            tools=self.tool_specs if step.anew else (),
        )

    async def close(self) -> None:
        """Close the environment; what it raises then changes nothing any more."""
        environment, self._environment = self._environment, None
        if (close := getattr(environment, "close", None)) is not None:
            try:
                await called(close, seconds=self._limit, thread=self._thread)
            except CallFailed:
                self._note_late(self._thread)
        self._thread.end()

    async def _called(self, what: str, function: Any, *arguments: Any) -> Any:
        try:
            return await called(function, *arguments, seconds=self._limit, thread=self._thread)
        except CallFailed as error:
            self._note_late(self._thread)
            raise EnvironmentFailed(f"{what}: {error}") from None

    async def _results(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Results of the calls, in their order. Raises OutcomeUnknown."""
        sound = [call for call in calls if not call.problem and call.name in self.tools]
        lasting = [not self.tools[call.name].idempotent for call in sound]
        known = await self._ledger.begin(sound, lasting) if sound else []
        states = {call.key: state for call, state in zip(sound, known, strict=True)}
        results = await asyncio.gather(
            *(self._result(call, states.get(call.key)) for call in calls), return_exceptions=True
        )
        for result in results:  # once all of them have come to an end
            if isinstance(result, BaseException):
                raise result
        return tuple(result for result in results if isinstance(result, ToolResult))

    async def _result(self, call: ToolCall, known: KnownCall | None) -> ToolResult:
        if call.problem:
            return ToolResult(call=call, content=call.problem, failed=True)
        if known is None:
            hint = suggestion(call.name, self.tools) if self.tools else "there are none"
            return ToolResult(call=call, content=f"no tool {call.name!r}; {hint}", failed=True)
        if isinstance(known, ToolResult):
            return replace(known, call=call)
        tool = self.tools[call.name]
        found: str | None = None
        if known == "begun" and not tool.idempotent:
            found = await self._outcome(tool, call)
        if found is not None:
            result = ToolResult(call=call, content=found)
        else:
            result = await self._carried_out(tool, call)
        await self._ledger.done(result)
        return result

    async def _carried_out(self, tool: Tool, call: ToolCall) -> ToolResult:
        thread = OwnThread(f"tool {tool.name}")
        try:
            content = await called(
                tool.run, call.arguments, call.key, seconds=tool.time_limit_seconds, thread=thread
            )
            text = _read(content, tool)
        except ResultUnusable as error:
            raise EnvironmentFailed(str(error)) from None
        except CallFailed as error:
            self._note_late(thread)
            return ToolResult(call=call, content=str(error), failed=True)
        finally:
            thread.end()
        if len(text) > MOST_RESULT:
            why = f"the result has {len(text)} characters; at most {MOST_RESULT} can be read"
            return ToolResult(call=call, content=why, failed=True)
        return ToolResult(call=call, content=text.encode(errors="backslashreplace").decode())

    async def _outcome(self, tool: Tool, call: ToolCall) -> str | None:
        """Outcome of a call that may have been carried out; None: it was not.

        Raises OutcomeUnknown.
        """
        place = f"tool {tool.name!r}, call {call.key}"
        if tool.outcome is None:
            raise OutcomeUnknown(
                f"{place}, was begun and not ended; give the tool an `outcome`, or say that it is "
                "idempotent"
            )
        thread = OwnThread(f"outcome of {tool.name}")
        try:
            found = await called(
                tool.outcome, call.key, seconds=tool.time_limit_seconds, thread=thread
            )
        except CallFailed as error:
            self._note_late(thread)
            raise OutcomeUnknown(f"{place}: its outcome cannot be asked for: {error}") from None
        finally:
            thread.end()
        return None if found is None else _read(found, tool)

    def _note_late(self, thread: OwnThread) -> None:
        if thread.busy:
            self._late.append(thread)


def _read(result: Any, tool: Tool) -> str:
    """Convert a result to text. Raises EnvironmentFailed."""
    try:
        return text_of(result, tool.name)
    except BadResult as error:
        raise EnvironmentFailed(str(error)) from None
