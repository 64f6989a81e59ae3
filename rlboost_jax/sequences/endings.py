"""How a response ends. All who need to know ask here; the device's own mask is tested against it.

A response is over with its first stop id, which belongs to it, with the token that completes a stop
string (`stop_table.py`), or with as many tokens as it may have. Nobody says so on any wire: it
follows from the tokens, wherever they are.

Of a sequence of several turns that is said of the newest turn. Only tokens that were sampled end
one: what is given may have any ids. What its turns may have together is a number of sampled
tokens, so the last turn may have what those before it left. A turn may have a limit of its own:
what that ends is cut off as what the other ends, and the sequence goes on where it is answered.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.sequences.stop_table import stop_table

FinishReason = Literal["stop", "length"]  # as OpenAI's protocol calls them


def stopped(
    tokens: Sequence[int] | NDArray[np.int32], stop_ids: Collection[int], stops: bytes = b""
) -> bool:
    """Whether a response, or its newest turn, ended by itself: what its length ended is cut off.

    Args:
        stops: its stop strings, see `stop_table.py`.
    """
    if len(tokens) == 0:
        return False
    return int(tokens[-1]) in stop_ids or stop_table(stops).end(tokens, 1) is not None


def most_of_turn(sampled: int, *, max_tokens: int, turn_tokens: int = 0) -> int:
    """Return how many tokens a turn may have.

    Args:
        sampled: in the turns before it.
        max_tokens: that all turns may have together.
        turn_tokens: that any of them may have; 0: no limit of its own.
    """
    left = max_tokens - sampled
    return turn_tokens if 0 < turn_tokens < left else left


def finish_reason(
    last: int, num_tokens: int, *, max_tokens: int, stop_ids: Collection[int]
) -> FinishReason | None:
    """Return why a response, or one of its turns, is over; None: it continues.

    Args:
        last: its newest token, of no matter where it has none.
        num_tokens: that it has, the newest included.
        max_tokens: that it may have; of a turn see `most_of_turn`.
    """
    if num_tokens > 0 and last in stop_ids:
        return "stop"
    return "length" if num_tokens >= max_tokens else None


def stop_positions(tokens: NDArray[np.int32], stop_ids: Iterable[int]) -> list[int]:
    """Find the positions of ids that end a response, in order."""
    found = np.zeros(len(tokens), bool)
    for stop_id in stop_ids:
        found |= tokens == stop_id
    where: list[int] = found.nonzero()[0].tolist()
    return where


def kept(start: int, count: int, *, room: int, stops: Iterable[int]) -> int:
    """Count how many of `count` new tokens belong to a response, up to its end.

    Args:
        start: of these tokens among those that `stops` is about.
        room: tokens that the response may still get.
        stops: see `stop_positions`.
    """
    most = count if count < room else room  # at every row of every message: no calls
    for position in stops:
        if start <= position < start + most:
            return position - start + 1
    return most
