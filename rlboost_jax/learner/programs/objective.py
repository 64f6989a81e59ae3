"""The loss of a packed batch, built from the choices of `AlgorithmConfig`.

Nothing here divides by an update's size: an update is made of many packed batches, and only the
sum over all of them may be divided, by the update's own number of tokens or responses. The
weights of a batch say how much a token counts. Log-probabilities are in nats.
"""

from functools import partial
from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlboost_jax.algorithms import surrogates
from rlboost_jax.algorithms.corrections import correction_weights, kept_weights
from rlboost_jax.algorithms.kl import distilled_losses, kl_estimates, kl_losses
from rlboost_jax.algorithms.outside_functions import arrays_from_outside
from rlboost_jax.algorithms.ratios import (
    log_ratios,
    sequence_log_ratios,
    sequence_token_log_ratios,
)
from rlboost_jax.algorithms.segments import segment_sums
from rlboost_jax.learner.packing import PackedBatch
from rlboost_jax.learner.programs.choices import logprob_gaps, mean_choice_gaps
from rlboost_jax.settings.algorithm_config import ActiveCorrection, AlgorithmConfig
from rlboost_jax.settings.outside import Outside

Sums = dict[str, Float[Array, ""]]
# Keys of Sums that are maxima over tokens.
MAXIMA = frozenset({"max_logprob_gap", "max_choice_gap", "max_mean_choice_gap"})
# Keys that say something of a server only under the parameters that it sampled with.
OF_SERVERS = MAXIMA | {"rounded_choices"}


def objective(
    algorithm: AlgorithmConfig,
    batch: PackedBatch,
    logprobs: Float[Array, " N"],
    entropy: Float[Array, " N"],
    *,
    choice_gaps: Float[Array, " N"] | None = None,
    unsure: Float[Array, " N"] | None = None,
    whole_logprobs: Float[Array, " N"] | None = None,
    reference_logprobs: Float[Array, " N"] | None = None,
    teacher_weight: float = 0.0,
) -> tuple[Float[Array, ""], Sums]:
    """The undivided loss, to be minimised, and sums over response tokens.

    Args:
        batch: R rows of T positions, N = R × T.
        logprobs: of the batch's targets under the policy being trained.
        entropy: of the distributions they are from; in the loss with an `entropy_coefficient`.
        choice_gaps: of the targets, see `choices.py`; None: no choice is looked at.
        unsure: see `sampled_logprobs`; None: nothing is cut.
        whole_logprobs, reference_logprobs: of the targets under the whole softmax of the policy
            and of the reference model; None leaves the KL out of the loss.
        teacher_weight: factor of the KL to the batch's teachers, see `distilled_losses`. Nothing
            cuts distributions then: `logprobs` are of the whole softmax.

    Returns:
        The weighted sum, and: `loss` (the same), `kl`, `entropy`, `clipped` and `tokens`
        (unweighted), and the maxima `max_logprob_gap`, the largest |recomputed - behaviour|
        log-probability, `max_choice_gap` and `max_mean_choice_gap`; and `rounded_choices`, the
        tokens whose choice gap is not 0. With a correction also `corrected`, the tokens that
        a bound changed, and with "reject" the `divisor`, see `kept_weights`. With a lag also
        `ratio` and `behaviour_kl`, of the policy being trained to the one that sampled.
    """
    behaviour, advantages, weights, mask = map(
        jnp.ravel,
        (batch.behaviour_logprobs, batch.advantages, batch.weights, batch.response_mask),
    )
    counted = mask.astype(jnp.float32)
    old = _old_logprobs(algorithm, batch, logprobs)
    log_ratio = log_ratios(logprobs, old, mask)
    ratio = jnp.exp(_at_level(algorithm, batch, log_ratio))
    surrogate, stopped = _surrogate(algorithm, ratio, jnp.where(mask, logprobs, 0.0), advantages)
    extra: Sums = {}
    correction = algorithm.chosen_correction
    if correction != "none":
        factors, weights, extra = _corrected(algorithm, correction, batch, old)
        surrogate = surrogate * factors
    if algorithm.lag:
        extra = {**extra, **_distance(logprobs, behaviour, mask)}
    total = -(surrogate * weights).sum()

    kl = jnp.zeros(())
    if reference_logprobs is not None and whole_logprobs is not None:
        kl = kl_estimates(
            whole_logprobs, reference_logprobs, mask, estimator=algorithm.kl_estimator
        ).sum()
        losses = kl_losses(
            whole_logprobs,
            reference_logprobs,
            mask,
            log_ratio,
            estimator=algorithm.kl_estimator,
            gradient=algorithm.kl_gradient,
        )
        total += algorithm.kl_coefficient * (losses * weights).sum()
    if teacher_weight:
        assert batch.teacher_logprobs is not None and batch.taught is not None, "made by `pack`"
        losses = distilled_losses(
            logprobs,
            jnp.ravel(batch.teacher_logprobs),
            jnp.ravel(batch.taught),
            log_ratios(logprobs, behaviour, mask),
        )
        total += teacher_weight * (losses * weights).sum()
    if algorithm.entropy_coefficient:
        bonus = (jnp.where(mask, entropy, 0.0) * weights).sum()
        total -= algorithm.entropy_coefficient * bonus
    return total, {
        "loss": total,
        "kl": kl,
        "entropy": (entropy * counted).sum(),
        "clipped": (stopped & (weights > 0)).sum().astype(jnp.float32),
        "tokens": counted.sum(),
        "max_logprob_gap": jnp.where(
            mask, logprob_gaps(batch, logprobs, 0.0 if unsure is None else unsure), 0.0
        ).max(),
        **_choices(batch, choice_gaps),
        **extra,
    }


