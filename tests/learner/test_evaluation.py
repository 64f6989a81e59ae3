"""Greedy accuracy on an engine that knows what to say."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.data.tasks import get_task
from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.evaluation import greedy_accuracy


class Reciter(Engine):
    """Says `answers[prompt]`, some tokens of each at every dispatch, the last prompt first."""

    version = 7

    def __init__(self, answers, tokens_per_dispatch):
        self.left = dict(enumerate(answers))
        self.each, self.requests = tokens_per_dispatch, ()

    def submit(self, requests):
        self.requests = requests

    def begin(self):
        return self.each * sum(1 for tokens in self.left.values() if len(tokens))

    def follow(self):
        return 0

    def finish(self):
        rows = {index: tokens[: self.each] for index, tokens in self.left.items() if len(tokens)}
        self.left = {index: tokens[self.each :] for index, tokens in self.left.items()}
        ids = sorted(rows, reverse=True)
        return SimpleNamespace(
            request_ids=np.array(ids, np.uint32),
            counts=np.array([len(rows[i]) for i in ids], np.uint16),
            tokens=np.concatenate([rows[i] for i in ids]).astype(np.int32),
        )


@pytest.mark.parametrize("tokens_per_dispatch", [1, 3, 100])
def test_it_is_the_share_of_right_answers(config, tokens_per_dispatch):
    task = get_task(config.task)
    prompts = task.heldout(seed=0, count=8)
    answers = [task.worked_answer(prompt.problem) for prompt in prompts]
    for wrong in (1, 2, 6):
        answers[wrong] = answers[wrong][:-1]  # it does not come to an end
    engine = Reciter(answers, tokens_per_dispatch)
    assert greedy_accuracy(engine, task, prompts, max_tokens=24) == 5 / 8
    for index, (request, prompt) in enumerate(zip(engine.requests, prompts, strict=True)):
        assert (request.request_id, request.version) == (index, 7)
        assert m.unpack_tokens(request.prompt_tokens).tolist() == prompt.tokens.tolist()
        assert request.sampling == m.Sampling(
            temperature=0.0, top_p=1.0, top_k=0, max_tokens=24, stop_ids=task.stop_ids
        )


def test_it_needs_parameters(config):
    engine = Reciter([], 1)
    engine.version = None
    with pytest.raises(ValueError, match="call load first"):
        greedy_accuracy(engine, get_task(config.task), [], max_tokens=24)
