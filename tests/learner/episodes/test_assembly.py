"""Episodes of several sequences through the learner, against computations that know none."""

import hashlib
import random
from collections import Counter
from concurrent.futures import Future
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.algorithms.corrections import kept_weights
from rlboost_jax.learner.episodes.assembly import Arrivals, DeliveredEpisode, Episodes
from rlboost_jax.learner.episodes.collector import StepCollector, WrongTurns, sequence_of
from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.shown_samples import sample_rows
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory, trajectories_digest
from rlboost_jax.learner.packing import by_sample, pack, update_divisor
from rlboost_jax.learner.processes.follower_orders import groups_from_wire
from rlboost_jax.learner.processes.trainer_channel import _decode, _encode
from rlboost_jax.learner.programs.objective import _shares
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import DoubtedResponse, StepStream
from rlboost_jax.learner.tolerated_gaps import Gaps
from rlboost_jax.models.params import init_params
from rlboost_jax.rewards.verdict import Account, CallMade, Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import BadSequence, Sequence
from rlboost_jax.settings.presets import PRESETS
from tests.learner.made_episodes import groups_in_sequences, sequences_apart
from tests.learner.programs.test_policy import accumulate, assert_close, everything, token_logprobs
from tests.learner.test_turns import Numbers
from tests.learner.update.test_batch import batch_of, build, fresh, updated
from tests.sequences.given import with_given

__all__ = ["build"]  # a fixture
ROWS, ROW_TOKENS = 2, 48


@pytest.fixture(scope="module")
def episodes(groups):
    return groups_in_sequences(groups)


def packed(trajectories, loss_aggregation="token_mean", **options):
    shape = {"rows": ROWS, "row_tokens": ROW_TOKENS}
    return pack(trajectories, loss_aggregation=loss_aggregation, **shape, **options)


def apart(trajectories):
    found = []
    for t in trajectories:
        found += sequences_apart(t, first_sample=1000 + len(found))
    return found


# What arrives ---------------------------------------------------------------------------


def rollout(sample=0, sequence=0, *, last=True, attempt=0, tokens=(7, 8), prompt=(), **changes):
    fields = {
        "work": Work(seed=0, batch=3, prompt=0, sample=sample, sequence=sequence),
        "tokens": m.pack_tokens(tokens),
        "logprobs": m.pack_logprobs([-1.0] * len(tokens)),
        "versions": ((3, len(tokens)),),
        "instances": ("a",),
        "attempt": attempt,
        "last": last,
        "prompt": m.pack_tokens(prompt),
    }
    return m.FinishedRollout(**{**fields, **changes})


def test_an_episode_is_whole_with_its_last_sequence():
    arrivals = Arrivals()
    assert arrivals.take(rollout(last=False)) and not arrivals.is_whole(0)
    assert not arrivals.take(rollout(sequence=2)), "the second is missing"
    assert arrivals.take(rollout(sequence=1)) and arrivals.is_whole(0)
    assert not arrivals.take(rollout()) and not arrivals.take(rollout(sequence=1))
    assert arrivals.num_whole == 1
    arrivals.drop(0)
    assert arrivals.num_whole == 0
    assert not arrivals.take(rollout(sequence=1)), "a late one of what was dropped"
    assert arrivals.take(rollout()) and arrivals.is_whole(0), "this time it has one"


def test_whatever_is_delivered_again_an_episode_is_made_of_one_attempt():
    """By a manager whose stream breaks, and whose episode begins anew, at any moment: on each
    stream it says all that it has in order."""
    for seed in range(300):
        chance = random.Random(seed)
        episodes, attempt, count, made = Episodes(), 0, chance.randint(1, 4), None
        finished: list[m.FinishedRollout] = []  # of this attempt
        broken = False  # what is said is lost

        def deliver(said, episodes=episodes):
            taken = (episodes.take(r, sequence_of(r, np.array([1], np.int32))) for r in said)
            return next((episode for episode in taken if episode is not None), None)

        while made is None:
            place, event = len(finished), chance.random()
            if event < 0.3:
                broken = chance.random() < 0.3
                made = deliver(finished[: chance.randint(0, place)] if broken else finished)
            elif event < 0.4:
                attempt, count, finished = attempt + 1, chance.randint(1, 4), []
            elif place < count:
                name = {"sequence": place, "attempt": attempt, "last": place == count - 1}
                finished.append(rollout(**name, tokens=(10 * attempt + place,), prompt=(5,)))
                broken = broken or chance.random() < 0.2
                made = None if broken else deliver(finished[-1:])
        assert set(made.attempts) == {attempt}, "of two attempts"
        numbers = [sequence.sampled_tokens.tolist() for sequence in made.sequences]
        assert numbers == [[10 * attempt + place] for place in range(count)]
        assert made.work == rollout().work


