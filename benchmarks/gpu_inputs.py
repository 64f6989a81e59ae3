"""Arrays for the programs of `benchmarks/h100`, which are made to be compiled and not to be run.

Numbers are standard normal; what says where rows, tokens and pages are is what the table's row
assumes of it (`assumed`): all slots busy, and so on.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.h100.program import Program
from rlboost_jax.engine import metadata
from rlboost_jax.engine.layouts import Layout, make_layout
from rlboost_jax.engine.rollouts import Rollout, rollout_of_tokens
from rlboost_jax.learner.packing import PackedBatch
from rlboost_jax.messages import Sampling
from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.settings.model import ModelConfig
from rlboost_jax.settings.run import RunConfig

SCALE = 0.02  # of parameters, so that nothing overflows after all layers


def arguments(run: RunConfig, part: str, program: Program, lowered: Any) -> tuple[Any, ...]:
    """Of one call, on the default device.

    Args:
        part: of the table: "learner", "engine" or "kernels".
    """
    shapes, _ = lowered.args_info
    place = {"learner": _of_learner, "engine": _of_engine, "kernels": _of_kernel}[part]
    return place(run, program, shapes)


def _of_learner(run: RunConfig, program: Program, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        _batch(run, arg) if isinstance(arg, PackedBatch) else jax.tree.map(filled, arg)
        for arg in shapes
    )


def _of_engine(run: RunConfig, program: Program, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leaves, pools, the numbers of a step and what the last one left; or pools and copies."""
    copies = program.name == "copy pages"
    pools = shapes[0 if copies else 1]
    sizes = make_layout(run.engine, run.slot_tokens, any_rows=False, exact=run.deterministic)
    layout = replace(sizes, num_pages=pools[0].shape[0])
    if copies:
        half = layout.num_pages // 2
        pairs = [(i % half, half + i) for i in range(min(layout.slots, half))]
        return (
            jax.tree.map(filled, pools),
            jnp.asarray(metadata.pack_copies(layout, pairs)),
        )
    packed = _decode(run, layout, program) if program.name.startswith("decode") else _mixed(
        run, layout
    )  # fmt: skip
    rest = [jnp.full(arg.shape, -1, jnp.int32) for arg in shapes[3:]]
    return (
        jax.tree.map(filled, shapes[0]),
        jax.tree.map(filled, pools),
        jnp.asarray(packed),
        *rest,
    )


def _decode(run: RunConfig, layout: Layout, program: Program) -> Any:
    """All slots at the context of the row, in decode steps that nothing ends."""
    steps = run.engine.steps_per_dispatch
    length = max(1, int(program.context) - steps)
    records = [r.decode_record(steps) for r in _rollouts(run, layout, layout.slots, length, steps)]
    return metadata.pack_decode(layout, records, steps, rows=layout.decode_rows[-1])


def _mixed(run: RunConfig, layout: Layout) -> Any:
    """All rows at the ends of prompts."""
    left, prompt, chunks = layout.token_rows, run.engine.max_prompt_tokens, []
    for rollout in _rollouts(run, layout, min(layout.slots, -(-left // prompt)), prompt, 1):
        count = min(left, prompt)
        chunks.append(rollout.chunk(prompt - count, count, 1))
        left -= count
    return metadata.pack_mixed(layout, chunks)


def _rollouts(run: RunConfig, layout: Layout, count: int, length: int, more: int) -> list[Rollout]:
    rng = np.random.default_rng(0)
    pages = rng.permutation(layout.num_pages).tolist()
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=more, stop_ids=())
    made = []
    for sample in range(count):
        tokens = rng.integers(run.model.vocab_size, size=length)
        rollout = rollout_of_tokens(tokens, layout, sampling, sample=sample)
        rollout.take_pages([pages.pop() for _ in range(-(-(length + more) // layout.page_size))])
        made.append(rollout)
    return made


def _of_kernel(run: RunConfig, program: Program, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    places: dict[str, Callable[[], list[Any]]] = {
        "attention": partial(_attended, shapes, rng),
        "update": lambda: [*map(filled, shapes[:3]), np.arange(shapes[3].shape[0])],
        "copy": lambda: [
            filled(shapes[0]),
            np.arange(shapes[1].shape[0]),
            (shapes[1].shape[0] + np.arange(shapes[2].shape[0])) % shapes[0].shape[0],
        ],
        # Of a temperature of 1 from the whole softmax: seeds and positions, then real numbers.
        "sampling": lambda: [
            filled(shapes[0]),
            *(np.arange(a.shape[0]) for a in shapes[1:3]),
            np.ones(shapes[3].shape),
        ],
        "logprobs": lambda: [
            *map(filled, shapes[:2]),
            rng.integers(shapes[1].shape[1], size=shapes[2].shape),
        ],
    }
    make = places.get(program.name.split()[0], lambda: list(map(filled, shapes)))
    return tuple(jnp.asarray(v, t.dtype) for v, t in zip(make(), shapes, strict=True))


def _attended(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """All slots decode one row; each has an equal share of the pages."""
    (pages, tokens, *_), (slots, most) = shapes[1].shape, shapes[3].shape
    each = min(most, pages // slots)
    table = np.zeros((slots, most))
    table[:, :each] = rng.permutation(pages)[: slots * each].reshape(slots, each)
    starts = np.arange(slots + 1)
    lens = np.full(slots, each * tokens)
    return [filled(shapes[0]), filled(shapes[1]), lens, table, starts, [slots]]


def _batch(run: RunConfig, shapes: PackedBatch) -> PackedBatch:
    """Every row is one response as long as it."""
    (rows, length), vocab = shapes.tokens.shape, run.model.vocab_size
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "tokens": rng.integers(vocab, size=(rows, length)),
        "targets": rng.integers(vocab, size=(rows, length)),
        "positions": np.tile(np.arange(length), (rows, 1)),
        "behaviour_logprobs": np.full((rows, length), -np.log(vocab)),
        "old_logprobs": np.full((rows, length), -np.log(vocab)),
        "samples": np.tile(np.arange(rows)[:, None], (1, length)),
    }
    ones = np.ones((rows, length))  # segments, masks, advantages, weights
    made = {}
    for field in fields(shapes):
        info = getattr(shapes, field.name)
        if info is not None and len(info.shape) > 2:
            made[field.name] = np.zeros(info.shape, info.dtype)  # routes
        elif info is not None:
            made[field.name] = np.asarray(values.get(field.name, ones), info.dtype)
    return replace(shapes, **made)


def filled(info: Any) -> jax.Array:
    """Small numbers of a shape and type; zeros of integers."""
    return _draw(tuple(info.shape), jnp.dtype(info.dtype).name)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(shape: tuple[int, ...], dtype: str) -> jax.Array:
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(shape, dtype)
    wide = jnp.float32 if jnp.dtype(dtype).itemsize < 2 else dtype
    return (SCALE * jax.random.normal(jax.random.key(0), shape, wide)).astype(dtype)


def parameters(model: ModelConfig, dtype: str) -> Params:
    """Random ones with lively activations, layers stacked, drawn on the device.

    Those that a run begins with are drawn on the host, which takes minutes for billions.
    """

    def draw(index: int, name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith("scale"):
            return jnp.ones(shape, dtype)
        size_in = 1 if name.endswith("bias") else shape[-2]
        return size_in**-0.5 * jax.random.normal(jax.random.key(index), shape, dtype)

    shapes = {name: leaf.shape for name, leaf in flatten_params(abstract_params(model)).items()}
    leaves = {name: draw(i, name, shape) for i, (name, shape) in enumerate(shapes.items())}
    return unflatten_params(leaves)
