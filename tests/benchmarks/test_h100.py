"""What is read from HLO, against modules that are short enough to count by hand."""

import threading
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.h100 import chip, ptxas
from benchmarks.h100.__main__ import Compiler, rows_of
from benchmarks.h100.cost import Assumptions, Call, Collective, Cost, cost_of, groups_of, largest
from benchmarks.h100.hlo import Shape, parse
from benchmarks.h100.jobs import Job
from benchmarks.h100.program import Program, Work
from benchmarks.h100.rows import bounds_on, priced
from benchmarks.h100.steps import steps

# A batched product inside a fusion, in a loop of 3 around a loop whose length is data.
LOOPS = """
HloModule jit_f, is_scheduled=true

%fused_dot (p0: bf16[2,4,8], p1: bf16[2,8,16]) -> f32[2,4,16] {
  %p0 = bf16[2,4,8]{2,1,0} parameter(0)
  %p1 = bf16[2,8,16]{2,1,0} parameter(1)
  ROOT %dot.1 = f32[2,4,16]{2,1,0} dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}, metadata={op_name="jit(f)/bij,bjk->bik/dot_general"}
}

%inner_body (s: (s32[], bf16[2,4,8], bf16[2,8,16], f32[2,4,16])) -> (s32[], bf16[2,4,8], bf16[2,8,16], f32[2,4,16]) {
  %s = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %x = bf16[2,4,8]{2,1,0} get-tuple-element(%s), index=1
  %w = bf16[2,8,16]{2,1,0} get-tuple-element(%s), index=2
  %gemm = f32[2,4,16]{2,1,0} fusion(%x, %w), kind=kCustom, calls=%fused_dot, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  ROOT %t = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, /*index=3*/f32[2,4,16]{2,1,0}) tuple(%n, %x, %w, %gemm)
}

%more (s.1: (s32[], bf16[2,4,8], bf16[2,8,16], f32[2,4,16])) -> pred[] {
  %s.1 = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) parameter(0)
  %n.1 = s32[] get-tuple-element(%s.1), index=0
  %end = s32[] constant(9)
  ROOT %less = pred[] compare(%n.1, %end), direction=LT
}

%outer_body (s.2: (s32[], bf16[2,4,8], bf16[2,8,16], f32[2,4,16])) -> (s32[], bf16[2,4,8], bf16[2,8,16], f32[2,4,16]) {
  %s.2 = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) parameter(0)
  ROOT %while.2 = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) while(%s.2), condition=%more, body=%inner_body, metadata={op_name="jit(f)/while/body/while"}
}

ENTRY %main (a: bf16[2,4,8], b: bf16[2,8,16]) -> f32[2,4,16] {
  %a = bf16[2,4,8]{2,1,0} parameter(0)
  %b = bf16[2,8,16]{2,1,0} parameter(1)
  %zero = s32[] constant(0)
  %nothing = f32[] constant(0)
  %start = f32[2,4,16]{2,1,0} broadcast(%nothing), dimensions={}
  %tuple = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) tuple(%zero, %a, %b, %start)
  %while.1 = (s32[], bf16[2,4,8]{2,1,0}, bf16[2,8,16]{2,1,0}, f32[2,4,16]{2,1,0}) while(%tuple), condition=%more, body=%outer_body, metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"1"}}
  ROOT %out = f32[2,4,16]{2,1,0} get-tuple-element(%while.1), index=3
}
"""  # noqa: E501
ONE_PRODUCT = 2 * 2 * 4 * 16 * 8  # FLOPs
ONE_GEMM = 2 * (2 * 4 * 8 + 2 * 8 * 16) + 4 * 2 * 4 * 16  # bytes


def test_what_is_in_loops_counts_as_often_as_they_run() -> None:
    cost = cost_of(parse(LOOPS), Assumptions(trips=((r"body/while$", 5.0),)))
    assert cost.flops == {"bf16": 3 * 5 * ONE_PRODUCT}
    assert cost.num_bytes == 3 * 5 * ONE_GEMM + (4 + 4 * 128)  # and the zeros
    assert cost.kernels == 3 * 5 + 1
    assert cost.trips == {"jit(f)/while/body/while": 15.0}  # the other's length is known
    assert not cost.guessed


