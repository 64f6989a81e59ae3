"""The learner's programs against a loss over unpacked trajectories, and against themselves."""

import functools
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.learner.packing import fill, pack, update_divisor
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.update.tree_sum import TreeSum
from rlboost_jax.models.forward import head, hidden_states_and_experts
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import abstract_params, init_params, params_digest
from rlboost_jax.settings.memory_estimates import num_parameters

ROWS, ROW_TOKENS = 2, 32  # so that a micro-batch is several packed batches
TEMPERATURE = 0.8


def everything(groups):
    return [t for group in groups for t in group.trajectories]


@pytest.fixture
def padded(groups):
    """The trajectories of all groups, one per row: arrays [B, T], entry [b, t] about token t."""
    return padded_rows(everything(groups))


def padded_rows(trajectories, length=32):
    shape = (len(trajectories), length)
    rows = {"tokens": np.zeros(shape, np.int32), "behaviour": np.zeros(shape, np.float32)}
    rows |= {"mask": np.zeros(shape, bool), "advantages": np.zeros(shape, np.float32)}
    for b, t in enumerate(trajectories):
        whole, sampled = len(t.sequence.tokens), t.sequence.mask.nonzero()
        rows["tokens"][b, :whole] = t.sequence.tokens
        rows["mask"][b, :whole] = t.sequence.mask
        rows["behaviour"][b][sampled] = t.sequence.logprobs
        rows["advantages"][b] = t.advantage
    return rows


@functools.partial(jax.jit, static_argnames="model")
def token_logprobs(model, params, tokens):
    """[B, T] log-probabilities of each token after the first, given those before it."""
    positions = jnp.tile(jnp.arange(tokens.shape[1]), (tokens.shape[0], 1))
    x, _ = hidden_states_and_experts(
        model, params, tokens, positions, jnp.ones_like(tokens), remat="none"
    )
    logits = head(model, params, x).reshape(*tokens.shape, -1) / TEMPERATURE
    following = jnp.take_along_axis(
        jax.nn.log_softmax(logits)[:, :-1], tokens[:, 1:, None], axis=-1
    )
    return jnp.pad(following[:, :, 0], ((0, 0), (1, 0)))


def mean_loss(config, params, padded, *, reference=None, kl=0.0, sequence_mean=False):
    """Mean loss of an update over unpacked rows."""
    logprobs = token_logprobs(config.model, params, padded["tokens"])
    ratio = jnp.exp(jnp.where(padded["mask"], logprobs - padded["behaviour"], 0.0))
    bounded = jnp.clip(ratio, 1 - config.algorithm.clip_low, 1 + config.algorithm.clip_high)
    losses = -jnp.minimum(ratio * padded["advantages"], bounded * padded["advantages"])
    if reference:
        difference = token_logprobs(config.model, reference, padded["tokens"]) - logprobs
        losses += kl * (jnp.exp(difference) - difference - 1)
    if sequence_mean:
        return jnp.mean(losses, axis=1, where=padded["mask"]).mean()
    return jnp.mean(losses, where=padded["mask"])


def packed_parts(groups, *, size=2, loss_aggregation="token_mean", row_lengths=1):
    options = {"rows": ROWS, "row_tokens": ROW_TOKENS, "loss_aggregation": loss_aggregation}
    options["row_lengths"] = row_lengths
    return [pack(everything(groups[i : i + size]), **options) for i in range(0, len(groups), size)]


def accumulate(step, params, parts, *, reference=None, order=None):
    total = TreeSum(len(parts), combine=step.combine)
    for index in order or range(len(parts)):
        total.add(index, step.accumulate(params, reference, parts[index]))
    return total.total()


def assert_close(left, right, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), left, right)


def fresh(config, step, seed=0):
    return init_state(init_params(config.model, seed), step.optimizer, step.shardings)


