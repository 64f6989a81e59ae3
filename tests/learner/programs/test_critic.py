from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.packing import by_sample, pack
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.state import abstract_state, init_state
from rlboost_jax.models.forward import head_factors, hidden_states_and_experts
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.presets import PRESETS

ALGORITHM = replace(PRESETS["ppo"], critic_learning_rate=1e-2, value_clip=0.0)


@pytest.fixture(scope="module")
def critic(config):
    return CriticPrograms(
        config.model, config.learner, ALGORITHM, num_updates=10, mesh=make_mesh((1, 1, 1))
    )


@pytest.fixture(scope="module")
def trajectories(groups):
    rng = np.random.default_rng(5)
    return [
        replace(
            t,
            returns=rng.normal(size=t.sequence.num_sampled).astype(np.float32),
            old_values=np.zeros(t.sequence.num_sampled, np.float32),
        )
        for group in groups
        for t in group.trajectories
    ]


def batches_of(trajectories, rows=2):
    return pack(trajectories, rows=rows, row_tokens=32, loss_aggregation="token_mean")


def with_a_head(state):
    """Values are 0 before the first update; these are not."""
    kernel = jnp.linspace(-1.0, 1.0, state.params["value"]["kernel"].size)
    return replace(state, params={**state.params, "value": {"kernel": kernel}})


def test_it_begins_as_the_policy_and_expects_nothing(config, critic, trajectories):
    policy = init_params(config.model, 0)
    state = critic.init(policy)
    assert not np.asarray(critic.values(state.params, batches_of(trajectories)[0])).any()
    trunk = {name: policy[name] for name in ("embedding", "layers")}
    assert params_digest({name: state.params[name] for name in trunk}) == params_digest(trunk)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    tied = replace(config.model, tie_embeddings=True)
    assert count == num_parameters(tied) + config.model.embed_dim


def test_a_value_is_of_the_tokens_before_its_own(config, critic, trajectories):
    """Packed values against one response at a time through the decoder."""
    state = with_a_head(critic.init(init_params(config.model, 0)))
    batches = batches_of(trajectories)
    found = by_sample(batches, [np.asarray(critic.values(state.params, b)) for b in batches])
    decoder = {name: part for name, part in state.params.items() if name != "value"}
    model = replace(config.model, tie_embeddings=True)

    @jax.jit
    def hidden(tokens):
        positions = jnp.arange(tokens.shape[1])[None]
        x, _ = hidden_states_and_experts(
            model, decoder, tokens, positions, jnp.ones_like(tokens), remat="none"
        )
        return head_factors(model, decoder, x)[0]

    for t in trajectories[:4]:
        tokens = t.sequence.tokens[:-1]
        x = hidden(np.pad(tokens, (0, 32 - len(tokens)))[None])[: len(tokens)]  # sees no padding
        expected = np.asarray(x, np.float64) @ np.asarray(state.params["value"]["kernel"])
        np.testing.assert_allclose(
            found[t.sample], expected[-t.sequence.num_sampled :], rtol=1e-4, atol=1e-5
        )


def test_its_loss_is_half_the_squared_error_of_response_tokens(config, critic, trajectories):
    state = with_a_head(critic.init(init_params(config.model, 0)))
    batches = batches_of(trajectories)
    values = by_sample(batches, [np.asarray(critic.values(state.params, b)) for b in batches])
    _, sums = critic.accumulate(state.params, batches)
    expected = sum(
        float((np.float64(values[t.sample]) - t.returns) @ (values[t.sample] - t.returns)) / 2
        for t in trajectories
    )
    np.testing.assert_allclose(sums["loss"], expected, rtol=1e-5)
    assert sums["tokens"] == sum(t.sequence.num_sampled for t in trajectories)


def test_one_and_four_micro_batches_agree(config, critic, trajectories):
    state = with_a_head(critic.init(init_params(config.model, 0)))
    whole, _ = critic.accumulate(state.params, batches_of(trajectories, rows=2))
    tokens = sum(t.sequence.num_sampled for t in trajectories)
    parts = [
        critic.accumulate(state.params, batches_of(trajectories[i::4], rows=2)) for i in range(4)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = critic.combine(total, part)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a / tokens, b / tokens, atol=1e-6), total[0], whole
    )


def test_it_learns(config, critic, trajectories):
    """Twenty updates on the same returns; nothing is compiled after the first."""
    state, batches = critic.init(init_params(config.model, 0)), batches_of(trajectories)
    losses = []
    for _ in range(20):
        gradients, sums = critic.accumulate(state.params, batches)
        losses.append(float(sums["loss"] / sums["tokens"]))
        state, metrics = critic.apply(state, gradients, np.float32(sums["tokens"]))
        assert metrics["finite"]
    assert losses[-1] < 0.5 * losses[0]


def test_its_moments_may_lie_on_the_host(config, critic, trajectories):
    """The same bits."""
    learner = replace(config.learner, moment_memory="host")
    mesh = make_mesh((1, 1, 1))
    away = CriticPrograms(config.model, learner, ALGORITHM, num_updates=10, mesh=mesh)
    batches, digests = batches_of(trajectories), []
    for step in (critic, away):
        state = step.init(init_params(config.model, 0))
        for _ in range(2):
            gradients, sums = critic.accumulate(state.params, batches)
            state, _ = step.apply(state, gradients, np.float32(sums["tokens"]))
        digests.append(params_digest(state.params))
    assert digests[0] == digests[1]
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim}
    assert kinds == {"pinned_host"}


def test_a_checkpoint_has_it_and_training_goes_on_bit_for_bit(
    config, learner_step, critic, trajectories, tmp_path
):
    step, mesh = learner_step(), make_mesh((1, 1, 1))
    policy = init_state(init_params(config.model, 0), step.optimizer, step.shardings)
    batches = batches_of(trajectories)

    def update(state):
        gradients, sums = critic.accumulate(state.params, batches)
        return critic.apply(state, gradients, np.float32(sums["tokens"]))[0]

    state = replace(policy, critic=update(critic.init(policy.params)))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        abstract = abstract_state(config.model, step.optimizer, mesh)
        restored, _ = checkpoints.restore(1, replace(abstract, critic=critic.abstract()))
    expected = params_digest(update(state.critic).params)
    assert params_digest(update(restored.critic).params) == expected
