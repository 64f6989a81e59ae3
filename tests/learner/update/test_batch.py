"""The updates of a batch against an optimizer that is given the whole of it each time."""

import itertools
import math
import zlib
from copy import copy
from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import optax
import pytest

from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.guards import GuardTripped, NotFinite, StepNotWhole
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.learner.tolerated_gaps import Gaps
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.presets import PRESETS
from tests.learner.turns import groups_in_turns

PROMPTS, GROUP, STEP = 4, 3, 3
CHOICES = {"group_size": GROUP, "clip_high": 0.25, "critic_learning_rate": 1e-3}


@pytest.fixture(scope="module")
def build(config):
    """`build("ppo", epochs=2)`: learners of a small run; equal ones are made once."""

    @cache
    def made(name, prompts=PROMPTS, **choices):
        algorithm = replace(PRESETS[name], **{**CHOICES, **choices})
        run = replace(
            config,
            algorithm=algorithm,
            learner=replace(
                config.learner,
                prompts_per_step=prompts,
                micro_batch_prompts=1,
                pack_rows=2,
                learning_rate=1e-3,
            ),
        )
        mesh = make_mesh((1, 1, 1))
        options = {"num_updates": 40, "mesh": mesh}
        policy = PolicyPrograms(run.model, run.learner, algorithm, run.sampling, **options)
        critic = None
        if algorithm.has_critic:
            critic = CriticPrograms(run.model, run.learner, algorithm, **options)
        return Learner(
            run=run,
            policy=policy,
            critic=critic,
            reference=init_params(config.model, 1) if algorithm.has_reference else None,
            estimates=Estimates(
                algorithm=algorithm,
                max_response_tokens=run.sampling.max_response_tokens,
                stop_ids=(),
            ),
            tolerated=Gaps(100.0, 1.0, 1.0),
        )

    return made


def fresh(learners):
    policy = learners.policy
    state = init_state(init_params(learners.run.model, 0), policy.optimizer, policy.shardings)
    if learners.critic is not None:
        state = replace(state, critic=learners.critic.init(state.params))
    return state


def batch_of(learners, groups):
    """The first prompts, of the step's version and with advantages as the collector gives them."""
    return [
        Group(
            prompt=group.prompt,
            trajectories=learners.estimates.of_group(
                [
                    replace(
                        t, sequence=replace(t.sequence, versions=((STEP, t.sequence.num_sampled),))
                    )
                    for t in group.trajectories
                ]
            ),
        )
        for group in groups[: learners.run.learner.prompts_per_step]
    ]


def updated(learners, groups, order=None, checkpoint=lambda: 7, state=None):
    state = state or fresh(learners)
    host_params = jax.device_get(state.params)
    updates = BatchUpdate(learners, state, step=STEP, checkpoint=checkpoint)
    by_prompt = {group.prompt: group for group in batch_of(learners, groups)}
    for prompt in order or range(len(by_prompt)):
        for index, ready in updates.micro_batches.add(by_prompt[prompt]):
            assert updates.train(index, ready) == []
    trajectories = [t for _, group in sorted(by_prompt.items()) for t in group.trajectories]
    return updates.finish(trajectories, prompts=range(len(by_prompt)), host_params=host_params)


