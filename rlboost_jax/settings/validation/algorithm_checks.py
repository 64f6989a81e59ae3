"""Choices of an algorithm that contradict each other: one line per contradiction."""

from collections.abc import Iterator
from typing import Final, assert_never

from rlboost_jax.messages import MAX_FRAME_BYTES
from rlboost_jax.sequences.shared_limits import AGREEING
from rlboost_jax.settings.distillation_config import NOT_SAID, DistillationConfig
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.mixture_parts import parts_of
from rlboost_jax.settings.routing import routing_of
from rlboost_jax.settings.run_config import RunConfig

_FRAME_LEFT: Final = MAX_FRAME_BYTES - 2**16  # for a response, beside names and numbers


def algorithm_mistakes(config: RunConfig) -> Iterator[str]:
    """Yield a line per contradiction in the algorithm's settings; ranges are checked before."""
    checks = (
        *(_advantage, _turns, _surrogate, _kl, _correction, _lag, _overlong, _updates, _routing),
        _distillation,
    )
    for check in checks:
        yield from check(config)


def _advantage(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.group_size == 1 and algorithm.compares_groups:
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
    if not algorithm.compares_groups:
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
    if algorithm.ratio_level == "sequence" and not algorithm.compares_groups:
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
    if algorithm.dual_clip and algorithm.surrogate in ("cispo", "sapo", "reinforce"):
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
    """Check that responses of older versions are weighted.

    Either the ratio to the engine's log-probabilities does it, or a correction.
    """
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


def _distillation(config: RunConfig) -> Iterator[str]:
    distillation, algorithm = config.distillation, config.algorithm
    teachers = distillation.teachers
    if not teachers:
        default = DistillationConfig()
        for name in ("form", "scored_by", "weight", "reward_weight"):
            if (value := getattr(distillation, name)) != getattr(default, name):
                yield f"distillation.{name} is {value} without distillation.teachers; name one"
        return
    if distillation.on_servers:
        yield from _scored_by_servers(config)
    if all(teacher.source == NOT_SAID for teacher in teachers):
        return  # a server's: the rest was checked at the trainer
    whole = "algorithm.advantage 'gae'" if algorithm.has_critic else "algorithm.whiten True"
    needs_batch = algorithm.has_critic or algorithm.whiten
    match distillation.form:
        case "advantage":
            said = "distillation.teachers gives each token an advantage of its own"
            other = "or set distillation.form to 'loss'"
            if needs_batch:
                yield f"{said}, and {whole} needs the whole batch first: take 'grpo', {other}"
            if algorithm.ratio_level == "sequence":
                yield (
                    f"{said}, but algorithm.ratio_level is 'sequence': take 'sequence_token', "
                    f"{other}"
                )
        case "loss":
            if needs_batch and distillation.reward_weight != 1:
                yield (
                    f"distillation.reward_weight is {distillation.reward_weight}, and {whole} "
                    "makes advantages of the whole batch later: set it to 1, or take 'grpo'"
                )
        case _:
            assert_never(distillation.form)
    if config.sampling.truncated:
        yield (
            f"distillation.teachers compares whole distributions, and sampling.top_p is "
            f"{config.sampling.top_p}, sampling.top_k {config.sampling.top_k}: set them to 1 and 0"
        )
    known = [part.name for part in parts_of(config)]
    named = [name for teacher in teachers for name in teacher.data]
    for name in sorted({name for name in named if name not in known}):
        yield (
            f"distillation.teachers names the data set {name!r}; data.mixture has "
            f"{', '.join(known) or 'none'}"
        )
    for name in sorted({name for name in named if named.count(name) > 1}):
        yield f"distillation.teachers has two teachers for the data set {name!r}; keep one"
    if sum(not teacher.data for teacher in teachers) > 1:
        yield (
            "distillation.teachers has several teachers without `data`; say which data sets of "
            "data.mixture each is for"
        )
    for place, teacher in enumerate(teachers):
        if not teacher.source:
            yield f"distillation.teachers[{place}]: source is ''; name a checkpoint"
    missing = [name for name in known if distillation.teacher_of(name) < 0]
    if missing and not distillation.reward_weight:
        yield (
            f"distillation.reward_weight is 0, and the data set {missing[0]!r} has no teacher: "
            "nothing would be learnt from it; name one, or raise the weight"
        )


def _scored_by_servers(config: RunConfig) -> Iterator[str]:
    said, fleet = "distillation.scored_by is 'servers'", config.fleet
    if not config.deterministic:
        yield (
            f"{said}: two servers must find the same bits, and with deterministic = False they "
            "may not; set it to True, or score by the 'trainer'"
        )
    if fleet.sizing != "fixed" or fleet.merge_tail:
        yield (
            f"{said}: a step waits for two servers, and fleet.sizing {fleet.sizing!r} with "
            f"fleet.merge_tail {fleet.merge_tail} may leave fewer; set them to 'fixed' and False"
        )
    if config.engine.tensor_parallel > 1:
        yield (
            f"{said}: a server holds a teacher on one device, and engine.tensor_parallel is "
            f"{config.engine.tensor_parallel}; set it to 1"
        )
    if fleet.provider != "none" and fleet.most_instances < AGREEING:
        yield (
            f"{said}: it takes {AGREEING} servers, and fleet.max_instances is "
            f"{fleet.most_instances}; raise it"
        )
    if fleet.provider != "none":
        yield from _two_within_budget(said, fleet)


def _two_within_budget(said: str, fleet: FleetConfig) -> Iterator[str]:
    if fleet.max_dollars:
        yield (
            f"{said}: once the run has cost fleet.max_dollars ({fleet.max_dollars:g}) no server is "
            "left, and a step would wait forever; set it to 0, or score by the 'trainer'"
        )
    prices = [p.price_per_hour for p in fleet.pools for _ in range(p.max_instances)]
    cheapest = sorted(prices or [fleet.price_per_hour] * AGREEING)[:AGREEING]
    if 0 < fleet.max_dollars_per_hour < sum(cheapest):
        yield (
            f"{said}: it takes {AGREEING} servers, which cost ${sum(cheapest):g} an hour, and "
            f"fleet.max_dollars_per_hour is {fleet.max_dollars_per_hour:g}; raise it"
        )


def _routing(config: RunConfig) -> Iterator[str]:
    """Check that a response with its routes fits into one frame."""
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
