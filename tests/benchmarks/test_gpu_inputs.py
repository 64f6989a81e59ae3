"""What programs are given when they are measured is the problem that their row speaks of."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels.packed_attention.spans import RowSpans

from benchmarks import gpu_attention, gpu_inputs, gpu_table
from benchmarks.gpu_engine import decoding
from benchmarks.gpu_inputs import MAKERS, filled, maker_of, pairs_of
from benchmarks.gpu_programs import engine_program, learner_program, run_here
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.engine import memory_plan
from benchmarks.h100.jobs import KERNELS, MESHES, Job

DENSE, MIXTURE = "qwen3_06b_gsm8k", "qwen3_30b_a3b_moe"


def kernel(name, config=DENSE):
    """A kernel of a small run, and what it is given. Those for GPUs do not lower here."""
    run = run_here(config, tiny=True)
    found = gpu_table.programs(Job("kernels", config), run)
    program = next(p for p in found if p.name.startswith(name))
    return run, program, gpu_inputs._of_kernel(run, program, program.lower.args)


def test_every_kernel_of_the_table_has_a_maker():
    rows = json.loads(gpu_table.PREDICTED.read_text())["rows"]
    names = {row["program"] for row in rows if row["part"] == "kernels"}
    used = {maker_of(name) for name in names}
    assert used == set(MAKERS.values())
    assert maker_of("packed attention 14,848 tokens") is not maker_of("attention xla")


@pytest.mark.parametrize("name", ["packed", "attentions xla", "grouped 16,384 rows", "top k", ""])
def test_a_kernel_without_a_maker_is_refused(name):
    with pytest.raises(LookupError, match=f"no arguments for the kernel '{name}': add its maker"):
        maker_of(name)


@pytest.mark.parametrize(("shape", "dtype"), [((7,), "int32"), ((2, 3), "uint8"), ((1,), "bool")])
def test_integers_are_never_made_up(shape, dtype):
    with pytest.raises(TypeError, match="integers need a maker of their own"):
        filled(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))


def test_a_packed_row_is_one_causal_row():
    """All pairs count, forwards and backwards: no loop over blocks is empty."""
    run, program, (*_, first, last) = kernel("packed attention")
    T = run.row_tokens
    assert (np.asarray(first) == 0).all() and (np.asarray(last) == T - 1).all()
    pairs = pairs_of(RowSpans(first, last))
    assert pairs == T * (T + 1) // 2
    heads = run.model.num_query_heads * run.model.head_dim
    # Forwards, and twice that backwards.
    assert program.work.flops == pytest.approx(3 * 4 * heads * pairs)


def test_the_pairs_of_spans_are_counted_one_by_one():
    segments = jnp.array([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2]])
    assert pairs_of(gpu_attention.spans_of(segments)) == 6 + 3 + 15
    assert pairs_of(gpu_attention.spans_of(segments, window=2)) == 5 + 3 + 9


@pytest.mark.parametrize("config", KERNELS)
def test_the_table_counts_the_pairs_of_a_whole_row(config):
    run = run_of(config)
    (row,) = (
        row
        for name, row in gpu_table.predicted(Job("kernels", config)).items()
        if name.startswith("packed")
    )
    T, model = run.row_tokens, run.model
    heads = model.num_query_heads // run.learner.mesh[2] * model.head_dim
    assert row["model_flops"] == pytest.approx(3 * 4 * heads * T * (T + 1) / 2, rel=1e-3)


def test_attention_beside_torchs_has_the_whole_row():
    pairs = pairs_of(gpu_attention.spans(14_848))
    assert pairs == 14_848 * 14_849 // 2


@pytest.mark.parametrize("name", ["grouped product", "grouped total", "grouped outer"])
def test_all_rows_are_in_groups_of_about_one_size(name):
    shapes = [(4096, 8), (4096, 8), (16, 8, 8), (16, 8, 8)][:: 1 if "total" in name else -1]
    described = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    described.append(jax.ShapeDtypeStruct((16,), jnp.int32))
    *_, sizes = maker_of(f"{name} 4,096 rows")(tuple(described), np.random.default_rng(0))
    assert sizes.sum() == 4096 and sizes.min() > 4096 / 16 / 2


def test_pages_are_written_and_copied_all_over_the_pool():
    _, _, (pool, *_, slots) = kernel("update pages")
    slots = np.asarray(slots)
    assert len(np.unique(slots)) == len(slots) and slots.max() < pool.shape[0] * pool.shape[1]
    assert slots.max() > len(slots)
    _, _, (pool, source, destination) = kernel("copy pages")
    assert not set(source.tolist()) & set(destination.tolist())
    assert destination.max() < pool.shape[0]


@pytest.mark.optimized(False)
def test_attention_that_is_measured_reads_all_pages():
    run, _, (_, pool, lens, pages, starts, count) = kernel("attention xla")
    slots = run.engine.slots
    used = np.asarray(pages)[:, : pool.shape[0] // slots]
    assert sorted(used.ravel().tolist()) == list(range(pool.shape[0]))
    assert (np.asarray(lens) == used.shape[1] * pool.shape[1]).all()
    assert starts.tolist() == list(range(slots + 1)) and count.tolist() == [slots]


def test_routes_of_a_batch_reach_all_experts():
    """Inputs of zeros would send all tokens to one expert."""
    run = run_here(MIXTURE, tiny=True)
    rows, tokens = run.learner.pack_rows, run.learner.row_tokens
    chosen = run.model.experts_per_token
    info = jax.ShapeDtypeStruct((rows, tokens, run.model.num_layers, chosen), jnp.uint8)
    routes = gpu_inputs._routes(info, run.model.num_experts, np.random.default_rng(0))
    assert (np.sort(routes)[..., 1:] > np.sort(routes)[..., :-1]).all()  # none of a token twice
    counts = np.bincount(routes.ravel(), minlength=run.model.num_experts)
    assert counts.min() > routes.size / run.model.num_experts / 2


@pytest.mark.optimized(False)
def test_the_steps_that_are_measured_have_all_slots_busy():
    """Were lengths or pages wrong, programs would still run, and be fast."""
    run, sampled = run_here(DENSE, tiny=True), {}
    for kind in ("decode", "mixed"):
        program = engine_program(run, kind, "auto")
        lowered = program.lower()
        arguments = gpu_inputs.arguments(run, "engine", program, lowered)
        sampled[kind] = np.asarray(lowered.compile()(*arguments)[1].sampled)[0]
    steps, slots = run.engine.steps_per_dispatch, run.engine.slots
    assert sampled["decode"].shape[0] == steps and (sampled["decode"][:, :slots] >= 0).all()
    rows, prompt = run.engine.token_rows, run.engine.max_prompt_tokens
    assert (sampled["mixed"] >= 0).sum() == min(slots, -(-rows // prompt))


@pytest.mark.parametrize(
    ("config", "context", "engine"),
    [
        ("qwen3_8b_openr1", 640, {"token_rows": 64}),
        ("qwen3_8b_openr1", 3072, {}),
        ("qwen3_8b_openr1", 3072, {"kv_dtype": "float8_e4m3fn"}),
        (DENSE, 320, {"slots": 256, "page_size": 64}),
        (DENSE, 64, {"slots": 64}),
        (MIXTURE, 2304, {}),
    ],
)
def test_a_measured_step_has_its_context_and_fits_into_80_gb(config, context, engine):
    layers = 4 if config == MIXTURE else 0
    run = decoding(run_here(config, tiny=False, layers=layers, engine=engine), context)
    plan = memory_plan(run, run.engine)  # raises where it does not fit
    held = plan.num_pages * run.engine.page_size / run.engine.slots
    assert run.slot_tokens / 2 == context <= held


@pytest.mark.parametrize(
    "algorithm",
    [
        {"whiten": True},
        {"kl_coefficient": 0.1, "kl_placement": "reward"},
        {"mini_batches": 2},
        {"advantage": "gae"},
        {},
    ],
    ids=str,
)
def test_a_learner_has_an_evaluation_pass_whatever_asks_for_it(algorithm):
    """And its program lowers; with a reference in rewards, over two sets of parameters."""
    run = run_here(DENSE, tiny=True)
    run = replace(run, algorithm=replace(run.algorithm, **algorithm))
    assert run.algorithm.has_evaluation_pass is bool(algorithm)
    program = learner_program(run, "logprobs")
    given = len(jax.tree.leaves(program.lower().args_info))
    alone = len(jax.tree.leaves(learner_program(run, "gaps").lower().args_info))
    assert given > 1.4 * alone if run.algorithm.kl_in_reward else given == alone


@pytest.mark.parametrize("config", MESHES)
def test_the_table_has_an_evaluation_pass_of_every_learner(config):
    for mesh in MESHES[config]:
        row = gpu_table.predicted(Job("learner", config, mesh=mesh))["logprobs"]
        assert row["seconds_least"] > 0 and row["tokens"] > 0