def by_hand(learners, groups):
    """Each update from one packed sum over its whole mini-batch, by optax alone."""
    algorithm, state = learners.run.algorithm, fresh(learners)
    batch = batch_of(learners, groups)
    members = [t for group in batch for t in group.trajectories]
    if algorithm.has_evaluation_pass:
        members, _, _ = learners.score(state, batch)
    members = learners.estimates.of_batch(members)
    params, opt_state = state.params, state.opt_state
    critic, norms = state.critic, []
    size = PROMPTS // algorithm.mini_batches
    for _, mini_batch in itertools.product(range(algorithm.epochs), range(algorithm.mini_batches)):
        own = [t for t in members if t.prompt // size == mini_batch]
        tokens = sum(t.sequence.num_sampled for t in own)
        gradients, _ = learners.policy_part(params, own)
        divisor = tokens if algorithm.loss_aggregation == "token_mean" else len(own)
        gradients = jax.tree.map(lambda g, d=divisor: np.asarray(g) / np.float32(d), gradients)
        squares = (np.square(np.float64(g)).sum() for g in jax.tree.leaves(gradients))
        norms.append(math.sqrt(sum(squares)))
        params, opt_state = moved(learners.policy.optimizer, gradients, opt_state, params)
        if critic is not None:
            gradients, _ = learners.critic_part(critic.params, own)
            gradients = jax.tree.map(lambda g, d=tokens: np.asarray(g) / np.float32(d), gradients)
            params_now, opt = moved(
                learners.critic.optimizer, gradients, critic.opt_state, critic.params
            )
            critic = replace(critic, params=params_now, opt_state=opt, step=critic.step + 1)
    return params, critic, np.mean(norms)


@partial(jax.jit, static_argnums=0)  # an optimizer by itself runs a hundred programs
def moved(optimizer, gradients, opt_state, params):
    moves, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, moves), opt_state


CASES = [
    ("grpo", {}),
    ("grpo", {"mini_batches": 2, "epochs": 2, "old_policy": "recomputed"}),
    ("reinforce_pp", {}),
    ("ppo", {"mini_batches": 2, "epochs": 2, "whiten": False}),
]


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_a_batch_makes_the_updates_of_its_mini_batches(build, groups, name, choices):
    learners = build(name, **choices)
    state, figures = updated(learners, groups)
    params, critic, norm = by_hand(learners, groups)
    assert int(state.step) == learners.run.algorithm.updates_per_batch
    np.testing.assert_allclose(figures["gradient_norm"], norm, rtol=1e-5)
    np.testing.assert_allclose(figures["learning_rate"], learners.run.learner.learning_rate)
    for left, right in ((state.params, params), (state.critic, critic)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), left, right)
    assert figures.keys() >= {"loss", "kl", "entropy", "clipped", "max_logprob_gap"}
    assert ("value_loss" in figures) == (critic is not None)


@pytest.mark.parametrize(("name", "choices"), CASES[1:])
def test_the_trap_of_arrival_any_order_gives_the_same_bits(build, groups, name, choices):
    learners = build(name, **choices)
    expected, metrics = updated(learners, groups)
    for order in ([3, 1, 0, 2], [2, 3, 1, 0]):
        state, figures = updated(learners, groups, order)
        assert params_digest(state.params) == params_digest(expected.params)
        assert figures == metrics
        if state.critic is not None:
            assert params_digest(state.critic.params) == params_digest(expected.critic.params)


def test_the_trap_of_old_log_probabilities_later_updates_keep_those_of_before_the_first(
    build, groups
):
    """Recomputed or recorded by an engine without a gap: the same old policy, the same updates.
    Taken from the parameters of each update they would make every ratio 1, and clip nothing."""
    choices = {"mini_batches": 2, "epochs": 2, "clip_low": 1e-3, "clip_high": 1e-3}
    recorded, recomputed = (
        build("grpo", **choices),
        build("grpo", old_policy="recomputed", **choices),
    )
    looked, _, _ = recorded.score(fresh(recorded), batch_of(recorded, groups))
    exact = [
        Group(
            prompt=prompt,
            trajectories=tuple(
                replace(
                    t,
                    sequence=replace(t.sequence, logprobs=t.old_logprobs),
                    advantage=5.0 * t.advantage,
                )
                for t in looked
                if t.prompt == prompt
            ),
        )
        for prompt in range(PROMPTS)
    ]
    (first, metrics), (second, other_metrics) = (
        updated(learners, exact) for learners in (recorded, recomputed)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), first.params, second.params
    )
    assert metrics["clipped"] == pytest.approx(other_metrics["clipped"], abs=1e-3)
    assert metrics["clipped"] > 0
    assert metrics["max_logprob_gap"] < 1e-5, "of engine and learner, not of two updates"


