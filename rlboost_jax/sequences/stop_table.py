"""Stop strings as a table over token ids, by which a turn's end is found without a tokenizer.

While the tokens of a turn are read one after the other, a *state* says how much of a string they
end with: 0 is nothing. A row of the table is (state, token, next state); a token that has no row
in a state goes where its row in state 0 says, and to 0 without one. `data/stop_strings.py` makes
the rows. The state of a turn follows from its tokens, so no wire and no file has one.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

END: Final = -1  # in the place of a next state: a string is complete, and the turn over
ROW_BYTES: Final = 12  # three of int32


class StopTable:
    """A table of stop strings.

    Attributes:
        num_rows: 0: there are no strings.
        tokens: that have a row; any other leads to state 0.
        reach: of the tokens before new ones, as many as can matter for these.
    """

    def __init__(self, packed: bytes) -> None:
        """Args: packed: see `pack`. What is no whole row at its end counts for nothing."""
        count = len(packed) // ROW_BYTES
        rows = np.frombuffer(packed, "<i4", 3 * count).reshape(count, 3).tolist()
        self._next = {(state, token): following for state, token, following in rows}
        self.num_rows = count
        self.tokens = frozenset([token for _, token, _ in rows])
        # States are numbered by the length of what they stand for, at least: as many tokens, of at
        # least a byte each, say all about one.
        self.reach = max((following for _, _, following in rows), default=0) + 1

    def end(self, turn: Sequence[int] | NDArray[np.int32], new: int) -> int | None:
        """Return how many tokens a turn has when a string is complete; None: none is.

        Args:
            turn: its sampled tokens; what is read before them counts for nothing.
            new: the last of them, with which a string may be complete; with those before none is.
        """
        known = len(turn) - new
        added = [int(token) for token in turn[known:]]
        if self.tokens.isdisjoint(added):  # nearly always
            return None
        start = known
        while start > max(0, known - self.reach) and int(turn[start - 1]) in self.tokens:
            start -= 1
        state = 0
        for place, token in enumerate([*map(int, turn[start:known]), *added], start=start):
            following = self._next.get((state, token))
            state = self._next.get((0, token), 0) if following is None else following
            if state < 0:
                return place + 1
        return None


def pack(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Encode rows (state, token, next state) for the wire."""
    return np.array(sorted(rows), "<i4").tobytes()


@functools.lru_cache(maxsize=8)
def stop_table(packed: bytes) -> StopTable:
    """Return the run's table, made once."""
    return StopTable(packed)
