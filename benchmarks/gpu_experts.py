"""Stage of gpu.py: experts in an engine's decode step, row by row and group by group."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_engine import decoding
from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet
from benchmarks.gpu_programs import engine_program, measured, run_here
from rlboost_jax.models.decoder import activation_of
from rlboost_jax.models.experts import _by_row
from rlboost_jax.models.grouped_experts import How, Matrices, added_by_experts

_MODEL, _LAYERS, _ROWS = "qwen3_30b_a3b_moe", 4, 128


def experts(*, tiny: bool) -> Cases:
    """Qwen3-30B-A3B cut to 4 layers, all on one device."""
    part = partial(_experts, tiny=tiny)
    return {
        f"experts of {_LAYERS} layers, {_ROWS} rows: by row": partial(part, "by row"),
        f"experts of {_LAYERS} layers, {_ROWS} rows: mosaic_gpu": partial(part, "mosaic_gpu"),
        f"experts of {_LAYERS} layers, {_ROWS} rows: blocks": partial(part, "blocks"),
        f"decode step of {_LAYERS} layers, 64 sequences of 2,304": partial(_step, tiny=tiny),
    }


def _step(*, tiny: bool) -> Figure:
    run = run_here(_MODEL, tiny=tiny, layers=_LAYERS, engine={"kv_dtype": "bfloat16"})
    run = run if tiny else decoding(run, 2304)
    program = engine_program(run, "decode", "xla" if tiny else "mosaic_gpu")
    return measured(run, "engine", program, times=run.engine.steps_per_dispatch)


def _experts(form: str, *, tiny: bool) -> Figure:
    """One after the other, each adding to what the next one reads; routers have no favourites."""
    if tiny and form == "mosaic_gpu":
        return figure("left out: for GPUs alone", "")
    model = run_here(_MODEL, tiny=tiny, layers=_LAYERS).model
    X, A, E, F = model.num_experts, model.experts_per_token, model.embed_dim, model.expert_dim
    rows, activation = 8 if tiny else _ROWS, activation_of(model.activation)
    rng = np.random.default_rng(0)
    chosen = np.stack(
        [[rng.permutation(X)[:A] for _ in range(rows)] for _ in range(model.num_layers)]
    )

    def drawn(seed: int, shape: tuple[int, ...]) -> Any:
        key = jax.random.key(seed)
        return shape[-2] ** -0.5 * jax.random.normal(key, shape, model.dtype)

    layers = [
        Matrices(*(drawn(3 * i + j, s) for j, s in enumerate(((X, E, F), (X, E, F), (X, F, E)))))
        for i in range(model.num_layers)
    ]
    weights = jnp.full((rows, A), 1 / A, jnp.float32)

    @jax.jit
    def run(x: Any, chosen: Any, layers: Any) -> Any:
        for matrices, taken in zip(layers, chosen, strict=True):
            if form == "by row":
                out = _by_row(x, taken, weights, *matrices, activation=activation)
            else:
                how: Any = How(None, activation, form, interpret=tiny)
                out = added_by_experts(how, x, taken, weights, matrices)
            x = x + out.astype(x.dtype)
        return x

    x = jax.random.normal(jax.random.key(99), (rows, E), model.dtype)
    call = partial(run, x, [jnp.asarray(c, jnp.int32) for c in chosen], layers)
    seconds = seconds_of(call, rounds=1 if tiny else 7, calls=1 if tiny else 5)
    reached = sum(len(np.unique(layer)) for layer in chosen)
    item, here = jnp.dtype(model.dtype).itemsize, sheet()
    bound = None
    if here:
        read = reached * 3 * E * F * item / here.memory_bytes_per_second
        bound = 1e3 * max(read, 6 * chosen.size * E * F / here.flops_per_second)
    return figure(1e3 * seconds, "ms", bound=bound, experts_reached=reached)