class Desk:
    def __init__(self, verdict: Verdict | None = None) -> None:
        self.asked: list[DeliveredEpisode] = []
        self.verdict = verdict or Verdict(reward=1.0, accuracy=1.0)

    def __call__(self, episode: DeliveredEpisode) -> Future[Verdict]:
        self.asked.append(episode)
        future: Future[Verdict] = Future()
        future.set_result(self.verdict)
        return future


def collector(desk, group_size=1):
    prompts = [np.array([1, 2], np.int32)]
    return StepCollector(
        3, version=3, prompts=prompts, group_size=group_size, ask=desk, estimate=tuple
    )


def test_what_a_manager_delivers_becomes_an_episode():
    """Judged once, when it is whole, by what its reward functions see of all its sequences."""
    desk = Desk()
    collecting = collector(desk)
    assert collecting.add(rollout(last=False)) == [] == desk.asked
    second = rollout(sequence=1, tokens=(9, 20, 3), runs=(1, 1, 1), prompt=(4, 5, 6), attempt=2)
    second = msgspec.structs.replace(
        second, logprobs=m.pack_logprobs([-2.0, -3.0]), versions=((3, 2),)
    )
    (group,) = collecting.add(second)
    (episode,) = desk.asked
    assert episode.response.tolist() == [7, 8, 9, 20, 3] and episode.num_sampled == 4
    (t,) = group.trajectories
    assert [each.tokens.tolist() for each in t.sequences] == [[1, 2, 7, 8], [4, 5, 6, 9, 20, 3]]
    assert (t.attempts, t.turns, t.num_sampled) == ((0, 2), (2, 1, 1), 4)
    assert t.logprobs.tolist() == [-1, -1, -2, -3]
    assert t.response.tolist() == episode.response.tolist()


def test_a_later_sequence_needs_its_prompt():
    collecting = collector(Desk())
    collecting.add(rollout(last=False))
    with pytest.raises(BadSequence, match="the first is the prompt's"):
        collecting.add(rollout(sequence=1))


def test_what_is_rejected_comes_again_from_its_first_sequence_on():
    desk = Desk()
    collecting = collector(desk)
    for sequence in (rollout(last=False), rollout(sequence=1, prompt=(4,))):
        collecting.add(sequence)
    collecting.reject([0])
    assert collecting.add(rollout(sequence=1, prompt=(4,))) == [], "it was on its way"
    assert collecting.add(rollout(last=False)) == [] and len(desk.asked) == 1
    assert collecting.add(rollout(sequence=1, prompt=(4,), attempt=1))
    assert [episode.attempts for episode in desk.asked] == [(0, 0), (0, 1)]


def test_rewards_are_of_turns_that_there_are():
    """Or, of an episode that was left out, of as many as went well."""
    right = Verdict(reward=1.0, accuracy=1.0, turn_rewards=(0.25, 0.75))
    turns = {"tokens": (7, 20, 8), "runs": (1, 1, 1), "versions": ((3, 2),)}
    turns["logprobs"] = m.pack_logprobs([-1.0, -1.0])
    (group,) = collector(Desk(right)).add(rollout(**turns))
    assert group.trajectories[0].verdict.turn_rewards == (0.25, 0.75)
    wrong = replace(right, turn_rewards=(1.0,))
    with pytest.raises(WrongTurns, match="step 3, sample 0: 1 rewards for 2 turns"):
        collector(Desk(wrong)).add(rollout(**turns))
    failed = replace(wrong, left_out="its tool is gone")
    collecting = collector(Desk(failed))
    (group,) = collecting.add(rollout(**turns))
    assert (group.trajectories[0].verdict.turn_rewards, group.trajectories[0].left_out) == (
        (),
        "its tool is gone",
    )
    assert collecting.fault_lines() == [
        "step 3: nobody knows the reward for 1 response: its tool is gone (first: prompt 0, "
        "sample 0)"
    ]


