"""What the learner says to responses whose turn is over."""

from typing import Any

import numpy as np

from rlboost_jax import messages as m
from rlboost_jax.learner.answers import Answers, Environment
from rlboost_jax.learner.stream.driver import drive
from rlboost_jax.learner.stream.intake import Intake
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.sequences.identities import Batch, Work
from tests.learner.test_driver import GROUP, ScriptedLink, collector, rollout


class Tool:
    """Says the sum of what it is given; it is over once that is large."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, tokens: np.ndarray) -> tuple[list[int], bool]:
        self.asked.append(tokens.tolist())
        total = int(tokens.sum())
        return [total], total > 100


def question(*tokens: int, batch: int = 0, **changes: Any) -> m.Parked:
    fields = {"attempt": 0, "turn": 0, "runs": (), "logprobs": b"", **changes}
    work = Work(seed=0, batch=Batch(batch), prompt=0, sample=0)
    return m.Parked(work=work, tokens=m.pack_tokens(tokens), **fields)


def test_each_question_is_put_once_and_answered_each_time() -> None:
    said: list[m.Answer] = []
    tool = Tool()
    answers = Answers(Batch(0), Environment(turns=3, answer=tool), said.append)
    first, later = question(1, 2), question(1, 2, 3, 99, turn=1, runs=(2, 1, 1))
    for asked in (first, first, later, question(1, 2, batch=1), question(5, attempt=1)):
        answers.take(asked)
    assert tool.asked == [[1, 2], [1, 2, 3, 99], [5]]
    found = [(a.attempt, a.turn, m.unpack_tokens(a.tokens).tolist(), a.over) for a in said]
    assert found == [
        (0, 0, [3], False),
        (0, 0, [3], False),
        (0, 1, [105], True),
        (1, 0, [5], False),
    ]
    assert {a.work for a in said} == {first.work}
    assert answers.turns == 3


def test_without_an_environment_responses_have_one_turn() -> None:
    said: list[m.Answer] = []
    answers = Answers(Batch(0), None, said.append)
    answers.take(question(1))
    assert answers.turns == 1 and not said


def test_a_batch_is_answered_while_it_streams_in() -> None:
    said: list[m.Answer] = []
    answers = Answers(Batch(0), Environment(turns=2, answer=Tool()), said.append)
    link = ScriptedLink([question(4), *(rollout(0, place) for place in range(GROUP))])
    stream = StepStream(0, group_size=GROUP, micro_batches=MicroBatches(1, 1, True))
    stream.begin()
    drive(Intake(stream, collector(1), answers=answers), link, train=lambda index, groups: ())
    assert [m.unpack_tokens(a.tokens).tolist() for a in said] == [[4]]
