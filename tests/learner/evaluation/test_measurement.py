"""What is asked for, and what becomes of the answers, whatever their order."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.data.exercises import MixtureSource
from rlboost_jax.data.tasks import Task, get_task
from rlboost_jax.engine.requests import EngineLimits, RequestRejected, check_request
from rlboost_jax.learner.episodes.collector import WrongVersion
from rlboost_jax.learner.evaluation.measurement import Measurement
from rlboost_jax.learner.step_metrics import score_metrics
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.sequences.identities import Work, sample_number
from rlboost_jax.settings.for_servers import for_servers


@pytest.fixture
def task(config) -> Task:
    return get_task(config.task)


def measure(config, task, *, prompts: int, samples: int, group_size: int) -> Measurement:
    settings = replace(config.evaluation, samples=samples, temperature=0.5 if samples > 1 else 0.0)
    heldout = task.heldout(seed=0, count=prompts)
    return Measurement(task, heldout, settings, step=3, max_tokens=24, group_size=group_size)


def finished(measurement: Measurement, group_size: int) -> list[tuple[int, int]]:
    """(prompt, sample) of all that it asks for, as the manager numbers them."""
    return [
        (
            prompt.prompt,
            sample_number(prompt.prompt, place, group_size=group_size, purpose="evaluate"),
        )
        for prompts, samples in measurement.parts()
        for prompt in prompts
        for place in range(samples)
    ]


def rollout(prompt: int, sample: int, tokens) -> m.FinishedRollout:
    return m.FinishedRollout(
        work=Work(seed=0, batch=3, purpose="evaluate", prompt=prompt, sample=sample),
        tokens=m.pack_tokens(tokens), logprobs=b"",
        versions=((3, len(tokens)),), instances=("a",),
    )  # fmt: skip


def test_one_greedy_response_to_each(config, task):
    measurement = measure(config, task, prompts=5, samples=1, group_size=8)
    (extension,) = measurement.extensions()
    assert (extension.batch, extension.samples) == (3, 1)
    assert extension.sampling == m.Sampling(
        temperature=0.0, top_p=1.0, top_k=0, max_tokens=24, stop_ids=task.stop_ids
    )
    asked = [m.unpack_tokens(prompt.tokens).tolist() for prompt in extension.prompts]
    assert asked == [prompt.tokens.tolist() for prompt in task.heldout(seed=0, count=5)]
    assert [prompt.prompt for prompt in extension.prompts] == list(range(5))
    assert {prompt.purpose for prompt in extension.prompts} == {"evaluate"}


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (1.0, 20), (0.5, 3), (1.0, 1), (1e-6, 0)])
def test_what_is_measured_is_cut_by_its_own_settings(config, task, top_p, top_k):
    """Wherever its tokens are sampled, an engine is built for it, with other settings than
    training's."""
    settings = replace(config.evaluation, temperature=0.7, top_p=top_p, top_k=top_k)
    run = replace(config, evaluation=settings)
    measurement = Measurement(
        task, task.heldout(seed=0, count=1), settings, step=3, max_tokens=24, group_size=8
    )
    (extension,) = measurement.extensions()
    assert extension.sampling == measurement.sampling
    assert (measurement.sampling.top_p, measurement.sampling.top_k) == (top_p, top_k)
    assert not run.sampling.truncated and run.truncated_sampling
    assert for_servers(run).truncated_sampling
    request = m.GenerateRequest(
        work=Work(seed=0, batch=3, purpose="evaluate", prompt=0, sample=0),
        request_id=1,
        version=3,
        prompt_tokens=m.pack_tokens([1, 2]),
        response_tokens=b"",
        sampling=measurement.sampling,
    )
    check_request(request, limits_of(for_servers(run)), version=3)
    with pytest.raises(RequestRejected, match="or those of evaluation"):
        check_request(request, limits_of(for_servers(config)), version=3)