def test_the_critics_loss_is_the_mean_over_the_tokens_it_is_trained_on(build, groups):
    """Whatever the micro-batches. Of the first update, whose values are the old ones; responses
    whose last id is 56 or more are cut off, and filtered."""
    learners = build(*CASES[3][:1], **CASES[3][1])
    algorithm = replace(learners.run.algorithm, mini_batches=1, epochs=1, overlong_filter=True)
    estimates = replace(learners.estimates, algorithm=algorithm, stop_ids=tuple(range(56)))
    figures, critics = [], []
    for size in (1, PROMPTS):
        learner = replace(learners.run.learner, micro_batch_prompts=size)
        run = replace(learners.run, algorithm=algorithm, learner=learner)
        these = replace(learners, run=run, estimates=estimates)
        state, metrics = updated(these, groups)
        figures.append(metrics["value_loss"])
        critics.append(state.critic.params)
    looked, _, _ = these.score(fresh(these), batch_of(these, groups))
    trained = [t for t in looked if t.trained]
    assert 0 < len(trained) < len(looked)
    errors = [np.float64(t.old_values) - np.float64(t.returns) for t in trained]
    expected = np.square(np.concatenate(errors)).mean() / 2
    np.testing.assert_allclose(figures, [expected] * 2, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *critics)


def test_what_was_trained_on_is_reported_with_its_advantages(build, groups):
    """The collector does not know them: they wait for a look at the batch, and for all of it."""
    learners = build("reinforce_pp")
    updates = BatchUpdate(learners, fresh(learners), step=STEP, checkpoint=lambda: None)
    batch = batch_of(learners, groups)
    for index in (2, 0, 3, 1):
        updates.train(index, (batch[index],))
    members = [t for group in batch for t in group.trajectories]
    assert all(t.advantages is None for t in members)
    updates.finish(members, prompts=range(PROMPTS), host_params=None)
    shown = updates.trajectories()
    assert [t.sample for t in shown] == [t.sample for t in members]
    looked, _, _ = learners.score(fresh(learners), batch)
    for t, expected in zip(shown, learners.estimates.of_batch(looked), strict=True):
        np.testing.assert_allclose(t.advantages, expected.advantages, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("metrics", "error", "said"),
    [
        ({"finite": False, "gradient_norm": 1.0}, NotFinite, "the critic's gradient is not finite"),
        ({"finite": True, "gradient_norm": 99.0}, GuardTripped, "the critic's gradient_norm is 99"),
    ],
)
def test_the_critic_is_guarded_as_the_policy_is(build, groups, metrics, error, said):
    learners = build(*CASES[3][:1], **CASES[3][1])
    guarded = replace(learners.run.learner, guard_gradient_norm=98.0)
    critic = copy(learners.critic)
    critic.apply = lambda state, gradients, divisor: (state, metrics)
    run = replace(learners.run, learner=guarded)
    with pytest.raises(error, match=f"step 3.*{said}.*checkpoint 7 is sound"):
        updated(replace(learners, critic=critic, run=run), groups)


def test_a_member_of_a_mini_batch_is_known_by_its_rank(build, groups):
    """Dynamic sampling hands groups on by rank, and what fills a batch up comes last: the ranks
    of prompts 2, 3, 0, 1 are 0, 1, 2, 3."""
    learners = build("grpo", **CASES[1][1])
    batch = {group.prompt: group for group in batch_of(learners, groups)}
    order = (2, 3, 0, 1)

    def state_of(names):
        state = fresh(learners)
        host_params = jax.device_get(state.params)
        updates = BatchUpdate(learners, state, step=STEP, checkpoint=lambda: None)
        for rank, prompt in enumerate(order):
            group = Group(prompt=rank, trajectories=tuple(map(names, batch[prompt].trajectories)))
            for index, ready in updates.micro_batches.add(group):
                assert updates.train(index, ready) == []
        members = [names(t) for prompt in order for t in batch[prompt].trajectories]
        members.sort(key=lambda t: (t.prompt, t.sample))
        return updates.finish(members, prompts=range(PROMPTS), host_params=host_params)[0]

    def by_rank(t):
        rank = order.index(t.prompt)
        return replace(t, prompt=rank, sample=rank * GROUP + t.sample % GROUP)

    assert params_digest(state_of(lambda t: t).params) == params_digest(state_of(by_rank).params)