@pytest.mark.parametrize(
    ("algorithm", "row_lengths"),
    [
        ({}, 1),
        ({"kl_coefficient": 0.3}, 1),
        ({"kl_coefficient": 0.3, "loss_aggregation": "sequence_mean"}, 3),
    ],
)
def test_w12_a_micro_batched_gradient_is_the_full_batch_gradient(
    config, learner_step, groups, padded, algorithm, row_lengths
):
    kl = algorithm.get("kl_coefficient", 0.0)
    aggregation = algorithm.get("loss_aggregation", "token_mean")
    params = init_params(config.model, 0)
    reference = init_params(config.model, 1) if kl else None
    parts = packed_parts(groups, loss_aggregation=aggregation, row_lengths=row_lengths)
    assert min(len(batches) for batches in parts) > 1
    assert len({batch.tokens.shape for batches in parts for batch in batches}) >= row_lengths - 1
    gradients, sums = accumulate(learner_step(**algorithm), params, parts, reference=reference)

    def loss(params):
        by_sequence = aggregation == "sequence_mean"
        return mean_loss(
            config, params, padded, reference=reference, kl=kl, sequence_mean=by_sequence
        )

    expected_loss, expected = jax.jit(jax.value_and_grad(loss))(params)
    divisor = update_divisor(everything(groups), aggregation)
    np.testing.assert_allclose(sums["loss"] / divisor, expected_loss, rtol=1e-5)
    assert_close(jax.tree.map(lambda g: g / divisor, gradients), expected, atol=1e-6)


def test_sums_are_over_response_tokens(config, learner_step, groups, padded):
    params, reference = init_params(config.model, 0), init_params(config.model, 1)
    step = learner_step(kl_coefficient=0.3)
    _, sums = accumulate(step, params, packed_parts(groups), reference=reference)
    mine, frozen = (
        np.asarray(token_logprobs(config.model, p, padded["tokens"]), np.float64)
        for p in (params, reference)
    )
    kl, clipped, gaps = 0.0, 0, []
    for b, t in zip(*np.nonzero(padded["mask"]), strict=True):
        difference = frozen[b, t] - mine[b, t]
        kl += math.exp(difference) - difference - 1
        gaps.append(mine[b, t] - padded["behaviour"][b, t])
        above = math.exp(gaps[-1]) > 1 + config.algorithm.clip_high
        below = math.exp(gaps[-1]) < 1 - config.algorithm.clip_low
        clipped += above if padded["advantages"][b, t] > 0 else below
    np.testing.assert_allclose(sums["kl"], kl, rtol=1e-4)
    np.testing.assert_allclose(sums["max_logprob_gap"], np.abs(gaps).max(), rtol=1e-5)
    assert sums["tokens"] == len(gaps)
    assert sums["clipped"] == clipped > 0
    # A head of scale 0.02 is close to uniform.
    np.testing.assert_allclose(sums["entropy"] / sums["tokens"], np.log(112), rtol=0.01)


def test_the_gap_is_rounding_when_the_same_weights_sampled(config, learner_step, groups, padded):
    """The policy that recomputes is the one that sampled, so that only the order of float32
    additions differs: here between padded and packed rows, in a run between engine and
    learner. Log-probabilities of about -5 have an ulp of 5e-7."""
    params = init_params(config.model, 0)
    recorded = np.asarray(token_logprobs(config.model, params, padded["tokens"]))
    trajectories = [
        replace(t, sequence=replace(t.sequence, logprobs=row[mask]))
        for t, row, mask in zip(everything(groups), recorded, padded["mask"], strict=True)
    ]
    batches = pack(trajectories, rows=ROWS, row_tokens=ROW_TOKENS, loss_aggregation="token_mean")
    _, sums = learner_step().accumulate(params, None, batches)
    assert sums["max_logprob_gap"] <= 1e-5
    assert sums["clipped"] == 0


