"""Who goes when an engine shrinks: what always holds, and the cost against trying everything."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.engine.victims import Occupant, victims

SIZE = 4  # tokens of a page


@st.composite
def crowds(draw: st.DrawFn) -> list[Occupant]:
    """Rollouts in slots, some with the pages of a prompt in common, and some that wait."""
    crowd: list[Occupant] = []
    page = 100
    for number in range(draw(st.integers(0, 7))):
        in_slot = draw(st.booleans()) or number == 0
        own, shared = draw(st.integers(1, 6)), draw(st.integers(0, 2))
        pages = (*range(shared), *range(page, page + own)) if in_slot else ()
        page += own
        tokens = SIZE * (own + shared) - draw(st.integers(0, SIZE - 1))
        crowd.append(
            Occupant(
                request_id=10 + number, arrival=number, tokens=tokens, pages=pages, in_slot=in_slot
            )
        )
    return crowd


def fits(staying: list[Occupant], slots: int, num_pages: int) -> bool:
    held = len({page for occupant in staying for page in occupant.pages})
    room = num_pages - (len(staying) if len(staying) > 1 else 0)
    return len(staying) <= slots and held <= room


@given(crowd=crowds(), slots=st.integers(0, 8), num_pages=st.integers(0, 60))
def test_who_stays_fits_nobody_goes_in_vain_and_the_cost_is_low(
    crowd: list[Occupant], slots: int, num_pages: int
) -> None:
    gone = victims(crowd, slots=slots, num_pages=num_pages)
    assert len(set(gone)) == len(gone) and set(gone) <= {o.request_id for o in crowd}
    assert all(o.request_id in gone for o in crowd if not o.in_slot)
    staying = [o for o in crowd if o.request_id not in gone]
    assert fits(staying, slots, num_pages)
    left = [o for o in crowd if o.in_slot and o.request_id in gone]
    assert not any(fits([*staying, o], slots, num_pages) for o in left)
    cheapest = min(
        sum(o.tokens for o in some)
        for count in range(len(crowd) + 1)
        for some in combinations([o for o in crowd if o.in_slot], count)
        if fits([o for o in crowd if o.in_slot and o not in some], slots, num_pages)
    )
    dearest = max((o.tokens for o in crowd), default=0)
    assert sum(o.tokens for o in left) <= 2 * cheapest + dearest


@given(crowd=crowds(), slots=st.integers(0, 8))
def test_for_slots_alone_nothing_is_cheaper(crowd: list[Occupant], slots: int) -> None:
    gone = victims(crowd, slots=slots, num_pages=10_000)
    there = sorted(o.tokens for o in crowd if o.in_slot)
    lost = sum(o.tokens for o in crowd if o.in_slot and o.request_id in gone)
    assert lost == sum(there[: max(0, len(there) - slots)])


def test_of_equals_the_youngest_goes_and_who_has_room_after_all_stays() -> None:
    def occupant(number: int, pages: int) -> Occupant:
        at = range(100 * number, 100 * number + pages)
        return Occupant(
            request_id=number, arrival=number, tokens=4 * pages, pages=tuple(at), in_slot=True
        )

    assert victims([occupant(1, 3), occupant(2, 3)], slots=1, num_pages=50) == (2,)
    # With the middle one gone the shortest has room again.
    crowd = [occupant(n, pages) for n, pages in enumerate((1, 5, 8), 1)]
    assert victims(crowd, slots=3, num_pages=12) == (2,)


def test_without_a_slot_or_a_page_all_go() -> None:
    crowd = [Occupant(request_id=7, arrival=0, tokens=5, pages=(3, 4), in_slot=True)]
    assert victims(crowd, slots=0, num_pages=9) == victims(crowd, slots=1, num_pages=0) == (7,)
    assert victims(crowd, slots=1, num_pages=2) == ()