def limits_of(run) -> EngineLimits:
    """Limits of the engine that a server makes for a run."""
    made: list[dict[str, object]] = []

    def build(*_, **options):
        made.append(options)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        engine_of(run, build=build)
    return EngineLimits(
        vocab_size=run.model.vocab_size,
        slot_tokens=run.slot_tokens,
        truncated_sampling=made[0]["truncated_sampling"],
    )


@pytest.mark.parametrize(
    ("samples", "sizes"), [(3, [3]), (4, [4]), (6, [4, 2]), (8, [4]), (9, [4, 1])]
)
def test_more_responses_than_a_group_has_go_under_several_prompts(config, task, samples, sizes):
    """Groups of four: every prompt gets just its number, and no sample is asked for twice."""
    measurement = measure(config, task, prompts=3, samples=samples, group_size=4)
    assert [extension.samples for extension in measurement.extensions()] == sizes
    asked = finished(measurement, 4)
    assert len(set(asked)) == len(asked) == 3 * samples
    tokens = [(prompt.tokens, size) for prompts, size in measurement.parts() for prompt in prompts]
    for heldout in task.heldout(seed=0, count=3):
        mine = m.pack_tokens(heldout.tokens)
        assert sum(size for theirs, size in tokens if theirs == mine) == samples


@pytest.mark.parametrize("samples", [1, 6])
def test_the_score_does_not_depend_on_who_is_first(config, task, samples):
    """Prompt p is answered rightly p times of six, or where there is one response, if p is odd."""
    measurement = measure(config, task, prompts=4, samples=samples, group_size=4)
    heldout = task.heldout(seed=0, count=4)
    chunks = -(-samples // 4)
    seen: dict[int, int] = {}
    rollouts = []
    for prompt, sample in sorted(finished(measurement, 4)):
        place = prompt // chunks
        number = seen[place] = seen.get(place, -1) + 1
        right = place % 2 == 1 if samples == 1 else number < place
        answer = task.worked_answer(heldout[place].problem)
        rollouts.append(rollout(prompt, sample, answer if right else answer[:-1]))
    random.Random(5).shuffle(rollouts)
    for each in rollouts:
        assert not measurement.complete
        assert measurement.take(each)
        assert measurement.take(each), "again: it is known, and counts once"
    score = measurement.score()
    if samples == 1:
        assert (score.accuracy, score.best) == (0.5, 0.5)
    else:
        assert (score.accuracy, score.best) == ((0 + 1 + 2 + 3) / 24, 3 / 4)
    assert (score.prompts, score.samples) == (4, samples)
    lengths = [len(m.unpack_tokens(each.tokens)) for each in rollouts]
    assert score.response_length_mean == pytest.approx(np.mean(lengths))


def test_responses_of_the_step_itself_are_none_of_its_business(config, task):
    measurement = measure(config, task, prompts=2, samples=1, group_size=4)
    for prompt, sample in finished(measurement, 4):
        asked_for = rollout(prompt, sample, [1])
        trained = msgspec.structs.replace(asked_for.work, purpose="train")
        assert not measurement.take(msgspec.structs.replace(asked_for, work=trained))
    with pytest.raises(ValueError, match="0 of 2 responses are here"):
        measurement.score()


def test_what_was_not_asked_for_counts_for_nothing(config, task):
    """Another step's, or a sample that its prompt does not have."""
    measurement = measure(config, task, prompts=2, samples=1, group_size=4)
    (prompt, sample), (other, _) = finished(measurement, 4)
    asked_for = rollout(prompt, sample, [1])
    earlier = msgspec.structs.replace(asked_for.work, batch=2)
    assert not measurement.take(msgspec.structs.replace(asked_for, work=earlier))
    assert not measurement.take(rollout(prompt, sample + 1, [1])), "one response to each"
    assert not measurement.take(rollout(other, sample, [1])), "of another prompt"
    with pytest.raises(ValueError, match="0 of 2 responses are here"):
        measurement.score()


def test_a_response_of_another_version_ends_the_run(config, task):
    measurement = measure(config, task, prompts=1, samples=1, group_size=4)
    ((prompt, sample),) = finished(measurement, 4)
    stale = msgspec.structs.replace(rollout(prompt, sample, [1, 1]), versions=((3, 1), (2, 1)))
    with pytest.raises(WrongVersion, match=r"step 3, .*versions \[2, 3\], expected 3 only"):
        measurement.take(stale)


def test_what_is_withdrawn_is_waited_for_again(config, task):
    measurement = measure(config, task, prompts=2, samples=1, group_size=4)
    first, second = finished(measurement, 4)
    lies = [rollout(*place, [1]) for place in (first, second)]
    for lie in lies:
        measurement.take(lie)
    assert measurement.complete
    withdrawn = m.ResponsesWithdrawn(batch=3, samples=m.pack_ids([first[1], 7]))
    measurement.withdraw(msgspec.structs.replace(withdrawn, batch=2))
    assert measurement.complete, "of another step"
    measurement.withdraw(withdrawn)
    assert not measurement.complete
    answer = task.worked_answer(task.heldout(seed=0, count=2)[0].problem)
    measurement.take(msgspec.structs.replace(rollout(*first, answer), attempt=1))
    measurement.take(lies[0])  # of a stream that was cut off before
    assert measurement.score().accuracy == 0.5
    assert measurement.score().response_length_mean == (len(answer) + 1) / 2


def test_a_manager_that_lost_its_journal_is_not_waited_for_for_ever(config, task):
    """It has withdrawn a response, and knows nothing of that: its attempts begin at 0 again."""
    measurement = measure(config, task, prompts=1, samples=1, group_size=4)
    (place,) = finished(measurement, 4)
    measurement.take(msgspec.structs.replace(rollout(*place, [1]), attempt=2))
    measurement.withdraw(m.ResponsesWithdrawn(batch=3, samples=m.pack_ids([place[1]])))
    assert not measurement.complete
    answer = task.worked_answer(task.heldout(seed=0, count=1)[0].problem)
    measurement.take(rollout(*place, answer))
    assert measurement.complete and measurement.score().accuracy == 1.0


def test_rewards_that_failed_are_counted(config, task):
    class Failing(Task):
        def ask(self, prompt, response_tokens):
            verdict = super().ask(prompt, response_tokens).result()
            faults = {"own": "it raised"} if len(response_tokens) == 1 else {}
            return at_once(replace(verdict, faults=faults))

    measurement = measure(config, Failing(config.task), prompts=3, samples=1, group_size=4)
    for number, (prompt, sample) in enumerate(finished(measurement, 4)):
        measurement.take(rollout(prompt, sample, [1] * (1 + number)))
    assert measurement.score().failures == 1


def test_a_length_is_of_sampled_tokens(config, task):
    measurement = measure(config, task, prompts=1, samples=1, group_size=4)
    ((prompt, sample),) = finished(measurement, 4)
    turns = msgspec.structs.replace(rollout(prompt, sample, [1] * 9), runs=(2, 5, 2))
    measurement.take(msgspec.structs.replace(turns, versions=((3, 4),)))
    assert measurement.score().response_length_mean == 4


@pytest.mark.parametrize("samples", [1, 3])
def test_what_compares_responses_sees_all_to_a_held_out_prompt(config, task, samples):
    """In sample order, over two prompts of the step; a part that comes again is compared anew."""
    asked = []

    class Comparing(Task):
        def ask_group(self, prompt, responses, alone):
            lengths = [len(response) for response in responses]
            asked.append(lengths)
            found = [
                replace(a.result(), accuracy=n / sum(lengths))
                for a, n in zip(alone, lengths, strict=True)
            ]
            return at_once(tuple(found))

    comparing = Comparing(config.task)
    comparing.ask_group = Comparing.ask_group.__get__(comparing)
    measurement = measure(config, comparing, prompts=2, samples=samples, group_size=2)
    places = sorted(finished(measurement, 2))
    for number, (prompt, sample) in reversed(list(enumerate(places))):
        measurement.take(rollout(prompt, sample, [1] * (1 + number)))
    assert asked == ([[4, 5, 6], [1, 2, 3]] if samples == 3 else [[2], [1]])
    assert measurement.score().best == pytest.approx((6 / 15 + 3 / 6) / 2 if samples == 3 else 1.0)
    withdrawn = m.ResponsesWithdrawn(batch=3, samples=m.pack_ids([places[0][1]]))
    measurement.withdraw(withdrawn)
    again = msgspec.structs.replace(rollout(*places[0], [1] * 7), attempt=1)
    measurement.take(again)
    assert asked[2:] == ([[7, 2, 3]] if samples == 3 else [[7]])
    assert measurement.score().accuracy == pytest.approx(1 / samples)


def parts(first, second, *, attempt=0):
    """One response in two sequences."""
    prompt, sample = first
    made = rollout(prompt, sample, [1] * second)
    work = msgspec.structs.replace(made.work, sequence=1)
    later = msgspec.structs.replace(made, work=work, prompt=m.pack_tokens([5]), attempt=attempt)
    first = msgspec.structs.replace(rollout(prompt, sample, [1]), last=False)
    return first, later


def test_a_response_of_several_sequences_counts_once_it_is_whole(config, task):
    """As it was generated last, whatever of it comes again. Sequences that nobody had to make
    anew keep their attempt."""
    seen = []

    def judge(prompt, episode):
        seen.append((episode.work.sequence, episode.attempts, episode.response.tolist()))
        return task.ask(prompt, episode.response)

    heldout = task.heldout(seed=0, count=1)
    measurement = Measurement(
        task, heldout, config.evaluation, step=3, max_tokens=24, group_size=4, judge=judge
    )
    (place,) = finished(measurement, 4)
    first, second = parts(place, 2)
    measurement.take(second)
    measurement.take(first)
    assert not measurement.complete, "the second was of something else"
    measurement.take(second)
    assert measurement.complete
    measurement.withdraw(m.ResponsesWithdrawn(batch=3, samples=m.pack_ids([place[1]])))
    for true in parts(place, 4, attempt=1):
        measurement.take(true)
    assert seen == [(0, (0, 0), [1, 1, 1]), (0, (0, 1), [1, 1, 1, 1, 1])]
    assert measurement.score().response_length_mean == 5


def test_each_response_is_looked_at_once_as_it_was_generated_last(config, task):
    """Three at a time, and the rest when all are here. What is withdrawn or disputed comes again,
    and is looked at again."""
    heldout = task.heldout(seed=0, count=4)
    measurement = Measurement(
        task, heldout, config.evaluation, step=3, max_tokens=24, group_size=4, check_size=3
    )
    places = finished(measurement, 4)
    samples = [sample for _, sample in places]

    def take(place, length=2):
        said = rollout(*places[place], [1] * length)
        logprobs = m.pack_logprobs([-0.5] * length)
        assert measurement.take(msgspec.structs.replace(said, logprobs=logprobs))

    for place in (2, 0):
        take(place)
        assert not measurement.check_due
    measurement.withdraw(m.ResponsesWithdrawn(batch=3, samples=m.pack_ids(samples[2:3])))
    take(3)
    assert not measurement.check_due
    take(2, 5)
    assert measurement.check_due and not measurement.complete
    looked = measurement.take_unchecked().trajectories
    assert [(t.sample, t.batch, t.num_sampled) for t in looked] == [
        (samples[0], 3, 2),
        (samples[2], 3, 5),
        (samples[3], 3, 2),
    ]
    assert all((t.logprobs == -0.5).all() for t in looked)
    np.testing.assert_array_equal(looked[0].sequence.prompt, heldout[0].tokens)
    measurement.reject([samples[3]])
    assert not measurement.check_due
    take(1)
    assert not measurement.check_due and not measurement.complete
    take(3)
    assert measurement.complete and measurement.check_due
    again = measurement.take_unchecked().trajectories
    assert [t.sample for t in again] == [samples[1], samples[3]]
    assert not measurement.check_due


def test_what_was_left_out_counts_in_no_score(config, task):
    class Losing(Task):
        """The environments of odd samples fail."""

        def ask(self, prompt, response_tokens):
            verdict = super().ask(prompt, response_tokens).result()
            lost = "gone" if len(response_tokens) % 2 else ""
            return at_once(replace(verdict, accuracy=1.0 if lost else 0.5, left_out=lost))

    losing = Losing(config.task)
    measurement = measure(config, losing, prompts=3, samples=2, group_size=4)
    for (prompt, sample), length in zip(
        sorted(finished(measurement, 4)), (2, 2, 1, 2, 1, 1), strict=True
    ):
        measurement.take(rollout(prompt, sample, [1] * length))
    score = measurement.score()
    assert (score.accuracy, score.best, score.left_out) == (0.5, 0.5, 3)
    nothing = measure(config, losing, prompts=1, samples=1, group_size=4)
    ((prompt, sample),) = finished(nothing, 4)
    nothing.take(rollout(prompt, sample, [1]))
    assert np.isnan(nothing.score().accuracy) and np.isnan(nothing.score().best)


@pytest.mark.parametrize(
    ("said", "accuracy", "best"),
    [
        ((1.0, None, 0.0, None), 0.5, 0.5),
        ((None, None, 1.0, 0.0), 0.5, 1.0),
        ((None, 0.25, None, 0.75), 0.5, 0.5),
        ((0.0, 0.0, None, None), 0.0, 0.0),
        ((None, None, None, None), None, None),
    ],
)
def test_a_response_without_an_accuracy_is_in_no_mean(config, task, said, accuracy, best):
    """Two prompts of two responses each; nothing said is not 0, and nothing at all is null."""
    asked = iter(said)

    class Silent(Task):
        def ask(self, prompt, response_tokens):
            return at_once(Verdict(reward=7.0, accuracy=next(asked)))

    measurement = measure(config, Silent(config.task), prompts=2, samples=2, group_size=4)
    for prompt, sample in finished(measurement, 4):
        measurement.take(rollout(prompt, sample, [1]))
    score = measurement.score()
    row = metrics_row({"step": 0, **score_metrics(score)})
    assert (row["accuracy"], row["pass_at_k"], score.left_out) == (accuracy, best, 0)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (0.5, 2.0)])
