"""Rows, pages and devices of an engine that contradict each other: one line per mistake."""

from collections.abc import Iterator
from typing import Final

from rlboost_jax.sequences.shared_limits import MAX_POSITIONS
from rlboost_jax.settings.memory_estimates import pages_per_slot
from rlboost_jax.settings.run_config import RunConfig

ROW_CLASS: Final = 16  # row counts whose matmuls have the same bits are multiples of this
MIN_TOKEN_ROWS: Final = 64  # … and at least this many


def engine_mistakes(config: RunConfig) -> Iterator[str]:
    """Yield a line per contradiction in the engine's settings, whose ranges are checked before."""
    engine = config.engine
    in_class = engine.token_rows >= MIN_TOKEN_ROWS and engine.token_rows % ROW_CLASS == 0
    if config.deterministic and not in_class:
        yield (
            f"engine.token_rows is {engine.token_rows}; equal bits need a multiple of {ROW_CLASS}, "
            f"at least {MIN_TOKEN_ROWS}; or set deterministic to False"
        )
    if config.slot_tokens > MAX_POSITIONS:
        yield (
            f"engine.max_prompt_tokens and sampling.max_response_tokens add up to "
            f"{config.slot_tokens}; the model has {MAX_POSITIONS} positions, lower one of them"
        )
    yield from _tensor_parallel(config)
    if engine.slots > engine.token_rows:
        yield (
            f"engine.slots is {engine.slots}, more than engine.token_rows ({engine.token_rows}); "
            "every slot decodes one row, so lower slots or raise token_rows"
        )
    needed = pages_per_slot(engine, config.slot_tokens)
    if 0 < engine.num_pages < needed:
        yield (
            f"engine.num_pages is {engine.num_pages}, one rollout of {config.slot_tokens} tokens "
            f"needs {needed}; raise it, or 0 gives every slot its own"
        )


def _tensor_parallel(config: RunConfig) -> Iterator[str]:
    devices, model, (_, fsdp, tensor) = (
        config.engine.tensor_parallel,
        config.model,
        config.learner.mesh,
    )
    hidden = "num_experts" if model.num_experts else "hidden_dim"
    for name in ("num_query_heads", "num_key_heads", hidden, "vocab_size"):
        if (count := getattr(model, name)) % devices:
            yield (
                f"engine.tensor_parallel is {devices}, which does not divide model.{name} "
                f"({count}); choose another number of devices"
            )
    if devices > fsdp * tensor:
        yield (
            f"engine.tensor_parallel is {devices}, and a slice of learner.mesh has "
            f"{fsdp * tensor} devices (fsdp * tensor) for an engine of its own: lower it"
        )