def test_small_arrays_that_were_just_made_are_in_the_cache() -> None:
    assumptions = Assumptions(trips=((r"body/while$", 5.0),))
    cost = cost_of(parse(LOOPS), assumptions, cached=512.0)
    made = 4 * 2 * 4 * 16
    assert cost.num_bytes == 3 * 5 * (ONE_GEMM - made) + 4  # factors come from outside
    assert cost.cached_bytes == 3 * 5 * made + made


def test_a_loop_that_no_assumption_speaks_of_counts_once_and_is_named() -> None:
    cost = cost_of(parse(LOOPS))
    assert cost.flops == {"bf16": 3 * ONE_PRODUCT}
    assert cost.trips == {"jit(f)/while/body/while": 3.0}
    assert cost.guessed == {"jit(f)/while/body/while"}


PRECISIONS = """
HloModule jit_p

ENTRY %main (a: f32[4,8], b: f32[8,16], c: bf16[4,8], d: bf16[8,16]) -> f32[4,16] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  %c = bf16[4,8]{1,0} parameter(2)
  %d = bf16[8,16]{1,0} parameter(3)
  %rounded = f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %half = f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={high,high}
  %exact = f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}
  %short = f32[4,16]{1,0} dot(%c, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %library = f32[4,16]{1,0} custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]},"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}}
  ROOT %last = f32[4,16]{1,0} custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]},"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}}
}
"""  # noqa: E501


def test_products_of_float32_are_tf32_unless_they_forbid_it() -> None:
    each = 2 * 4 * 16 * 8
    assert cost_of(parse(PRECISIONS)).flops == {"tf32": 3 * each, "f32": 2 * each, "bf16": each}


def test_kernels_that_round_are_found_by_their_instructions() -> None:
    text = """
.visible .entry plain(.param .u64 a) { fma.rn.f32 %f1, %f2, %f3, %f4; }
.visible .entry one(.param .u64 a)
{ mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0}, {%r1}, {%r2}, {%f3}; }
.entry short(.param .u64 a) { mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0}; }
.visible .entry two(.param .u64 a) { wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {%f0}; }
"""
    assert ptxas.rounding_kernels(text) == ["one", "two"]


COLLECTIVES = """
HloModule jit_g

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%wrapped (q: bf16[8,16]) -> bf16[8,16] {
  %q = bf16[8,16]{1,0} parameter(0)
  ROOT %a2a = bf16[8,16]{1,0} all-to-all(%q), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
}

ENTRY %main (p: f32[128,16], q.1: bf16[8,16]) -> f32[16,16] {
  %p = f32[128,16]{1,0} parameter(0)
  %q.1 = bf16[8,16]{1,0} parameter(1)
  %start = ((bf16[8,16]{1,0}), bf16[64,16]{1,0}) all-gather-start(%q.1), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}, dimensions={0}
  %done = bf16[64,16]{1,0} all-gather-done(%start)
  %two = ((bf16[8,16]{1,0}, bf16[8,16]{1,0}), (bf16[16,16]{1,0}, bf16[16,16]{1,0})) all-gather-start(%q.1, %q.1), channel_id=2, replica_groups=mesh['data'=1,'fsdp'=2,'tensor'=8] {'fsdp'}, dimensions={0}
  %all = f32[128,16]{1,0} all-reduce(%p), replica_groups=[1,16]<=[16], to_apply=%add
  %moved = bf16[8,16]{1,0} call(%q.1), to_apply=%wrapped
  ROOT %part = f32[16,16]{1,0} reduce-scatter(%all), replica_groups=[2,8]<=[16], dimensions={0}, to_apply=%add
}
"""  # noqa: E501


