"""Turns and sequences of responses that one engine samples, with nobody between."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.engine.dispatches import EngineDispatch
from rlboost_jax.learner.evaluation.local_batch import LocalBatch
from rlboost_jax.sequences.identities import Batch, Version

END = 1
SLOT_TOKENS = 40


class Counting:
    """An engine that samples how many tokens there are before a turn, and its end: a token a
    dispatch."""

    slot_tokens = SLOT_TOKENS

    def __init__(self) -> None:
        self.requests: list[m.GenerateRequest] = []
        self._left: dict[int, deque[int]] = {}

    def submit(self, requests: Any) -> None:
        self.requests += requests
        for request in requests:
            before = len(request.prompt_tokens + request.response_tokens) // 4
            self._left[request.request_id] = deque((before, END))

    def begin(self) -> int:
        return len(self._left)

    def follow(self) -> int:
        return 0

    def finish(self) -> EngineDispatch:
        tokens = {request: left.popleft() for request, left in self._left.items()}
        self._left = {request: left for request, left in self._left.items() if left}
        return EngineDispatch(
            version=5,
            request_ids=np.array(list(tokens), np.uint32),
            counts=np.ones(len(tokens), np.uint16),
            tokens=np.array(list(tokens.values()), np.int32),
            logprobs=-np.array(list(tokens.values()), np.float32),
            leads=np.zeros(len(tokens), np.uint32),
            routes=None,
            finished=tuple(set(tokens) - set(self._left)),
            prefilled_again=0,
        )


def played(
    says: Callable[[m.Parked, LocalBatch], None], *, turns: int = 4, max_tokens: int = 12
) -> list[m.FinishedRollout]:
    sampling = m.Sampling(
        temperature=0.0, top_p=1.0, top_k=0, max_tokens=max_tokens, stop_ids=(END,)
    )
    begin = m.BeginBatch(
        batch=Batch(5),
        version=Version(5),
        params_digest="",
        seed=0,
        group_size=1,
        sampling=sampling,
        prompts=tuple(
            m.PromptRequest(purpose="evaluate", prompt=n, tokens=m.pack_tokens([7] * (n + 3)))
            for n in range(2)
        ),
        turns=turns,
    )
    batch = LocalBatch(Counting(), begin, ask=lambda parked: says(parked, batch))
    return list(batch.results())


def answer(parked: m.Parked, *tokens: int, prompt: tuple[int, ...] = (), **more: Any) -> m.Answer:
    return m.Answer(
        work=parked.work,
        attempt=parked.attempt,
        turn=parked.turn,
        tokens=m.pack_tokens(tokens),
        prompt=m.pack_tokens(prompt) if prompt else b"",
        **{"over": False, **more},
    )


def said(rollout: m.FinishedRollout) -> tuple[int, int, list[int]]:
    return rollout.work.prompt, rollout.work.sequence, m.unpack_tokens(rollout.tokens).tolist()


def test_what_an_environment_says_stands_between_turns() -> None:
    def says(parked: m.Parked, batch: LocalBatch) -> None:
        batch.answer(answer(parked, 8, 9, over=parked.turn == 1))

    found = played(says)
    expected = [(n, 0, [n + 3, END, 8, 9, n + 7, END, 8, 9]) for n in range(2)]
    assert sorted(map(said, found)) == expected
    assert {rollout.runs for rollout in found} == {(2, 2, 2, 2)}
    assert {rollout.versions for rollout in found} == {((5, 4),)}
    assert all(
        (m.unpack_logprobs(r.logprobs) == -np.array([n, END, n + 4, END])).all()
        for r in found
        for n in [r.work.prompt + 3]
    )


def test_the_last_turn_is_not_asked_about() -> None:
    asked = []

    def says(parked: m.Parked, batch: LocalBatch) -> None:
        asked.append(parked.turn)
        batch.answer(answer(parked, 8))

    assert [len(rollout.runs) for rollout in played(says, turns=3)] == [5, 5]
    assert sorted(asked) == [0, 0, 1, 1]


def test_an_episode_goes_on_with_another_sequence() -> None:
    def says(parked: m.Parked, batch: LocalBatch) -> None:
        first = parked.work.sequence == 0
        batch.answer(answer(parked, prompt=(4, 4, 4, 4) if first else (), over=True))

    found = played(says)
    mine = [rollout for rollout in found if rollout.work.prompt == 0]
    assert [said(rollout) for rollout in mine] == [(0, 0, [3, END]), (0, 1, [4, END])]
    assert [rollout.last for rollout in mine] == [False, True]
    assert m.unpack_tokens(mine[1].prompt).tolist() == [4, 4, 4, 4]


def test_an_episode_begins_again() -> None:
    def says(parked: m.Parked, batch: LocalBatch) -> None:
        if parked.turn == 1 and not parked.attempt:
            batch.answer(answer(parked, restart=True))
        else:
            batch.answer(answer(parked, 8, over=parked.turn == 1))
            batch.answer(answer(parked, 9))  # once more, and otherwise: it is known

    found = played(says)
    assert sorted(map(said, found)) == [(n, 0, [n + 3, END, 8, n + 6, END, 8]) for n in range(2)]
    assert {rollout.attempt for rollout in found} == {1}


def test_what_has_no_room_ends_an_episode() -> None:
    """A slot has 40 tokens; 12 of them stay for what may be sampled."""
    given = [8] * 25

    def says(parked: m.Parked, batch: LocalBatch) -> None:
        batch.answer(answer(parked, *given[: 25 + parked.work.prompt]))

    found = {rollout.work.prompt: rollout.runs for rollout in played(says, turns=2)}
    assert found == {0: (2, 25, 2), 1: ()}, "3 + 25 + 12 tokens fit, and 4 + 25 + 12 do not"


def test_an_environment_that_cannot_answer_ends_it() -> None:
    def says(parked: m.Parked, batch: LocalBatch) -> None:
        batch.fail(LookupError("of mine"))

    with pytest.raises(LookupError, match="of mine"):
        played(says)
