"""Which piece comes next, and from whom."""

from rlboost_jax.weights.peers import swarm as module
from rlboost_jax.weights.peers.swarm import OUTSIDE, Swarm

LARGE = module.GROUP_BYTES


def swarm(count: int = 8, start: int = 0, size: int = LARGE, **given: int) -> Swarm:
    return Swarm([size] * count, range(count), start=start, outside_slots=2, **given)


def bits(*numbers: int) -> bytes:
    return sum(1 << number for number in numbers).to_bytes(8, "little")


def asked(plan: Swarm, now: float = 0.0) -> list[tuple[str, list[int]]]:
    return [(f.source, list(f.pieces)) for f in plan.next_ones(now)]


def test_alone_everything_comes_from_outside_beginning_anywhere() -> None:
    assert asked(swarm(start=6)) == [(OUTSIDE, [6]), (OUTSIDE, [7])]


def test_small_pieces_that_follow_each_other_come_together() -> None:
    plan = Swarm([LARGE // 2] * 5, range(5), start=0, outside_slots=9)
    assert [pieces for _, pieces in asked(plan)] == [[0, 1], [2, 3], [4]]


def test_only_what_it_brings_comes_from_outside_at_once() -> None:
    plan = swarm()
    plan.bring(0b10010)
    plan.add("a", near=True, slots=2)
    assert asked(plan) == []  # it may have them
    plan.holds("a", b"")
    assert asked(plan) == [(OUTSIDE, [1]), (OUTSIDE, [4])]
    plan.holds("a", bits(1, 2, 5))
    assert asked(plan) == [("a", [2]), ("a", [5])]


def test_the_rarest_comes_first() -> None:
    plan = swarm()
    plan.bring(0)
    for name, has in (("a", (0, 1, 2)), ("b", (0, 1)), ("c", (0,))):
        plan.add(name, near=True, slots=1)
        plan.holds(name, bits(*has))
    assert asked(plan) == [("a", [2]), ("b", [1]), ("c", [0])]


def test_what_another_zone_has_is_not_asked_of_the_trainer() -> None:
    plan = swarm()
    plan.bring(0b11)
    plan.add("far", near=False, slots=2)
    assert asked(plan) == []
    plan.holds("far", bits(0, 1, 2, 3))
    assert asked(plan) == [("far", [0]), ("far", [1])]


def test_after_a_while_one_piece_comes_from_outside_and_sooner_from_then_on() -> None:
    plan = swarm()
    plan.bring(1)
    plan.arrived(0)
    plan.add("a", near=True, slots=1)
    plan.holds("a", b"")
    assert asked(plan, 0.0) == [] and asked(plan, 0.9) == []
    (only,) = plan.next_ones(1.0)
    assert (only.source, len(only.pieces)) == (OUTSIDE, 1)
    assert asked(plan, 9.0) == []  # one at a time
    plan.arrived(only.pieces[0])
    plan.ended(only, LARGE, 1.1)
    assert asked(plan, 1.2) == []
    assert len(asked(plan, 2.0)) == 1  # after half of the time
    # A server that has something resets it.
    plan.holds("a", bits(7))
    assert asked(plan, 2.0) == [("a", [7])]


def test_one_that_brings_nothing_waits_longer() -> None:
    """Behind a narrow line hundreds would ask for what is on its way to their zone already."""
    plan = swarm()
    plan.bring(0)
    plan.add("a", near=True, slots=1)
    plan.holds("a", b"")
    assert asked(plan, 0.0) == [] and asked(plan, 9.0) == []
    assert len(asked(plan, 10.0)) == 1


def test_it_waits_for_as_long_as_others_need_for_what_they_bring() -> None:
    plan = swarm()
    plan.bring(1)
    plan.add("a", near=True, slots=1)
    plan.holds("a", b"")
    (own,) = plan.next_ones(0.0)
    plan.arrived(0)
    plan.ended(own, LARGE, 10.0)  # the trainer is busy
    assert asked(plan, 10.0) == [] and asked(plan, 29.0) == []
    assert len(asked(plan, 31.0)) == 1


def test_what_is_slow_comes_from_another_too_and_the_first_counts() -> None:
    plan = swarm(2)
    plan.bring(0)
    for name in ("slow", "fast"):
        plan.add(name, near=True, slots=1)
    plan.holds("slow", bits(0))
    plan.holds("fast", bits(0, 1))
    slow, fast = plan.next_ones(0.0)
    assert (list(slow.pieces), list(fast.pieces)) == ([0], [1])
    plan.arrived(1)
    plan.ended(fast, LARGE, 1.0)
    slow.moved_at = 9.0
    assert asked(plan, 4.0) == []  # three times the usual, and two seconds
    (again,) = plan.next_ones(5.1)
    assert (again.source, list(again.pieces)) == ("fast", [0])
    assert asked(plan, 99.0) == []  # two carriers at most
    assert plan.arrived(0) and not plan.arrived(0)
    assert plan.complete and plan.outpaced() == [slow, again]


def test_a_silent_source_is_dropped_and_what_it_had_comes_from_others() -> None:
    plan = swarm(1)
    plan.bring(0)
    for name in ("a", "b"):
        plan.add(name, near=True, slots=1)
        plan.holds(name, bits(0))
    (first,) = plan.next_ones(0.0)
    assert plan.silent(4.0) == [] and plan.silent(5.5) == [first.source]
    assert plan.drop(first.source) == [first]
    (second,) = plan.next_ones(3.5)
    assert second.source != first.source and list(second.pieces) == [0]
    plan.ended(first, 0, 4.0)  # later, it changes nothing
    assert plan.outpaced() == []


def test_a_source_with_enough_to_do_is_asked_later() -> None:
    plan = swarm(1)
    plan.bring(0)
    plan.add("a", near=True, slots=1)
    plan.holds("a", bits(0))
    plan.pause("a", 1.0)
    assert asked(plan, 0.5) == []
    assert asked(plan, 1.0) == [("a", [0])]


def test_a_map_of_foreign_length_says_nothing_wrong() -> None:
    plan = swarm(8)
    plan.add("a", near=True, slots=1)
    assert plan.holds("a", b"") == 0 and plan.holds("a", b"\xff" * 100) == 8
    assert plan.holds("nobody", b"\xff") == 0