def test_collectives_by_kind_bytes_and_link() -> None:
    cost = cost_of(parse(COLLECTIVES))
    gathered, reduced = 2 * 64 * 16, 4 * 128 * 16
    assert cost.sent == {
        Collective("all-gather", "bf16", 8, 8): gathered * 7 / 8,
        Collective("all-gather", "bf16", 2, 1): 2 * 2 * 16 * 16 / 2,
        Collective("all-reduce", "f32", 16, 8): 2 * reduced * 15 / 16,
        Collective("all-to-all", "bf16", 4, 4): 2 * 8 * 16 * 3 / 4,
        Collective("reduce-scatter", "f32", 8, 8): reduced * 7 / 8,
    }
    assert chip.link_rate(8, 8) == chip.NVLINK_RATE
    assert chip.link_rate(2, 1) == chip.NETWORK_RATE
    assert chip.link_rate(16, 8) == 8 * chip.NETWORK_RATE


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("{{0,2},{1,3}}", (0, 2)),
        ("[2,4]<=[8]", (0, 1, 2, 3)),
        ("[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("mesh['a'=2,'b'=4] {'a'}", (0, 4)),
        ("mesh['a'=2,'b'=4] {'a','b'}", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("mesh['a'=2,'b'=2,'c'=4], device_ids=([2,4,2]T(0,2,1)) {'b'}", (0, 1)),
        ("mesh['a'=2,'b'=2,'c'=4], device_ids=([2,4,2]T(0,2,1)) {'c'}", (0, 2, 4, 6)),
        ("mesh['a'=2,'b'=4], device_ids=([8]) {'a'}", (0, 4)),
        ("{}", (0, 1, 2)),
    ],
)
def test_the_first_group_of_each_notation(groups: str, first: tuple[int, ...]) -> None:
    written = f"channel_id=1, replica_groups={groups}, dimensions={{0}}"
    assert groups_of(written, devices=3) == [first]


def test_groups_in_a_notation_of_tomorrow_are_not_free() -> None:
    with pytest.raises(ValueError, match="not understood: replica_groups=<0,1>"):
        groups_of("replica_groups=<0,1>")


SENT = """
HloModule jit_g, is_scheduled=true, num_partitions=16

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: f32[1000], q: f32[8]) -> f32[8] {
  %p = f32[1000]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  %one = f32[8]{0} all-reduce-start(%q), replica_groups={{0,1}}, to_apply=%add
  %one.1 = f32[8]{0} all-reduce-done(%one)
  %both = (f32[1000]{0}, f32[8]{0}) all-reduce-start(%p, %q), replica_groups={}, to_apply=%add
  %both.1 = (f32[1000]{0}, f32[8]{0}) all-reduce-done(%both)
  %new = ((f32[1000]{0}, f32[8]{0}), (f32[1000]{0}, f32[8]{0})) all-reduce-start(%p, %q), replica_groups=[4,4]<=[16], to_apply=%add
  %new.1 = ((f32[8]{0}), f32[8]{0}) all-reduce-start(%q), replica_groups=[2,8]<=[16], to_apply=%add
  %moved = f32[1000]{0} collective-permute(%p), source_target_pairs={{0,1},{1,2},{7,8}}
  ROOT %near = f32[8]{0} collective-permute(%q), source_target_pairs={{0,1},{1,0}}
}
"""  # noqa: E501


def test_an_asynchronous_sum_counts_all_of_its_arrays_and_a_permutation_its_slowest_pair() -> None:
    assert cost_of(parse(SENT)).sent == {
        Collective("all-reduce", "f32", 2, 2): 2 * 4 * 8 / 2,
        Collective("all-reduce", "f32", 16, 8): 2 * 4 * (1000 + 8) * 15 / 16,
        Collective("all-reduce", "f32", 4, 4): 2 * 4 * (1000 + 8) * 3 / 4,
        Collective("all-reduce", "f32", 8, 8): 2 * 4 * 8 * 7 / 8,
        Collective("collective-permute", "f32", 2, 1): 4 * 1000,
        Collective("collective-permute", "f32", 2, 2): 4 * 8,
    }


