"""Steps that grow: more prompts of the same kind, and prompts that measure the policy."""

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import TrainerGone
from rlboost_jax.manager.reducer import batch_checks
from rlboost_jax.sequences.identities import MOST_TRAINED, Purpose
from tests.manager.desk import TRAINER, Desk, at_work, trained
from tests.manager.fakes import RUN, begin_batch, ready

A, B = 10, 11
TRAINING = begin_batch(0, 0, "d").sampling
GREEDY = msgspec.structs.replace(TRAINING, temperature=0.0)


FIRST_EVALUATED = 2 * MOST_TRAINED  # sample, in groups of two


def extension(
    *prompts: int, step: int = 0, purpose: Purpose = "train", **changes: object
) -> m.ExtendBatch:
    requests = tuple(
        m.PromptRequest(prompt=p, tokens=m.pack_tokens([p, step, 1]), purpose=purpose)
        for p in prompts
    )
    return m.ExtendBatch(batch=step, prompts=requests, **changes)  # type: ignore[arg-type]


def roomy(**changes: object) -> tuple[Desk, list[m.GenerateRequest]]:
    """Two prompts of two responses each, all held by A, which has room for many more."""
    return at_work(A, **{"manager__max_pending": 100} | changes)


def finished(desk: Desk) -> list[int]:
    return [r.work.sample for r in desk.sent(m.FinishedRollout)]


def test_what_a_step_is_extended_by_is_generated_and_delivered() -> None:
    desk, requests = roomy()
    desk.tokens(A, requests)
    assert finished(desk) == [0, 1, 2, 3]
    desk.trainer(extension(2, 3))
    more = desk.requests(A)
    assert [(r.work.prompt, r.work.sample) for r in more] == [(2, 4), (2, 5), (3, 6), (3, 7)]
    desk.tokens(A, more)
    assert finished(desk) == [4, 5, 6, 7]
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert report.tokens_delivered == report.tokens_generated and report.tokens_lost == 0


def test_some_responses_with_another_sampling() -> None:
    desk, requests = roomy()
    desk.trainer(extension(5, purpose="evaluate", samples=1, sampling=GREEDY))
    (request,) = desk.requests(A)
    assert (request.work.sample, request.sampling) == (FIRST_EVALUATED + 10, GREEDY)
    assert requests[0].sampling.temperature == 1.0
    desk.tokens(A, [*requests, request])
    assert finished(desk) == [0, 1, 2, 3, FIRST_EVALUATED + 10]
    own = {r.work.sample: len(r.tokens) // 4 for r in desk.sent(m.FinishedRollout)}
    measured = own.pop(FIRST_EVALUATED + 10)
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert report.tokens_measured == measured
    assert report.tokens_delivered == report.tokens_generated == sum(own.values())
    assert report.tokens_preemptible == sum(own.values()) and report.tokens_reserved == 0


def test_each_response_ends_by_its_own_limit() -> None:
    """The whole response would have more tokens; what comes after the limit is lost."""
    desk, _ = roomy()
    short = msgspec.structs.replace(GREEDY, max_tokens=1)
    desk.trainer(extension(5, purpose="evaluate", samples=1, sampling=short))
    (request,) = desk.requests(A)
    desk.tokens(A, [request])
    (result,) = desk.sent(m.FinishedRollout)
    assert len(result.tokens) == 4


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("sampling", [None, GREEDY, TRAINING])
def test_measuring_does_not_move_the_window(sampling: m.Sampling | None, ends: bool) -> None:
    """Nor is it trained on, though it may be sampled as what is; whether or not all of it has
    ended when the step has."""
    desk, requests = roomy()
    before = desk.manager.view.window.seconds
    purpose: Purpose = "train" if sampling is None else "evaluate"
    desk.trainer(extension(5, purpose=purpose, samples=1, sampling=sampling))
    (extra,) = desk.requests(A)
    desk.now = 2.0
    desk.tokens(A, requests)
    desk.tokens(A, [extra], 99 if ends else 1)
    desk.now = 3.0
    desk.trainer(trained(0))
    assert (desk.manager.view.window.seconds == before) is (sampling is not None)
    (report,) = desk.sent(m.BatchReport)
    assert (report.tokens_measured > 0) is (ends and sampling is not None)


def test_a_group_may_be_asked_for_bit_by_bit() -> None:
    """Each response of it is delivered once, and only when it was asked for."""
    desk, requests = roomy()
    desk.trainer(extension(5, samples=1))
    (first,) = desk.requests(A)
    desk.tokens(A, [*requests, first])
    assert finished(desk) == [0, 1, 2, 3, 10]
    desk.trainer(extension(5))
    (second,) = desk.requests(A)
    assert second.work.sample == 11 and finished(desk) == []
    desk.tokens(A, [second])
    assert finished(desk) == [11]
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=3)
    desk.trainer(begin_batch(0, 0, "d", prompts=2), stream=3)
    assert finished(desk) == [0, 1, 2, 3]
    desk.trainer(extension(5, samples=1), stream=3)
    assert finished(desk) == [10]


