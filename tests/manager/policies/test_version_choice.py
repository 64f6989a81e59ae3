"""Which version each instance is to hold: the rules one by one, and what always holds."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.version_choice import Demand, Holder, choose_versions

OLD, NEW = 0, 1  # places of two versions


def free(announced: int | None) -> Holder:
    return Holder(announced=announced, slots=2)


def busy(holds: int, held: int = 2, *, announced: int | None = None) -> Holder:
    return Holder(
        announced=holds if announced is None else announced, holds=holds, held=held, slots=2
    )


def demands(*unheld: int, queued: Sequence[int] = (0, 0)) -> list[Demand]:
    return [Demand(unheld=u, queued=q) for u, q in zip(unheld, queued, strict=True)]


def test_nobody_leaves_the_work_of_an_older_batch() -> None:
    assert choose_versions(demands(0, 50), [busy(OLD, 1), busy(OLD, 1)]) == [OLD, OLD]


def test_who_is_free_goes_to_the_oldest_that_needs_it_and_no_more_than_that_takes() -> None:
    assert choose_versions(demands(3, 50), [free(None)] * 3) == [OLD, OLD, NEW]


def test_who_is_at_a_version_is_chosen_for_it_before_others() -> None:
    assert choose_versions(demands(1, 9), [free(NEW), free(OLD)]) == [NEW, OLD]


def test_a_slot_that_is_free_at_who_holds_work_needs_nobody_else() -> None:
    assert choose_versions(demands(1, 0), [busy(OLD, 1), free(None)]) == [OLD, None]


def test_an_instance_goes_on_when_nothing_is_left_for_it() -> None:
    assert choose_versions(demands(0, 5), [busy(OLD, 1), free(OLD)]) == [OLD, NEW]
    assert choose_versions(demands(0, 0), [busy(OLD, 1), free(OLD)]) == [OLD, None]


def test_somebody_goes_back_where_nobody_is_left() -> None:
    """The instance that holds the least; and goes on with that until it is there."""
    assert choose_versions(demands(1, 0), [busy(NEW, 2), busy(NEW, 1)]) == [NEW, OLD]
    assert choose_versions(demands(1, 9), [busy(NEW, 2), busy(NEW, 1, announced=OLD)]) == [NEW, OLD]


def test_as_many_go_back_as_the_work_fills() -> None:
    assert choose_versions(demands(3, 0), [busy(NEW)] * 3) == [OLD, OLD, NEW]


def test_nobody_goes_back_while_somebody_is_there() -> None:
    assert choose_versions(demands(9, 0), [busy(OLD, 2), busy(NEW)]) == [OLD, NEW]


def test_who_was_going_back_and_is_not_needed_keeps_what_it_holds() -> None:
    assert choose_versions(demands(0, 0), [busy(NEW, announced=OLD)]) == [NEW]


def test_who_would_idle_relieves_the_oldest_queue() -> None:
    full = busy(OLD, 4)
    assert choose_versions(demands(0, 0, queued=(2, 0)), [full, free(NEW)]) == [OLD, OLD]
    assert choose_versions(demands(0, 5, queued=(2, 0)), [full, free(NEW)]) == [OLD, NEW]
    assert choose_versions(demands(0, 5, queued=(2, 0)), [full, free(OLD)]) == [OLD, OLD]


def test_who_would_idle_does_not_wait_for_one_that_is_on_its_way() -> None:
    """Which may be one whose device hangs (found by a random schedule)."""
    coming = replace(free(OLD), arrived=False)
    assert choose_versions(demands(2, 0), [coming, free(NEW)]) == [OLD, OLD]
    assert choose_versions(demands(2, 0), [coming, free(NEW), free(NEW)]) == [OLD, OLD, None]
    assert choose_versions(demands(2, 5), [coming, free(NEW)]) == [OLD, NEW], "it has work"
    assert choose_versions(demands(1, 0), [coming, busy(OLD, 1), free(NEW)]) == [None, OLD, None]
    # Nor does it turn back for one that is free by now: it is half way there.
    half_way = replace(free(OLD), arrived=False)
    assert choose_versions(demands(2, 0), [coming, free(NEW), half_way]) == [OLD, None, OLD]


def gathered(rollouts: int, *, rows: int, newer: int = 50) -> list[Demand]:
    return [Demand(unheld=rollouts, rows=rows), Demand(unheld=newer, rows=rows)]


def test_the_last_rollouts_are_gathered_where_newer_ones_want_instances() -> None:
    """Who holds the fewest leaves, and as many stay as have rows enough."""
    holders = [busy(OLD, 2), busy(OLD, 1), busy(OLD, 3), busy(OLD, 1)]
    assert choose_versions(gathered(0, rows=4), holders) == [OLD, NEW, OLD, NEW]
    assert choose_versions(gathered(2, rows=4), holders) == [OLD, OLD, OLD, NEW]
    assert choose_versions(gathered(0, rows=9), holders) == [NEW, NEW, OLD, NEW]
    assert choose_versions(gathered(0, rows=1), holders) == [OLD] * 4


def test_nothing_is_gathered_for_nobody() -> None:
    holders = [busy(OLD, 1)] * 3
    assert choose_versions(gathered(0, rows=9, newer=0), holders) == [OLD] * 3
    assert choose_versions(gathered(0, rows=0), holders) == [OLD] * 3
    assert choose_versions([Demand(unheld=3, rows=9)], [busy(OLD)] * 3) == [OLD] * 3


def test_who_was_asked_to_leave_leaves() -> None:
    """Though by now it holds more than who was to stay."""
    holders = [busy(OLD, 1), busy(OLD, 3, announced=NEW)]
    assert choose_versions(gathered(0, rows=9), holders) == [OLD, NEW]


NUMBERS = st.integers(0, 4)
DEMANDS = st.lists(
    st.builds(Demand, unheld=NUMBERS, queued=NUMBERS, rows=NUMBERS), min_size=1, max_size=3
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Demand], list[Holder]]:
    wanted = draw(DEMANDS)
    places = st.none() | st.integers(0, len(wanted) - 1)

    def holder(
        announced: int | None, holds: int | None, held: int, slots: int, arrived: bool
    ) -> Holder:
        return Holder(
            announced=announced,
            holds=holds,
            held=held if holds is not None else 0,
            slots=slots,
            arrived=arrived,
        )

    numbers = st.integers(1, 4), st.integers(1, 3)
    holders = st.builds(holder, places, places, *numbers, st.booleans())
    return wanted, draw(st.lists(holders, max_size=6))


@given(fleets())
def test_what_always_holds(fleet: tuple[list[Demand], list[Holder]]) -> None:
    wanted, holders = fleet
    chosen = choose_versions(wanted, holders)
    for place, demand in enumerate(wanted):
        here = [(h, c) for h, c in zip(holders, chosen, strict=True) if h.holds == place]
        gone = sum(c is None or c > place for _, c in here)
        rollouts = demand.unheld + sum(h.held for h, _ in here)
        enough = demand.rows and (len(here) - gone) * demand.rows >= rollouts
        assert not gone or enough, "taken from its work"
    for version, demand in enumerate(wanted):
        free = [h for h, c in zip(holders, chosen, strict=True) if h.holds is None and c is None]
        newer = [c for c in chosen if c is None or c > version]
        if demand.unheld:
            assert version in chosen or not newer, "nobody is left for it"
            room = sum(
                max(0, h.slots - (h.held if h.holds == version else 0))
                for h, c in zip(holders, chosen, strict=True)
                if c == version
            )
            assert not free or room >= demand.unheld, "somebody idles"
    again = choose_versions(wanted, after(holders, chosen))  # one more than needed may go on
    assert choose_versions(wanted, after(holders, again)) == again, "it never comes to rest"


def after(holders: Sequence[Holder], chosen: Sequence[int | None]) -> list[Holder]:
    """The same instances, once what was chosen is announced; nobody has arrived since."""
    return [
        replace(
            holder,
            announced=announced,
            arrived=holder.arrived and announced == holder.announced,
        )
        for holder, announced in zip(holders, chosen, strict=True)
    ]


def test_the_last_rollouts_stay_where_nobody_hands_over() -> None:
    """A reserved engine leaves before an instance that holds less."""
    passing = Holder(announced=OLD, holds=OLD, held=3, slots=4, passing=True)
    assert choose_versions(gathered(0, rows=4), [passing, busy(OLD, 1)]) == [NEW, OLD]


def test_who_is_called_back_is_called_once() -> None:
    """It holds rollouts of a newer version, which others could gather."""
    holders = [busy(NEW, 2, announced=OLD), busy(NEW, 2)]
    demands = [Demand(unheld=1, rows=4), Demand(unheld=0, rows=4), Demand(unheld=9, rows=4)]
    assert choose_versions(demands, holders) == [OLD, NEW]