def test_any_arrival_order_gives_the_same_bits(config, learner_step, groups):
    step = learner_step()
    parts = packed_parts(groups, size=1)

    def two_updates(orders):
        state = fresh(config, step)
        for order in orders:
            gradients, _ = accumulate(step, state.params, parts, order=order)
            state, _ = step.apply(state, gradients, 100.0)
        return params_digest(state.params)

    expected = two_updates([range(6), range(6)])
    rng = np.random.default_rng(0)
    for _ in range(4):
        assert two_updates([rng.permutation(6).tolist() for _ in range(2)]) == expected


def test_an_update_compiles_nothing_after_the_first(config, groups, count_compiles):
    mesh = make_mesh((1, 1, 1))
    step = PolicyPrograms(
        config.model, config.learner, config.algorithm, config.sampling, num_updates=3, mesh=mesh
    )
    state, made = fresh(config, step), []
    for _ in range(3):
        gradients, _ = accumulate(step, state.params, packed_parts(groups))
        state, metrics = step.apply(state, gradients, np.float32(50))
        jax.block_until_ready(metrics)
        made.append(count_compiles())
    assert made[0] > 0
    assert made[1:] == made[:1] * 2
    assert state.step == 3


def test_tells_what_the_programs_take_besides_their_arguments(config, learner_step):
    step = learner_step()
    taken = step.compile(fresh(config, step), None, shapes=[(ROWS, ROW_TOKENS)])
    widths = config.model.embed_dim + config.model.hidden_dim
    activations = 4 * ROWS * ROW_TOKENS * widths  # that a layer keeps for its gradient, at least
    assert taken >= max(activations, 4 * num_parameters(config.model))  # divided gradients
    shapes = [(ROWS, ROW_TOKENS), (8 * ROWS, ROW_TOKENS)]
    assert step.compile(fresh(config, step), None, shapes=shapes) > taken


def test_no_step_compiles_what_was_compiled_before_it(config, learner_step, groups, count_compiles):
    """Looking for lies included: the first one comes when it comes."""
    step, parts = learner_step(), packed_parts(groups)
    state = fresh(config, step)
    step.compile(state, None, shapes=[(ROWS, ROW_TOKENS)])
    compiled = count_compiles()
    for batch in parts[0]:
        step.gaps(state.params, batch)
    accumulate(step, state.params, parts)
    assert count_compiles() == compiled


def test_the_divisor_is_the_updates_own(config, learner_step, groups):
    """Clipping sees the mean: it must come after the division."""
    step = learner_step()
    gradients, _ = accumulate(step, init_params(config.model, 0), packed_parts(groups))
    squares = sum(float((np.asarray(g, np.float64) ** 2).sum()) for g in jax.tree.leaves(gradients))
    for divisor in (1.0, 400.0):
        _, metrics = step.apply(fresh(config, step), gradients, np.float32(divisor))
        np.testing.assert_allclose(metrics["gradient_norm"], squares**0.5 / divisor, rtol=1e-5)
        np.testing.assert_allclose(metrics["learning_rate"], config.learner.learning_rate)
        assert metrics["finite"]


def test_an_update_spares_what_the_caller_still_holds(config, learner_step, groups):
    """Programs reuse the state's memory: neither the parameters that it was made of nor a copy
    on the host, which on CPU is a view of the same memory, may notice."""
    step = learner_step()
    drawn = init_params(config.model, 0, shardings=step.shardings.params)
    params = jax.tree.map(jnp.copy, drawn)  # buffers that no array of the host stands behind
    digest = params_digest(init_params(config.model, 0))
    state = init_state(params, step.optimizer, step.shardings)
    on_host = jax.device_get(state.params)
    for _ in range(2):
        gradients, _ = accumulate(step, state.params, packed_parts(groups))
        state, _ = step.apply(state, gradients, np.float32(100))
    assert params_digest(params) == params_digest(on_host) == digest
    assert params_digest(state.params) != digest


def test_a_gradient_that_is_not_finite_is_flagged(config, learner_step):
    step = learner_step()
    gradients = jax.tree.map(jnp.zeros_like, init_params(config.model, 0))
    gradients["embedding"]["table"] = gradients["embedding"]["table"].at[3, 3].set(jnp.nan)
    _, metrics = step.apply(fresh(config, step), gradients, np.float32(1))
    assert not metrics["finite"]


