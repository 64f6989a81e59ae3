"""Calls and turns by their names: nobody's is another's, and none is begun before that is kept."""

import asyncio
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.environments.call_journal import CallJournal
from rlboost_jax.environments.episode_records import CallBegun, CallDone, identity, named
from rlboost_jax.environments.protocol import ToolCall, ToolResult
from rlboost_jax.sequences.transcript import TurnTokens


def call(key: str) -> ToolCall:
    return ToolCall(name="buy", arguments={}, key=key)


def test_a_call_is_kept_as_begun_before_it_may_be_carried_out() -> None:
    kept: list[Any] = []
    lasts = asyncio.Event()

    async def keep(records: list[Any]) -> None:
        await lasts.wait()
        kept.extend(records)

    async def story() -> None:
        ledger = CallJournal(keep, ())
        begun = asyncio.create_task(ledger.begin([call("a"), call("b")], [True, False]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not begun.done(), "the disk has not said so"
        lasts.set()
        assert await begun == ["new", "new"]
        assert kept == [CallBegun(key="a")], "one that may be done again need not last"
        await ledger.done(ToolResult(call=call("a"), content="3", failed=True))
        assert kept[1:] == [CallDone(key="a", content="3", failed=True)]

    asyncio.run(story())


def test_what_was_kept_before_is_known() -> None:
    async def keep(records: list[Any]) -> None:
        raise AssertionError("nothing is new")

    ledger = CallJournal(
        keep,
        [CallBegun(key="a"), CallBegun(key="b"), CallDone(key="b", content="7", failed=False)],
    )
    known = asyncio.run(ledger.begin([call("a"), call("b")], [True, True]))
    assert known == ["begun", ToolResult(call=call("b"), content="7")]


episodes = st.tuples(
    st.sampled_from(["run", "other"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([b"", b"a", b"b"]),
)
parts = st.binary(max_size=3)
turns = st.lists(st.builds(TurnTokens, parts, st.just(b""), parts), min_size=1, max_size=3)


@given(st.lists(episodes, min_size=2, max_size=2, unique=True))
def test_no_two_episodes_have_the_same_name(two: list[Any]) -> None:
    """Also of one prompt, in two runs or batches, or whose examples look the same at first."""
    one, other = (identity(*each) for each in two)
    assert one != other


@given(st.lists(st.tuples(parts, parts, turns), min_size=2, max_size=2))
def test_turns_have_the_same_name_if_all_that_led_to_them_is_the_same(two: list[Any]) -> None:
    (before_a, prompt_a, a), (before_b, prompt_b, b) = two
    first, second = named(before_a, prompt_a, a), named(before_b, prompt_b, b)
    for (i, x), (j, y) in (
        ((i, x), (j, y)) for i, x in enumerate(first) for j, y in enumerate(second)
    ):
        led_a = (before_a, prompt_a, a[:i], a[i].sampled)
        led_b = (before_b, prompt_b, b[:j], b[j].sampled)
        assert (x.name == y.name) == (led_a == led_b)
    for x, y in combinations(first, 2):
        assert x.name != y.name
