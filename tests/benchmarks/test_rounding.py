"""Two modules whose rounding is the same, and each thing that makes it another."""

import pytest

from benchmarks.h100.hlo import parse
from benchmarks.h100.rounding import rounding

# A norm's sum over columns, of rows that are gathered before, in a loop or not.
NORM = """
HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused_norm (p0: bf16[64,128]) -> f32[64] {
  %p0 = bf16[64,128]{1,0} parameter(0)
  %wide = f32[64,128]{1,0} convert(%p0)
  %square = f32[64,128]{1,0} multiply(%wide, %wide)
  %zero = f32[] constant(0)
  ROOT %norm = f32[64]{0} reduce(%square, %zero), dimensions={1}, to_apply=%add
}

%fused_rows (p1: bf16[112,128], p2: s32[64,1]) -> bf16[64,128] {
  %p1 = bf16[112,128]{1,0} parameter(0)
  %p2 = s32[64,1]{1,0} parameter(1)
  ROOT %rows = bf16[64,128]{1,0} gather(%p1, %p2), offset_dims={1}, slice_sizes={1,128}
}

ENTRY %main (x: bf16[112,128], i: s32[64,1]) -> f32[64] {
  %x = bf16[112,128]{1,0} parameter(0)
  %i = s32[64,1]{1,0} parameter(1)
  %own = f32[64,8]{1,0} custom-call(%x), custom_call_target="mosaic_gpu_v2"
  %some = bf16[64,128]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused_rows
  ROOT %out = f32[64]{0} fusion(%some), kind=kInput, calls=%fused_norm
}
"""
JOINED = """
%fused_norm (p0: bf16[112,128], p3: s32[64,1]) -> f32[64] {
  %p0 = bf16[112,128]{1,0} parameter(0)
  %p3 = s32[64,1]{1,0} parameter(1)
  %rows.2 = bf16[64,128]{1,0} gather(%p0, %p3), offset_dims={1}, slice_sizes={1,128}
  %wide = f32[64,128]{1,0} convert(%rows.2)
"""


def test_only_kernels_that_round_are_counted() -> None:
    (count,) = rounding(parse(NORM)).values()  # not the gathering, not the kernel of ours
    assert count == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%wide", "%narrow.7"),
        ("s32[64,1]{1,0} parameter(1)", "s32[64,1]{0,1} parameter(1)"),
        ("f32[64,8]{1,0} custom-call", "f32[96,8]{1,0} custom-call"),
        ("kind=kInput", 'kind=kInput, metadata={op_name="jit(f)/while/body/reduce"}'),
        ("kind=kInput", 'kind=kInput, backend_config={"operation_queue_id":"3"}'),
    ],
)
def test_names_integers_and_our_own_kernels_do_not_count(old: str, new: str) -> None:
    assert old in NORM
    assert rounding(parse(NORM.replace(old, new))) == rounding(parse(NORM))


def test_the_order_of_what_a_kernel_does_and_lengths_of_1_do_not_count() -> None:
    norm = "  ROOT %norm = f32[64]{0} reduce(%square, %zero), dimensions={1}, to_apply=%add"
    half = (
        "  %half = f32[] constant(0.5)\n  %halves = f32[64,128]{1,0} broadcast(%half)\n",
        "  %more = f32[64,128]{1,0} add(%wide, %halves)\n",
        "  ROOT %two = (f32[64]{0}, f32[64,128]{1,0}) tuple(%norm, %more)",
    )
    first = norm.replace("ROOT ", "") + "\n" + "".join(half)
    last = "".join(half[:2]) + norm.replace("ROOT ", "") + "\n" + half[2]
    one, other = (NORM.replace(norm, text) for text in (first, last))
    assert rounding(parse(one)) == rounding(parse(other)) != rounding(parse(NORM))
    longer = one.replace("f32[64,128]{1,0} add", "f32[64,1,128]{2,1,0} add")
    assert rounding(parse(longer)) == rounding(parse(one)) and longer != one


def test_what_only_moves_beside_the_arithmetic_does_not_count() -> None:
    both = NORM.replace(
        "  ROOT %norm = f32[64]{0} reduce(%square, %zero), dimensions={1}, to_apply=%add",
        "  %norm = f32[64]{0} reduce(%square, %zero), dimensions={1}, to_apply=%add\n"
        "  %half = bf16[64,64]{1,0} slice(%p0), slice={[0:64], [0:64]}\n"
        "  ROOT %two = (f32[64]{0}, bf16[64,64]{1,0}) tuple(%norm, %half)",
    )
    assert both != NORM
    assert rounding(parse(both)) == rounding(parse(NORM))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dimensions={1}, to", "dimensions={0}, to"),
        ("multiply(%wide, %wide)", "add(%wide, %wide)"),
        ("constant(0)", "constant(1)"),
        ("f32[] add(%a, %b)", "f32[] maximum(%a, %b)"),
        ("kind=kInput", "kind=kCustom"),
        (
            "kind=kInput",
            'kind=kInput, backend_config={"operation_queue_id":"3","tiles":["1","64"]}',
        ),
        ("f32[64,128]{1,0} multiply", "bf16[64,128]{1,0} multiply"),
        (NORM[NORM.index("%fused_norm") : NORM.index("  %square")], JOINED.lstrip()),
    ],
    ids=[
        *("dimension", "operation", "constant", "reducer", "emitter", "tiles", "type"),
        "joined with what comes before",
    ],
)
def test_another_arithmetic_is_told_apart(old: str, new: str) -> None:
    assert old in NORM
    assert rounding(parse(NORM.replace(old, new))) != rounding(parse(NORM))


def test_a_kernel_that_is_there_twice_counts_twice() -> None:
    twice = NORM.replace(
        "  ROOT %out",
        "  %also = f32[64]{0} fusion(%some), kind=kInput, calls=%fused_norm\n  ROOT %out",
    )
    assert list(rounding(parse(twice)).values()) == [2]
