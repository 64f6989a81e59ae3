"""What an environment says to the responses of a batch whose turn is over.

The manager asks, and asks again wherever an answer may have been lost: on each stream, and after
tokens were given up. So an answer is kept, not said again by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.sequences.identities import Batch


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Answers turns, in no time and in this process. Only tests have one.

    Attributes:
        turns: that a response may have at most.
        answer: all tokens after the prompt → what is given now, and whether it is over with that.
            With equal tokens it answers the same, or a run does not repeat.
    """

    turns: int
    answer: Callable[[NDArray[np.int32]], tuple[Sequence[int], bool]]


class Answers:
    """Each question of a batch is put to the environment once."""

    def __init__(
        self,
        batch: Batch,
        environment: Environment | None,
        send: Callable[[messages.Answer], None],
    ) -> None:
        """
        Args:
            environment: None: responses have one turn, and nobody asks.
        """
        self._batch, self._environment, self._send = batch, environment, send
        # By sample, sequence, attempt and turn.
        self._said: dict[tuple[int, int, int, int], messages.Answer] = {}

    @property
    def turns(self) -> int:
        return 1 if self._environment is None else self._environment.turns

    def take(self, parked: messages.Parked) -> None:
        """Answer, if it is of this batch."""
        work = parked.work
        if work.batch != self._batch or self._environment is None:
            return
        key = work.sample, work.sequence, parked.attempt, parked.turn
        if key not in self._said:
            tokens, over = self._environment.answer(messages.unpack_tokens(parked.tokens))
            self._said[key] = messages.Answer(
                work=work,
                attempt=parked.attempt,
                turn=parked.turn,
                tokens=messages.pack_tokens(tokens),
                over=over,
            )
        self._send(self._said[key])
