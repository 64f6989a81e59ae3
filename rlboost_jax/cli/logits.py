"""Check a checkpoint: its logits by the learner and by the engine, for given tokens.

    rlboost logits --model=FOLDER --tokens=TOKENS.npy --out=OUT.npz

TOKENS.npy holds int32 [B, T]; OUT.npz gets `learner` and `engine`, float32 [B, T, V]: entry [b, t]
is of the token after the first t + 1 of row b. `learner` comes from the forward pass that training
differentiates, row by row; `engine` from the paged programs that sample. Both compute in float32,
so that another library's logits in float32 should agree to the last few bits, and by plain forms on
GPUs: no kernel for them has a part in it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int

from rlboost_jax.platform import command_parser, compile_cache, exits
from rlboost_jax.platform.bounded_files import Unreadable, open_regular
from rlboost_jax.platform.mistakes import ConfigError, Mistake
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.shared_limits import MAX_POSITIONS
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_fields, source_folder
from rlboost_jax.settings.memory_estimates import MOST_BLOCK, MOST_DENSE_TOKENS, size_text
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.validation.run_checks import check_model

_SLOTS: Final = 8


def logits(
    source: str,
    tokens: Int[np.ndarray, "B T"],
    *,
    memory_of: Callable[[Any], Any] | None = None,
) -> dict[str, Float[np.ndarray, "B T V"]]:
    """Compute `learner` and `engine` logits of a checkpoint, in a folder or on the hub.

    Args:
        memory_of: a device; None asks it.

    Raises:
        ConfigError, CheckpointUnusable, NotEnoughMemory: one line that says what to change.
    """
    from rlboost_jax.engine.teacher import teacher_forced_logits
    from rlboost_jax.models.checkpoint_reader import CheckpointUnusable, read_checkpoint

    model = ModelConfig(source=source, dtype="float32", **source_fields(source, weights=True))
    check_model(model)
    _check(tokens, model.vocab_size)
    _check_memory(model, tokens.shape[1], memory_of)
    params = read_checkpoint(model, source_folder(source, WEIGHTS))
    engine = _engine(model, tokens.shape[1])
    engine.load(params, Version(0))
    found = {
        "learner": learner_logits(model, params, tokens),
        "engine": teacher_forced_logits(engine, tokens),
    }
    for name, values in found.items():
        broken = np.argwhere(~np.isfinite(values))
        if len(broken):
            raise CheckpointUnusable(
                f"{source}: {len(broken):,} of {values.size:,} logits of the {name} are not "
                f"finite, the first after token {broken[0][:2].tolist()}; are the weights?"
            )
    return found


def learner_logits(
    model: ModelConfig, params: dict[str, Any], tokens: Int[np.ndarray, "B T"]
) -> Float[np.ndarray, "B T V"]:
    """Compute logits by the learner's forward pass, one row at a time."""
    import jax
    import jax.numpy as jnp

    from rlboost_jax.models.forward import head, hidden_states_and_experts

    T = tokens.shape[1]
    positions, segments = jnp.arange(T)[None], jnp.ones((1, T), jnp.int32)

    @jax.jit
    def of_row(params: dict[str, Any], row: jax.Array) -> jax.Array:
        x, _ = hidden_states_and_experts(
            model,
            params,
            row[None],
            positions,
            segments,
            remat="none",
            **plain_forms(T, jax.default_backend()),
        )
        return head(model, params, x)

    return np.stack([np.asarray(of_row(params, row)) for row in tokens])


def plain_forms(num_tokens: int, platform: str) -> dict[str, Any]:
    """Return attention and grouped products of a learner without kernels for GPUs."""
    return {
        "attention": "dense" if num_tokens <= MOST_DENSE_TOKENS else "chunked",
        "grouped": "blocks" if platform == "gpu" else "xla",
    }


def _engine(model: ModelConfig, num_tokens: int) -> Any:
    import jax

    from rlboost_jax.engine.engine import Engine

    config = EngineConfig(
        slots=_SLOTS,
        page_size=16,
        num_pages=0,
        memory_fraction=0.9,
        max_prompt_tokens=num_tokens,
        token_rows=64,
        steps_per_dispatch=1,
        attention="xla" if jax.default_backend() == "gpu" else "auto",
        kv_dtype="float32",
        tensor_parallel=1,
    )
    return Engine(model, config, slot_tokens=num_tokens + 1, truncated_sampling=False)


def _read(path: str) -> np.ndarray:
    """Read an array; raises ConfigError where the file holds none, OSError where it is missing."""
    try:
        with open(open_regular(Path(path)), "rb") as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    except Unreadable as error:
        raise ConfigError(f"--tokens={error}") from None
    except OSError:
        raise
    except Exception as error:  # of NumPy's tokenizer, its parser, and memory
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--tokens={path} is no array as np.save writes it: {reason}") from None
    return array


def _check(tokens: np.ndarray, vocab_size: int) -> None:
    if tokens.dtype != np.int32 or tokens.ndim != 2 or 0 in tokens.shape:
        raise ConfigError(f"tokens are {tokens.dtype}{list(tokens.shape)}; give int32 [B, T]")
    if tokens.shape[1] >= MAX_POSITIONS:
        raise ConfigError(
            f"tokens are {tokens.shape[1]:,} in a row; give less than {MAX_POSITIONS:,}"
        )
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ConfigError(
            f"tokens are {tokens.min()} to {tokens.max()}; the model has ids 0 to {vocab_size - 1}"
        )


def _check_memory(
    model: ModelConfig, num_tokens: int, memory_of: Callable[[Any], Any] | None = None
) -> None:
    """Raise NotEnoughMemory where scores and their softmax do not fit.

    The scores that are made at once are those of a row, or of two blocks of it.
    """
    import jax

    from rlboost_jax.engine import device_memory

    at_once = num_tokens if num_tokens <= MOST_DENSE_TOKENS else MOST_BLOCK
    needed = 3 * 4 * model.num_query_heads * at_once**2
    limit = (memory_of or device_memory.device_memory)(jax.devices()[0]).limit
    if limit is not None and needed > limit:
        raise device_memory.NotEnoughMemory(
            f"{num_tokens:,} tokens in a row need {size_text(needed)} for the learner's attention, "
            f"and there are {size_text(limit)}; give shorter rows"
        )


def main(
    argv: Sequence[str] | None = None,
    *,
    memory_of: Callable[[Any], Any] | None = None,
) -> None:
    parser = command_parser.parser("logits", __doc__)
    parser.add_argument("--model", required=True, help="folder of a checkpoint, or a hub name")
    parser.add_argument("--tokens", required=True, help=".npy file, int32 [B, T]")
    parser.add_argument("--out", required=True, help=".npz file to write")
    arguments = parser.parse_args(argv)
    try:
        tokens, out = _read(arguments.tokens), Path(arguments.out)
        if out.is_dir() or not out.parent.is_dir():
            raise ConfigError(f"--out={out} is no place for a file; name one in a folder that is")
        compile_cache.enable()
        found = logits(arguments.model, tokens, memory_of=memory_of)
        with out.open("wb") as file:
            np.savez(file, learner=found["learner"], engine=found["engine"])
    except (Mistake, OSError) as error:
        line = error.under("--model") if isinstance(error, ConfigError) else error
        exits.leave(f"error: {line}", exits.MISTAKE)
    gap = np.abs(found["learner"] - found["engine"]).max() / found["learner"].std()
    print(f"{arguments.out}: learner and engine differ by at most {gap:.1e} of the logits' spread")


if __name__ == "__main__":
    main()