def check_traced(algorithm: AlgorithmConfig) -> None:
    """Trace the functions that an algorithm has from other packages; no device is looked for.

    Raises ConfigError where one returns something else than the objective needs.
    """
    tokens = jax.ShapeDtypeStruct((8,), jnp.float32)
    jax.eval_shape(partial(_surrogate, algorithm), tokens, tokens, tokens)
    correction = algorithm.chosen_correction
    if correction != "none":
        rows, marks, numbers = (
            jax.ShapeDtypeStruct((2, 4), kind) for kind in (jnp.float32, jnp.bool_, jnp.int32)
        )
        weigh = partial(_correction_weights, algorithm, correction)
        jax.eval_shape(weigh, rows, rows, marks, numbers)


def _choices(batch: PackedBatch, gaps: Float[Array, " N"] | None) -> Sums:
    if gaps is None:
        gaps = jnp.zeros(batch.tokens.size)
    return {
        "max_choice_gap": gaps.max(),
        "max_mean_choice_gap": mean_choice_gaps(batch, gaps).max(),
        "rounded_choices": (gaps > 0).sum().astype(jnp.float32),
    }


def _distance(
    logprobs: Float[Array, " N"], behaviour: Float[Array, " N"], mask: Bool[Array, " N"]
) -> Sums:
    """Distance of the policy from the version that sampled.

    Sums over tokens of its ratio, and of k3, the estimate of the KL from that version.
    """
    log_ratio = jax.lax.stop_gradient(log_ratios(logprobs, behaviour, mask))
    ratio = jnp.where(mask, jnp.exp(log_ratio), 0.0)
    estimates = jnp.where(mask, jnp.expm1(log_ratio) - log_ratio, 0.0)
    return {"ratio": ratio.sum(), "behaviour_kl": estimates.sum()}


def _old_logprobs(
    algorithm: AlgorithmConfig, batch: PackedBatch, logprobs: Float[Array, " N"]
) -> Float[Array, " N"]:
    """Denominator of the ratio.

    Recomputed before the first update of a batch, they are the policy's own at that update: the
    only one, where there is one.
    """
    if algorithm.old_policy == "behaviour":
        return jnp.ravel(batch.behaviour_logprobs)
    if algorithm.updates_per_batch == 1:
        return jax.lax.stop_gradient(logprobs)
    assert batch.old_logprobs is not None, "packed from trajectories that have them"
    return jnp.ravel(batch.old_logprobs)