def test_devices_are_taken_when_every_episode_is_whole():
    """And a doubt has an episode come again."""
    stream = StepStream(3, group_size=1, micro_batches=MicroBatches(1, 1, True))
    stream.begin()
    assert stream.arrived(rollout(last=False)) and not stream._generated
    assert stream.arrived(rollout(sequence=1, prompt=(4,))) and stream._generated
    doubt = DoubtedResponse(
        prompt=0, sample=0, sequence=1, attempt=0, checksum=0, position=0, gap=9.0
    )
    stream._reject([doubt])
    assert not stream._generated
    assert not stream.arrived(rollout(sequence=1, prompt=(4,))), "those before it come first"


def test_a_digest_names_later_sequences_after_their_episode(episodes):
    """By hand; and it covers the prompts of later ones."""
    members = everything(episodes)
    digest = hashlib.sha256()
    for t in members:
        for place, sequence in enumerate(t.sequences):
            name = f"{t.prompt} {t.sample}" + (f" {place}" if place else "")
            digest.update(name.encode() + b"\n" + b"".join(sequence.digested()))
    assert trajectories_digest(reversed(members)) == digest.hexdigest()
    place, several = next((i, t) for i, t in enumerate(members) if t.later)
    tokens = several.later[0].tokens.copy()
    tokens[0] = (tokens[0] + 1) % 112
    other = replace(several, later=(replace(several.later[0], tokens=tokens), *several.later[1:]))
    swapped = replace(several, sequence=several.later[0], later=(several.sequence,))
    digests = {
        trajectories_digest([*members[:place], each, *members[place + 1 :]])
        for each in (several, other, swapped, replace(several, later=()))
    }
    assert len(digests) == 4


def test_following_processes_get_all_that_training_needs(episodes):
    """Over the wire of a trainer's processes, as lists and plain values."""
    members = [
        replace(
            t,
            verdict=Verdict(
                reward=1.0,
                turn_rewards=tuple(np.arange(len(t.turns)) / 4),
                left_out="lost" if t.sample == 4 else "",
                account=Account(calls=(CallMade(turn=0, name="x"),), metrics={"solved": 1.0}),
            ),
            advantages=np.arange(t.num_sampled, dtype=np.float32),
        )
        for t in everything(episodes)
    ]
    sent = msgspec.msgpack.encode([Group(prompt=0, trajectories=tuple(members))], enc_hook=_encode)
    (group,) = groups_from_wire(msgspec.msgpack.decode(sent, ext_hook=_decode))
    assert trajectories_digest(group.trajectories) == trajectories_digest(members)
    for left, right in zip(group.trajectories, members, strict=True):
        assert (left.attempts, left.left_out) == (right.attempts, right.left_out)
        assert left.verdict.turn_rewards == right.verdict.turn_rewards and left.turns == right.turns
        np.testing.assert_array_equal(left.advantages, right.advantages)
        assert left.verdict.account == Account(), "which is for records"


# What is trained on ---------------------------------------------------------------------


@pytest.mark.parametrize("row_lengths", [1, 3])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_each_sequence_is_packed_as_if_alone_and_counts_with_its_episode(
    episodes, aggregation, row_lengths
):
    members = [
        replace(t, advantages=np.arange(t.num_sampled, dtype=np.float32) + 100 * t.sample)
        for t in everything(episodes)
    ]
    batches = packed(members, aggregation, row_lengths=row_lengths)
    alone = packed(apart(members), aggregation, row_lengths=row_lengths)
    assert len({batch.tokens.shape for batch in batches}) >= row_lengths - 1
    for batch, other in zip(batches, alone, strict=True):
        for name in ("tokens", "positions", "segments", "targets", "response_mask", "advantages"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))
    weights = Counter()
    for batch in batches:
        mask = batch.response_mask
        for sample, weight in zip(batch.samples[mask], batch.weights[mask], strict=True):
            weights[int(sample)] += float(weight)
        assert (batch.weights[~mask] == 0).all()
    counts = {t.sample: t.num_sampled for t in members}
    expected = dict.fromkeys(counts, 1.0) if aggregation == "sequence_mean" else counts
    assert weights == pytest.approx(expected)
    divisor = sum(counts.values()) if aggregation == "token_mean" else len(members)
    assert update_divisor(members, aggregation) == divisor


