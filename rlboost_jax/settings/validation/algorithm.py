"""Choices of an algorithm that contradict each other: one line per contradiction."""

from collections.abc import Iterator
from typing import Final, get_args

from rlboost_jax.messages import MAX_FRAME_BYTES
from rlboost_jax.settings.algorithm import GroupAdvantage, TokenAdvantage
from rlboost_jax.settings.routing import routing_of
from rlboost_jax.settings.run import RunConfig

_FRAME_LEFT: Final = MAX_FRAME_BYTES - 2**16  # for a response, beside names and numbers


def algorithm_mistakes(config: RunConfig) -> Iterator[str]:
    """The ranges of all fields have been checked before."""
    checks = (_advantage, _turns, _surrogate, _kl, _correction, _lag, _overlong, _updates, _routing)
    for check in checks:
        yield from check(config)


def _advantage(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.group_size == 1 and algorithm.advantage in get_args(GroupAdvantage):
        yield (
            f"algorithm.group_size is 1; algorithm.advantage {algorithm.advantage!r} compares the "
            "responses of one prompt: choose 2 or more, or 'return' or 'gae'"
        )
    if algorithm.group_size == 1 and algorithm.dynamic_sampling:
        yield (
            "algorithm.group_size is 1; algorithm.dynamic_sampling keeps prompts whose responses "
            "have different rewards: choose 2 or more, or set it to False"
        )
    if algorithm.dynamic_sampling_by != "first_function" and not algorithm.dynamic_sampling:
        yield (
            f"algorithm.dynamic_sampling_by is {algorithm.dynamic_sampling_by!r}, which nothing "
            "asks for: set algorithm.dynamic_sampling to True, or it to 'first_function'"
        )
    for index, function in enumerate(config.rewards.functions):
        if algorithm.group_size == 1 and function.per == "group":
            yield (
                f"rewards.functions[{index}] {function.shown_as!r} has per 'group' and would judge "
                "each response alone, since algorithm.group_size is 1: choose 2 or more, or leave "
                "per out"
            )


def _turns(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.turn_advantages == "episode":
        if algorithm.turn_discount != 1:
            yield (
                f"algorithm.turn_discount is {algorithm.turn_discount}, which nothing asks for: "
                "set algorithm.turn_advantages to 'turn' or 'both', or it to 1"
            )
        return
    said = f"algorithm.turn_advantages is {algorithm.turn_advantages!r}"
    if algorithm.advantage in get_args(TokenAdvantage):
        yield (
            f"{said}, which compares turns within a group, but algorithm.advantage "
            f"{algorithm.advantage!r} compares nothing, and takes rewards where their turn ends "
            "anyway: set it to 'episode'"
        )
    if algorithm.advantage == "pass_at_k":
        yield (
            f"{said}, but algorithm.advantage 'pass_at_k' is of the best of whole episodes: set "
            "it to 'episode', or take another advantage"
        )
    if algorithm.ratio_level == "sequence":
        yield (
            f"{said}, but algorithm.ratio_level 'sequence' has one ratio for a response, whose "
            "turns then have different advantages: take 'sequence_token'"
        )


def _surrogate(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.ratio_level == "sequence" and algorithm.advantage in get_args(TokenAdvantage):
        yield (
            "algorithm.ratio_level is 'sequence', one ratio for a response, but "
            f"algorithm.advantage {algorithm.advantage!r} differs by token: take 'sequence_token'"
        )
    if algorithm.surrogate == "reinforce" and algorithm.ratio_level != "token":
        yield (
            f"algorithm.ratio_level is {algorithm.ratio_level!r}, but algorithm.surrogate "
            "'reinforce' has no ratio: set it to 'token', or take another surrogate"
        )
    if algorithm.surrogate == "reinforce" and algorithm.updates_per_batch > 1:
        yield (
            f"algorithm.mini_batches is {algorithm.mini_batches} and algorithm.epochs "
            f"{algorithm.epochs}; with algorithm.surrogate 'reinforce', which has no ratio, only "
            "the first update of a batch is on policy: set both to 1, or take 'clip'"
        )
    if algorithm.dual_clip and algorithm.surrogate != "clip":
        yield (
            f"algorithm.dual_clip is {algorithm.dual_clip}; algorithm.surrogate "
            f"{algorithm.surrogate!r} has no such bound: set it to 0, or take 'clip'"
        )
    if algorithm.dual_clip and algorithm.dual_clip <= 1 + algorithm.clip_high:
        yield (
            f"algorithm.dual_clip is {algorithm.dual_clip}; choose more than 1 + "
            f"algorithm.clip_high ({1 + algorithm.clip_high:g}), or 0 for no such bound"
        )


def _kl(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if not algorithm.kl_coefficient:
        return
    if algorithm.kl_placement == "reward" and algorithm.kl_gradient != "own":
        yield (
            f"algorithm.kl_gradient is {algorithm.kl_gradient!r}; with algorithm.kl_placement "
            "'reward' no gradient goes through the KL: set it to 'own', or place it in the 'loss'"
        )
    own = algorithm.kl_placement == "loss" and algorithm.kl_gradient == "own"
    if algorithm.kl_estimator == "k1" and own:
        yield (
            "algorithm.kl_estimator is 'k1', whose own gradient in the loss has mean 0 whatever "
            "the reference: set algorithm.kl_gradient to 'straight_through' or 'importance', take "
            "'k2', or set algorithm.kl_placement to 'reward'"
        )


def _correction(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.correction == "none":
        return
    if algorithm.old_policy != "recomputed":
        yield (
            f"algorithm.correction is {algorithm.correction!r}, which weighs the learner's old "
            "log-probabilities against the engine's: set algorithm.old_policy to 'recomputed'"
        )
    if algorithm.correction_low >= algorithm.correction_high:
        yield (
            f"algorithm.correction_low is {algorithm.correction_low}; choose less than "
            f"algorithm.correction_high ({algorithm.correction_high})"
        )
    if algorithm.correction == "reject" and algorithm.loss_aggregation == "constant":
        yield (
            "algorithm.correction is 'reject', which takes tokens out of the divisor, but "
            "algorithm.loss_aggregation 'constant' has the same one always: take 'mask'"
        )


def _lag(config: RunConfig) -> Iterator[str]:
    """What was sampled by an older version has to be weighed against the policy that trains on it:
    by the ratio to what the engine recorded, or by a correction."""
    algorithm = config.algorithm
    if not algorithm.lag or algorithm.correction != "none":
        return
    if algorithm.surrogate == "reinforce":
        yield (
            f"algorithm.lag is {algorithm.lag}; algorithm.surrogate 'reinforce' has no ratio to "
            "the version that sampled: take 'clip', or set algorithm.correction and "
            "algorithm.old_policy 'recomputed', or set algorithm.lag to 0"
        )
    elif algorithm.old_policy == "recomputed":
        yield (
            f"algorithm.lag is {algorithm.lag} and algorithm.old_policy 'recomputed', which leaves "
            "out how far the policy is from the version that sampled: take 'behaviour', or set "
            "algorithm.correction"
        )


def _overlong(config: RunConfig) -> Iterator[str]:
    algorithm, most = config.algorithm, config.sampling.max_response_tokens
    if algorithm.overlong_penalty and algorithm.overlong_band * most < 1:
        yield (
            f"algorithm.overlong_band is {algorithm.overlong_band}, less than one of "
            f"sampling.max_response_tokens ({most}); raise it, or set algorithm.overlong_penalty "
            "to 0"
        )


def _updates(config: RunConfig) -> Iterator[str]:
    algorithm, learner = config.algorithm, config.learner
    num_micro_batches = learner.prompts_per_step // learner.micro_batch_prompts
    if num_micro_batches % algorithm.mini_batches:
        yield (
            f"algorithm.mini_batches is {algorithm.mini_batches}; it must divide the "
            f"{num_micro_batches} micro-batches of learner.prompts_per_step "
            f"({learner.prompts_per_step}) in learner.micro_batch_prompts "
            f"({learner.micro_batch_prompts})"
        )


def _routing(config: RunConfig) -> Iterator[str]:
    """A response travels in one frame."""
    routing = routing_of(config.model, config.algorithm)
    if routing is None:
        return
    most = _FRAME_LEFT // (8 + routing.route_bytes)
    if config.slot_tokens > most:
        yield (
            f"algorithm.routing_replay is True; with {routing.route_bytes} bytes of routes each, "
            f"{config.slot_tokens} tokens (engine.max_prompt_tokens + "
            f"sampling.max_response_tokens) are too long for a frame, which has room for {most}: "
            "lower one of them, or set it to False"
        )
