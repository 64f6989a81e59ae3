"""Training adapters: their gradients by the chain rule, what is kept of them, and their base."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.cli.logits import learner_logits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.teacher import teacher_forced_logits
from rlboost_jax.learner.checkpoints.base import OtherBase, check_same, kept_base, read_policy
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.programs import passes
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import abstract_state, init_state
from rlboost_jax.learner.update.tree_sum import TreeSum
from rlboost_jax.models.adapters import is_adapter, joined, merged_params
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import flatten_params, init_params, params_digest, unflatten_params
from rlboost_jax.settings.memory_estimates import learner_bytes, moment_bytes
from rlboost_jax.settings.model_config import LoraConfig
from tests.learner.made_episodes import groups_in_sequences
from tests.learner.test_turns import with_wrong_targets

LORA = LoraConfig(rank=3, alpha=6.0)


@pytest.fixture(scope="module")
def run(config):
    return replace(config, model=replace(config.model, lora=LORA))


@pytest.fixture(scope="module")
def base(config):
    return init_params(config.model, 0)


@pytest.fixture(scope="module")
def adapters(run):
    """Make adapters as if trained: none of them adds nothing."""
    leaves = flatten_params(init_params(run.model, 0, of=is_adapter))
    rng = np.random.default_rng(0)
    noise = {n: 0.2 * rng.standard_normal(leaf.shape, np.float32) for n, leaf in leaves.items()}
    return unflatten_params({name: leaf + noise[name] for name, leaf in leaves.items()})


@pytest.fixture(scope="module")
def step(run, base):
    return step_of(run, base)


def step_of(run, base):
    programs = PolicyPrograms(
        run.model,
        run.learner,
        replace(run.algorithm, kl_coefficient=0.3),
        replace(run.sampling, temperature=0.8),
        num_updates=run.num_steps,
        mesh=make_mesh((1, 1, 1)),
    )
    return programs.over(base)


def packed(groups, num_parts):
    size = len(groups) // num_parts
    parts = [groups[i : i + size] for i in range(0, len(groups), size)]
    options = {"rows": 2, "row_tokens": 32, "loss_aggregation": "token_mean"}
    return [pack([t for g in part for t in g.trajectories], **options) for part in parts]


def gradients_of(step, params, reference, parts):
    total = TreeSum(len(parts), step.combine)
    for index, part in enumerate(parts):
        total.add(index, step.accumulate(params, reference, part))
    return total.total()


@pytest.fixture(scope="module")
def found(run, step, adapters, groups):
    """Gradients and sums of all groups at once; the reference adds nothing to the base."""
    reference = init_params(run.model, 0, of=is_adapter)
    return gradients_of(step, adapters, reference, packed(groups, 1))


def test_gradients_follow_from_those_of_the_merged_matrices(
    run, base, adapters, learner_step, groups, found
):
    """By the chain rule in float64, from the program that trains everything."""
    merged = merged_params(run.model, joined(base, adapters), "float32")
    whole = learner_step(kl_coefficient=0.3)
    of_matrices, sums = gradients_of(whole, merged, base, packed(groups, 1))
    matrices, factors = flatten_params(of_matrices), flatten_params(adapters)
    expected = {}
    for name in factors:
        node, _, which = name.rpartition(".")
        by_matrix = np.float64(matrices[f"{node}.kernel"])
        a, b = (np.float64(factors[f"{node}.lora_{f}"]) for f in "ab")
        transposed = by_matrix.swapaxes(1, 2)
        by_factor = by_matrix @ b.swapaxes(1, 2) if which == "lora_a" else (transposed @ a)
        expected[name] = LORA.scale * (by_factor if which == "lora_a" else by_factor.swapaxes(1, 2))
    gradients = flatten_params(found[0])
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        largest = np.abs(expected[name]).max()
        np.testing.assert_allclose(gradient, expected[name], atol=1e-5 * largest, err_msg=name)
    for key, value in sums.items():
        np.testing.assert_allclose(found[1][key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    assert sums["kl"] > 0


def test_the_starting_policy_is_the_reference(run, step, groups, found):
    start = init_params(run.model, 0, of=is_adapter)
    _, sums = gradients_of(step, start, start, packed(groups, 1))
    assert 0 <= sums["kl"] < 1e-6 < 0.1 < found[1]["kl"]


def test_one_and_three_micro_batches_have_the_same_gradient(run, step, adapters, groups, found):
    reference = init_params(run.model, 0, of=is_adapter)
    parts, _ = gradients_of(step, adapters, reference, packed(groups, 3))
    tokens = found[1]["tokens"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a / tokens, b / tokens, atol=1e-6), parts, found[0]
    )


def test_with_a_large_head_responses_alone_have_logits(
    monkeypatch, run, base, adapters, groups, found
):
    monkeypatch.setattr(passes, "has_large_head", lambda model: True)
    reference = init_params(run.model, 0, of=is_adapter)
    again = gradients_of(step_of(run, base), adapters, reference, packed(groups, 1))
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def test_an_update_moves_adapters_and_has_nothing_else(run, step, adapters, found):
    state = init_state(adapters, step.optimizer, step.shardings)
    moments = [leaf.nbytes for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert sum(moments) == moment_bytes(run)
    plan = learner_bytes(run)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state.params)) == plan["parameters"]
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(step.base)) == plan["base"]
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    abstract = abstract_state(run.model, step.optimizer, step.mesh)
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)
    before = params_digest(step.base)
    gradients = jax.tree.map(jnp.copy, found[0])
    after, metrics = step.apply(state, gradients, np.float32(found[1]["tokens"]))
    assert metrics["finite"] and params_digest(step.base) == before
    for name, leaf in flatten_params(after.params).items():
        assert (leaf != flatten_params(adapters)[name]).any(), name


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_the_engine_samples_from_what_the_learner_trains(run, base, adapters, dtype, bound):
    """Log-probabilities of every token, and far from those of the base alone."""
    model = replace(run.model, dtype=dtype)
    base = jax.tree.map(lambda leaf: leaf.astype(dtype), base)
    config = replace(run.engine, slots=4, max_prompt_tokens=24)
    engine = Engine(
        model, config, slot_tokens=33, truncated_sampling=False, param_dtype=dtype
    )  # fmt: skip
    engine.load(jax.device_get(joined(base, adapters)), 0)
    tokens = np.random.default_rng(0).integers(112, size=(2, 32), dtype=np.int32)
    engines = jax.nn.log_softmax(teacher_forced_logits(engine, tokens))
    learners = jax.nn.log_softmax(learner_logits(model, joined(base, adapters), tokens))
    start = joined(base, init_params(model, 0, of=is_adapter))  # which adds nothing
    frozen = jax.nn.log_softmax(learner_logits(model, start, tokens))
    assert np.abs(engines - learners).max() < bound < 0.1 * np.abs(engines - frozen).max()
    on_devices = Engine(
        model, config, slot_tokens=33, truncated_sampling=False, param_dtype=dtype
    )  # fmt: skip
    on_devices.load(joined(base, adapters), 0)
    for one, other in zip(engine.parameters.leaves, on_devices.parameters.leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_keeps_its_base(run, base, adapters, tmp_path):
    mesh = make_mesh((1, 1, 1))
    rounded = replace(run.model, dtype="bfloat16")
    made = kept_base(rounded, tmp_path, mesh, lambda: base, resumed=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("bfloat16")}
    with pytest.raises(ZeroDivisionError):  # a begin that is not called
        kept_base(rounded, tmp_path / "new", mesh, lambda: 1 // 0, resumed=False)
    for resumed in (False, True):
        again = kept_base(rounded, tmp_path, mesh, lambda: 1 // 0, resumed=resumed)
        assert params_digest(again) == params_digest(made)
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(3, {"params": adapters}, {})
    read = read_policy(rounded, tmp_path, tmp_path / "checkpoints", 3)
    assert params_digest(read) == params_digest(joined(made, adapters))


def test_adapters_without_their_base_are_refused(run, base, adapters, tmp_path):
    mesh = make_mesh((1, 1, 1))
    with pytest.raises(OtherBase, match=r"base is gone, which the adapters in .*bring it back"):
        kept_base(run.model, tmp_path, mesh, lambda: base, resumed=True)
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(3, {"params": adapters}, {})
    with pytest.raises(OtherBase, match=r"adapters alone are no model: .*not in .*base;"):
        read_policy(run.model, tmp_path, tmp_path / "checkpoints", 3)
    check_same("abc", {"base": "abc"}, tmp_path)
    check_same("abc", {"window": None}, tmp_path)  # of step 0
    with pytest.raises(OtherBase, match=r"has digest abc…, and .* were trained on abd…"):
        check_same("abc", {"base": "abd"}, tmp_path)


def test_a_digest_of_adapters_tells_their_base(adapters):
    digests = {params_digest(adapters, base=base) for base in ("", "abc", "abd")}
    assert len(digests) == 3 and params_digest(adapters) in digests


def test_a_critic_begins_as_the_base_and_is_trained_whole(run, base):
    critic = CriticPrograms(
        run.model, run.learner, run.algorithm, num_updates=10, mesh=make_mesh((1, 1, 1))
    )
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), base)
    state = critic.init(rounded)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), critic.abstract())
    assert not any(is_adapter(name) for name in flatten_params(state.params))
    layers = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded["layers"])
    assert params_digest(state.params["layers"]) == params_digest(layers)


def test_no_adapter_learns_what_was_given(step, adapters, groups):
    """Whatever it is as a target, in rows that several sequences share."""
    everything = [t for g in groups_in_sequences(groups) for t in g.trajectories]
    batches = pack(everything, rows=2, row_tokens=48, loss_aggregation="sequence_mean")
    others = [replace(batch, targets=with_wrong_targets(batch)) for batch in batches]
    found = [step.accumulate(adapters, None, each)[0] for each in (batches, others)]
    for left, right in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.asarray(left).any()
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
