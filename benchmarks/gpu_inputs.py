"""Arrays for the programs of `benchmarks/h100`, which are made to be compiled and not to be run.

Real numbers are drawn. Integers say where rows, tokens and pages are, and how many; each kernel
has a maker of its own for them (`MAKERS`), which makes what the table's row assumes (`assumed`):
all slots busy, rows of one sequence, and so on. Zeros would be an easier problem.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rlboost_kernels.packed_attention.spans import RowSpans, spans_of

from benchmarks.h100.program import Program
from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.engine_rollouts import EngineRollout, rollout_of_tokens
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.learner.packing import PackedBatch
from rlboost_jax.messages import Sampling
from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig

SCALE = 0.02  # of parameters, so that nothing overflows after all layers
# From the shapes of a kernel's arguments.
Maker = Callable[[tuple[Any, ...], np.random.Generator], list[Any]]


def arguments(run: RunConfig, part: str, program: Program, lowered: Any) -> tuple[Any, ...]:
    """Make the arguments of one call, on the default device.

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
    """Leaves, pools, the numbers of a step and what the last one left, or texts; or pools and
    copies."""
    copies = program.name == "copy pages"
    pools = shapes[0 if copies else 1]
    sizes = make_layout(run.engine, run.slot_tokens, any_rows=False, exact=run.deterministic)
    layout = replace(sizes, num_pages=pools[0].shape[0])
    if copies:
        half = layout.num_pages // 2
        pairs = [(i % half, half + i) for i in range(min(layout.slots, half))]
        return (
            jax.tree.map(filled, pools),
            jnp.asarray(step_inputs.pack_copies(layout, pairs)),
        )
    verifies = program.name.startswith("verify")
    decodes = verifies or program.name.startswith("decode")
    packed = _decode(run, layout, program) if decodes else _mixed(run, layout)
    # Texts of one token, which is also the newest, so that all free rows have drafts.
    rest = [jnp.full(arg.shape, 1 if verifies else -1, jnp.int32) for arg in shapes[3:]]
    return (
        jax.tree.map(filled, shapes[0]),
        jax.tree.map(filled, pools),
        jnp.asarray(packed),
        *rest,
    )


def _decode(run: RunConfig, layout: StepLayout, program: Program) -> Any:
    """All slots at the context of the row, in decode steps that nothing ends."""
    steps = run.engine.steps_per_dispatch
    length = max(1, int(program.context) - steps)
    records = [r.decode_record(steps) for r in _rollouts(run, layout, layout.slots, length, steps)]
    return step_inputs.pack_decode(layout, records, steps, rows=layout.decode_rows[-1])


