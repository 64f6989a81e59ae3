"""Products of groups of rows in Pallas Mosaic GPU, for Hopper (sm_90).

Three forms of one kernel. The first serves forwards and backwards, the others backwards:

- *product*: rows with the matrix of their group, or with those of two stacks, read once for both;
- *total*: the sum of two products of that kind, added up where it is computed;
- *outer*: for each group, its rows transposed times other rows of it.

Every tile of a result is 128 rows high and has two halves, one for each of two warpgroups, which
share what they have on the left. A third warpgroup brings blocks through the tensor memory
accelerator, some ahead, those of the next tile included. Groups begin and end at multiples of
`ROWS`: no tile has rows of two groups, and nothing has to be masked.

A program goes on to its next tile until all that there are have been computed, and how many there
are is read from memory: rows beyond the last group cost nothing, and are not written either. Each
entry of a result is one sum in the order of its terms, made by one program: equal bits every time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from rlboost_kernels.grouped.layout import ROWS, group_of_blocks

try:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    _MISSING = ""
    _INTERPRETER: Any = getattr(plgpu, "InterpretGPUParams", None)  # from jax 0.11 on
except ImportError as error:
    _MISSING = f"this jax has no Pallas Mosaic GPU: {error}"

INNER = 64  # of a block, along what is summed over: 128 bytes, as wide as a swizzle
PIECE = 64  # columns of a result that are written at once
WIDTHS = (128, 64)  # columns of each half of a tile
STAGES = 4  # blocks on their way: 192 KiB of shared memory
PROGRAMS = 132  # one on each multiprocessor of an H100; any number gives the same bits
HALVES = 2
TYPES = ("bfloat16", "float16")
HOPPER = "9"  # major compute capability: wgmma is not in those before, nor in those after

Form = Literal["product", "total", "outer"]
_Ref = Any  # a reference to memory of the device, as Pallas has them


def why_not(dtype: Any, *sizes: int, interpret: bool = False) -> str:
    """Say why it cannot run, or "" if it can. Whether there is a GPU is not asked.

    Args:
        sizes: of all axes of the matrices.
    """
    if _MISSING:
        return _MISSING
    if str(jnp.dtype(dtype)) not in TYPES:
        return f"rows have type {jnp.dtype(dtype)}; it takes {' and '.join(TYPES)}"
    if odd := [size for size in sizes if size % ROWS]:
        return f"an axis of the matrices is {odd[0]}; it takes multiples of {ROWS}"
    if interpret and _INTERPRETER is None:
        return f"jax {jax.__version__} cannot interpret it; jax 0.11 can"
    if not interpret and jax.default_backend() == "gpu":
        device = jax.local_devices()[0]
        found = str(getattr(device, "compute_capability", "none"))
        if found.split(".")[0] != HOPPER:
            return f"{device.device_kind} has compute capability {found}; it takes {HOPPER}.x"
    return ""


def product(
    rows: Array,  # [M, K]
    matrices: tuple[Array, ...],  # one or two of [G, K, N], or [G, N, K] if transposed
    sizes: Array,  # i32[G]
    *,
    transposed: bool = False,
    interpret: bool = False,
) -> tuple[Array, ...]:  # as many of [M, N]
    return _call("product", (rows,), matrices, sizes, transposed, interpret)


def total(
    rows: tuple[Array, Array],  # [M, K]
    matrices: tuple[Array, Array],  # [G, K, N], or [G, N, K] if transposed
    sizes: Array,
    *,
    transposed: bool = False,
    interpret: bool = False,
) -> Array:  # [M, N]
    (out,) = _call("total", rows, matrices, sizes, transposed, interpret)
    return out


def outer(
    left: Array,  # [M, K]
    rights: tuple[Array, ...],  # one or two of [M, N]
    sizes: Array,
    *,
    interpret: bool = False,
) -> tuple[Array, ...]:  # as many of [G, K, N]; zeros of a group without rows
    return _call("outer", (left,), rights, sizes, False, interpret)


@dataclass(frozen=True, kw_only=True)
class _GroupedPlan:
    """Constants of a call, known before it runs."""

    form: Form
    transposed: bool  # whether what is on the right is
    num_rows: int  # M
    groups: int  # G
    inner: int  # summed over; of "outer": rows of a result
    columns: int  # of a result
    results: int
    dtype: Any
    interpret: bool

    @property
    def width(self) -> int:
        """Columns of each half: the halves are side by side, or of two results."""
        beside = HALVES // self.results
        return next(width for width in WIDTHS if not self.columns % (beside * width))

    @property
    def across(self) -> int:
        """Number of tiles side by side."""
        return self.columns * self.results // (HALVES * self.width)

    @property
    def down(self) -> int:
        """Number of tiles below one another; fewer may be in use."""
        return self.groups * self.inner // ROWS if self.form == "outer" else self.num_rows // ROWS

    @property
    def left_block(self) -> tuple[int, int]:
        return (INNER, ROWS) if self.form == "outer" else (ROWS, INNER)

    @property
    def right_block(self) -> tuple[int, int]:
        return (self.width, INNER) if self.transposed else (INNER, self.width)


class _Tile(NamedTuple):
    """Position of a tile, and how many blocks are added up for it."""

    group: Array
    row: Array  # of the result, within its group if it has an axis for groups
    column: Array  # tiles to the left
    start: Array  # of the rows that are summed over, for "outer"
    steps: Array | int


def _call(
    form: Form,
    lefts: tuple[Array, ...],
    rights: tuple[Array, ...],
    sizes: Array,
    transposed: bool,
    interpret: bool,
) -> tuple[Array, ...]:
    M, inner = lefts[0].shape
    columns = rights[0].shape[1] if transposed else rights[0].shape[-1]
    if reason := why_not(lefts[0].dtype, inner, columns, interpret=interpret):
        raise NotImplementedError(f"implementation 'mosaic_gpu' cannot run this: {reason}")
    if M % ROWS:
        raise ValueError(f"there are {M} rows; 'mosaic_gpu' takes multiples of {ROWS}")
    plan = _GroupedPlan(
        form=form,
        transposed=transposed,
        num_rows=M,
        groups=len(sizes),
        inner=inner,
        columns=columns,
        results=1 if form == "total" else len(rights),
        dtype=lefts[0].dtype,
        interpret=interpret,
    )
    ends = jnp.cumsum(sizes.astype(jnp.int32))
    match form:
        case "outer":
            table, second = ends - sizes, sizes.astype(jnp.int32)
        case "product" | "total":
            table = group_of_blocks(ends, M)
            second = ends[-1:] // ROWS
        case _:
            assert_never(form)
    with jax.named_scope(f"grouped_{form}"):
        return tuple(_kernel(plan)(table, second, *lefts, *rights))


def _kernel(plan: _GroupedPlan) -> Any:
    """Make the kernel from metadata, left and right operands to results."""
    gpu: Any = plgpu  # jax 0.12 declares the transforms as abstract classes
    swizzled = (gpu.TilingTransform((8, 64)), gpu.SwizzleTransform(128))
    memory = partial(plgpu.SMEM, dtype=plan.dtype, transforms=swizzled)
    shape: tuple[int, ...] = (plan.num_rows, plan.columns)
    if plan.form == "outer":
        shape = (plan.groups, plan.inner, plan.columns)
    programs = min(2 if plan.interpret else PROGRAMS, plan.down * plan.across)
    interpreter = {"interpret": _INTERPRETER()} if plan.interpret else {}
    return plgpu.kernel(
        partial(_run, plan, programs),
        out_type=[jax.ShapeDtypeStruct(shape, plan.dtype)] * plan.results,
        scratch_types=[
            memory((STAGES, *plan.left_block)),
            memory((STAGES, HALVES, *plan.right_block)),
            memory((HALVES, ROWS, PIECE)),
            plgpu.Barrier(num_arrivals=1 + HALVES, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=HALVES, num_barriers=STAGES),
        ],
        grid=(programs,),
        grid_names=("program",),
        num_threads=HALVES + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        **interpreter,
    )


def _run(plan: _GroupedPlan, programs: int, table: _Ref, second: _Ref, *refs: _Ref) -> None:
    *arrays, left_blocks, right_blocks, pieces, arrived, released = refs
    num_lefts = 2 if plan.form == "total" else 1
    lefts, results = arrays[:num_lefts], arrays[len(arrays) - plan.results :]
    rights = arrays[num_lefts : len(arrays) - plan.results]
    program, warpgroup = lax.axis_index("program"), lax.axis_index("warpgroup")
    used = jnp.int32(plan.down) if plan.form == "outer" else second[0]

    def over_tiles(work: Callable[[_Tile, Array], Array]) -> None:
        """Process one tile after the other; each call gets the number of blocks before it."""

        def turn(i: Array, before: Array) -> Array:
            return work(_tile(plan, program + i * programs, table, second), before)

        turns = lax.div(used * plan.across - program + (programs - 1), programs)
        lax.fori_loop(0, turns, turn, jnp.int32(0))

    @pl.when(warpgroup == HALVES)
    def _() -> None:
        blocks = left_blocks, right_blocks, arrived, released
        over_tiles(partial(_bring, plan, lefts, rights, *blocks))

    @pl.when(warpgroup < HALVES)
    def _() -> None:
        blocks = left_blocks, right_blocks.at[:, warpgroup], arrived, released
        write = partial(_write, plan, results, pieces.at[warpgroup], warpgroup)
        over_tiles(partial(_compute, plan, *blocks, write))
        plgpu.wait_smem_to_gmem(0)


def _tile(plan: _GroupedPlan, number: Array, table: _Ref, second: _Ref) -> _Tile:
    """Return a tile by number: those side by side are neighbours and share the left operand."""
    down, column = lax.div(number, plan.across), lax.rem(number, plan.across)
    if plan.form == "outer":
        tiles = plan.inner // ROWS
        group = lax.div(down, tiles)
        row, blocks = lax.rem(down, tiles) * ROWS, lax.div(second[group], INNER)
        return _Tile(group, row, column, table[group], blocks)
    steps = plan.inner // INNER * (2 if plan.form == "total" else 1)
    return _Tile(table[down], down * ROWS, column, jnp.int32(0), steps)


def _bring(
    plan: _GroupedPlan,
    lefts: list[_Ref],
    rights: list[_Ref],
    left_blocks: _Ref,
    right_blocks: _Ref,
    arrived: _Ref,
    released: _Ref,
    tile: _Tile,
    before: Array,
) -> Array:
    """Copy all blocks of a tile, each as soon as there is room for it."""
    parts = plan.inner // INNER  # of each of two products

    def columns(half: int) -> Any:
        place = tile.column if plan.results == HALVES else tile.column * HALVES + half
        return pl.ds(pl.multiple_of(place * plan.width, plan.width), plan.width)

    def fetch(left: _Ref, rights: list[_Ref], step: Array, slot: Array) -> None:
        inner = pl.ds(pl.multiple_of(step * INNER, INNER), INNER)
        rows = pl.ds(pl.multiple_of(tile.row, ROWS), ROWS)
        if plan.form == "outer":
            inner = pl.ds(pl.multiple_of(tile.start + step * INNER, INNER), INNER)
            left = left.at[inner, rows]
        else:
            left = left.at[rows, inner]
        plgpu.copy_gmem_to_smem(left, left_blocks.at[slot], arrived.at[slot])
        for half in range(HALVES):
            right = rights[half % len(rights)]
            if plan.form == "outer":
                right = right.at[inner, columns(half)]
            elif plan.transposed:
                right = right.at[tile.group, columns(half), inner]
            else:
                right = right.at[tile.group, inner, columns(half)]
            plgpu.copy_gmem_to_smem(right, right_blocks.at[slot, half], arrived.at[slot])

    def bring(step: Array, number: Array) -> Array:
        slot = lax.rem(number, STAGES)
        pl.when(number >= STAGES)(lambda: plgpu.barrier_wait(released.at[slot]))
        if plan.form == "total":
            pl.when(step < parts)(partial(fetch, lefts[0], rights[:1], step, slot))
            pl.when(step >= parts)(partial(fetch, lefts[1], rights[1:], step - parts, slot))
        else:
            fetch(lefts[0], rights, step, slot)
        return number + 1

    return lax.fori_loop(0, tile.steps, bring, before)


def _compute(
    plan: _GroupedPlan,
    left_blocks: _Ref,
    right_blocks: _Ref,
    arrived: _Ref,
    released: _Ref,
    write: Callable[[_Tile, Array], None],
    tile: _Tile,
    before: Array,
) -> Array:
    """Compute this warpgroup's half of a tile."""

    def sums(total: _Ref) -> Array:
        def add(step: Array, number: Array) -> Array:
            slot = lax.rem(number, STAGES)
            plgpu.barrier_wait(arrived.at[slot])
            left, right = left_blocks.at[slot], right_blocks.at[slot]
            left = left.transpose((1, 0)) if plan.form == "outer" else left
            right = right.transpose((1, 0)) if plan.transposed else right
            plgpu.wgmma(total, left, right)
            plgpu.wgmma_wait(1)  # the one before is done with its block
            done = lax.rem(number + (STAGES - 1), STAGES)
            pl.when(step > 0)(lambda: plgpu.barrier_arrive(released.at[done]))
            return number + 1

        lax.fori_loop(0, tile.steps, add, before)
        return total[...]

    sums_RC = pl.run_scoped(sums, plgpu.ACC((ROWS, plan.width), jnp.float32))
    after = before + tile.steps
    last = lax.rem(after + (STAGES - 1), STAGES)
    pl.when(after > before)(lambda: plgpu.barrier_arrive(released.at[last]))
    write(tile, sums_RC)
    return after


def _write(
    plan: _GroupedPlan, results: list[_Ref], piece: _Ref, half: Array, tile: _Tile, sums_RC: Array
) -> None:
    rows = pl.ds(pl.multiple_of(tile.row, ROWS), ROWS)

    def copy(result: _Ref, place: Array, start: int) -> None:
        columns = pl.ds(pl.multiple_of(place * plan.width + start, PIECE), PIECE)
        result = result.at[tile.group] if plan.form == "outer" else result
        plgpu.copy_smem_to_gmem(piece, result.at[rows, columns])

    for start in range(0, plan.width, PIECE):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        piece[...] = sums_RC[:, start : start + PIECE].astype(plan.dtype)
        plgpu.commit_smem()
        if plan.results == HALVES:
            for i, result in enumerate(results):
                pl.when(half == i)(partial(copy, result, tile.column, start))
        else:
            copy(results[0], tile.column * HALVES + half, start)