def test_each_data_set_of_a_mixture_has_a_score_and_the_mean_is_by_weight(
    config, task, weights, samples
):
    """Whatever the number of prompts that each has: 2 and 4 here."""

    class Long(Task):
        """Right is what has more than one token."""

        def ask(self, prompt, response_tokens):
            right = float(len(response_tokens) > 1)
            return at_once(replace(super().ask(prompt, response_tokens).result(), accuracy=right))

    sources = [MixtureSource(name, weight) for name, weight in zip("ab", weights, strict=True)]
    of = [sources[0]] * 2 + [sources[1]] * 4
    prompts = [
        replace(prompt, source=source)
        for prompt, source in zip(task.heldout(seed=0, count=6), of, strict=True)
    ]
    settings = replace(config.evaluation, samples=samples, temperature=0.5 * (samples > 1))
    measurement = Measurement(
        Long(config.task), prompts, settings, step=3, max_tokens=24, group_size=4
    )
    right = [1, 0, 1, 1, 1, 0]  # of each prompt its first response; the others are wrong
    seen = set()
    for prompt, sample in sorted(finished(measurement, 4)):
        first, _ = prompt not in seen, seen.add(prompt)
        measurement.take(rollout(prompt, sample, [1] * (1 + (right[prompt] and first))))
    score = measurement.score()
    each = np.array([1 / 2, 3 / 4])
    assert score.sources == pytest.approx(dict(zip("ab", each / samples, strict=True)))
    assert score.accuracy == pytest.approx(np.average(each / samples, weights=weights))
    assert score.best == pytest.approx(np.average(each, weights=weights))
    row = metrics_row({"step": 3, **score_metrics(score)})
    assert row["accuracy/a"] == pytest.approx(0.5 / samples) and row["accuracy"] == score.accuracy
