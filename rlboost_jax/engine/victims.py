"""Which rollouts go when an engine is left fewer slots or pages: a pure function.

A victim resumes on another instance with all its tokens; the cost is to prefill these
there. So those with the fewest tokens go first, the youngest of equals. They free few pages each:
who turns out not to be needed for that stays after all, the dearest first. Those in no slot hold no
page, and would wait the longer the fewer slots there are: all of them go.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """A rollout that an engine holds."""

    request_id: int
    arrival: int  # the youngest has the largest
    tokens: int  # known: sampled, given and of the prompt
    pages: tuple[int, ...]  # that it holds, some of them perhaps with others
    in_slot: bool


def victims(occupants: Sequence[Occupant], *, slots: int, num_pages: int) -> tuple[int, ...]:
    """Ids of the rollouts to release, in the order in which they were chosen.

    The others have a slot each, their pages, and one more each to grow into; a single one that is
    left has all pages there are. None is left where there is no slot or no page.
    """
    waiting = [occupant for occupant in occupants if not occupant.in_slot]
    staying = [occupant for occupant in occupants if occupant.in_slot]
    gone: list[Occupant] = []
    for occupant in sorted(staying, key=_cost):
        if _fit(staying, slots, num_pages):
            break
        staying.remove(occupant)
        gone.append(occupant)
    for occupant in sorted(gone, key=_cost, reverse=True):
        if _fit([*staying, occupant], slots, num_pages):
            staying.append(occupant)
            gone.remove(occupant)
    return tuple(occupant.request_id for occupant in [*waiting, *gone])


def _cost(occupant: Occupant) -> tuple[int, int]:
    return occupant.tokens, -occupant.arrival


def _fit(staying: Sequence[Occupant], slots: int, num_pages: int) -> bool:
    held = len({page for occupant in staying for page in occupant.pages})
    growth = len(staying) if len(staying) > 1 else 0
    return len(staying) <= slots and held + growth <= num_pages
