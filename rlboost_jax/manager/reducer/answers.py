"""What an environment says to parked responses: they go on, or are finished.

An answer is named by work, attempt and turn, so one that comes twice, or after tokens were given
up, is known and dropped. It is in the journal before anything is sent because of it: what an
environment has said once is not asked again by a manager that goes on from there.
"""

import numpy as np

from rlboost_jax.manager.reducer.batch_checks import ProtocolError
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import Rollout
from rlboost_jax.messages import Answer, unpack_tokens


class Answers:
    def __init__(
        self, settings: Settings, owners: Owners, dispatch: Dispatch, model: StepModel | None
    ) -> None:
        self._slot_tokens, self._vocab_size = settings.slot_tokens, settings.vocab_size
        self._ledger, self._outbox = owners.ledger, owners.outbox
        self._dispatch, self._model = dispatch, model

    def hear(self, answer: Answer, now: float) -> None:
        """Raises ProtocolError for what no response can go on with."""
        self._check(answer)
        batch = self._ledger.open.get(answer.work.batch)
        rollout = batch.rollout_of(answer.work.sample) if batch is not None else None
        if batch is None or rollout is None or not rollout.awaits(answer.attempt, answer.turn):
            return
        tokens, over = answer.tokens, answer.over
        if not self._fits(rollout, tokens):
            tokens, over = b"", True  # as if its length had ended it
        self._ledger.answer(batch, rollout, tokens, over=over)
        if rollout.result is None:
            self._dispatch.resume(batch, rollout, now)
            return
        if self._model is not None:
            self._model.ended(rollout, now)
        self._outbox.of_sample(rollout.result)

    def _fits(self, rollout: Rollout, tokens: bytes) -> bool:
        """Whether a slot has room for what was given and all that may be sampled yet."""
        left = rollout.sampling.max_tokens - rollout.num_sampled
        return rollout.length + len(tokens) // 4 + left <= self._slot_tokens

    def _check(self, answer: Answer) -> None:
        name = f"the answer to turn {answer.turn} of sample {answer.work.sample}"
        if len(answer.tokens) % 4:
            raise ProtocolError(f"{name} has {len(answer.tokens)} bytes; a token is 4 bytes")
        if not (answer.tokens or answer.over):
            raise ProtocolError(f"{name} is empty; give it a token, or say that it is over")
        tokens = unpack_tokens(answer.tokens)
        outside = tokens[(tokens < 0) | (tokens >= self._vocab_size)]
        if np.size(outside):
            raise ProtocolError(
                f"{name} has token {outside[0]}; the vocabulary is 0..{self._vocab_size - 1}"
            )