def test_what_is_not_finished_when_the_step_is_trained_is_abandoned() -> None:
    desk, requests = roomy()
    desk.trainer(extension(2))
    extra = desk.requests(A)
    desk.tokens(A, requests)
    desk.tokens(A, extra, 1)
    given = len(desk.sent(m.FinishedRollout))
    desk.trainer(trained(0))
    (release,) = desk.sent(m.Release, A)
    left = [r.request_id for r in extra][given:]
    assert m.unpack_ids(release.request_ids).tolist() == left
    (report,) = desk.sent(m.BatchReport)
    assert report.tokens_lost == len(left)
    assert report.tokens_generated == report.tokens_delivered + report.tokens_lost
    desk.server(A, m.Released(request_ids=release.request_ids))
    assert desk.manager.view.batches[0].finished, "the rest is kept until it is committed"


@pytest.mark.parametrize("crash", [False, True])
def test_a_trainer_that_returns_gets_what_it_asks_for_again_and_nothing_else(crash: bool) -> None:
    """Whether or not the manager was killed as well; after the step was trained, too."""
    desk, requests = roomy()
    desk.trainer(extension(2, 3))
    extra = desk.requests(A)
    desk.tokens(A, [*requests, *extra[:2]])
    desk.trainer(trained(0))
    desk(TrainerGone(TRAINER, "killed"))
    if crash:
        desk.crash(at=1.0)
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=3)
    desk.trainer(begin_batch(0, 0, "d", prompts=2), stream=3)
    assert finished(desk) == [0, 1, 2, 3]
    desk.trainer(extension(2, 3), stream=3)
    assert finished(desk) == [4, 5]
    sent = {r.work.sample for r in desk.requests(A)}
    desk.trainer(extension(2, 3), stream=3)
    assert finished(desk) == []
    waiting = {r.sample for r in desk.manager.view.batches[0].waiting()}
    assert (sent, waiting) == ((set(), {6, 7}) if crash else ({6, 7}, set()))
    assert not desk.manager.view.batches[0].finished


def test_what_an_earlier_trainer_asked_for_is_not_said_unasked() -> None:
    desk, requests = roomy()
    desk.trainer(extension(2))
    extra = desk.requests(A)
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=3)
    desk.trainer(begin_batch(0, 0, "d", prompts=2), stream=3)
    desk.tokens(A, [*requests, *extra])
    assert finished(desk) == [0, 1, 2, 3]
    desk.trainer(extension(2), stream=3)
    assert finished(desk) == [4, 5]


def test_a_manager_that_was_killed_knows_of_the_extension() -> None:
    desk, _ = roomy()
    desk.trainer(extension(3, purpose="evaluate", samples=1, sampling=GREEDY))
    (extra,) = desk.requests(A)
    desk.tokens(A, [extra], 1)
    desk.crash(at=1.0)
    desk.open_run()
    desk.publish(0)
    desk.begin(0, prompts=2)
    desk.join(B)
    desk.server(B, ready(0))
    again = {r.work.sample: r for r in desk.requests(B)}
    number = FIRST_EVALUATED + 6
    assert sorted(again) == [0, 1, 2, 3, number]
    assert again[number].sampling == GREEDY and len(again[number].response_tokens) == 4
    assert again[number].work.purpose == "evaluate"


def test_a_prompt_to_measure_by_is_none_of_the_batch_s_own() -> None:
    """Whatever its number, and even if it is sampled in the same way."""
    desk, requests = roomy()
    desk.trainer(extension(1, purpose="evaluate", samples=1))
    (extra,) = desk.requests(A)
    assert (extra.work.purpose, extra.work.prompt) == ("evaluate", 1)
    desk.tokens(A, [*requests, extra])
    results = desk.sent(m.FinishedRollout)
    assert [r.work.purpose for r in results] == ["train"] * 4 + ["evaluate"]
    assert [r.work.prompt for r in results] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (extension(2, step=1), "batch 1 is extended but is not being worked on"),
        (extension(2, samples=3), "extended by 3 responses to a prompt; its groups have 2"),
        (extension(2, 2), "names a prompt twice"),
        (extension(1, sampling=GREEDY), "has a prompt 1 already, and it is another"),
        (extension(1, sampling=GREEDY), "sampled in another way"),
        (
            extension(2, sampling=msgspec.structs.replace(GREEDY, max_tokens=99)),
            "does not fit a slot",
        ),
        (
            m.ExtendBatch(batch=0, prompts=(m.PromptRequest(prompt=2, tokens=b""),)),
            "prompt 2 of batch 0 has no tokens",
        ),
    ],
)
def test_an_impossible_extension_is_refused(message: m.ExtendBatch, reason: str) -> None:
    desk, _ = roomy()
    desk.trainer(message)
    (refused,) = desk.sent(m.RequestRefused)
    assert reason in refused.reason
    assert len(desk.manager.view.batches[0].rollouts) == 4


def test_a_trainer_extends_what_it_has_begun() -> None:
    desk, _ = roomy()
    desk(TrainerGone(TRAINER, "killed"))
    desk.trainer(m.TrainerHello(run_id=RUN, window=None), stream=3)
    desk.trainer(extension(2), stream=3)
    assert desk.sent(m.RequestRefused)


def test_too_many_responses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_checks, "MAX_ROLLOUTS", 6)
    desk, _ = roomy()
    desk.trainer(extension(2, samples=1))
    desk.trainer(extension(2))
    assert not desk.sent(m.RequestRefused)
    desk.trainer(extension(3))
    (refused,) = desk.sent(m.RequestRefused)
    assert "asks for 8 responses; the limit is 6" in refused.reason
