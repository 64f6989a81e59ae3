"""What a later sequence of a response begins with: its prompt, which the trainer gets with it."""

from rlboost_jax import messages as m
from tests.manager.desk import TRAINER
from tests.manager.fakes import STOP
from tests.manager.test_parked import A, parked, reply, say


def test_a_later_sequence_brings_its_prompt() -> None:
    desk = parked(turns=3)
    prompt = m.pack_tokens([1, 2])
    reply(desk, (), over=True, prompt=prompt)
    (first,) = desk.sent(m.FinishedRollout, TRAINER)
    (request,) = desk.requests(A)
    assert (request.work.sequence, request.prompt_tokens) == (1, prompt)
    say(desk, A, request, [8, STOP])
    reply(desk, (), over=True)
    (second,) = desk.sent(m.FinishedRollout, TRAINER)
    assert (first.work.sequence, first.last, first.prompt) == (0, False, b"")
    assert (second.work.sequence, second.last, second.prompt) == (1, True, prompt)