def _mixed(run: RunConfig, layout: StepLayout) -> Any:
    """All rows at the ends of prompts."""
    left, prompt, chunks = layout.token_rows, run.engine.max_prompt_tokens, []
    for rollout in _rollouts(run, layout, min(layout.slots, -(-left // prompt)), prompt, 1):
        count = min(left, prompt)
        chunks.append(rollout.chunk(prompt - count, count, 1))
        left -= count
    return step_inputs.pack_mixed(layout, chunks)


def _rollouts(
    run: RunConfig, layout: StepLayout, count: int, length: int, more: int
) -> list[EngineRollout]:
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


def maker_of(kernel: str) -> Maker:
    """What makes the arguments of a kernel of the table.

    Args:
        kernel: a program's name: "packed attention 14,848 tokens".

    Raises LookupError where it has no maker: the kernel would run on arguments that mean nothing.
    """
    found = [name for name in MAKERS if kernel == name or kernel.startswith(f"{name} ")]
    if not found:
        raise LookupError(
            f"no arguments for the kernel {kernel!r}: add its maker to MAKERS of "
            f"benchmarks/gpu_inputs.py, which has {', '.join(MAKERS)}"
        )
    return MAKERS[max(found, key=len)]


def _of_kernel(run: RunConfig, program: Program, shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    made = maker_of(program.name)(shapes, np.random.default_rng(0))
    return tuple(jnp.asarray(v, t.dtype) for v, t in zip(made, shapes, strict=True))


def _attended(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """All slots decode one row; each has an equal share of the pages."""
    (pages, tokens, *_), (slots, most) = shapes[1].shape, shapes[3].shape
    each = min(most, pages // slots)
    table = np.zeros((slots, most))
    table[:, :each] = rng.permutation(pages)[: slots * each].reshape(slots, each)
    starts = np.arange(slots + 1)
    lens = np.full(slots, each * tokens)
    return [filled(shapes[0]), filled(shapes[1]), lens, table, starts, [slots]]


def _packed(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """Every row is one sequence, so that each token sees all before it."""
    segments = jnp.ones(shapes[4].shape, jnp.int32)
    return [*map(filled, shapes[:4]), *spans_of(segments)]


def _grouped(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """All rows are in groups, to which a router without favourites has sent them."""
    *arrays, sizes = shapes
    rows = next(a.shape[0] for a in arrays if len(a.shape) == 2)
    (groups,) = sizes.shape
    return [*map(filled, arrays), rng.multinomial(rows, np.full(groups, 1 / groups))]


def _updated(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """Each row goes to another place, anywhere in the pool."""
    pages, tokens, *_ = shapes[0].shape
    return [
        *map(filled, shapes[:3]),
        rng.choice(pages * tokens, size=shapes[3].shape, replace=False),
    ]


def _copied(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """Pages of the first half to pages of the second."""
    half, (count,) = shapes[0].shape[0] // 2, shapes[1].shape
    return [
        filled(shapes[0]),
        rng.choice(half, size=count, replace=count > half),
        half + rng.choice(half, size=count, replace=count > half),
    ]


def _sampled(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """Make the arguments of sampling from the whole softmax at a temperature of 1."""
    rows = np.arange(shapes[1].shape[0])
    return [filled(shapes[0]), rows, rows, np.ones(shapes[3].shape)]


def _selected(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    """A token of each row, anywhere in the vocabulary."""
    return [*map(filled, shapes[:2]), rng.integers(shapes[1].shape[1], size=shapes[2].shape)]


def _multiplied(shapes: tuple[Any, ...], rng: np.random.Generator) -> list[Any]:
    return list(map(filled, shapes))


MAKERS: Mapping[str, Maker] = {
    "attention": _attended,
    "packed attention": _packed,
    "update pages": _updated,
    "copy pages": _copied,
    "matmul": _multiplied,
    "sampling": _sampled,
    "logprobs": _selected,
    "grouped product": _grouped,
    "grouped total": _grouped,
    "grouped outer": _grouped,
}


def pairs_of(spans: RowSpans) -> int:
    """Pairs of a query and a key that it sees, in all rows."""
    places = np.arange(spans.first.shape[1])[None]
    return int((places - np.asarray(spans.first, np.int64) + 1).sum())


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
        "noise_names": rng.integers(2**31, size=(rows, length, 4)),
    }
    ones = np.ones((rows, length))  # segments, masks, advantages, weights
    made = {}
    for field in fields(shapes):
        info = getattr(shapes, field.name)
        if info is not None and field.name == "routes":
            made[field.name] = _routes(info, run.model.num_experts, rng)
        elif info is not None:
            made[field.name] = np.asarray(values.get(field.name, ones), info.dtype)
    return replace(shapes, **made)


def _routes(info: Any, experts: int, rng: np.random.Generator) -> np.ndarray:
    """Choose experts for each token and layer, none of them twice and none preferred."""
    *places, chosen = info.shape
    first = rng.integers(experts, size=(*places, 1))
    return ((first + np.arange(chosen) * (experts // chosen)) % experts).astype(info.dtype)


def filled(info: Any) -> jax.Array:
    """Small numbers of a shape and type; of integers a count that has just begun.

    Raises TypeError for an array of integers: what it says of the others, its maker has to know.
    """
    dtype = jnp.dtype(info.dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        if info.shape:
            raise TypeError(f"{dtype.name}{list(info.shape)}: integers need a maker of their own")
        return jnp.zeros((), dtype)
    return _draw(tuple(info.shape), dtype.name)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(shape: tuple[int, ...], dtype: str) -> jax.Array:
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
