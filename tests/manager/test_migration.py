"""What becomes of a rollout's tokens when it moves."""

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone
from tests.manager.desk import Desk
from tests.manager.fakes import settings

A, B = 10, 11


@pytest.mark.parametrize("migration", [True, False])
@pytest.mark.parametrize("leave", ["killed", "released"])
def test_tokens_go_with_a_rollout_unless_that_is_switched_off(migration: bool, leave: str) -> None:
    desk = Desk(
        settings(
            deterministic=False,
            manager__window_initial_seconds=1e-9,
            manager__migration=migration,
        )
    )
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0)
    desk.begin(0)
    requests = desk.requests(A)
    desk.tokens(A, requests, 1)
    step = desk.manager.view.batch
    assert step is not None
    begun = {r.sample for r in step.rollouts if r.transcript.num_tokens and r.result is None}
    assert begun
    lost = step.books.lost
    desk.join(B, 0, slots=8)
    if leave == "killed":
        desk(ServerGone(A, "killed"))
    else:
        held = [r.placement.request_id for r in step.rollouts if r.placement.holder == "server-10"]
        desk.server(A, m.Released(request_ids=m.pack_ids(held)))
    moved = {r.work.sample: len(r.response_tokens) // 4 for r in desk.requests()}
    assert {sample: moved[sample] for sample in begun} == dict.fromkeys(begun, int(migration))
    assert step.books.lost - lost == (0 if migration else len(begun))
    kept = sum(rollout.transcript.num_tokens for rollout in step.rollouts)
    assert step.books.generated - step.books.lost == kept