SORTS = """
HloModule jit_s

%less (a: s32[], b: s32[], c: f32[], d: f32[], e: s32[], f: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  %c = f32[] parameter(2)
  %d = f32[] parameter(3)
  %e = s32[] parameter(4)
  %f = s32[] parameter(5)
  ROOT %is = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (k: s32[N], v: f32[N], i: s32[N]) -> (s32[N], f32[N], s32[N]) {
  %k = s32[N]{0} parameter(0)
  %v = f32[N]{0} parameter(1)
  %i = s32[N]{0} parameter(2)
  ROOT %all = SORTED
}
"""


@pytest.mark.parametrize(("count", "launches"), [(14_680_064, 91), (60_817_408, 120), (4096, 1)])
def test_a_sort_of_several_arrays_goes_through_memory_at_each_launch(
    count: int, launches: int
) -> None:
    """So many launches has a program for 14,848 tokens of width 4,096, or 16,384 of 896."""
    sort = "(s32[N], f32[N], s32[N]) sort(%k, %v, %i), dimensions={0}, to_apply=%less"
    cost = cost_of(parse(SORTS.replace("SORTED", sort).replace("N]", f"{count}]")))
    assert (cost.kernels, cost.num_bytes) == (launches, launches * 2 * 12 * count)


def test_a_sort_of_pairs_is_the_library_s() -> None:
    sort = "(s32[N], s32[N]) sort(%k, %i), dimensions={0}, to_apply=%less"
    text = SORTS.replace("SORTED", sort).replace("N]", "1000000]")
    assert cost_of(parse(text)).num_bytes == 6 * 2 * 8 * 1000000
    assert cost_of(parse(text), cached=4e6).cached_bytes == 6 * 2 * 8 * 1000000


WORKSPACE = """
HloModule jit_w

ENTRY %main (a: bf16[256,512], b: bf16[512,1024]) -> bf16[256,1024] {
  %a = bf16[256,512]{1,0} parameter(0)
  %b = bf16[512,1024]{1,0} parameter(1)
  %both = (bf16[256,1024]{1,0}, s8[33554432]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %product = bf16[256,1024]{1,0} get-tuple-element(%both), index=0
}
"""  # noqa: E501


def test_the_workspace_of_a_library_is_no_traffic() -> None:
    cost = cost_of(parse(WORKSPACE))
    assert cost.num_bytes == 2 * (256 * 512 + 512 * 1024 + 256 * 1024)
    assert cost.flops == {"bf16": 2 * 256 * 512 * 1024}


SLICES = """
HloModule jit_h

%cut (stack: f32[36,1024], i: s32[]) -> bf16[1024] {
  %stack = f32[36,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %none = s32[] constant(0)
  %row = f32[1,1024]{1,0} dynamic-slice(%stack, %i, %none), dynamic_slice_sizes={1,1024}
  %flat = f32[1024]{0} bitcast(%row)
  ROOT %narrow = bf16[1024]{0} convert(%flat)
}

%put (stack.1: f32[36,1024], new: bf16[1,1024], i.1: s32[]) -> f32[36,1024] {
  %stack.1 = f32[36,1024]{1,0} parameter(0)
  %new = bf16[1,1024]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %none.1 = s32[] constant(0)
  %wide = f32[1,1024]{1,0} convert(%new)
  ROOT %stored = f32[36,1024]{1,0} dynamic-update-slice(%stack.1, %wide, %i.1, %none.1)
}

ENTRY %main (s: f32[36,1024], i.2: s32[]) -> f32[36,1024] {
  %s = f32[36,1024]{1,0} parameter(0)
  %i.2 = s32[] parameter(1)
  %read = bf16[1024]{0} fusion(%s, %i.2), kind=kLoop, calls=%cut
  %again = bf16[1,1024]{1,0} bitcast(%read)
  %twice = f32[36,1024]{1,0} copy(%s), metadata={op_name="jit(h)/body/copy"}
  %kernel = bf16[1024]{0} custom-call(%twice), custom_call_target="mosaic_gpu_v2", backend_config={module="(\\"unbalanced"}
  %product = (f32[64,32]{1,0}, s8[16]{0}) custom-call(%twice, %again), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"]}}}
  ROOT %written = f32[36,1024]{1,0} fusion(%s, %again, %i.2), kind=kLoop, calls=%put
}
"""  # noqa: E501


