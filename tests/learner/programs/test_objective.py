"""The objective of packed batches against a loop over responses in Python floats.

The loop takes the policy's log-probabilities twice: `live` ones, which have a gradient, and
`frozen` ones, wherever a paper stops the gradient. Finite differences of the loop in its live
argument are then what automatic differentiation must find.
"""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import pack, update_divisor
from rlboost_jax.learner.programs.objective import objective
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.presets import PRESETS
from tests.learner.turns import trajectories_in_turns

LENGTHS = (1, 4, 9, 2, 6, 3, 8, 5)
MOST = 9  # tokens of a response
TEACHER_WEIGHT = 0.4
GRPO, GSPO, CISPO = PRESETS["grpo"], PRESETS["gspo"], PRESETS["cispo"]
WEIGHED = replace(GRPO, old_policy="recomputed", mini_batches=2)

ALGORITHMS = {
    **{name: preset for name, preset in PRESETS.items()},
    "dual clip": replace(GRPO, dual_clip=1.5),
    "gspo of tokens": replace(GSPO, ratio_level="sequence_token", clip_low=0.1, clip_high=0.2),
    "gspo with wide clip": replace(GSPO, clip_low=0.05, clip_high=0.1),
    "cispo with narrow bounds": replace(CISPO, clip_low=0.1, clip_high=0.2),
    "k2 in the loss": replace(GRPO, kl_coefficient=0.3, kl_estimator="k2"),
    "k3 in the loss": replace(GRPO, kl_coefficient=0.3),
    "k1 straight through": replace(
        GRPO, kl_coefficient=0.3, kl_estimator="k1", kl_gradient="straight_through"
    ),
    "a KL to teachers": GRPO,
    "k3 times the ratio": replace(GRPO, kl_coefficient=0.3, kl_gradient="importance"),
    "recomputed old": replace(GRPO, old_policy="recomputed"),
    "recomputed old, two updates": WEIGHED,
    **{
        f"{correction} by {level}, {aggregation}": replace(
            WEIGHED,
            correction=correction,
            correction_level=level,
            correction_low=0.8,
            correction_high=1.1,
            loss_aggregation=aggregation,
        )
        for correction in ("truncate", "mask", "reject")
        for level in ("token", "sequence", "geometric")
        for aggregation in ("token_mean", "sequence_mean")
        if correction == "reject" or aggregation == "token_mean"
    },
}


@pytest.fixture(scope="module", params=["responses", "turns"])
def responses(request):
    """Eight trajectories and, by sample, log-probabilities of policy and reference.

    Once of a response each, and once with tokens in between that were given: no loss sees those.
    """
    rng = np.random.default_rng(0)
    trajectories, live, reference = [], {}, {}
    for sample, length in enumerate(LENGTHS):
        behaviour = -rng.exponential(1.0, length).astype(np.float32)
        trajectories.append(
            Trajectory(
                prompt=sample // 2,
                sample=sample,
                sequence=Sequence.of_response(
                    [1, 2], rng.integers(50, size=length, dtype=np.int32), behaviour, version=0
                ),
                advantage=(-1.5, 0.5, 2.0, -0.25)[sample % 4],
                trained=sample != 3,
                old_logprobs=(behaviour + 0.2 * rng.normal(size=length)).astype(np.float32),
            )
        )
        live[sample] = behaviour + rng.normal(0.0, 0.3, length).astype(np.float32)
        reference[sample] = behaviour + rng.normal(0.0, 0.3, length).astype(np.float32)
    if request.param == "turns":
        trajectories = trajectories_in_turns(trajectories)
        assert max(len(t.sequence.runs) for t in trajectories) >= 6
    return trajectories, live, reference