def test_what_was_computed_is_found_again_in_the_order_of_its_tokens(episodes):
    """Whichever rows and batches the sequences of an episode lie in."""
    members = everything(episodes)
    values = {t.sample: np.arange(t.num_sampled, dtype=np.float32) for t in members}
    members = [replace(t, advantages=values[t.sample]) for t in members]
    batches = packed(members, row_lengths=3)
    several = next(t for t in members if len(t.sequences) == 3)
    homes = [i for i, batch in enumerate(batches) if (batch.samples == several.sample).any()]
    found = by_sample(batches, [batch.advantages for batch in batches])
    assert found.keys() == values.keys()
    for sample, expected in values.items():
        np.testing.assert_array_equal(found[sample], expected)
    assert homes


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_rows_that_lie_apart(
    config, learner_step, episodes, aggregation
):
    """Every sequence a padded row of its own, every token weighed by its episode."""
    params, members = init_params(config.model, 0), everything(episodes)
    parts = [packed(everything(episodes[i : i + 2]), aggregation) for i in range(0, 6, 2)]
    gradients, sums = accumulate(learner_step(loss_aggregation=aggregation), params, parts)
    rows = [(t, sequence) for t in members for sequence in t.sequences]
    shape = (len(rows), 64)
    tokens, behaviour, weights = np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape)
    advantages = np.zeros(shape)
    for row, (t, sequence) in enumerate(rows):
        tokens[row, : len(sequence.tokens)] = sequence.tokens
        behaviour[row, sequence.sampled_positions] = sequence.logprobs
        share = 1 / sum(len(s.logprobs) for s in t.sequences) / len(members)
        total = sum(len(s.logprobs) for each in members for s in each.sequences)
        weights[row, sequence.sampled_positions] = (
            share if aggregation == "sequence_mean" else 1 / total
        )
        advantages[row] = t.advantage

    def loss(params):
        logprobs = token_logprobs(config.model, params, jnp.asarray(tokens))
        ratio = jnp.exp(jnp.where(weights > 0, logprobs - behaviour, 0.0))
        bounded = jnp.clip(ratio, 1 - config.algorithm.clip_low, 1 + config.algorithm.clip_high)
        return -(jnp.minimum(ratio * advantages, bounded * advantages) * weights).sum()

    expected_loss, expected = jax.jit(jax.value_and_grad(loss))(params)
    divisor = update_divisor(members, aggregation)
    np.testing.assert_allclose(sums["loss"] / divisor, expected_loss, rtol=1e-4)
    assert_close(jax.tree.map(lambda g: g / divisor, gradients), expected, atol=1e-6)


def test_a_doubt_names_the_sequence_and_the_place_in_it(build, episodes):
    """The first that is wrong: those after it are made of it."""
    learners = build("grpo")
    params = fresh(learners).params
    strict = replace(learners, tolerated=Gaps(2.0, 1.0, 1.0))
    several = next(t for t in everything(episodes) if len(t.sequences) == 3)

    def lying(sequence):
        logprobs = sequence.logprobs.copy()
        logprobs[-1] = -0.001
        return replace(sequence, logprobs=logprobs)

    _, second, third = several.sequences
    lie = replace(several, later=(lying(second), lying(third)))
    (doubt,) = strict.doubts(params, [Group(prompt=0, trajectories=(several, lie))])
    after_prompt = np.flatnonzero(second.mask[len(second.prompt) :])
    assert (doubt.sequence, doubt.attempt, doubt.position) == (1, 1, after_prompt[-1])


@pytest.mark.parametrize(
    ("name", "choices"), [("grpo", {}), ("ppo", {}), ("grpo", {"mini_batches": 2, "epochs": 2})]
)
def test_episodes_are_updated_with_in_any_order(build, episodes, name, choices):
    """To the same bits; and by one update with token means as sequences by themselves are."""
    learners = build(name, **choices)
    state, figures = updated(learners, episodes)
    again, _ = updated(learners, episodes, order=[2, 0, 3, 1])
    assert np.isfinite(figures["loss"])
    for left, right in zip(*map(jax.tree.leaves, (state.params, again.params)), strict=True):
        np.testing.assert_array_equal(left, right)


def test_old_values_and_log_probabilities_lie_beside_their_tokens(build, episodes):
    learners = build("ppo")
    state, batch = fresh(learners), batch_of(learners, episodes)
    members, _, _ = learners.score(state, batch)
    single = apart([replace(t, old_logprobs=None) for t in everything(batch)])
    alone, _, _ = learners.score(state, [Group(prompt=0, trajectories=tuple(single))])
    expected = iter(alone)
    for t in members:
        parts = [next(expected) for _ in t.sequences]
        for name in ("old_logprobs", "old_values"):
            found = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_allclose(getattr(t, name), found, atol=1e-5)