GROUPED = """
HloModule jit_h

ENTRY %main (rows: bf16[1024,256], gate: bf16[4,256,512], up: bf16[4,256,512], hidden: bf16[1024,512]) -> (bf16[1024,512], bf16[4,256,512]) {
  %rows = bf16[1024,256]{1,0} parameter(0)
  %gate = bf16[4,256,512]{2,1,0} parameter(1)
  %up = bf16[4,256,512]{2,1,0} parameter(2)
  %hidden = bf16[1024,512]{1,0} parameter(3)
  %table = s32[8]{0} constant({0, 0, 1, 1, 2, 2, 3, 3})
  %both = (bf16[1024,512]{1,0}, bf16[1024,512]{1,0}) custom-call(%table, %rows, %gate, %up), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(h)/grouped_product/mpmd_map"}
  %first = bf16[1024,512]{1,0} get-tuple-element(%both), index=0
  %outer = bf16[4,256,512]{2,1,0} custom-call(%table, %rows, %hidden), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(h)/grouped_outer/mpmd_map"}
  ROOT %out = (bf16[1024,512]{1,0}, bf16[4,256,512]{2,1,0}) tuple(%first, %outer)
}
"""  # noqa: E501


def test_products_of_groups_take_what_their_rows_ask_for() -> None:
    """There is room for 1,024 rows, of which 256 are in groups."""
    matrix = 4 * 256 * 512 * 2
    everything, some = (
        cost_of(parse(GROUPED), Assumptions(grouped_rows=rows)) for rows in (None, 256)
    )
    assert everything.flops == {"bf16": 3 * 2 * 1024 * 256 * 512}
    assert some.flops == {"bf16": 3 * 2 * 256 * 256 * 512}
    assert everything.num_bytes == 3 * matrix + 2 * 1024 * (256 + 2 * 512 + 256 + 512)
    assert some.num_bytes == 3 * matrix + 2 * 256 * (256 + 2 * 512 + 256 + 512)


def test_slices_are_paid_for_and_not_what_they_are_cut_from() -> None:
    module = parse(SLICES)
    call = Call(r"mosaic.*\[36,1024\]", flops=7.0, num_bytes=100.0)
    cost = cost_of(module, Assumptions(calls=(call,)))
    whole, row = 4 * 36 * 1024, 4 * 1024
    read = row + 4 + row / 2  # the row, its index, and half as wide again
    written = row / 2 + 4 + row
    product = whole + row / 2 + 4 * 64 * 32
    assert cost.num_bytes == read + written + 2 * whole + (100 + row / 2) + product
    assert cost.flops == {"bf16": 7.0, "tf32": 2 * 64 * 32 * 36}
    assert cost.calls == {"mosaic_gpu_v2": 1, "__cublas$gemm": 1}