def test_micro_batches_of_other_samples_than_the_batchs_are_not_applied(build, groups):
    learners = build("grpo", **CASES[1][1])
    state = fresh(learners)
    updates = BatchUpdate(learners, state, step=STEP, checkpoint=lambda: None)
    batch = batch_of(learners, groups)
    for index in range(PROMPTS):
        updates.train(index, (batch[0 if index == 3 else index],))
    members = [t for group in batch for t in group.trajectories]
    with pytest.raises(StepNotWhole, match="12 samples, the batch has 12, and they are not"):
        updates.finish(members, prompts=range(PROMPTS), host_params=None)
    with pytest.raises(StepNotWhole, match="missing: sample 11"):
        updates.finish(members[:-1], prompts=range(PROMPTS), host_params=None)
    assert int(state.step) == 0


def test_nothing_is_applied_before_the_batch_is_whole(build, groups):
    learners = build("grpo", mini_batches=2, epochs=2, old_policy="recomputed")
    state = fresh(learners)
    before = params_digest(state.params)
    updates = BatchUpdate(learners, state, step=STEP, checkpoint=lambda: None)
    for group in batch_of(learners, groups):
        for index, ready in updates.micro_batches.add(group):
            updates.train(index, ready)
    assert params_digest(state.params) == before


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp"])
def test_what_is_disputed_leaves_no_trace(build, groups, name):
    """Whether responses are looked at first or with their gradients."""
    learners = build(name)
    updates = BatchUpdate(
        replace(learners, tolerated=Gaps(2.0, 1.0, 1.0)),
        fresh(learners),
        step=STEP,
        checkpoint=lambda: None,
    )
    batch = batch_of(learners, groups)
    lying, *others = batch[0].trajectories
    logprobs = lying.sequence.logprobs.copy()
    logprobs[-1] = -0.001
    lie = replace(lying, sequence=replace(lying.sequence, logprobs=logprobs))
    doubts = updates.train(0, (Group(prompt=0, trajectories=(lie, *others)),))
    assert [(d.sample, d.position) for d in doubts] == [(lying.sample, len(logprobs) - 1)]
    assert isinstance(doubts[0], DoubtedResponse) and doubts[0].gap > 4
    delivered = lie.sequence.tokens[lie.sequence.runs[0] :].tobytes(), logprobs.tobytes()
    assert doubts[0].checksum == zlib.crc32(b"".join(delivered))
    assert updates.train(0, (batch[0],)) == [], "the truth is taken in its place"


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp"])
@pytest.mark.parametrize("bound", ["choice", "mean_choice", "choice in turns"])
def test_a_choice_alone_is_disputed(build, groups, name, bound):
    """Its log-probabilities are believed. Only one response has noise that is known; its tokens
    are random, and so are its gaps. The mean names the token that is farthest out."""
    bound, _, turns = bound.partition(" ")
    groups = groups_in_turns(groups, most_given=1) if turns else groups
    learners = build(name)
    strict = learners.tolerated._replace(**{bound: 1e-3})
    state = fresh(learners)
    updates = BatchUpdate(
        replace(learners, tolerated=strict), state, step=STEP, checkpoint=lambda: None
    )
    batch = batch_of(learners, groups)
    chosen, *others = sorted(batch[0].trajectories, key=lambda t: -t.num_sampled)
    forged = replace(chosen, batch=STEP)
    (packed,) = learners.pack([forged])
    gaps = np.asarray(learners.policy.gaps(state.params, packed)["choice"])[packed.response_mask]
    assert 0.1 < gaps.max() < 1 and gaps.argmax() > 0, "not the first token that is out"
    assert gaps.sum() / (len(gaps) + 64) > 1e-3
    (doubt,) = updates.train(0, (Group(prompt=0, trajectories=(forged, *others)),))
    expected = np.argmax(gaps > 1e-3) if bound == "choice" else gaps.argmax()
    sampled = np.flatnonzero(chosen.sequence.mask[len(chosen.sequence.prompt) :])
    assert (doubt.sample, doubt.position) == (chosen.sample, sampled[expected])
    assert doubt.choice_gap == pytest.approx(gaps.max())
    assert updates.train(0, (batch[0],)) == [], "the truth is taken in its place"


