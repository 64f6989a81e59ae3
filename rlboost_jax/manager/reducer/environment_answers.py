"""Answers of an environment to parked responses.

A response then continues, perhaps with another sequence, begins anew, or is finished.

An answer is named by work, attempt and turn, so one that comes twice, or after its tokens were
discarded, is recognised and dropped. It is in the journal before anything is sent because of it:
the manager that resumes from the journal does not ask the environment again.
"""

import numpy as np

from rlboost_jax.manager.reducer.batch_checks import ProtocolError
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.reducer.step_model import StepModel
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import Answer, unpack_tokens


class EnvironmentAnswers:
    def __init__(
        self, settings: Settings, owners: Owners, dispatch: RolloutDispatch, model: StepModel
    ) -> None:
        self._slot_tokens, self._vocab_size = settings.slot_tokens, settings.vocab_size
        self._ledger, self._outbox = owners.ledger, owners.outbox
        self._dispatch, self._model = dispatch, model

    def hear(self, answer: Answer, now: float) -> None:
        """Apply an answer. Raises ProtocolError if no response can continue with it."""
        self._check(answer)
        batch = self._ledger.open.get(answer.work.batch)
        rollout = batch.rollout_of(answer.work.sample) if batch is not None else None
        work = answer.work
        asked = work.sequence, answer.attempt, answer.turn
        if batch is None or rollout is None or not rollout.awaits(*asked):
            return
        if answer.restart:
            self._ledger.redo(batch, {rollout: 0})
            return
        tokens, over, prompt = rollout.sequences.within(answer, self._slot_tokens)
        self._ledger.answer(batch, rollout, tokens, over=over, prompt=prompt)
        for result in rollout.results[work.sequence :]:
            self._outbox.of_sample(result)
        if not rollout.finished:
            self._dispatch.resume(batch, rollout, now)
        else:
            self._model.ended(rollout, now)

    def _check(self, answer: Answer) -> None:
        name = f"the answer to turn {answer.turn} of sample {answer.work.sample}"
        if not (answer.tokens or answer.over or answer.restart):
            raise ProtocolError(f"{name} is empty; give it a token, or say that it is over")
        if answer.restart and (answer.tokens or answer.over or answer.prompt):
            raise ProtocolError(f"{name} has it begin anew, and go on; say one of the two")
        if answer.prompt and not answer.over:
            raise ProtocolError(f"{name} begins another sequence; say that this one is over")
        for data in (answer.tokens, answer.prompt):
            if len(data) % 4:
                raise ProtocolError(f"{name} has {len(data)} bytes; a token is 4 bytes")
            tokens = unpack_tokens(data)
            outside = tokens[(tokens < 0) | (tokens >= self._vocab_size)]
            if np.size(outside):
                raise ProtocolError(
                    f"{name} has token {outside[0]}; the vocabulary is 0..{self._vocab_size - 1}"
                )
