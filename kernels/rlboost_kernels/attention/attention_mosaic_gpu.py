"""Ragged paged attention in Pallas Mosaic GPU, for Hopper (sm_90).

Two kernels. The first computes items (`tiles.py`): up to 64 rows of one key head against at most
512 tokens, in blocks of 64. Keys and values come page by page through the tensor memory
accelerator, some blocks ahead; products are `wgmma`; softmax runs in float32 with scores in units
of ln 2. An item leaves, for each row, its weighted values, the maximum of its scores and the sum of
its weights. The second kernel merges the items of each row.

The bits of a row depend on that row alone:

- Blocks and splits start at absolute positions. A row merges exactly the splits it sees, in
  ascending order, in float32.
- Decode and prefill run one program with one tile shape. Rows of a tile do not meet, and a block
  or token that a row does not see changes nothing: its maximum stays, the correction is
  exp2(0) = 1 and the weights are 0.
- Nothing is chosen by the batch. Its shape decides only how many items there can be, and they
  are computed alike wherever they are computed.

What a page holds beyond the tokens that the rows of a tile see is replaced by zeros before it
meets a weight of 0, since 0 times NaN is NaN.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from rlboost_kernels.attention import tiles
from rlboost_kernels.attention.rows import row_sequences

try:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    _MISSING = ""
    _INTERPRETER: Any = getattr(plgpu, "InterpretGPUParams", None)  # from jax 0.11 on
except ImportError as error:
    _MISSING = f"this jax has no Pallas Mosaic GPU: {error}"

TILE = 64  # rows, as wgmma has them
SWIZZLED = 8  # rows that lie together in shared memory: a tile starts at a multiple in `q`
BLOCK = 64  # tokens
# Of keys and values on their way. Two programs then share a multiprocessor; with heads of 256,
# whose two blocks of each take 128 KiB, there is room for one.
AHEAD_BYTES = 64 * 1024
PROGRAMS = 2 * 132  # as many as an H100 has room for at most; any number gives the same bits
THREADS = 128  # of a program

HEAD_DIMS = (64, 128, 256)
SMALL_PAGES = (8, 16, 32)  # or multiples of BLOCK
TYPES = ("bfloat16", "float16")
HOPPER = "9"  # major compute capability: wgmma is not in those before, nor in those after

SUMS = 8  # columns beside the weighted values: the maximum four times, the sum of weights too
_MASKED = -1e30  # a finite stand-in for minus infinity: the difference of two is 0 and not NaN
_LOG2_E = math.log2(math.e)

_Ref = Any  # a reference to memory of the device, as Pallas has them


def why_not(q: Any, kv_pages: Any, *, interpret: bool = False) -> str:
    """Say why arguments of these shapes and types cannot run, or "" if they can.

    Whether there is a GPU is not asked. If there is one, it must be Hopper.
    """
    D, L = q.shape[-1], kv_pages.shape[1]
    if _MISSING:
        return _MISSING
    if str(q.dtype) not in TYPES:
        return f"q has type {q.dtype}; it takes {' and '.join(TYPES)}"
    if str(kv_pages.dtype) not in TYPES:  # wgmma has its operands in shared memory as they come
        return f"kv_pages has type {kv_pages.dtype}; it takes {' and '.join(TYPES)}"
    if q.dtype != kv_pages.dtype:
        return f"q has type {q.dtype} and kv_pages {kv_pages.dtype}; it takes equal ones"
    if D not in HEAD_DIMS:
        return f"head dim is {D}; it takes {', '.join(map(str, HEAD_DIMS))}"
    if L % BLOCK and L not in SMALL_PAGES:
        small = ", ".join(map(str, SMALL_PAGES))
        return f"page size is {L}; it takes {small} and multiples of {BLOCK}"
    if interpret and _INTERPRETER is None:
        return f"jax {jax.__version__} cannot interpret it; jax 0.11 can"
    if not interpret and jax.default_backend() == "gpu":
        device = jax.local_devices()[0]
        found = str(getattr(device, "compute_capability", "none"))
        if found.split(".")[0] != HOPPER:
            return (
                f"{device.device_kind} has compute capability {found}; it takes {HOPPER}.x (Hopper)"
            )
    return ""


@dataclass(frozen=True, kw_only=True)
class _AttentionPlan:
    """Constants of a call, known before it runs."""

    num_rows: int  # T
    key_heads: int  # K, or more where a group of query heads is cut into parts
    group: int  # G, query heads of one of them
    parts: int  # of them that share keys
    head_dim: int  # D
    page_size: int  # L
    num_pages: int  # M, of one sequence
    dtype: Any
    score_factor: float
    soft_cap: float | None
    sliding_window: int | None
    value_factor: float
    interpret: bool

    @property
    def tile_tokens(self) -> int:
        """Rows of `q` whose heads fit a tile wherever the first one starts."""
        return (TILE - SWIZZLED + math.gcd(self.group, SWIZZLED)) // self.group

    @property
    def max_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def stages(self) -> int:
        """Blocks of keys and of values in shared memory."""
        return max(2, min(4, AHEAD_BYTES // (2 * BLOCK * self.head_dim * self.dtype.itemsize)))

    @property
    def copy_tokens(self) -> int:
        """Tokens that one copy brings: a page or a block, whichever is less."""
        return min(self.page_size, BLOCK)

    @property
    def columns(self) -> int:
        """Columns of the weighted values: at least one for each thread."""
        return max(self.head_dim, THREADS)

    @property
    def run_as(self) -> dict[str, Any]:
        # Other semantics choose a layout for results, whose rows are copied one by one.
        options = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)
        interpreter = {"interpret": _INTERPRETER()} if self.interpret else {}
        return {"compiler_params": options, **interpreter}


def attend(
    q: Array,  # [T, H, D]
    kv_pages: Array,  # [P, L, 2*K, D]
    kv_lens: Array,  # i32[S]
    page_indices: Array,  # i32[S, M]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array,  # i32[1]
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: float,
    v_scale: float,
    return_lse: bool,
    interpret: bool = False,
) -> tuple[Array, Array | None]:  # [T, H, D], f32[T, H]
    """Softmax attention of each row to positions 0 … its own, in float32."""
    if reason := why_not(q, kv_pages, interpret=interpret):
        raise NotImplementedError(f"implementation 'mosaic_gpu' cannot run this: {reason}")
    (T, H, D), (P, L, heads, _) = q.shape, kv_pages.shape
    parts = tiles.head_parts(H, heads // 2, most=TILE - SWIZZLED)
    plan = _AttentionPlan(
        num_rows=T,
        key_heads=heads // 2 * parts,
        group=H // (heads // 2 * parts),
        parts=parts,
        head_dim=D,
        page_size=L,
        num_pages=page_indices.shape[1],
        dtype=q.dtype,
        score_factor=sm_scale * k_scale,
        soft_cap=soft_cap,
        sliding_window=sliding_window,
        value_factor=v_scale,
        interpret=interpret,
    )
    metadata = (kv_lens, cu_q_lens, num_seqs)
    cut = tiles.Cut(plan.max_tokens, sliding_window)
    items = tiles.work_items(T, *metadata, plan.tile_tokens, cut)
    splits = tiles.row_splits(row_sequences(T, *metadata)[1], cut)
    # Tiles are read whole, and the last one starts less than a tile before the end; what is read
    # from has to be a multiple of what lies together.
    more = TILE + -(T * plan.group) % SWIZZLED
    q_KRD = jnp.pad(tiles.rows_by_key_head(q, plan.key_heads), ((0, 0), (0, more), (0, 0)))
    parts_SKRC = _attend_items(plan, len(items.table))(
        items.table,
        items.total,
        jnp.clip(page_indices, 0, P - 1),
        q_KRD,
        kv_pages.reshape(P, L, heads * D),
    )
    out, lse = _merge_splits(plan)(splits.first, splits.stop, parts_SKRC)
    return out.reshape(T, H, D), lse.reshape(T, H) if return_lse else None


def _attend_items(plan: _AttentionPlan, max_items: int) -> Any:
    """Make the kernel from items to f32[splits, K, T*G, columns]; the rest stays unset."""
    programs = min(max_items * plan.key_heads, 2 if plan.interpret else PROGRAMS)
    D = plan.head_dim
    gpu: Any = plgpu  # jax 0.12 declares the transforms as abstract classes
    swizzled = (gpu.TilingTransform((SWIZZLED, 64)), gpu.SwizzleTransform(128))
    blocks = plgpu.SMEM((plan.stages, BLOCK, D), plan.dtype, transforms=swizzled)
    copies = BLOCK // plan.copy_tokens
    arrived = plgpu.Barrier(num_arrivals=copies, num_barriers=plan.stages)
    shape = (
        tiles.num_splits(plan.num_pages, plan.page_size),
        plan.key_heads,
        plan.num_rows * plan.group,
        plan.columns + SUMS,
    )

    def run(table: _Ref, total: _Ref, *refs: _Ref) -> None:
        program = lax.axis_index("program")

        def run_item(turn: Array, _: None) -> None:
            number = program + turn * programs
            item = [table[lax.div(number, plan.key_heads), column] for column in range(5)]
            _attend_item(plan, tiles.Item(*item), lax.rem(number, plan.key_heads), *refs)

        # Key heads of an item follow one another: their keys are neighbours in memory.
        last_turn = lax.div(total[0] * plan.key_heads - program + (programs - 1), programs)
        lax.fori_loop(0, last_turn, run_item, None)

    return plgpu.kernel(
        run,
        out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
        scratch_types=[
            # An item's result takes the place of its queries.
            plgpu.RefUnion(
                plgpu.SMEM((TILE, D), plan.dtype, transforms=swizzled),
                plgpu.SMEM((TILE, shape[3]), jnp.float32),
            ),
            blocks,
            blocks,
            plgpu.SMEM((TILE, BLOCK), plan.dtype, transforms=swizzled) if plan.interpret else None,
            plgpu.Barrier(),
            arrived,
            arrived,
        ],
        grid=(programs,),
        grid_names=("program",),
        **plan.run_as,
    )


def _attend_item(
    plan: _AttentionPlan,
    item: tiles.Item,
    head: Array,
    pages: _Ref,  # i32[S, M]
    q: _Ref,  # [K, more than T*G + TILE, D]
    kv: _Ref,  # [P, L, 2*K*D]
    out: _Ref,  # f32[splits, K, T*G, columns]
    q_or_result: _Ref,
    k_blocks: _Ref,  # [stages, BLOCK, D]
    v_blocks: _Ref,
    staging: _Ref | None,  # [TILE, BLOCK], for weights, when interpreting
    q_arrived: _Ref,
    k_arrived: _Ref,
    v_arrived: _Ref,
) -> None:
    """Softmax over the tokens of one split, for the rows of one tile and one key head."""
    q_tile, result = q_or_result
    D, G = plan.head_dim, plan.group
    rows, tile = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA

    # Tokens that some row of the tile sees, and the blocks of them in this split.
    first_token, stop_token = jnp.int32(0), item.position + item.num_rows
    if plan.sliding_window is not None:
        first_token = jnp.maximum(item.position + 1 - plan.sliding_window, 0)
    split_blocks = tiles.SPLIT_TOKENS // BLOCK
    first = jnp.maximum(lax.div(first_token, BLOCK), item.split * split_blocks)
    stop = jnp.minimum(lax.div(stop_token + BLOCK - 1, BLOCK), (item.split + 1) * split_blocks)
    stop = jnp.minimum(stop, -(-plan.max_tokens // BLOCK))

    def fetch(block: Array) -> None:
        slot = lax.rem(block, plan.stages)
        column = pl.multiple_of(lax.div(head, plan.parts) * (2 * D), BLOCK)
        for start in range(0, BLOCK, plan.copy_tokens):
            token = block * BLOCK + start
            place = jnp.minimum(lax.div(token, plan.page_size), plan.num_pages - 1)
            page = pages[item.sequence, place]
            offset: Array | int = 0
            if plan.page_size > BLOCK:
                offset = pl.multiple_of(lax.rem(token, plan.page_size), BLOCK)
            source, target = pl.ds(offset, plan.copy_tokens), pl.ds(start, plan.copy_tokens)
            for blocks, arrived, odd in ((k_blocks, k_arrived, 0), (v_blocks, v_arrived, D)):
                plgpu.copy_gmem_to_smem(
                    kv.at[page, source, pl.ds(column + odd, D)],
                    blocks.at[slot, target],
                    arrived.at[slot],
                )

    start = pl.multiple_of(lax.div(item.row * G, SWIZZLED) * SWIZZLED, SWIZZLED)
    before = item.row * G - start  # rows of the tile that are not its own; there are more after
    plgpu.copy_gmem_to_smem(q.at[head, pl.ds(start, TILE)], q_tile, q_arrived)
    for ahead in range(plan.stages):
        pl.when(first + ahead < stop)(partial(fetch, first + ahead))
    plgpu.barrier_wait(q_arrived)

    index = partial(plgpu.broadcasted_iota, jnp.int32, (TILE, BLOCK), layout=tile)
    position_RC = item.position + lax.div(index(0) - before, G)

    def add_block(block: Array, softmax: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        maximum_R, total_R, weighted_RD = softmax
        slot, token_RC = lax.rem(block, plan.stages), block * BLOCK + index(1)
        seen_RC = token_RC <= position_RC
        if plan.sliding_window is not None:
            seen_RC &= token_RC > position_RC - plan.sliding_window

        plgpu.barrier_wait(k_arrived.at[slot])
        score_RC = _scores(plan, q_tile, k_blocks.at[slot].transpose((1, 0)))
        score_RC = jnp.where(seen_RC, score_RC, _MASKED)
        new_maximum_R = jnp.maximum(maximum_R, score_RC.max(axis=1))
        correction_R = jnp.exp2(maximum_R - new_maximum_R)
        weight_RC = jnp.exp2(score_RC - lax.broadcast_in_dim(new_maximum_R, (TILE, BLOCK), [0]))
        weight_RC = jnp.where(seen_RC, weight_RC, 0.0)
        total_R = total_R * correction_R + weight_RC.sum(axis=1)
        weighted_RD = weighted_RD * lax.broadcast_in_dim(correction_R, (TILE, D), [0])

        plgpu.barrier_wait(v_arrived.at[slot])
        stale = (block * BLOCK < first_token) | ((block + 1) * BLOCK > stop_token)
        pl.when(stale)(partial(_clear, v_blocks.at[slot], block, first_token, stop_token))
        weighted_RD = _plus_product(
            weighted_RD, weight_RC.astype(plan.dtype), v_blocks.at[slot], staging
        )
        pl.when(block + plan.stages < stop)(partial(fetch, block + plan.stages))
        return new_maximum_R, total_R, weighted_RD

    maximum_R, total_R, weighted_RD = lax.fori_loop(
        first,
        stop,
        add_block,
        (_full(_MASKED, rows, TILE), _full(0.0, rows, TILE), _full(0.0, tile, TILE, D)),
    )
    result[:, pl.ds(0, D)] = weighted_RD
    is_maximum = plgpu.broadcasted_iota(jnp.int32, (TILE, SUMS), 1, layout=tile) < SUMS // 2
    both = (lax.broadcast_in_dim(sums_R, (TILE, SUMS), [0]) for sums_R in (maximum_R, total_R))
    result[:, pl.ds(plan.columns, SUMS)] = jnp.where(is_maximum, *both)
    plgpu.commit_smem()

    def write(row: Array, _: None) -> None:
        plgpu.copy_smem_to_gmem(
            result.at[before + row], out.at[item.split, head, item.row * G + row]
        )

    lax.fori_loop(0, item.num_rows * G, write, None)
    plgpu.wait_smem_to_gmem(0)


def _scores(plan: _AttentionPlan, q_tile: _Ref, keys: _Ref) -> Array:  # f32[TILE, BLOCK]
    """Scores in units of ln 2, which spares exp2 a product."""

    def products(sums: _Ref) -> Array:
        plgpu.wgmma(sums, q_tile, keys)
        return sums[...]

    product_RC = pl.run_scoped(products, plgpu.ACC((TILE, BLOCK), jnp.float32))
    if plan.soft_cap is None:
        return product_RC * (plan.score_factor * _LOG2_E)
    capped_RC = jnp.tanh(product_RC * (plan.score_factor / plan.soft_cap))
    return capped_RC * (plan.soft_cap * _LOG2_E)


def _plus_product(sums: Array, weights: Array, values: _Ref, staging: _Ref | None) -> Array:
    """`sums + weights @ values`, added up by the tensor cores.

    Interpreted, weights have to be in memory and sums have to start with zero.
    """
    if staging is None:
        add = pl.run_state(lambda total: plgpu.wgmma(total, weights, values))
        return add(plgpu.ACC.init(sums))

    def products(total: _Ref) -> Array:
        plgpu.wgmma(total, staging, values)
        return total[...]

    staging[...] = weights
    plgpu.commit_smem()
    return sums + pl.run_scoped(products, plgpu.ACC((TILE, sums.shape[1]), jnp.float32))


def _clear(values: _Ref, block: Array, first_token: Array, stop_token: Array) -> None:
    """Make zeros of a block's tokens that are not from `first_token` up to `stop_token`."""
    layout = plgpu.Layout.WGMMA
    index = plgpu.broadcasted_iota(jnp.int32, (BLOCK, BLOCK), 0, layout=layout)
    token = block * BLOCK + index
    for start in range(0, values.shape[1], BLOCK):
        part = values.at[:, pl.ds(start, BLOCK)]
        loaded = _load(part, layout)
        held = (token >= first_token) & (token < stop_token)
        part[...] = jnp.where(held, loaded, jnp.zeros_like(loaded))
    plgpu.commit_smem()