def sum_by_hand(a: AlgorithmConfig, trajectories, live, frozen, reference):
    """The undivided loss, and what it is to be divided by."""
    total, tokens, sequences = 0.0, 0, 0
    for t in trajectories:
        length, behaviour = t.sequence.num_sampled, [float(x) for x in t.sequence.logprobs]
        now, then = live[t.sample], frozen[t.sample]
        if not t.trained:
            continue
        if a.old_policy == "behaviour":
            old = behaviour
        elif a.updates_per_batch == 1:
            old = then
        else:
            old = [float(x) for x in t.old_logprobs]

        factors = [1.0] * length
        if a.correction != "none":
            factors = [math.exp(o - b) for o, b in zip(old, behaviour, strict=True)]
            if a.correction_level == "sequence":
                factors = [math.prod(factors)] * length
            if a.correction_level == "geometric":
                factors = [math.prod(factors) ** (1 / length)] * length
        within = [a.correction_low <= f <= a.correction_high for f in factors]
        if a.correction == "truncate":
            factors = [min(f, a.correction_high) for f in factors]
        elif a.correction != "none":
            factors = [f if inside else 0.0 for f, inside in zip(factors, within, strict=True)]

        counted = [a.correction != "reject" or inside for inside in within]
        if not any(counted):
            continue
        tokens, sequences = tokens + sum(counted), sequences + 1
        share = 1 / sum(counted) if a.loss_aggregation == "sequence_mean" else 1.0

        mean_now = sum(n - o for n, o in zip(now, old, strict=True)) / length
        mean_then = sum(n - o for n, o in zip(then, old, strict=True)) / length
        for i in range(length):
            if not counted[i]:
                continue
            ratio = math.exp(now[i] - old[i])
            frozen_ratio = math.exp(then[i] - old[i])
            if a.ratio_level == "sequence":
                level, frozen_level = math.exp(mean_now), math.exp(mean_then)
            elif a.ratio_level == "sequence_token":
                frozen_level = math.exp(mean_then)
                level = frozen_level * math.exp(now[i] - then[i])
            else:
                level, frozen_level = ratio, frozen_ratio
            low, high = 1 - a.clip_low, 1 + a.clip_high
            if a.surrogate == "clip":
                gain = min(level * t.advantage, min(max(level, low), high) * t.advantage)
                if a.dual_clip and t.advantage < 0:
                    gain = max(gain, a.dual_clip * t.advantage)
            elif a.surrogate == "cispo":
                gain = min(max(frozen_level, low), high) * t.advantage * now[i]
            elif a.surrogate == "sapo":
                positive = t.advantage > 0
                tau = a.sapo_temperature_positive if positive else a.sapo_temperature_negative
                gain = 4 / tau / (1 + math.exp(-tau * (level - 1))) * t.advantage
            else:
                gain = now[i] * t.advantage
            total -= gain * factors[i] * share
            if t.teacher_logprobs is not None:
                difference = now[i] - float(t.teacher_logprobs[i])
                since_sampled = math.exp(then[i] - behaviour[i])
                total += TEACHER_WEIGHT * since_sampled * difference**2 / 2 * share
            if a.kl_coefficient and a.kl_placement == "loss":
                total += (
                    a.kl_coefficient
                    * share
                    * kl_by_hand(a, now[i], then[i], reference, t, i, ratio)
                )
    return total, (tokens if a.loss_aggregation == "token_mean" else sequences)


def kl_by_hand(a, now, then, reference, t, i, ratio):
    def estimate(logprob, kind):
        d = float(reference[t.sample][i]) - logprob
        return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[kind]

    if a.kl_gradient == "importance":
        return ratio * estimate(now, a.kl_estimator)
    if a.kl_gradient == "straight_through":
        return estimate(then, a.kl_estimator) + estimate(now, "k2") - estimate(then, "k2")
    return estimate(now, a.kl_estimator)


def packed(algorithm, trajectories, rows=4):
    return pack(trajectories, rows=rows, row_tokens=32, loss_aggregation=algorithm.loss_aggregation)


def flat(batch, by_sample):
    """Values of responses where a batch has them, as [N]; -7 elsewhere."""
    out = np.full(batch.tokens.shape, -7.0)
    for sample, values in by_sample.items():
        out[batch.samples == sample] = values
    return jnp.asarray(out.ravel())


@functools.cache
def gradient_program(algorithm, wanted, teacher_weight):
    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_of(logprobs, batch, frozen):
        return objective(
            algorithm,
            batch,
            logprobs,
            jnp.zeros_like(logprobs),
            whole_logprobs=logprobs if wanted else None,
            reference_logprobs=frozen if wanted else None,
            teacher_weight=teacher_weight,
        )

    return gradient_of


def sums_of(algorithm, batches, live, reference, teacher_weight=0.0):
    """Sums over batches, and by sample the gradient in the policy's log-probabilities."""
    wanted = algorithm.has_reference and algorithm.kl_placement == "loss"
    added, gradients = {}, {}

    gradient_of = gradient_program(algorithm, wanted, teacher_weight)
    for batch in batches:
        held = [s for s in live if (batch.samples == s).any()]
        frozen = flat(batch, {s: reference[s] for s in held})
        gradient, sums = gradient_of(flat(batch, {s: live[s] for s in held}), batch, frozen)
        for name, value in sums.items():
            added[name] = added.get(name, 0.0) + float(value)
        gradient = np.asarray(gradient).reshape(batch.tokens.shape)
        assert (gradient[~batch.response_mask] == 0).all()
        gradients |= {s: gradient[batch.samples == s] for s in held}
    return added, gradients