def _at_level(
    algorithm: AlgorithmConfig, batch: PackedBatch, log_ratio: Float[Array, " N"]
) -> Float[Array, " N"]:
    match algorithm.ratio_level:
        case "token":
            return log_ratio
        case "sequence":
            level = sequence_log_ratios
        case "sequence_token":
            level = sequence_token_log_ratios
        case _:
            assert_never(algorithm.ratio_level)
    mask, segments = jnp.asarray(batch.response_mask), jnp.asarray(batch.segments)
    return jnp.ravel(level(log_ratio.reshape(mask.shape), mask, segments))


def _surrogate(
    algorithm: AlgorithmConfig,
    ratio: Float[Array, " N"],
    logprobs: Float[Array, " N"],
    advantages: Float[Array, " N"],
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    bounds = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
    match chosen := algorithm.chosen_surrogate:
        case "clip":
            return surrogates.clipped(ratio, advantages, **bounds, dual_clip=algorithm.dual_clip)
        case "cispo":
            return surrogates.cispo(ratio, logprobs, advantages, **bounds)
        case "sapo":
            return surrogates.sapo(
                ratio,
                advantages,
                temperature_positive=algorithm.sapo_temperature_positive,
                temperature_negative=algorithm.sapo_temperature_negative,
            )
        case "reinforce":
            return surrogates.reinforce(logprobs, advantages)
        case Outside():
            given = {"ratio": ratio, "logprobs": logprobs, "advantages": advantages, **bounds}
            given["dual_clip"] = algorithm.dual_clip
            return arrays_from_outside(chosen, given, ratio.shape)
        case _:
            assert_never(chosen)


def _corrected(
    algorithm: AlgorithmConfig,
    correction: ActiveCorrection,
    batch: PackedBatch,
    old: Float[Array, " N"],
) -> tuple[Float[Array, " N"], Float[Array, " N"], Sums]:
    """Factors of the tokens' surrogates, their weights, and metrics of the correction."""
    mask, segments = jnp.asarray(batch.response_mask), jnp.asarray(batch.segments)
    weights = jnp.asarray(batch.weights)
    behaviour = jnp.asarray(batch.behaviour_logprobs)
    weigh = partial(_correction_weights, algorithm, correction)
    factors, changed = weigh(old.reshape(mask.shape), behaviour, mask, segments)
    sums = {"corrected": changed.sum().astype(jnp.float32)}
    if correction == "reject":
        kept = mask & (weights > 0) & ~changed
        weights, sums["divisor"] = kept_weights(
            kept,
            segments,
            loss_aggregation=algorithm.loss_aggregation,
            shares=_shares(batch, mask, segments),
        )
    return jnp.ravel(factors), jnp.ravel(weights), sums


def _correction_weights(
    algorithm: AlgorithmConfig,
    correction: ActiveCorrection,
    old: Float[Array, "R T"],
    behaviour: Float[Array, "R T"],
    mask: Bool[Array, "R T"],
    segments: Int[Array, "R T"],
) -> tuple[Float[Array, "R T"], Bool[Array, "R T"]]:
    return correction_weights(
        old,
        behaviour,
        mask,
        segments,
        correction=correction,
        level=algorithm.correction_level,
        low=algorithm.correction_low,
        high=algorithm.correction_high,
    )


def _shares(
    batch: PackedBatch, mask: Bool[Array, "R T"], segments: Int[Array, "R T"]
) -> Float[Array, "R T"]:
    """Share of each sequence in its response's sampled tokens; exactly 1 for a single sequence."""
    assert batch.response_tokens is not None, "packed by `pack`"
    own = segment_sums(mask.astype(jnp.float32), segments)
    return own / jnp.maximum(jnp.asarray(batch.response_tokens).astype(jnp.float32), 1.0)
