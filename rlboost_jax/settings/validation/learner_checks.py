"""A learner's packing, mesh and precision where they contradict each other, a line per mistake."""

import math
from collections.abc import Iterator
from typing import Final

from rlboost_jax.settings.run_config import RunConfig

# A moment decays by 1 - beta each update. Rounded to bfloat16, whose last digit is worth up to
# 1/128 of a number, one that decays by less than half of that would stay as it is for ever.
MAX_BETA_ROUNDED: Final = 0.99


def learner_mistakes(config: RunConfig) -> Iterator[str]:
    """Yield a line per contradiction in the learner's settings, whose ranges are checked before."""
    learner = config.learner
    prompts, at_once = learner.prompts_per_step, learner.micro_batch_prompts
    if prompts % at_once:
        yield (
            f"learner.prompts_per_step is {prompts}, not a multiple of "
            f"learner.micro_batch_prompts ({at_once}); set that to {_divisor(prompts, at_once)}, "
            f"or learner.prompts_per_step to {at_once * math.ceil(prompts / at_once)}"
        )
    if min(learner.mesh) < 1:
        yield f"learner.mesh is {learner.mesh}; every axis has at least 1 device"
    elif not learner.pack_tokens and learner.pack_rows % (learner.mesh[0] * learner.mesh[1]):
        yield (
            f"learner.pack_rows is {learner.pack_rows}, not a multiple of data * fsdp "
            f"({learner.mesh[0]} * {learner.mesh[1]}) in learner.mesh; change one of them"
        )
    if learner.row_tokens and learner.row_tokens < config.slot_tokens:
        yield (
            f"learner.row_tokens is {learner.row_tokens}, the longest prompt plus response has "
            f"{config.slot_tokens} (engine.max_prompt_tokens + sampling.max_response_tokens); "
            "raise it, or 0 takes just that"
        )
    if 0 < learner.pack_tokens < config.row_tokens:
        yield (
            f"learner.pack_tokens is {learner.pack_tokens}, one row has {config.row_tokens} "
            "(learner.row_tokens, or the longest prompt plus response); raise it, or 0 takes "
            "learner.pack_rows"
        )
    if config.row_tokens < 2 ** (learner.row_lengths - 1):
        yield (
            f"learner.row_lengths is {learner.row_lengths}; a row of {config.row_tokens} tokens "
            "cannot be halved so often: lower it"
        )
    if learner.guard_kl and not config.algorithm.kl_coefficient:
        yield (
            f"learner.guard_kl is {learner.guard_kl}; it is of the KL to the starting model, which "
            "is kept only where algorithm.kl_coefficient is above 0: raise that, or set it to 0"
        )
    if learner.attention == "paged" and math.prod(learner.mesh) > 1:
        yield (
            f"learner.attention is 'paged' and learner.mesh {learner.mesh}; the engine's kernel "
            "would gather what is sharded: take 'dense' or 'auto', or one device"
        )
    if learner.attention == "cudnn" and config.deterministic:
        yield (
            "learner.attention is 'cudnn' and deterministic is True; its gradients are added up in "
            "any order: take 'triton' or 'auto', or set deterministic to False"
        )
    if learner.moment_dtype != "float32":
        for name in ("beta1", "beta2"):
            if getattr(learner, name) > MAX_BETA_ROUNDED:
                yield (
                    f"learner.{name} is {getattr(learner, name)} and learner.moment_dtype "
                    f"{learner.moment_dtype!r}; changes smaller than its last digit would be lost "
                    f"to rounding: choose at most {MAX_BETA_ROUNDED}, or float32"
                )
    if config.num_steps and learner.schedule_warmup_steps > config.num_updates:
        yield (
            f"learner.schedule_warmup_steps is {learner.schedule_warmup_steps}; the run makes "
            f"{config.num_updates} updates (num_steps x algorithm.mini_batches x "
            "algorithm.epochs), choose no more"
        )


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return max(d for each in small for d in (each, number // each) if d <= most)
