"""Which item a queue gives out of turn."""

import math

from rlboost_jax.manager.state.rollout_queue import RolloutQueue


def filled(*, begun: bool = False) -> RolloutQueue[str]:
    """Two groups of three: the first item of each has the rank -inf."""
    queue: RolloutQueue[str] = RolloutQueue()
    for sample, name in enumerate(("a0", "a1", "a2", "b0", "b1", "b2")):
        queue.put(name, sample, fresh=True, home=sample // 3)
    if begun:
        queue.put("c", 9, fresh=False)
    queue.rank({0: -math.inf, 3: -math.inf})
    return queue


def test_one_of_a_home_is_taken_unless_the_next_must_not_wait() -> None:
    queue = filled(begun=True)
    taken = [queue.take_one(home) for home in ([1], [0], [1], [1], [7, 1], [1, 0], [])]
    assert taken == ["c", "a0", "b0", "b1", "b2", "a1", "a2"]
    assert list(queue) == []


def test_what_is_taken_in_turn_is_not_found_by_its_home() -> None:
    queue = filled()
    assert queue.take(3) == ["a0", "b0", "a1"]
    assert queue.first_of(0) == "a2"
    assert queue.take_one([0]) == "a2"
    assert queue.take_one([0]) == "b1" and queue.take(1) == ["b2"]
