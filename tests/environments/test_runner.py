"""One environment: its calls side by side, and whatever goes wrong a value or a named failure."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlboost_jax.environments.prompt_renderer import messages_of
from rlboost_jax.environments.protocol import Observation, Step, Tool, ToolCall, ToolResult, Turn
from rlboost_jax.environments.runner import (
    EnvironmentFailed,
    EpisodeRunner,
    OutcomeUnknown,
    RememberedCalls,
)
from rlboost_jax.environments.tools import tool, toolbox

LONG = 600.0


class Room:
    """Answers with what its calls came to."""

    def __init__(self, tools: Mapping[str, Tool], says: Callable[[Turn], Any] | None = None):
        self.tools, self._says = tools, says
        self.closed = False

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return f"{example['a']} {seed}"

    def step(self, turn: Turn) -> Any:
        if self._says is not None:
            return self._says(turn)
        return Step(observation=" | ".join(result.content for result in turn.results), reward=0.5)

    def close(self) -> None:
        self.closed = True


def turn_of(*calls: ToolCall) -> Turn:
    return Turn(index=0, tokens=(5, 6, 1), text="hello", calls=calls)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def stepped(
    room: Any,
    *calls: ToolCall,
    ledger: RememberedCalls | None = None,
    seconds: float = LONG,
    settles: bool = False,
) -> Any:
    async def run() -> Any:
        runner = EpisodeRunner(
            lambda: room, ledger=ledger or RememberedCalls(), time_limit_seconds=LONG
        )
        assert await runner.reset({"a": "one"}, 7) == "one 7"
        runner._limit = seconds
        done = await runner.step(turn_of(*calls), key="t0")
        while settles and runner.stuck:  # a thread may begin later than its call is abandoned
            await asyncio.sleep(0.01)
        await runner.close()
        return done, runner

    return asyncio.run(run())


def test_calls_run_side_by_side_and_are_answered_in_their_order() -> None:
    """Each waits for the other: one after the other they would never end."""
    meet = threading.Barrier(3)

    @tool
    def plain(a: int) -> int:
        meet.wait()
        return a

    @tool
    async def awaited(a: int) -> int:
        await asyncio.to_thread(meet.wait)
        return a

    room = Room(toolbox(plain, awaited))
    done, _ = stepped(room, call("plain", a=1), call("awaited", a=2), call("plain", a=3))
    assert done.step == Step(observation="1 | 2 | 3", reward=0.5)
    assert [result.call.key for result in done.turn.results] == ["t0.0", "t0.1", "t0.2"]
    assert room.closed


def test_whatever_goes_wrong_with_a_call_is_read_by_the_policy() -> None:
    @tool
    def add(a: int) -> int:
        raise ZeroDivisionError("of mine")

    @tool
    def leave() -> None:
        raise SystemExit(3)

    @tool(time_limit_seconds=0.05)
    async def slow() -> None:
        await asyncio.sleep(LONG)

    @tool
    def long() -> str:
        return "x" * (2**20 + 1)

    broken = replace(call("add"), problem="no JSON")
    done, runner = stepped(
        Room(toolbox(add, leave, slow, long)),
        *(call("ad"), broken, call("add", b=1), call("add", a=1), call("leave"), call("slow")),
        call("long"),
        settles=True,
    )
    assert [result.failed for result in done.turn.results] == [True] * 7
    assert done.step.observation.split(" | ") == [
        "no tool 'ad'; did you mean 'add'?",
        "no JSON",
        "BadArguments: no argument 'b'; known: a",
        "ZeroDivisionError: of mine",
        "SystemExit: 3",
        "took longer than 0.05 s",
        "the result has 1048577 characters; at most 1048576 can be read",
    ]
    assert not runner.stuck


def test_a_thread_that_is_abandoned_is_known() -> None:
    ended = threading.Event()

    @tool(time_limit_seconds=0.05)
    def hang() -> None:
        ended.wait()

    done, runner = stepped(Room(toolbox(hang)), call("hang"))
    assert done.turn.results[0].failed and runner.stuck
    ended.set()


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (lambda turn: 3, "step returned int; it returns a Step"),
        (lambda turn: Step(reward=float("nan")), "reward is nan"),
        (lambda turn: Step(observation=[{"role": "tol"}]), "role 'tol' of a message"),
        (lambda turn: Step(observation=np.zeros((1, 2))), "token ids are one row of integers"),
        (lambda turn: Step(metrics={"solved": "yes"}), "metrics['solved'] is 'yes'"),
        (lambda turn: Step(metrics=None), "metrics are NoneType"),
        (
            lambda turn: Step(observation=[{"role": "assistant", "tool_calls": [{}]}], anew=True),
            "a call of a message is",
        ),
        (lambda turn: {}["x"], "step: KeyError: 'x'"),
        (lambda turn: exit(2), "step: SystemExit: 2"),
        (lambda turn: threading.Event().wait(LONG), "step: took longer than 0.2 s"),
    ],
)
def test_what_goes_wrong_with_the_environment_is_a_named_failure(says: Any, said: str) -> None:
    seconds = 0.2 if "took longer" in said else LONG
    with pytest.raises(EnvironmentFailed) as raised:
        stepped(Room({}, says), seconds=seconds)
    assert said in str(raised.value)


def test_half_a_surrogate_pair_is_spelt() -> None:
    """Names of files have them, and no frame could carry them."""
    spelt, _ = stepped(Room(toolbox(tool(lambda: "\udcff", name="name"))), call("name"))
    assert spelt.step.observation == "\\udcff"
    for observation in ("a\udcff", [{"role": "user", "content": "a\udcff"}]):
        done, _ = stepped(Room({}, lambda turn, said=observation: Step(observation=said)))
        (message,) = messages_of(done.step.observation)
        assert message["content"] == "a\\udcff"


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"len": len}, r"tools\['len'\] is builtin_function"),
        ([tool(lambda: "x", name="a")], "no mapping"),
    ],
)
def test_tools_are_made_of_functions(tools: Any, said: str) -> None:
    with pytest.raises(EnvironmentFailed, match=said):
        stepped(Room(tools))


def test_a_failure_of_reset_is_one_too() -> None:
    async def run() -> None:
        runner = EpisodeRunner(lambda: Room({}), ledger=RememberedCalls(), time_limit_seconds=LONG)
        await runner.reset({}, 0)

    with pytest.raises(EnvironmentFailed, match="reset: KeyError: 'a'"):
        asyncio.run(run())


class Counter:
    """A tool that is not idempotent, and what it knows of its calls."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def box(self, **options: Any) -> Mapping[str, Tool]:
        @tool(**options)
        def count(key: str) -> int:
            self.done.append(key)
            return len(self.done)

        return {"count": count}