@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradient_are_those_of_a_loop_over_responses(name, responses):
    algorithm, (trajectories, live, reference) = ALGORITHMS[name], responses
    live = {s: values.astype(np.float64) for s, values in live.items()}
    teacher_weight = 0.0
    if name == "a KL to teachers":  # of every other response
        teacher_weight = TEACHER_WEIGHT
        trajectories = [
            replace(t, teacher_logprobs=reference[t.sample] if t.sample % 2 else None)
            for t in trajectories
        ]
    with jax.enable_x64(True):
        batches = packed(algorithm, trajectories)
        sums, gradients = sums_of(algorithm, batches, live, reference, teacher_weight)
    expected, divisor = sum_by_hand(algorithm, trajectories, live, live, reference)
    np.testing.assert_allclose(sums["loss"], expected, rtol=2e-6)
    if "divisor" in sums:
        assert sums["divisor"] == divisor

    step = 1e-5
    for t in trajectories:
        for i in range(t.sequence.num_sampled):
            sides = []
            for sign in (1, -1):
                moved = {**live, t.sample: live[t.sample].copy()}
                moved[t.sample][i] += sign * step
                sides.append(sum_by_hand(algorithm, trajectories, moved, live, reference)[0])
            slope = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(gradients[t.sample][i], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    [
        *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "k3 in the loss"),
        *("mask by token, token_mean", "reject by token, sequence_mean"),
    ],
)
def test_the_trap_of_denominators_one_and_four_micro_batches_agree(name, responses):
    """Sums of parts, divided by the whole's own number, are the whole: to 1e-6 in float32."""
    algorithm, (trajectories, live, reference) = ALGORITHMS[name], responses
    whole, gradients = sums_of(algorithm, packed(algorithm, trajectories, rows=4), live, reference)
    quarters = [packed(algorithm, trajectories[i : i + 2], rows=4) for i in (0, 2, 4, 6)]
    parts, split = sums_of(algorithm, [b for q in quarters for b in q], live, reference)
    for sample, gradient in gradients.items():
        np.testing.assert_allclose(split[sample], gradient, atol=1e-6)
    for key in parts.keys() - {"max_logprob_gap"}:
        np.testing.assert_allclose(parts[key], whole[key], rtol=1e-6, atol=1e-6)


OUTSIDE = {
    "grpo": {"surrogate": "rlboost_jax.algorithms.surrogates:clipped"},
    "dual clip": {"surrogate": "rlboost_jax.algorithms.surrogates:clipped"},
    "truncate by sequence, token_mean": {
        "correction": "tests.algorithms.test_outside_functions:truncated"
    },
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_same_formula_from_outside_has_the_same_bits(name, responses):
    trajectories, live, reference = responses
    batches = packed(ALGORITHMS[name], trajectories, rows=4)
    ours = sums_of(ALGORITHMS[name], batches, live, reference)
    theirs = sums_of(replace(ALGORITHMS[name], **OUTSIDE[name]), batches, live, reference)
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_divisors(responses, aggregation):
    """Sample 3, of two tokens, is not trained on and counts nowhere."""
    trajectories, _, _ = responses
    expected = {"token_mean": 36, "sequence_mean": 7, "sequence_sum": 7, "constant": 7 * MOST}
    divisor = update_divisor(trajectories, aggregation, max_response_tokens=MOST)
    assert divisor == expected[aggregation]
    nothing = [replace(t, trained=False) for t in trajectories]
    assert update_divisor(nothing, aggregation, max_response_tokens=MOST) == 1


def test_what_is_outside_of_responses_has_no_part(responses):
    algorithm, (trajectories, live, _) = ALGORITHMS["cispo"], responses
    (batch,) = packed(algorithm, trajectories, rows=4)
    logprobs = flat(batch, live)
    outside = ~batch.response_mask.ravel()

    @jax.jit
    def loss(logprobs):
        return objective(algorithm, batch, logprobs, jnp.zeros_like(logprobs))[0]

    wild = jnp.asarray(np.where(outside, -np.inf, logprobs), jnp.float32)
    assert loss(wild) == loss(logprobs)
    assert np.isfinite(jax.grad(loss)(wild)).all()


def test_sums_count_response_tokens(responses):
    algorithm, (trajectories, live, _) = replace(GRPO, clip_high=0.1), responses
    (batch,) = packed(algorithm, trajectories, rows=4)
    of = jax.jit(functools.partial(objective, algorithm))
    _, sums = of(batch, flat(batch, live), np.ones(batch.tokens.size, np.float32))
    assert sums["tokens"] == sums["entropy"] == sum(LENGTHS)
    gaps = [np.abs(live[t.sample] - t.sequence.logprobs).max() for t in trajectories]
    np.testing.assert_allclose(sums["max_logprob_gap"], max(gaps), rtol=1e-6)
    clipped = 0
    for t in trajectories:
        ratios = np.exp(live[t.sample].astype(np.float64) - t.sequence.logprobs)
        stopped = ratios > 1.1 if t.advantage > 0 else ratios < 0.8
        clipped += int(stopped.sum()) * t.trained
    assert sums["clipped"] == clipped > 0
