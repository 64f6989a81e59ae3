"""The samples of a report: whole groups of the first step, of the newest and of steps between."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rlboost_jax.observe.page.sample_index import group_of, group_texts

LETTERS: Final = 6_000  # of a prompt and of a response
MOST_LETTERS: Final = 1_500_000  # of all together
MOST_GROUPS: Final = 200

Row = Mapping[str, Any]


def sample_groups(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], int]:
    """Groups to show, the newest first, and the number of groups left out.

    Those left out lie evenly between the first and the newest.
    """
    groups = [list(members) for _, members in groupby(rows, key=_place)]
    kept: list[tuple[int, dict[str, Any]]] = []
    room = MOST_LETTERS
    for place in _spread(len(groups))[:MOST_GROUPS]:
        group = _shown(groups[place])
        room -= sum(map(len, _texts(group)))
        if room < 0 and kept:
            break
        kept.append((place, group))
    newest = sorted(kept, key=lambda entry: entry[0], reverse=True)
    return [group for _, group in newest], len(groups) - len(kept)


def _place(row: Row) -> tuple[int, int]:
    return row["step"], row["prompt"]


def _shown(rows: Sequence[Row]) -> dict[str, Any]:
    group = group_of(rows[0], str(rows[0].get("prompt_text", "")))
    for row in rows:
        group.take(row, (0, 0))
    return {**group.entry(), **group_texts(rows, LETTERS)}


def _texts(group: Mapping[str, Any]) -> list[str]:
    """Texts of a group that take room."""
    turns = [part["text"] for row in group["rows"] for part in row["turns"]]
    return [group["prompt_text"], *(row["response_text"] for row in group["rows"]), *turns]


def _spread(count: int) -> list[int]:
    """Numbers 0 to count - 1: the ends first, then the middles of what lies between."""
    order = [0, count - 1] if count > 1 else list(range(count))
    spans = [(0, count - 1)]
    while spans:
        low, high = spans.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return order
