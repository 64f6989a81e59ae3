"""What is computed of responses that an older version sampled, and with whose parameters."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.packing import by_sample
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.tolerated_gaps import Gaps
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.settings.presets import PRESETS

PROMPTS, GROUP, STEP = 4, 3, 3  # the trajectories in `groups` are of version 3


@pytest.fixture(scope="module")
def build(config):
    def made(name, **choices):
        choices = {"group_size": GROUP, "lag": 1, **choices}
        algorithm = replace(PRESETS[name], **choices)
        run = replace(
            config,
            algorithm=algorithm,
            learner=replace(
                config.learner, prompts_per_step=PROMPTS, micro_batch_prompts=1, pack_rows=2
            ),
        )
        policy = PolicyPrograms(
            run.model,
            run.learner,
            algorithm,
            run.sampling,
            num_updates=40,
            mesh=make_mesh((1, 1, 1)),
        )
        return Learner(
            run=run,
            policy=policy,
            critic=None,
            reference=init_params(config.model, 2),
            estimates=Estimates(
                algorithm=algorithm,
                max_response_tokens=run.sampling.max_response_tokens,
                stop_ids=(),
            ),
            tolerated=Gaps(1e-3, 1.0, 1.0),
        )

    return made


def state_of(learner):
    policy = learner.policy
    return init_state(init_params(learner.run.model, 0), policy.optimizer, policy.shardings)


@pytest.fixture
def older(config):
    """Parameters that are not the state's."""
    return init_params(config.model, 1)


def logprobs(learner, params, members, reference=None):
    batches = learner.pack(members)
    parts = [learner.policy.logprobs(params, reference, batch) for batch in batches]
    return {name: by_sample(batches, [np.asarray(p[name]) for p in parts]) for name in parts[0]}


def said_by(learner, params, groups):
    """The groups as an honest server with these parameters tells of them."""
    everything = [t for group in groups for t in group.trajectories]
    truth = logprobs(learner, params, everything)["policy"]
    return tuple(
        Group(
            prompt=group.prompt,
            trajectories=tuple(
                replace(t, sequence=replace(t.sequence, logprobs=truth[t.sample]))
                for t in group.trajectories
            ),
        )
        for group in groups[:PROMPTS]
    )


@pytest.mark.parametrize("old_policy", ["behaviour", "recomputed"])
def test_kl_in_the_reward_is_of_the_version_that_sampled(build, older, groups, old_policy):
    """And old log-probabilities, if any are recomputed, of the policy before its first update."""
    learner = build("reinforce_pp", mini_batches=2, old_policy=old_policy)
    state, said = state_of(learner), said_by(learner, older, groups)
    members, gaps, kl = learner.score(state, said, older)
    assert gaps.logprob <= 1e-6
    sampled = logprobs(learner, older, members, learner.reference)
    k1 = [sampled["whole"][t.sample] - sampled["reference"][t.sample] for t in members]
    np.testing.assert_allclose(kl, sum(each.sum() for each in k1), rtol=1e-5)
    own = logprobs(learner, state.params, members)["policy"]
    for t in members:
        if old_policy == "recomputed":
            np.testing.assert_array_equal(t.old_logprobs, own[t.sample])
        else:
            assert t.old_logprobs is None


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("grpo", {}),
        ("grpo", {"mini_batches": 2}),
        ("grpo", {"old_policy": "recomputed", "correction": "truncate"}),
        ("reinforce_pp", {}),
    ],
)
def test_gradients_are_of_the_policy_and_gaps_of_the_version(build, older, groups, name, choices):
    learner = build(name, **choices)
    state, said = state_of(learner), said_by(learner, older, groups)
    said = tuple(
        Group(prompt=g.prompt, trajectories=learner.estimates.of_group(g.trajectories))
        for g in said
    )
    host_params = jax.device_get(state.params)
    update = BatchUpdate(
        learner, state, step=STEP + 1, checkpoint=lambda: None, version=STEP, sampler=older
    )
    for group in said:
        for index, ready in update.micro_batches.add(group):
            assert update.train(index, ready) == []
    everything = [t for group in said for t in group.trajectories]
    _, figures = update.finish(everything, prompts=range(PROMPTS), host_params=host_params)
    assert figures["max_logprob_gap"] <= 1e-6
    now = logprobs(learner, host_params, everything)["policy"]
    log_ratios = np.concatenate([now[t.sample] - t.sequence.logprobs for t in everything])
    assert np.abs(log_ratios).max() > 1e-2, "the policy is another"
    if learner.run.algorithm.updates_per_batch == 1:
        np.testing.assert_allclose(figures["ratio"], np.exp(log_ratios).mean(), rtol=1e-5)
        k3 = np.expm1(log_ratios.astype(np.float64)) - log_ratios
        np.testing.assert_allclose(figures["behaviour_kl"], k3.mean(), rtol=1e-3)


def test_without_an_older_version_the_policy_itself_is_what_sampled(build, groups):
    learner = build("grpo", lag=0)
    state = state_of(learner)
    said = said_by(learner, state.params, groups)
    update = BatchUpdate(learner, state, step=STEP, checkpoint=lambda: None)
    assert update.check(said) == []
    assert update.train(0, said[:1]) == []
    lied = said_by(learner, init_params(learner.run.model, 1), groups)
    assert {doubt.prompt for doubt in update.check(lied)} == set(range(PROMPTS))
