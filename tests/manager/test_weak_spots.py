"""What broke the system that this one follows (its public code, W1 to W20), one test each.

Here are those that the manager decides. W10 is in tests/weights/test_pull.py, W12, W14 and W15
in tests/learner, W13 in tests/system/test_notices.py, W16 and W18 in test_driver.py, W17 in
tests/test_imports.py; `pytest -k test_w` runs them all.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import ServerGone, TrainerGone
from tests.manager.desk import RESERVED, TRAINER, Desk, seeded, trained
from tests.manager.fakes import VOCAB, batch, begin_batch, manifest, settings

A, B = 10, 11


def remote_only(**changes: Any) -> Desk:
    """Batch 0 at A, without a reserved engine."""
    desk = Desk(settings(deterministic=False, manager__window_initial_seconds=1e-9, **changes))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.join(A, 0)
    desk.begin(0)
    return desk


def work_to_the_end(desk: Desk, stream: int, requests: list[m.GenerateRequest]) -> None:
    """The holder of that stream finishes all that it is given."""
    step = desk.manager.view.batch
    assert step is not None
    while requests:
        desk.tokens(stream, requests)
        requests = desk.requests(stream)
    assert step.finished


def test_w01_a_step_without_any_instance_is_generated_all_the_same() -> None:
    desk = seeded(manager__progress_seconds=1e9)
    for second in range(3000):
        desk.now = float(second)
        desk.server(RESERVED, m.Renew())
    assert desk.manager.view.window_open, "for as long as nobody else is there"
    work_to_the_end(desk, RESERVED, _held(desk))
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert report.tokens_preemptible == 0 < report.tokens_reserved


def test_w02_a_truncated_stream_finishes_nothing() -> None:
    desk = remote_only()
    desk.tokens(A, desk.requests(A), 1)
    desk(ServerGone(A, "connection reset"))
    step = desk.manager.view.batch
    assert step is not None and not step.finished
    unfinished = [r for r in step.rollouts if r.result is None]
    assert unfinished and all(r.waiting for r in unfinished)
    desk.join(B, 0, slots=8)
    work_to_the_end(desk, B, desk.requests(B))


def test_w03_a_server_that_cannot_fetch_weights_stops_nobody() -> None:
    desk = seeded()
    desk.publish(0)
    desk.join(A)
    for _ in range(50):
        desk.server(A, m.WeightsRejected(version=0, reason="connection refused"))
    assert A not in desk.closed()
    work_to_the_end(desk, RESERVED, _held(desk))


def test_w04_a_server_that_never_gets_ready_stops_nobody() -> None:
    desk = seeded(manager__progress_seconds=1e9)
    desk.publish(0)
    desk.join(A)
    for second in range(1, 100):
        desk.now = second * 0.5
        desk.server(A, m.Renew())
        desk.server(RESERVED, m.Renew())
    assert desk.requests(A) == []
    work_to_the_end(desk, RESERVED, _held(desk))


def test_w05_a_failed_transfer_leaves_no_server_aside() -> None:
    desk = seeded()
    desk.publish(0)
    desk.join(A)
    desk.server(A, m.WeightsRejected(version=0, reason="a wrong digest"))
    desk.publish(1, "e")
    assert desk.sent(m.Announce, A)[0].manifest.version == 1
    desk.begin(1, "e")
    desk.server(A, m.Ready(version=1, params_digest="e"))
    assert desk.requests(A)


def test_w06_silence_is_noticed_within_the_lease() -> None:
    desk = remote_only()
    desk.tokens(A, desk.requests(A), 1)
    lease = desk.settings.manager.lease_seconds
    assert lease <= 2.0
    deadline = desk.manager.next_deadline()
    assert deadline is not None and deadline <= lease
    desk.tick(lease)
    assert A in desk.closed()


def test_w07_a_group_may_be_preempted_any_number_of_times() -> None:
    """The original gives up after five attempts."""
    desk = Desk(settings(deterministic=False, manager__window_initial_seconds=1e-9))
    desk.open_run(reserved=False)
    desk.publish(0)
    desk.begin(0)
    for attempt in range(40):
        stream = 100 + attempt
        desk.join(stream, 0)
        requests = desk.requests(stream)
        if attempt % 3 == 0 and requests:
            desk.tokens(stream, requests, 1)
        desk(ServerGone(stream, "killed"))
    desk.join(B, 0, slots=8)
    work_to_the_end(desk, B, desk.requests(B))


@pytest.mark.parametrize(
    "message",
    [
        batch(0, 0, [(1, [VOCAB])]),
        batch(5, 0, []),
        m.Released(request_ids=b"odd"),
        m.Released(request_ids=m.pack_ids([10**9])),
        m.Goodbye(reason="in the middle"),
    ],
    ids=["token", "sequence", "broken ids", "foreign ids", "goodbye"],
)
def test_w08_whatever_a_server_answers_the_manager_lives(message: m.ServerMessage) -> None:
    desk = remote_only()
    desk.tokens(A, desk.requests(A), 1)
    desk.server(A, message)
    desk(ServerGone(A, "gone"))  # between being chosen and being counted, as it were
    desk.join(B, 0, slots=8)
    work_to_the_end(desk, B, desk.requests(B))


def test_w09_a_manager_that_is_ahead_of_its_trainer_follows_it() -> None:
    """A trainer that was killed comes back from an older checkpoint."""
    desk = remote_only()
    desk.publish(7, "later")
    desk.server(A, m.Ready(version=7, params_digest="later"))
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id="run", window=None), stream=5)
    desk.trainer(m.Publish(manifest=manifest(3, "d")), stream=5)
    (announce,) = desk.sent(m.Announce, A)
    assert announce.manifest.version == 3
    desk.server(A, m.Ready(version=3, params_digest="d"))
    desk.trainer(begin_batch(3, 3, "d"), stream=5)
    (instance,) = desk.manager.view.roster
    desk.server(A, m.Released(request_ids=m.pack_ids(list(instance.held))))
    assert {r.version for r in desk.requests(A)} == {3}


def test_w09_a_manager_that_is_killed_loses_no_token() -> None:
    desk = remote_only()
    desk.tokens(A, desk.requests(A), 2)
    step = desk.manager.view.batch
    assert step is not None
    before = [r.transcript.num_tokens for r in step.rollouts]
    desk.crash(at=1.0)
    again = desk.manager.view.batch
    assert again is not None and [r.transcript.num_tokens for r in again.rollouts] == before


def test_w11_work_of_a_trainer_that_is_gone_is_taken_off_the_servers() -> None:
    desk = remote_only()
    held = [r.request_id for r in desk.requests(A)]
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id="run", window=None), stream=5)
    desk.trainer(begin_batch(0, 0, "other parameters"), stream=5)
    (release,) = desk.sent(m.Release, A)
    assert sorted(m.unpack_ids(release.request_ids).tolist()) == sorted(held)


def _shifted(request: m.GenerateRequest) -> m.TokenBatch:
    return batch(0, 0, [(request.request_id, [VOCAB + 3])])


def _improbable(request: m.GenerateRequest) -> m.TokenBatch:
    good = batch(0, 0, [(request.request_id, [4])])
    return m.TokenBatch(**{**_fields(good), "logprobs": m.pack_logprobs([0.5])})


def _not_a_number(request: m.GenerateRequest) -> m.TokenBatch:
    good = batch(0, 0, [(request.request_id, [4])])
    return m.TokenBatch(**{**_fields(good), "logprobs": m.pack_logprobs([float("nan")])})


def _uncounted(request: m.GenerateRequest) -> m.TokenBatch:
    good = batch(0, 0, [(request.request_id, [4, 5])])
    return m.TokenBatch(**{**_fields(good), "counts": m.pack_counts([1])})


@pytest.mark.parametrize("lie", [_shifted, _improbable, _not_a_number, _uncounted])
def test_w19_what_a_server_says_is_checked(
    lie: Callable[[m.GenerateRequest], m.TokenBatch],
) -> None:
    desk = remote_only()
    request = desk.requests(A)[0]
    desk.server(A, lie(request))
    assert "malformed" in desk.closed()[A]
    step = desk.manager.view.batch
    assert step is not None and not any(r.transcript.num_tokens for r in step.rollouts)


def test_w19_tokens_of_another_version_and_past_the_end_are_not_taken() -> None:
    desk = remote_only()
    request = desk.requests(A)[0]
    desk.server(A, batch(0, 9, [(request.request_id, [4, 5])]))
    step = desk.manager.view.batch
    assert step is not None and not any(r.transcript.num_tokens for r in step.rollouts)
    limit = request.sampling.max_tokens
    desk.server(A, batch(1, 0, [(request.request_id, [4] * (limit + 5))]))
    rollout = step.rollout_of(request.work.sample)
    assert (
        rollout is not None
        and rollout.transcript.num_tokens == limit
        and rollout.result is not None
    )
    assert step.books.lost == 2 + 5


def _held(desk: Desk) -> list[m.GenerateRequest]:
    (reserved,) = [i for i in desk.manager.view.roster if i.reserved]
    return [r.request() for r in reserved.held.values()]


def _fields(message: m.TokenBatch) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