CHOSEN = """
HloModule jit_c

%weights (logits: f32[64,1024], best: f32[64,1024], at: s32[64,2]) -> f32[64,16] {
  %logits = f32[64,1024]{1,0} parameter(0)
  %best = f32[64,1024]{1,0} parameter(1)
  %centred = f32[64,1024]{1,0} subtract(%logits, %best)
  %weight = f32[64,1024]{1,0} exponential(%centred)
  %nodes = f32[64,64,16]{2,1,0} bitcast(%weight)
  %at = s32[64,2]{1,0} parameter(2)
  ROOT %chosen = f32[64,16]{1,0} gather(%nodes, %at), offset_dims={1}, slice_sizes={1,1,16}
}

%wide (narrow: bf16[64,1024]) -> f32[64,1024] {
  %narrow = bf16[64,1024]{1,0} parameter(0)
  ROOT %float = f32[64,1024]{1,0} convert(%narrow)
}

ENTRY %main (l: f32[64,1024], b: f32[64,1024], a: s32[64,2], n: bf16[64,1024]) -> f32[64,16] {
  %l = f32[64,1024]{1,0} parameter(0)
  %b = f32[64,1024]{1,0} parameter(1)
  %a = s32[64,2]{1,0} parameter(2)
  %n = bf16[64,1024]{1,0} parameter(3)
  %float.1 = f32[64,1024]{1,0} fusion(%n), kind=kLoop, calls=%wide
  ROOT %out = f32[64,16]{1,0} fusion(%l, %b, %a), kind=kLoop, calls=%weights
}
"""


def test_what_is_computed_of_each_entry_is_paid_for_where_it_is_looked_at() -> None:
    chosen, narrow = 4 * 64 * 16, 2 * 64 * 1024
    read = 2 * chosen + 4 * 64 * 2 + narrow
    assert cost_of(parse(CHOSEN)).num_bytes == read + chosen + 2 * narrow


def test_a_call_may_leave_results_unset() -> None:
    def cost(written: float | None, cached: float = 0.0) -> Cost:
        call = Call(r"mosaic.*\[36,1024\]", flops=7.0, num_bytes=100.0, written=written)
        return cost_of(parse(SLICES), Assumptions(calls=(call,)), cached=cached)

    assert cost(None).num_bytes - cost(10.0).num_bytes == 2 * 1024 - 10
    kept = cost(1001.0, cached=1001.0).cached_bytes - cost(0.0, cached=1001.0).cached_bytes
    assert kept == 1001  # as the rest of what is small


def test_the_largest_arrays_have_names() -> None:
    (first, text), *_ = largest(parse(SLICES), 1)
    assert first == 4 * 36 * 1024
    assert text.startswith("f32[36,1024] ")
    assert Shape("f32", (36, 1024)).num_bytes == first


BRANCHES = """
HloModule jit_k

%small (c: f32[4,4]) -> f32[4,4] {
  ROOT %c = f32[4,4]{1,0} parameter(0)
}

%big (d: f32[4,4]) -> f32[4,4] {
  %d = f32[4,4]{1,0} parameter(0)
  ROOT %dd = f32[4,4]{1,0} dot(%d, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(k)/ragged_dot_general"}
}

ENTRY %main (e: f32[4,4], which: s32[]) -> f32[4,4] {
  %e = f32[4,4]{1,0} parameter(0)
  %which = s32[] parameter(1)
  ROOT %cond = f32[4,4]{1,0} conditional(%which, %e, %e), branch_computations={%small, %big}, metadata={op_name="jit(k)/cond"}
}
"""  # noqa: E501


def test_of_branches_the_most_expensive_counts_and_the_host_chooses() -> None:
    cost = cost_of(parse(BRANCHES))
    assert cost.flops == {"tf32": 2 * 4 * 4 * 4}
    assert cost.ragged_flops == 2 * 4 * 4 * 4
    assert cost.trips == {"jit(k)/cond": 1}


def test_text_without_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="ENTRY"):
        parse("HloModule nothing\n")


