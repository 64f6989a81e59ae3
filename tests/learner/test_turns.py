"""Sequences of several turns through the learner, against computations that know no turns."""

from concurrent.futures import Future
from dataclasses import replace

import jax
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.episodes.estimates import Estimates, ResponseScores
from rlboost_jax.learner.episodes.shown_samples import sample_rows
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import by_sample, pack, update_divisor
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.models.params import init_params
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import BadSequence, Sequence
from rlboost_jax.settings.presets import PRESETS
from tests.learner.made_episodes import groups_in_sequences
from tests.learner.programs.test_policy import (
    accumulate,
    assert_close,
    everything,
    mean_loss,
    padded_rows,
    token_logprobs,
)
from tests.learner.turns import groups_in_turns
from tests.learner.update.test_batch import build, updated
from tests.sequences.given import with_given

__all__ = ["build"]  # a fixture
ROWS, ROW_TOKENS, LONGEST = 2, 80, 84


@pytest.fixture(scope="module")
def turns(groups):
    return groups_in_turns(groups)


def packed(trajectories, loss_aggregation="token_mean"):
    return pack(trajectories, rows=ROWS, row_tokens=ROW_TOKENS, loss_aggregation=loss_aggregation)


def made(sample, counts, advantages=None):
    """Tokens are numbered through all runs from 100 (sample + 1) on, the prompt first."""
    sequence, start = Sequence.of_prompt(np.arange(counts[0]) + 100 * (sample + 1)), counts[0]
    for place, count in enumerate(counts[1:]):
        ids = np.arange(start, start + count) + 100 * (sample + 1)
        if place % 2:
            sequence = with_given(sequence, ids)
        else:
            sequence = sequence.with_sampled(ids, -ids / 8, version=0)
        start += count
    n = sequence.num_sampled
    return Trajectory(
        prompt=0, sample=sample, sequence=sequence, advantage=0.0,
        advantages=np.arange(n, dtype=np.float32) + 1, returns=np.arange(n, dtype=np.float32) + 50,
    )  # fmt: skip


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=6), min_size=1, max_size=6),
    st.sampled_from(["token_mean", "sequence_mean"]),
)
def test_every_target_lies_beside_what_is_known_of_it(counts, aggregation):
    """Position by position, from the numbers of the tokens."""
    trajectories = [made(i, runs) for i, runs in enumerate(counts)]
    found = set()
    for batch in pack(trajectories, rows=2, row_tokens=24, loss_aggregation=aggregation):
        for place in np.ndindex(batch.tokens.shape):
            sampled = bool(batch.response_mask[place])
            if not sampled:
                assert batch.behaviour_logprobs[place] == batch.advantages[place] == 0
                assert batch.weights[place] == batch.returns[place] == 0
                assert batch.samples[place] == -1
            if batch.segments[place] == 0:
                continue
            target = int(batch.targets[place])
            sample, number = divmod(target - 100, 100)
            assert batch.tokens[place] == target - 1
            assert batch.positions[place] == number - 1
            run = int(np.searchsorted(np.cumsum(counts[sample]), number, side="right"))
            assert sampled == (run % 2 == 1)
            found.add((sample, number))
            if not sampled:
                continue
            nth = number - sum(counts[sample][:run:2])  # among the sampled ones
            all_sampled = sum(counts[sample][1::2])
            assert batch.samples[place] == sample
            assert batch.behaviour_logprobs[place] == np.float32(-target / 8)
            assert batch.advantages[place] == nth + 1 and batch.returns[place] == nth + 50
            share = 1 / all_sampled if aggregation == "sequence_mean" else 1
            assert batch.weights[place] == np.float32(share)
    ends = [sum(runs[: len(runs) // 2 * 2]) for runs in counts]  # of the last sampled run
    assert found == {(s, n) for s, end in enumerate(ends) for n in range(1, end)}


@pytest.mark.parametrize(
    ("algorithm", "kl", "aggregation"),
    [({}, 0.0, "token_mean"), ({"kl_coefficient": 0.3}, 0.3, "sequence_mean")],
)
def test_loss_and_gradient_are_those_of_unpacked_rows(
    config, learner_step, turns, algorithm, kl, aggregation
):
    params = init_params(config.model, 0)
    reference = init_params(config.model, 1) if kl else None
    step = learner_step(**algorithm, loss_aggregation=aggregation)
    parts = [packed(everything(turns[i : i + 2]), aggregation) for i in range(0, len(turns), 2)]
    gradients, sums = accumulate(step, params, parts, reference=reference)
    rows = padded_rows(everything(turns), LONGEST)

    def loss(params):
        by_sequence = aggregation == "sequence_mean"
        return mean_loss(
            config, params, rows, reference=reference, kl=kl, sequence_mean=by_sequence
        )

    expected_loss, expected = jax.jit(jax.value_and_grad(loss))(params)
    divisor = update_divisor(everything(turns), aggregation)
    np.testing.assert_allclose(sums["loss"] / divisor, expected_loss, rtol=1e-5)
    assert sums["tokens"] == rows["mask"].sum()
    assert_close(jax.tree.map(lambda g: g / divisor, gradients), expected, atol=1e-6)


def test_log_probabilities_are_those_of_a_plain_forward_pass(config, learner_step, turns):
    params, trajectories = init_params(config.model, 0), everything(turns)
    batches = packed(trajectories)
    parts = [learner_step().logprobs(params, None, batch) for batch in batches]
    found = by_sample(batches, [np.asarray(part["policy"]) for part in parts])
    rows = padded_rows(trajectories, LONGEST)
    plain = np.asarray(token_logprobs(config.model, params, rows["tokens"]))
    for row, t in enumerate(trajectories):
        expected = plain[row, t.sequence.sampled_positions]
        np.testing.assert_allclose(found[t.sample], expected, atol=1e-5)


def test_a_sequence_is_worth_its_turns_one_by_one(config, learner_step, turns):
    """Each sampled run as the response to all before it: single-response trajectories."""
    params, trajectories = init_params(config.model, 0), everything(turns)
    apart = []
    for t in trajectories:
        logprobs = t.sequence.logprobs
        for run in t.sequence.split():
            if run.sampled:
                first, logprobs = logprobs[: len(run.tokens)], logprobs[len(run.tokens) :]
                before = t.sequence.tokens[: run.start]
                sequence = Sequence.of_response(before, run.tokens, first, version=3)
                apart.append(replace(t, sample=100 + len(apart), sequence=sequence))
    assert len(apart) > 2 * len(trajectories)
    gradients, sums = learner_step().accumulate(params, None, packed(trajectories))
    expected, parts = learner_step().accumulate(params, None, packed(apart))
    for name in ("loss", "entropy", "tokens", "clipped", "max_logprob_gap"):
        np.testing.assert_allclose(sums[name], parts[name], rtol=1e-5)
    divisor = update_divisor(trajectories, "token_mean")
    assert divisor == update_divisor(apart, "token_mean")
    scaled = [jax.tree.map(lambda g: g / divisor, part) for part in (gradients, expected)]
    assert_close(*scaled, atol=1e-6)


def test_the_trap_of_observations_no_gradient_knows_them(config, learner_step, turns):
    """Whatever is given as a target: no bit of any gradient knows it."""
    (batch, *_), params = packed(everything(turns)), init_params(config.model, 0)
    given = (batch.segments > 0) & ~batch.response_mask
    others = np.where(given, (batch.targets + 5) % 112, batch.targets)
    assert (others != batch.targets).sum() > 20
    gradients = [
        learner_step().gradients(params, None, each)[0]
        for each in (batch, replace(batch, targets=others))
    ]
    for left, right in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert np.asarray(left).any()
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


class WrongTargets(Learner):
    """Whose batches have other tokens as targets wherever a token was given, and none sampled."""

    def pack(self, trajectories):
        batches = super().pack(trajectories)
        return [replace(batch, targets=with_wrong_targets(batch)) for batch in batches]


def with_wrong_targets(batch):
    given = (batch.segments > 0) & ~batch.response_mask
    assert given.any()
    return np.where(given, (batch.targets + 5) % 112, batch.targets)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("grpo", {"mini_batches": 2, "epochs": 2, "kl_coefficient": 0.1}),
        ("ppo", {"mini_batches": 2}),
        ("gspo", {}),
        ("reinforce_pp", {}),
    ],
)
def test_no_bit_of_any_update_knows_what_was_given_as_a_target(build, groups, name, choices):
    """Through all updates of a batch, the critic's included: of turns, and of episodes."""
    made = groups_in_turns(groups, most_given=1)
    made = (*made[:2], *groups_in_sequences(groups)[2:])
    learners = build(name, **choices)
    state, figures = updated(learners, made)
    other, same = updated(WrongTargets(**vars(learners)), made)
    assert figures == same
    for left, right in zip(*map(jax.tree.leaves, (state, other)), strict=True):
        np.testing.assert_array_equal(left, right)


def by_full_rows(t, values, *, reward, discount, gae_lambda):
    """Advantages of all tokens in a loop over all of them, given ones passed over, as a list."""
    mask, found = t.sequence.mask, []
    next_value = next_advantage = 0.0
    values = iter(reversed(values))
    last = t.sequence.trained_length - 1
    for place in reversed(range(len(mask))):
        if mask[place]:
            value = next(values)
            delta = (reward if place == last else 0.0) + discount * next_value - value
            next_advantage = delta + discount * gae_lambda * next_advantage
            next_value = value
            found.append(next_advantage)
    return found[::-1]


def test_the_trap_of_observations_they_are_passed_over(turns):
    members = everything(turns)[:3]
    members = [replace(t, verdict=Verdict(reward=float(i))) for i, t in enumerate(members)]
    rng = np.random.default_rng(4)
    values = {t.sample: rng.normal(size=t.sequence.num_sampled).astype(np.float32) for t in members}
    algorithm = replace(PRESETS["ppo"], discount=0.9, gae_lambda=0.8)
    estimates = Estimates(algorithm=algorithm, max_response_tokens=30, stop_ids=())
    for t in estimates.evaluated(members, ResponseScores(values=values)):
        expected = by_full_rows(
            t, values[t.sample].tolist(), reward=t.reward, discount=0.9, gae_lambda=0.8
        )
        np.testing.assert_allclose(t.advantages, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            t.returns, np.add(expected, values[t.sample]), rtol=1e-5, atol=1e-6
        )


def test_what_is_too_long_are_sampled_tokens():
    """Ten sampled tokens of at most ten, in two runs: cut off, whatever was given. Nine of ten, the
    last one a stop id, with 40 given ones: not cut off."""
    algorithm = replace(PRESETS["dapo"], overlong_filter=True, overlong_penalty=0.0)
    full, short = made(0, (2, 4, 1, 6, 3)), made(1, (2, 4, 40, 5))
    stop_id = int(short.sequence.sampled_tokens[-1])
    estimates = Estimates(algorithm=algorithm, max_response_tokens=10, stop_ids=(stop_id,))
    assert [t.trained for t in estimates.of_group([full, short])] == [False, True]
    penalised = replace(algorithm, overlong_penalty=1.0, overlong_band=0.2)
    shaped = replace(estimates, algorithm=penalised).shaped
    assert [shaped(full), shaped(short)] == [-1.0, -0.5], "the second half of the last two tokens"


class Numbers:
    stop_ids = (3,)
    stops = b""

    def text(self, tokens):
        return " ".join(map(str, np.asarray(tokens)))


def test_a_sample_shows_who_wrote_what():
    sequence = Sequence.of_response([1, 2], [7, 8], [-1, -1], version=0)
    sequence = with_given(sequence, [4, 3, 5]).with_sampled([9, 3], [-1, -1], version=0)
    t = Trajectory(
        prompt=0, sample=0, sequence=sequence, verdict=Verdict(reward=1.0), advantage=0.5
    )
    (row,) = sample_rows(0, [t], task=Numbers(), num_prompts=1)
    assert (row.prompt_text, row.response_text) == ("1 2", "7 8 4 3 5 9 3")
    found = [(part.sampled, part.text, part.turn) for part in row.turns]
    assert found == [(True, "7 8", 0), (False, "4 3 5", None), (True, "9 3", 1)]
    assert row.tokens == 4 and not row.cut_off


def rollout(work, *, runs, tokens, logprobs, versions=((3, 4),)):
    return m.FinishedRollout(
        work=work, tokens=m.pack_tokens(tokens), logprobs=m.pack_logprobs(logprobs),
        versions=versions, instances=("a", "b"), runs=runs,
    )  # fmt: skip


def test_what_a_manager_delivers_becomes_a_sequence():
    """And is judged by all after the prompt."""
    asked = []

    def ask(episode):
        asked.append((episode.work.prompt, episode.response.tolist()))
        return Future()

    collector = StepCollector(
        3, version=3, prompts=[np.array([1, 2], np.int32)], group_size=1, ask=ask, estimate=tuple
    )
    work = Work(seed=0, batch=3, prompt=0, sample=0)
    arrays = {"tokens": [7, 8, 20, 21, 9, 6], "logprobs": [-1, -2, -3, -4]}
    with pytest.raises(BadSequence, match="runs of 2, 2, 1 tokens do not make up 6"):
        collector.add(rollout(work, runs=(2, 2, 1), **arrays))
    with pytest.raises(BadSequence, match="4 log-probabilities for 3 sampled"):
        collector.add(rollout(work, runs=(2, 3, 1), **arrays))
    collector.add(rollout(work, runs=(2, 2, 2), **arrays))
    assert asked == [(0, [7, 8, 20, 21, 9, 6])]
    sequence = collector._taken[0].sequence
    assert sequence.tokens.tolist() == [1, 2, 7, 8, 20, 21, 9, 6]
    assert sequence.sampled_positions.tolist() == [2, 3, 6, 7]
    assert sequence.logprobs.tolist() == [-1, -2, -3, -4]
    assert sequence.versions == ((3, 4),)


def test_runs_travel():
    """In a finished rollout and in a request, and none where all was sampled."""
    work = Work(seed=0, batch=3, prompt=0, sample=0)
    result = rollout(work, runs=(1, 2, 3), tokens=[0] * 6, logprobs=[0] * 4)
    assert m.decode_to_trainer(m.encode(result)) == result
    plain = rollout(work, runs=(), tokens=[0], logprobs=[0], versions=((3, 1),))
    routed = m.RoutedRollout(**{**msgspec.structs.asdict(result), "routes": b"123"})
    assert m.decode_to_trainer(m.encode(routed)) == routed
    sizes = [
        len(m.encode(rollout(work, runs=runs, tokens=[0] * 6, logprobs=[0] * 4)))
        for runs in ((), (1, 2, 3))
    ]
    assert sizes[1] == sizes[0] + 3 and plain.runs == ()
    request = m.GenerateRequest(
        request_id=1,
        work=work,
        version=3,
        prompt_tokens=b"",
        response_tokens=m.pack_tokens([1, 2, 3]),
        sampling=m.Sampling(temperature=1, top_p=1, top_k=0, max_tokens=4, stop_ids=()),
        runs=(1, 2),
    )
    frame = m.Generate(params_digest="", requests=(request,))
    assert m.decode_to_server(m.encode(frame)) == frame
    with pytest.raises(msgspec.ValidationError):
        m.decode_to_trainer(m.encode(rollout(work, runs=(0,), tokens=[], logprobs=[])))