def _merge_splits(plan: _AttentionPlan) -> Any:
    """Make the kernel that merges the sums of all splits into attention and logarithms.

    Its arguments: the first split of each row, the split after its last one, and the sums.
    """
    G, D, columns = plan.group, plan.head_dim, plan.columns
    layout = plgpu.Layout.WG_STRIDED((columns,), vec_size=columns // THREADS)

    def run(first_T: _Ref, stop_T: _Ref, sums: _Ref, out: _Ref, lse: _Ref, merged: _Ref) -> None:
        t, head = lax.axis_index("row"), lax.axis_index("head")
        first, stop = first_T[t], stop_T[t]

        def merge_row(g: Array, _: None) -> None:
            row = t * G + g

            def larger(split: Array, maximum: Array) -> Array:
                return jnp.maximum(maximum, sums[split, head, row, columns])

            maximum = lax.fori_loop(first, stop, larger, jnp.float32(_MASKED))

            def add_split(split: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
                total, weighted_D = so_far
                part = sums.at[split, head, row]
                correction = jnp.exp2(part[columns] - maximum)
                part_D = _load(part.at[pl.ds(0, columns)], layout, optimized=False)
                total = total + part[columns + SUMS // 2] * correction
                return total, weighted_D + part_D * correction

            nothing = (jnp.float32(0), _full(0.0, layout, columns))
            total, weighted_D = lax.fori_loop(first, stop, add_split, nothing)
            divisor = jnp.where(total == 0, jnp.float32(1), total)
            merged[g] = (weighted_D * (plan.value_factor / divisor)).astype(plan.dtype)
            logarithm = (maximum + jnp.log2(divisor)) / _LOG2_E
            lse[t, head, g] = jnp.where(total == 0, -jnp.inf, logarithm)

        def write(g: Array, _: None) -> None:
            plgpu.copy_smem_to_gmem(merged.at[g, pl.ds(0, D)], out.at[t, head, g])

        lax.fori_loop(0, G, merge_row, None)
        plgpu.commit_smem()
        lax.fori_loop(0, G, write, None)
        plgpu.wait_smem_to_gmem(0)

    shape = (plan.num_rows, plan.key_heads, G)
    return plgpu.kernel(
        run,
        out_type=(
            jax.ShapeDtypeStruct((*shape, D), plan.dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        scratch_types=[plgpu.SMEM((G, columns), plan.dtype)],
        grid=shape[:2],
        grid_names=("row", "head"),
        **plan.run_as,
    )


def _full(value: float, layout: Any, *shape: int) -> Array:
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def _load(ref: _Ref, layout: Any, *, optimized: bool = True) -> Array:
    index = (...,) if jax.__version_info__ < (0, 11) else ()  # jax 0.10 asks for one
    return plgpu.load(ref, *index, layout=layout, optimized=optimized)
