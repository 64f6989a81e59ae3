"""Check a checkpoint: its logits by the learner and by the engine, for given tokens.

    python -m rlboost_jax.logits --model=FOLDER --tokens=TOKENS.npy --out=OUT.npz

TOKENS.npy holds int32 [B, T]; OUT.npz gets `learner` and `engine`, float32 [B, T, V]: entry [b, t]
is of the token after the first t + 1 of row b. `learner` comes from the forward pass that training
differentiates, row by row; `engine` from the paged programs that sample. Both compute in float32,
so that another library's logits in float32 should agree to the last few bits.
"""

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int

from rlboost_jax import compile_cache, exits
from rlboost_jax.config.errors import ConfigError, Mistake
from rlboost_jax.config.records import EngineConfig, ModelConfig
from rlboost_jax.config.sources import WEIGHTS, source_fields, source_folder

_SLOTS: Final = 8


def logits(source: str, tokens: Int[np.ndarray, "B T"]) -> dict[str, Float[np.ndarray, "B T V"]]:
    """`learner` and `engine` logits of the checkpoint, a folder or a name on the hub.

    Raises:
        ConfigError, CheckpointUnusable, NotEnoughMemory: one line that says what to change.
    """
    from rlboost_jax.engine.teacher import teacher_forced_logits
    from rlboost_jax.models.checkpoint_reader import read_checkpoint

    model = ModelConfig(source=source, dtype="float32", **source_fields(source))
    _check(tokens, model.vocab_size)
    params = read_checkpoint(model, source_folder(source, WEIGHTS))
    learner = learner_logits(model, params, tokens)
    engine = _engine(model, tokens.shape[1])
    engine.load(params, 0)
    return {"learner": learner, "engine": teacher_forced_logits(engine, tokens)}


def learner_logits(
    model: ModelConfig, params: dict[str, Any], tokens: Int[np.ndarray, "B T"]
) -> Float[np.ndarray, "B T V"]:
    """By the learner's forward pass, one row at a time."""
    import jax
    import jax.numpy as jnp

    from rlboost_jax.models.forward import head, hidden_states_and_experts

    T = tokens.shape[1]
    positions, segments = jnp.arange(T)[None], jnp.ones((1, T), jnp.int32)

    @jax.jit
    def of_row(params: dict[str, Any], row: jax.Array) -> jax.Array:
        x, _ = hidden_states_and_experts(
            model, params, row[None], positions, segments, remat="none"
        )
        return head(model, params, x)

    return np.stack([np.asarray(of_row(params, row)) for row in tokens])


def _engine(model: ModelConfig, num_tokens: int) -> Any:
    from rlboost_jax.engine.engine import Engine

    config = EngineConfig(
        slots=_SLOTS,
        page_size=16,
        num_pages=0,
        memory_fraction=0.9,
        max_prompt_tokens=num_tokens,
        token_rows=64,
        steps_per_dispatch=1,
        attention="auto",
        kv_dtype="float32",
        tensor_parallel=1,
    )
    return Engine(model, config, slot_tokens=num_tokens + 1, truncated_sampling=False)


def _check(tokens: np.ndarray, vocab_size: int) -> None:
    if tokens.dtype != np.int32 or tokens.ndim != 2 or 0 in tokens.shape:
        raise ConfigError(f"tokens are {tokens.dtype}{list(tokens.shape)}; give int32 [B, T]")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ConfigError(
            f"tokens are {tokens.min()} to {tokens.max()}; the model has ids 0 to {vocab_size - 1}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="rlboost_jax.logits", description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a checkpoint, or a hub name")
    parser.add_argument("--tokens", required=True, help=".npy file, int32 [B, T]")
    parser.add_argument("--out", required=True, help=".npz file to write")
    arguments = parser.parse_args()
    try:
        try:
            tokens = np.load(arguments.tokens)
        except ValueError as error:
            raise ConfigError(f"--tokens={arguments.tokens}: {error}") from None
        compile_cache.enable()
        found = logits(arguments.model, tokens)
        with Path(arguments.out).open("wb") as file:
            np.savez(file, learner=found["learner"], engine=found["engine"])
    except (Mistake, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    gap = np.abs(found["learner"] - found["engine"]).max() / found["learner"].std()
    print(f"{arguments.out}: learner and engine differ by at most {gap:.1e} of the logits' spread")


if __name__ == "__main__":
    main()