def test_a_result_that_is_known_stands_for_the_call() -> None:
    counter, ledger = Counter(), RememberedCalls()
    one, _ = stepped(Room(counter.box()), call("count"), ledger=ledger)
    other, _ = stepped(Room(counter.box()), call("count"), ledger=ledger)
    assert counter.done == ["t0.0"] and one.turn == other.turn and one.step == other.step


async def begun(ledger: RememberedCalls) -> None:
    await ledger.begin([replace(call("count"), key="t0.0")], [True])


@pytest.mark.parametrize(("idempotent", "outcome", "runs"), [(True, None, 1), (False, None, 1)])
def test_a_call_that_was_begun_is_carried_out_where_it_is_known_not_to_have_been(
    idempotent: bool, outcome: str | None, runs: int
) -> None:
    counter, ledger = Counter(), RememberedCalls()
    asyncio.run(begun(ledger))
    box = counter.box(idempotent=idempotent, outcome=lambda key: outcome)
    done, _ = stepped(Room(box), call("count"), ledger=ledger)
    assert len(counter.done) == runs and done.turn.results[0].content == "1"


def test_a_call_that_was_begun_and_carried_out_is_not_again() -> None:
    counter, ledger, asked = Counter(), RememberedCalls(), list[str]()

    def outcome(key: str) -> str:
        asked.append(key)
        return "41"

    asyncio.run(begun(ledger))
    done, _ = stepped(Room(counter.box(outcome=outcome)), call("count"), ledger=ledger)
    assert not counter.done and asked == ["t0.0"] and done.turn.results[0].content == "41"


def raising(key: str) -> str:
    raise OSError("not there")


@pytest.mark.parametrize("outcome", [None, raising])
def test_an_unknown_call_fails_the_episode(outcome: Any) -> None:
    counter, ledger = Counter(), RememberedCalls()
    asyncio.run(begun(ledger))
    with pytest.raises(OutcomeUnknown):
        stepped(Room(counter.box(outcome=outcome)), call("count"), ledger=ledger)
    assert not counter.done


def test_an_environment_may_read_its_calls_from_the_tokens_itself() -> None:
    class Own(Room):
        def calls(self, turn: Turn) -> Sequence[ToolCall]:
            return [call("say", number=token) for token in turn.tokens]

    @tool
    def say(number: int) -> int:
        return -number

    done, _ = stepped(Own(toolbox(say)))
    assert done.step.observation == "-5 | -6 | -1"
    assert done.turn.results[1] == ToolResult(
        call=ToolCall(name="say", arguments={"number": 6}, key="t0.1"), content="-6"
    )


@pytest.mark.parametrize("handmade", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_result_that_nobody_can_read_is_the_environments_failure(
    handmade: bool, later: bool
) -> None:
    """It is no observation: the policy did nothing wrong."""

    def now(arguments: Any = None, key: str = "") -> Any:
        return object()

    async def soon(arguments: Any = None, key: str = "") -> Any:
        return object()

    run = soon if later else now
    made = (
        Tool(name="odd", description="", parameters={}, run=run)
        if handmade
        else tool(name="odd")(run)
    )
    with pytest.raises(EnvironmentFailed, match=r"tool 'odd' returned object: no JSON stands for"):
        stepped(Room({"odd": made}), call("odd"))
