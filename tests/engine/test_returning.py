"""Sequences in turns on real engines, sent where the manager sends them: what is run again."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.engine.engine import Engine
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import Rollout
from tests.manager.desk import Desk
from tests.manager.fakes import begin_batch, settings
from tests.planted import Plant

pytestmark = pytest.mark.optimized(False)

TURN, GIVEN, MOST, PROMPT = 12, (3, 4, 5), 96, 4
SLOT = PROMPT + MOST + len(GIVEN) * MOST // TURN
ROUND_SECONDS, ANSWER_SECONDS = 0.05, 0.3  # a tool takes as long as two turns


class Counted:
    """An engine as its server has it, and the tokens that it has prefilled."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.sequence, self.prefilled = engine, 0, 0
        scheduler, plan = engine._scheduler, engine._scheduler.plan

        def counted() -> Any:
            made = plan()
            if made is not None and made.mixed:
                self.prefilled += sum(w.count - (w.budget > 0) for w in made.work)
            return made

        scheduler.plan = counted  # type: ignore[method-assign]

    def restore(self) -> None:
        del self.engine._scheduler.plan

    def batch(self, rows: Any = None) -> m.TokenBatch:
        number, self.sequence = self.sequence, self.sequence + 1
        held = len(self.engine.held())
        slots = min(held, self.engine.layout.slots)
        return m.TokenBatch(
            sequence=number,
            version=m.Version(1),
            request_ids=b"" if rows is None else m.pack_ids(rows.request_ids),
            counts=b"" if rows is None else m.pack_counts(rows.counts),
            tokens=b"" if rows is None else m.pack_tokens(rows.tokens),
            logprobs=b"" if rows is None else m.pack_logprobs(rows.logprobs),
            in_flight=8 * slots,
            running=slots,
            waiting=held - slots,
            prefilled_again=0,
        )


def played(engines: Sequence[Engine], sequences: int) -> tuple[int, int, float, float]:
    """All sequences to their ends.

    Returns:
        Tokens that were prefilled, those of a run that knew all that was there, the share of
        slots in use before the last began, and the share that went back.
    """
    quick = {"deterministic": False, "manager__window_initial_seconds": 1e-9}
    lasting = {"manager__lease_seconds": 1e6, "manager__progress_seconds": 1e6}
    slots = engines[0].layout.slots
    desk = Desk(settings(**quick, **lasting, vocab_size=37, slot_tokens=SLOT, slots=slots))
    servers = {10 + n: Counted(engine) for n, engine in enumerate(engines)}
    desk.open_run(reserved=False)
    desk.publish(1)
    pages = engines[0].layout.num_pages * engines[0].layout.page_size
    for stream in servers:
        desk.join(stream, 1, slot_tokens=SLOT, nonce=str(stream), slots=slots, cache_tokens=pages)
    begin = begin_batch(1, 1, "d", prompts=sequences, group_size=1, turns=99, turn_tokens=TURN)
    sampling = m.Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_tokens=MOST, stop_ids=(), turn_tokens=TURN
    )
    prompts = tuple(
        m.PromptRequest(prompt=p, tokens=m.pack_tokens([p % 37, 1, 2, p % 7]))
        for p in range(sequences)
    )
    fields = {f: getattr(begin, f) for f in begin.__struct_fields__}
    desk.trainer(m.BeginBatch(**{**fields, "prompts": prompts, "sampling": sampling}))
    due: list[tuple[float, int, m.Answer]] = []
    order, least, used, rounds = itertools.count(), 0, 0, 0
    released: list[tuple[int, m.Released]] = []

    def act(actions: Sequence[Any]) -> None:
        nonlocal least
        for action in actions:
            match getattr(action, "message", None):
                case m.Generate(requests=requests):
                    servers[action.stream].engine.submit(requests)
                    for r in requests:  # what nobody has run: a prompt, or what was given
                        least += PROMPT if not r.response_tokens else len(GIVEN)
                case m.Release(request_ids=ids):
                    gone = m.pack_ids(
                        servers[action.stream].engine.release(m.unpack_ids(ids).tolist())
                    )
                    released.append((action.stream, m.Released(request_ids=gone)))
                case m.Parked() as question:
                    reply = m.Answer(
                        work=question.work,
                        attempt=question.attempt,
                        turn=question.turn,
                        tokens=m.pack_tokens(GIVEN),
                        over=False,
                    )
                    heapq.heappush(due, (desk.now + ANSWER_SECONDS, next(order), reply))

    act(desk.actions)
    step = desk.manager.view.batches[m.Batch(1)]
    while not step.finished:
        desk.now += ROUND_SECONDS
        while due and due[0][0] <= desk.now:
            act(desk.trainer(heapq.heappop(due)[2]))
        for stream, server in servers.items():
            if server.engine.begin():
                act(desk.server(stream, server.batch(server.engine.finish())))
        while released:
            act(desk.server(*released.pop()))
        if step.num_finished == 0:
            rounds += 1
            used += sum(min(slots, len(s.engine.held())) for s in servers.values())
    prefilled = sum(server.prefilled for server in servers.values())
    for server in servers.values():
        server.restore()
    books = step.books
    return prefilled, least, used / (rounds * slots * len(servers)), books.returned / books.resumed


def test_going_back_spares_what_is_there(build_engine: Callable[..., Engine], plant: Plant) -> None:
    """Two engines with pages for all sequences, 2.5 sequences a slot. At least four fifths of what
    they had there are not run again. Sent by load alone, half of the times they
    come to the other engine, which has only what they left there before."""
    engines = [build_engine(slots=4, slot_tokens=SLOT, num_pages=500 + n) for n in range(2)]
    sequences = 20
    found = played(engines, sequences)

    def never(
        self: RolloutDispatch, rollout: Rollout, home: Instance, there: Sequence[Instance]
    ) -> bool:
        return False

    plant(RolloutDispatch, "_goes_back", never)
    for engine in engines:
        engine._scheduler.prefixes.forget()
    other = played(engines, sequences)
    turns = MOST // TURN
    known = [PROMPT + TURN * (k + 1) + len(GIVEN) * k for k in range(turns - 1)]
    again = sequences * int(np.sum(known))  # if nothing was found again
    wasted, wasted_by_load = (p - least for p, least, _, _ in (found, other))
    assert 1 - wasted / again >= 0.8
    assert wasted <= wasted_by_load / 2
    assert found[2] >= 0.9 and found[3] >= 0.9 > other[3]
