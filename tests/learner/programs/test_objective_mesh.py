"""One against eight devices, where sums over sequences and a critic are involved."""

import pytest

PROGRAM = """
from dataclasses import replace
import jax, numpy as np
from configs import base
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.models.params import init_params
from rlboost_jax.models.parameter_sharding import make_mesh

values = base.get_config()
values.model.embed_dim, values.model.hidden_dim, values.model.head_dim = 16, 32, 8
config = run_config(values)
algorithm = replace(
    PRESETS["gspo"], clip_low=0.05, clip_high=0.1, old_policy="recomputed", mini_batches=2,
    correction="reject", correction_level="geometric", correction_low=0.9, correction_high=1.1,
    entropy_coefficient=0.1,
)
rng = np.random.default_rng(0)

def trajectory(sample):
    n = int(rng.integers(1, 12))
    draw = lambda scale=1.0: (scale * rng.normal(size=n)).astype(np.float32)
    old = draw(0.3) - 4.7
    return Trajectory(
        prompt=0, sample=sample, old_logprobs=old, sequence=Sequence.of_response(
            rng.integers(112, size=3), rng.integers(112, size=n), old + draw(0.15), version=0
        ),
        advantage=float(rng.normal()), old_values=draw(0.1), returns=draw(),
    )

trajectories = [trajectory(i) for i in range(20)]
batches = pack(trajectories, rows=4, row_tokens=24, loss_aggregation="sequence_mean")
critics = replace(PRESETS["ppo"], value_clip=0.2)

def gradients(shape):
    mesh = make_mesh(shape)
    options = dict(num_updates=10, mesh=mesh)
    policy = PolicyPrograms(config.model, config.learner, algorithm, config.sampling, **options)
    params = init_params(config.model, 0, shardings=policy.shardings.params)
    found, sums = policy.accumulate(params, None, batches)
    assert 0 < sums["divisor"] < 20 and sums["corrected"] > 0
    critic = CriticPrograms(config.model, config.learner, critics, **options)
    state = critic.init(params)
    kernel = np.linspace(-1, 1, 16, dtype=np.float32)
    state = replace(state, params={**state.params, "value": {"kernel": kernel}})
    of_critic, more = critic.accumulate(state.params, batches)
    sums = {**sums, "value_loss": more["loss"]}
    means = jax.tree.map(lambda g, n=sums["divisor"]: np.asarray(g) / n, found)
    return means, jax.tree.map(lambda g: np.asarray(g) / more["tokens"], of_critic), sums

one, eight = gradients((1, 1, 1)), gradients((2, 2, 2))
for left, right in zip(one[:2], eight[:2]):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), left, right)
for name in one[2]:
    np.testing.assert_allclose(one[2][name], eight[2][name], rtol=1e-5)
print(max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(one[:2])))
"""


@pytest.mark.soak
def test_gradients_on_eight_devices_are_those_on_one(run_with_devices):
    assert float(run_with_devices(PROGRAM, 8)) > 1e-3, "there is something to compare"