def test_time_goes_on_from_one_sequence_to_the_next(episodes):
    """Returns of an episode are those of its sampled tokens in one sequence."""
    algorithm = replace(PRESETS["reinforce_pp"], discount=0.9, kl_coefficient=0.0, whiten=False)
    estimates = Estimates(algorithm=algorithm, max_response_tokens=30, stop_ids=())
    members = everything(episodes)[:6]
    for t in estimates.of_group(members):
        powers = 0.9 ** np.arange(t.num_sampled)[::-1]
        np.testing.assert_allclose(t.advantages, t.reward * powers, rtol=1e-6)


# What is shown --------------------------------------------------------------------------


def test_a_sample_shows_turns_calls_and_what_was_trained_on():
    first = Sequence.of_response([1, 2], [7, 8], [-1, -1], version=0)
    later = with_given(Sequence.of_response([5], [9], [-1], version=0), [6])
    t = Trajectory(
        prompt=0,
        sample=0,
        sequence=first,
        later=(later.with_sampled([4, 3], [-1, -1], version=0),),
        verdict=Verdict(
            reward=1.0,
            turn_rewards=(0.0, 0.25, 0.75),
            account=Account(
                calls=(CallMade(turn=0, name="add"), CallMade(turn=0, name="gone", failed=True))
            ),
        ),
        advantage=0.0,
        advantages=np.array([1, 2, 3, 4, 6], np.float32),
    )
    (row,) = sample_rows(0, [t], task=Numbers(), num_prompts=1)
    assert (row.prompt_text, row.response_text) == ("1 2", "7 8 9 6 4 3")
    shown = [
        (part.sampled, part.text, part.sequence, part.turn, part.reward, part.advantage)
        for part in row.turns
    ]
    assert shown == [
        (True, "7 8", 0, 0, 0.0, 1.5),
        (False, "5", 1, None, None, None),
        (True, "9", 1, 1, 0.25, 3.0),
        (False, "6", 1, None, None, None),
        (True, "4 3", 1, 2, 0.75, 5.0),
    ]
    assert [asdict(call) for call in row.turns[0].calls] == [
        {"name": "add", "failed": False},
        {"name": "gone", "failed": True},
    ]
    assert row.tokens == 5 and not row.cut_off and row.trained
    left_out = replace(t, trained=False, verdict=replace(t.verdict, left_out="lost"))
    (row,) = sample_rows(0, [left_out], task=Numbers(), num_prompts=1)
    assert (row.trained, row.left_out) == (False, "lost")
    assert {part.advantage for part in row.turns} == {None}


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum"])
def test_what_is_left_of_a_sequence_counts_by_its_share_of_the_episode(aggregation):
    """One token of one of two sequences is rejected, and all of another episode's second one."""
    first = Trajectory(
        prompt=0,
        sample=0,
        sequence=Sequence.of_response([1], [5] * 3, [-1.0] * 3, version=0),
        later=(Sequence.of_response([2], [6], [-1.0], version=0),),
        advantage=0.0,
    )
    second = replace(first, sample=1)
    (batch,) = pack([first, second], rows=1, row_tokens=16, loss_aggregation=aggregation)
    kept = batch.response_mask.copy()
    kept[0, 2] = kept[0, 7] = False  # of 3 and 1, and of 3 and 1 sampled tokens
    segments = jnp.asarray(batch.segments)
    shares = _shares(batch, jnp.asarray(batch.response_mask), segments)
    weights, divisor = kept_weights(
        jnp.asarray(kept), segments, loss_aggregation=aggregation, shares=shares
    )
    assert float(divisor) == 3 / 4 + 1 / 4 + 3 / 4
    each = [3 / 4 / 2] * 2 + [1 / 4] + [3 / 4 / 3] * 3
    expected = each if aggregation == "sequence_mean" else [1.0] * 6
    np.testing.assert_allclose(weights[kept], expected, rtol=1e-6)
    alone = kept_weights(jnp.asarray(kept), segments, loss_aggregation=aggregation)
    (whole,) = pack(
        [replace(each, later=()) for each in (first, second)],
        rows=1,
        row_tokens=16,
        loss_aggregation=aggregation,
    )
    mask, segments = jnp.asarray(whole.response_mask), jnp.asarray(whole.segments)
    ones = _shares(whole, mask, segments)
    assert (np.asarray(ones)[whole.segments > 0] == 1.0).all(), "to the last bit"
    assert float(alone[1]) == 3