def test_seconds_are_the_sum_and_the_largest_of_what_each_resource_takes() -> None:
    work = Work(flops=2 * ONE_PRODUCT, num_bytes=1.0, tokens=3)
    program = Program(
        name="f",
        lower=lambda: None,
        devices=2,
        work=work,
        plan_bytes=0,
        held_bytes=0,
        host_bytes=chip.PCIE_RATE,
        assumptions=Assumptions(trips=((r"while$", 2.0),)),
    )
    row = priced(program, cost_of(parse(LOOPS), program.assumptions))
    flops, trips = 6 * ONE_PRODUCT, 6 * chip.TRIP_SECONDS
    hbm = (6 * ONE_GEMM + 516) / chip.MEMORY_RATE
    arithmetic = flops / chip.FLOPS["bf16"]
    launches = 7 * chip.LAUNCH_SECONDS
    assert row["seconds"]["launches"] == pytest.approx(launches)
    assert row["seconds_serial"] == pytest.approx(arithmetic + hbm + launches + trips + 1.0)
    assert row["seconds_overlapped"] == 1.0
    assert row["mfu_overlapped"] == pytest.approx(ONE_PRODUCT / chip.FLOPS["bf16"])
    assert row["trips"] == 6


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("NVIDIA H100 80GB HBM3", 3.35e12), ("NVIDIA H200", 4.8e12)],
)
def test_bounds_are_those_of_the_device_that_is_measured(kind: str, rate: float) -> None:
    row = {
        "model_flops": 989e12 * 0.01,
        "model_gb": 96.0,
        "hbm_gb": 240.0,
        "seconds": {"arithmetic": 0.02, "hbm": 9.0, "launches": 0.001, "trips": 0.003},
    }
    sheet = chip.sheet_of(kind)
    assert sheet is not None
    found = bounds_on(sheet, row)
    assert found["least"] == pytest.approx(96e9 / rate)  # 20 ms of an H200
    assert found["serial"] == pytest.approx(0.02 + 240e9 / rate + 0.001 + 0.003)
    assert found["overlapped"] == pytest.approx(240e9 / rate)


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA B200", "cpu", ""])
def test_a_device_without_a_data_sheet_has_no_bounds(kind: str) -> None:
    """The others that are called H100 have another memory."""
    assert chip.sheet_of(kind) is None


def test_an_h100_is_one_chip_in_all_tables() -> None:
    sheet = chip.sheet_of("NVIDIA H100 80GB HBM3")
    assert sheet is not None
    assert (sheet.flops_per_second, sheet.memory_bytes_per_second, sheet.memory_bytes) == (
        *(chip.FLOPS["bf16"], chip.MEMORY_RATE, chip.MEMORY_BYTES),
    )


def test_a_step_is_its_batches_their_sums_and_an_update() -> None:
    def row(program: str, seconds: float, tokens: int = 0) -> dict[str, object]:
        return {
            "part": "learner",
            "job": "learner",
            "config": "qwen25_05b_gsm8k",
            "mesh": "1,1,1",
            "program": program,
            "tokens": tokens,
            "seconds_serial": 2 * seconds,
            "seconds_overlapped": seconds,
            "mfu_serial": 0.2,
            "mfu_overlapped": 0.4,
        }

    rows = [row("gradients 16 x 1,024", 1.0, 16_384), row("gradients 32 x 512", 9.0)]
    assert not list(steps(rows))  # not without the rest
    (step,) = steps([*rows, row("combine", 0.1), row("apply", 0.5)])
    assert step["batches"] == 32  # 64 prompts with 8 responses each, 16 rows in a batch
    assert step["seconds_overlapped"] == pytest.approx(32 * 1.0 + 31 * 0.1 + 0.5)
    assert step["tokens_per_second_serial"] == pytest.approx(32 * 16_384 / (2 * 35.6))


class EndedBeforeItsJob(Compiler):
    def _timer(self) -> threading.Timer:
        assert self._process is not None
        self._give_up(self._process)
        self._process.wait()
        return super()._timer()


@pytest.mark.parametrize("kind", [Compiler, EndedBeforeItsJob])
def test_a_compiler_that_takes_too_long_is_ended_and_that_is_said(kind, tmp_path: Path) -> None:
    with closing(kind(tmp_path, seconds=0.0)) as compiler:
        (row,) = rows_of(Job("kernels", "qwen3_8b_openr1"), compiler)
    assert row["program"] == "start" and row["failed"].endswith("no program in 0 s")