def test_an_update_that_is_not_finite_is_flagged(config, learner_step):
    """Though its gradient is: the fault lies in the optimizer's memory."""
    step = learner_step()
    state = fresh(config, step)
    spoilt = jax.tree.map(
        lambda leaf: leaf.at[(0,) * leaf.ndim].set(jnp.nan) if leaf.ndim == 2 else leaf,
        state.opt_state,
    )
    gradients = jax.tree.map(jnp.ones_like, state.params)
    _, metrics = step.apply(replace(state, opt_state=spoilt), gradients, np.float32(1))
    assert jnp.isfinite(metrics["gradient_norm"]) and not metrics["finite"]


def largest_tensor(program):
    """Elements of the largest array in a program, whether or not it is ever in memory."""
    shapes = re.findall(r"tensor<((?:\d+x)+)", program.as_text())
    return max(math.prod(map(int, shape.split("x")[:-1])) for shape in shapes)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_no_logits_of_all_tokens_are_made(config, top_p):
    """4,096 tokens of 16,384 entries: lowered for its shapes, and never run."""
    N, V = 64 * 64, 16_384
    model = replace(config.model, vocab_size=V)
    sampling = replace(config.sampling, top_p=top_p)
    step = PolicyPrograms(
        model,
        config.learner,
        config.algorithm,
        sampling,
        num_updates=3,
        mesh=make_mesh((1, 1, 1)),
    )
    batch, _ = fill([], rows=64, row_tokens=64, loss_aggregation="token_mean")
    program = step.gradients.lower(abstract_params(model), None, batch)
    assert largest_tensor(program) <= N * V / 4
    if top_p == 1:  # a search for the threshold takes several arrays of a block's size
        assert program.compile().memory_analysis().temp_size_in_bytes < 4 * N * V

    def with_logits(params):
        given = map(jnp.asarray, (batch.tokens, batch.positions, batch.segments))
        x, _ = hidden_states_and_experts(model, params, *given, remat="none")
        return head(model, params, x)

    assert largest_tensor(jax.jit(with_logits).lower(abstract_params(model))) == N * V


def norm(tree):
    return math.sqrt(sum((np.float64(leaf) ** 2).sum() for leaf in jax.tree.leaves(tree)))


def test_bfloat16_activations_leave_float32_gradients_that_add_up(config, groups):
    """Masters, gradients and their sums are float32, so that a small part is not lost in a large
    sum; what is rounded are activations, and with them gradients by less than a percent."""
    step, rounded = (
        PolicyPrograms(
            replace(config.model, dtype=dtype),
            config.learner,
            config.algorithm,
            config.sampling,
            num_updates=3,
            mesh=make_mesh((1, 1, 1)),
        )
        for dtype in ("float32", "bfloat16")
    )
    parts = packed_parts(groups)
    state = fresh(config, rounded)
    (exact, _), (gradients, sums) = (accumulate(s, state.params, parts) for s in (step, rounded))
    assert {leaf.dtype for leaf in jax.tree.leaves((gradients, state))} >= {jnp.dtype("float32")}
    assert jnp.dtype("bfloat16") not in {leaf.dtype for leaf in jax.tree.leaves((gradients, state))}
    given, exact, sums = jax.device_get((gradients, exact, sums))
    assert 1e-5 < norm(jax.tree.map(np.subtract, given, exact)) / norm(exact) < 0.02

    small = jax.tree.map(lambda leaf: leaf * np.float32(2**-12), given)  # lost in bfloat16
    both, _ = step.combine((given, sums), (small, sums))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, np.float64(1 + 2**-12) * b, rtol=1e-6),
        both,
        given,
    )
    state, metrics = rounded.apply(state, gradients, np.float32(100))
    assert metrics["finite"]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