def test_turns_are_updated_with_and_disputed_by_place(build, groups):
    """The place of a disputed token counts what was given before it, as a server's tokens do."""
    turns = groups_in_turns(groups, most_given=1)
    learners = build("grpo")
    state, figures = updated(learners, turns)
    assert int(state.step) == 1 and np.isfinite(figures["loss"])
    expected, *_ = by_hand(learners, turns)
    for left, right in zip(*map(jax.tree.leaves, (state.params, expected)), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)

    members = [t for group in batch_of(learners, turns) for t in group.trajectories]
    lying = next(t for t in members if len(t.sequence.runs) > 4)
    logprobs = lying.sequence.logprobs.copy()
    logprobs[-1] = -0.001
    lie = replace(lying, sequence=replace(lying.sequence, logprobs=logprobs))
    strict = replace(learners, tolerated=Gaps(2.0, 1.0, 1.0))
    (doubt,) = strict.doubts(fresh(learners).params, [Group(prompt=0, trajectories=(lie,))])
    after_prompt = lying.sequence.mask[len(lying.sequence.prompt) :]
    assert doubt.position == np.flatnonzero(after_prompt)[-1] > len(logprobs) - 1


def test_a_rejected_token_counts_in_no_divisor(build, groups):
    """Behaviour and old policy differ by up to half a nat; of what is left, w is within 1.1."""
    learners = build(
        "grpo",
        old_policy="recomputed",
        correction="reject",
        correction_low=0.9,
        correction_high=1.1,
        loss_aggregation="token_mean",
    )
    _, figures = updated(learners, groups)
    assert 0 < figures["corrected"] < 1
    looked, _, _ = learners.score(fresh(learners), batch_of(learners, groups))
    loss, kept, tokens = 0.0, 0, 0
    for t in looked:
        for old, behaviour in zip(t.old_logprobs, t.sequence.logprobs, strict=True):
            weight = np.exp(np.float64(old) - behaviour)
            tokens += 1
            if 0.9 <= weight <= 1.1:
                kept, loss = kept + 1, loss - weight * t.advantage
    np.testing.assert_allclose(figures["loss"], loss / kept, rtol=1e-4)
    np.testing.assert_allclose(figures["corrected"], 1 - kept / tokens, rtol=1e-4)


def test_a_reward_that_is_no_number_names_its_update(build, groups):
    learners = build("grpo", **CASES[1][1])
    spoilt = [
        replace(
            g,
            trajectories=tuple(
                replace(t, verdict=Verdict(reward=float("nan"))) for t in g.trajectories
            ),
        )
        if g.prompt == 3
        else g
        for g in groups
    ]
    with pytest.raises(NotFinite, match=r"step 3, update 2 of its batch: .*reward is not finite"):
        updated(learners, spoilt)


def test_a_guard_is_of_every_update(build, groups):
    learners = build("grpo", **CASES[1][1])
    guarded = replace(
        learners,
        run=replace(learners.run, learner=replace(learners.run.learner, guard_gradient_norm=1e-9)),
    )
    with pytest.raises(GuardTripped, match="checkpoint 7 is sound"):
        updated(guarded, groups)
