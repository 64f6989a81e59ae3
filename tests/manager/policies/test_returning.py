"""Whether an answered response goes back to where its pages are: by hand, and in a manager."""

import math

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.policies.returning import Home, goes_back, newer, still_there
from rlboost_jax.manager.state.rollout_queue import RolloutQueue
from tests.manager.desk import Desk
from tests.manager.fakes import MAX_TOKENS, STOP, settings
from tests.manager.test_parked import A, B, say

BUSY = Home(slots=4, held=4, most_held=6, slot_seconds=0.1)


def test_pages_are_there_until_all_that_were_free_before_are_used() -> None:
    """500 of 1,000 tokens were free as it left: the 501st takes a page of its own."""
    assert still_there(300, free=500, taken=500) == 300
    assert still_there(300, free=500, taken=501) == 0


@pytest.mark.parametrize(
    ("saved", "home", "elsewhere", "expected"),
    [
        (100, Home(slots=4, held=3, most_held=6), True, True),
        (0, Home(slots=4, held=3, most_held=6), True, False),
        (100, BUSY, False, True),
        (100, Home(slots=4, held=6, most_held=6), False, False),
        # 0.1 s for a slot, or 1 ms a token elsewhere, which holds up four slots' worth:
        (26, BUSY, True, True),
        (24, BUSY, True, False),
        # One waits already: 0.2 s.
        (49, Home(slots=4, held=5, most_held=6, slot_seconds=0.1), True, False),
        (51, Home(slots=4, held=5, most_held=6, slot_seconds=0.1), True, True),
        # How long a slot takes is not known.
        (10**9, Home(slots=4, held=4, most_held=6), True, False),
    ],
)
def test_a_wait_is_weighed_against_prefill(
    saved: int, home: Home, elsewhere: bool, expected: bool
) -> None:
    assert goes_back(saved, home, elsewhere=elsewhere, prefill_seconds=1e-3) == expected
    assert not elsewhere or not goes_back(saved, BUSY, elsewhere=True, prefill_seconds=math.inf)


def test_a_mean_of_late_begins_with_the_first() -> None:
    assert newer(math.inf, 3.0) == 3.0
    assert newer(1.0, 2.0) == pytest.approx(1.1)


def test_who_has_a_home_is_found_there_and_taken_once() -> None:
    queue: RolloutQueue[str] = RolloutQueue()
    queue.put("b", 2, fresh=False, home="x")
    queue.put("a", 1, fresh=False, home="x")
    queue.put("c", 3, fresh=False)
    queue.put("d", 0, fresh=True, home="y")
    assert queue.first_of("x") == "a" and queue.first_of("z") is None
    assert queue.take_first_of("x") == "a"
    assert list(queue) == ["b", "c", "d"]
    assert queue.take(2) == ["b", "c"]
    assert queue.first_of("x") is None
    queue.put("e", 9, fresh=False, home="y")
    queue.rank({9: 5.0, 0: 1.0})
    assert (queue.first_of("y"), list(queue)) == ("e", ["e", "d"])
    queue.clear()
    assert queue.first_of("y") is None and not list(queue)


def desk_of(*, cache_tokens: int, prompts: int = 3) -> tuple[Desk, dict[int, m.GenerateRequest]]:
    """A with two slots and B with two; A holds samples 0 and 1, or more. By sample, at A."""
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    quick["manager__balance"] = False
    desk = Desk(settings(**quick, slot_tokens=3 + MAX_TOKENS + 20))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0, slot_tokens=64, nonce="a", cache_tokens=cache_tokens)
    desk.begin(0, prompts=prompts, group_size=1, turns=9)
    return desk, {r.work.sample: r for r in desk.requests(A)}


def answer(desk: Desk, sample: int, tokens: tuple[int, ...] = (7,)) -> None:
    rollout = desk.manager.view.batches[0].rollout_of(sample)
    assert rollout is not None
    desk.trainer(
        m.Answer(
            work=rollout.sequences.work,
            attempt=rollout.sequences.attempt,
            turn=rollout.transcript.turn,
            tokens=m.pack_tokens(tokens),
            over=False,
        )
    )


def test_with_nobody_free_it_waits_where_it_was() -> None:
    """A runs two and may have two more."""
    desk, held = desk_of(cache_tokens=128, prompts=4)
    assert len(held) == 4
    say(desk, A, held[0], [5, STOP])
    answer(desk, 0)
    assert [r.work.sample for r in desk.requests(A)] == [0]


def test_it_does_not_wait_for_a_slot_that_nobody_knows_the_time_of() -> None:
    """A's first turn has ended after 1 s and saved 5 tokens; B has free slots."""
    desk, held = desk_of(cache_tokens=128, prompts=4)
    desk.now = 1.0
    say(desk, A, held[0], [5, STOP])
    desk.join(B, 0, slot_tokens=64, nonce="b", cache_tokens=128)
    answer(desk, 0)
    assert [r.work.sample for r in desk.requests(B)] == [0]
    assert desk.manager.view.batches[0].books.returned == 0


def test_what_it_saves_is_not_prefilled_again() -> None:
    desk, held = desk_of(cache_tokens=128, prompts=1)
    books = desk.manager.view.batches[0].books
    say(desk, A, held[0], [5, 6, STOP])
    answer(desk, 0)
    assert len(desk.requests(A)) == 1
    assert (books.prefilled_again, books.resumed, books.returned) == (0, 1, 1)


def test_what_is_gone_is_prefilled_again() -> None:
    """Others have taken all pages meanwhile: 3 of prompt and 12 of response, twice."""
    desk, held = desk_of(cache_tokens=24, prompts=3)
    books = desk.manager.view.batches[0].books
    say(desk, A, held[0], [5, 6, STOP])
    say(desk, A, held[1], [1] * 11)
    say(desk, A, held[2], [1] * 11)
    before = books.prefilled_again
    answer(desk, 0)
    assert len(desk.requests(A)) == 1
    assert books.prefilled_again - before == 6


def test_new_weights_leave_nothing() -> None:
    desk, held = desk_of(cache_tokens=128, prompts=1)
    say(desk, A, held[0], [5, 6, STOP])
    rollout = desk.manager.view.batches[0].rollout_of(0)
    (instance,) = desk.manager.view.instances.values()
    assert rollout is not None and rollout.placement.kept_in(instance.pages) == 6
    instance.loaded(instance.parameters.version, instance.parameters.digest)  # type: ignore[arg-type]
    assert rollout.placement.kept_in(instance.pages) == 0
