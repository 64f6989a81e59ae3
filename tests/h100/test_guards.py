"""What an H100's compiler makes of small programs of real runs does not get worse.

A part of `make test`, which installs the compiler where it can be had. By itself:

    python -m tests h100

Limits are what the programs come to today, with a little to spare. Where that is bad a comment says
what it would be; a mend lowers the limit.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from rlboost_kernels.packed_attention.packed_triton import PRODUCTS

from benchmarks.h100.__main__ import WHEELS, Compiler, rows_of
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.jobs import Job
from rlboost_jax.settings.memory_estimates import learner_bytes_per_device, weight_bytes
from tests.patience import PATIENCE_SECONDS
from tests.shared import measured_once

pytestmark = [
    pytest.mark.h100,
    pytest.mark.skipif(
        not (WHEELS / "jax_plugins").is_dir(),
        reason=f"no compiler for CUDA in {WHEELS}; `make h100` installs it there",
    ),
]


Rows = Callable[[Job], dict[str, dict[str, Any]]]

# What several tests look at.
KERNELS = {
    "qwen25_05b_gsm8k": Job("kernels", "qwen25_05b_gsm8k", only=("attention", "packed attention")),
    "qwen3_8b_openr1": Job(
        "kernels",
        "qwen3_8b_openr1",
        only=("attention", "packed attention", "update pages", "copy pages"),
    ),
}
LAYERS = 4  # which are all alike, and take the compiler's time
learner = partial(Job, "learner", layers=LAYERS)
ONE_DEVICE = learner("qwen25_05b_gsm8k", mesh=(1, 1, 1), only=("gradients 16",))
EIGHT_DEVICES = learner("qwen25_05b_gsm8k", mesh=(1, 8, 1), only=("gradients", "gaps"))
EXPERTS = learner("qwen3_30b_a3b_moe", mesh=(1, 4, 4), only=("gradients 40", "gaps"))


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    with closing(Compiler(WHEELS, seconds=PATIENCE_SECONDS)) as compiler:
        yield compiler


@pytest.fixture
def rows(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Rows of a job by program, all compiled once for all tests."""

    def of(job: Job) -> dict[str, dict[str, Any]]:
        name = str(job).replace(" ", "-")
        measured = measured_once(tmp_path_factory, name, lambda: rows_of(job, compiler))
        found = {row["program"]: row for row in measured}
        assert found
        assert not {name: row["failed"] for name, row in found.items() if "failed" in row}
        return found

    return of


def of_kind(found: dict[str, dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Rows of programs whose names begin so."""
    return [row for name, row in found.items() if name.startswith(kind)]


@pytest.mark.parametrize("config", ["qwen25_05b_gsm8k", "qwen3_8b_openr1"])
@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_attention_spills_no_registers(rows: Rows, config: str, name: str) -> None:
    row = rows(KERNELS[config])[f"attention {name}"]
    ours = [kernel for kernel in row["compiled_kernels"] if not kernel["name"].endswith("of XLA")]
    assert len(ours) == 2  # items, and their merging
    for kernel in ours:
        assert kernel["spilled"] == 0
        assert kernel["registers"] <= 255
        if kernel["shared"] is not None:  # jax 0.10 does not say it of Mosaic's
            assert kernel["shared"] <= 113 * 1024  # two programs on a multiprocessor


@pytest.mark.parametrize("form", ["product", "total", "outer"])
def test_products_of_groups_spill_no_registers(rows: Rows, form: str) -> None:
    found = rows(Job("kernels", "qwen3_30b_a3b_moe", only=("grouped",)))
    (row,) = (row for name, row in found.items() if name.split()[1] == form)
    (kernel,) = (k for k in row["compiled_kernels"] if not k["name"].endswith("of XLA"))
    assert kernel["spilled"] == 0
    assert kernel["registers"] <= 168  # of 384 threads
    assert row["flops"] == row["model_flops"]
    assert row["temporaries_gib"] < 0.001


@pytest.mark.parametrize("config", ["qwen25_05b_gsm8k", "qwen3_8b_openr1"])
def test_fused_attention_spills_no_registers(rows: Rows, config: str) -> None:
    """Heads of 64 and of 128."""
    (row,) = of_kind(rows(KERNELS[config]), "packed attention")
    ours = [kernel for kernel in row["compiled_kernels"] if not kernel["name"].endswith("of XLA")]
    assert {kernel["name"] for kernel in ours} == set(PRODUCTS)
    for kernel in ours:
        assert kernel["spilled"] == 0
        assert kernel["shared"] <= 132 * 1024
    # 5.5 products for each of the model's 3 x 2: forwards 2, backwards 3 and 4.
    assert row["flops"] / row["model_flops"] < 9 / 6 * 1.01


@pytest.mark.parametrize("name", ["update pages", "copy pages"])
def test_pages_are_written_in_place(rows: Rows, name: str) -> None:
    row = rows(KERNELS["qwen3_8b_openr1"])[name]
    assert row["hbm_gb"] < 0.1 * row["arguments_gib"]


def test_decode_steps_copy_no_pool(rows: Rows) -> None:
    row = rows(Job("engine", "qwen25_05b_gsm8k", attention="mosaic_gpu", only=("decode",)))
    (decode,) = row.values()
    # What has to be read is 18.4 GB for 8 steps; the logits, whole and in float32, are the rest.
    # One copy of the pools in each step would be 41 more.
    assert decode["hbm_gb"] < 25
    assert decode["trips"] == 8  # one for each step
    # The plan has what lies there besides the program's own: a second copy of the weights.
    assert decode["plan_gib"] == pytest.approx(decode["device_gib"], rel=0.15)


def test_a_step_with_a_full_pool_reads_its_weights_once(rows: Rows) -> None:
    """Arguments of four fifths of the device make XLA rematerialise, if it is let."""
    row = rows(Job("engine", "qwen3_8b_openr1", attention="mosaic_gpu", only=("mixed",)))
    (mixed,) = row.values()
    # 15.2 GB have to be read. What gate and up give in a layer is 12.6 MB, a hair more than counts
    # as cached: 0.9. Logits of all 256 rows would be 0.5 more, and the unembedding five times, to
    # spare them, 5.
    assert mixed["hbm_gb"] < 16.6
    assert mixed["seconds_overlapped"] < 1.5 * mixed["seconds"]["arithmetic"]
    assert mixed["trips"] == 0
    assert mixed["plan_gib"] == pytest.approx(mixed["device_gib"], rel=0.15)


LIKE = partial(Job, "engine", "qwen3_06b_gsm8k", attention="mosaic_gpu", layers=2)


@pytest.mark.parametrize("library", [False, True])
def test_mixed_and_decode_steps_round_alike(rows: Rows, library: bool) -> None:
    """Else one token in ten thousand has other bits, too few for the start-up check to see. A
    device may take either form of products, and other kernels surround each.

    Without barriers around the rows, the last layer's rows and what is sampled, 6 kernels differ.
    """
    found = rows(LIKE(library=library))
    products = [name for row in found.values() for name in row["custom_calls"] if "cublas" in name]
    assert bool(products) is library
    (decode,), (mixed,) = of_kind(found, "decode"), of_kind(found, "mixed")
    assert sum(mixed["rounding"].values()) > 20
    assert decode["rounding"] == mixed["rounding"]


def test_steps_with_drafts_round_like_the_others_and_fit_the_plan(rows: Rows) -> None:
    found = rows(LIKE(drafts=True))
    (verify,), (mixed,) = of_kind(found, "verify"), of_kind(found, "mixed")
    assert verify["rounding"] == mixed["rounding"]
    assert verify["trips"] == 8  # one for each step
    assert verify["device_gib"] <= verify["plan_gib"]


def test_gradients_of_one_device_have_no_collectives(rows: Rows) -> None:
    (row,) = rows(ONE_DEVICE).values()
    assert row["collective_gb"] == 0
    assert row["mfu_serial"] > 0.2
    assert row["trips"] == 0
    # Forwards once, and two kernels backwards, in each layer.
    assert row["custom_calls"]["__gpu$xla.gpu.triton"] == 3 * LAYERS


@pytest.mark.parametrize(("job", "most"), [(ONE_DEVICE, 16 * 1024), (EXPERTS, 4608 * 80)], ids=str)
def test_gradients_sort_tokens_and_not_numbers(rows: Rows, job: Job, most: int) -> None:
    """For one order of sums XLA sorts all numbers of what it scatters: 14.7 million for the
    table of 0.5B, 94 million for that of 30B-A3B. Of experts the rows are sorted, 8 of each token.
    """
    (row,) = of_kind(rows(job), "gradients")
    assert 0 < row["most_sorted"] <= most


def test_scoring_gathers_no_heads(rows: Rows) -> None:
    """The partitioner leaves kernels alone, and rows and heads where they are."""
    row = rows(learner("qwen3_8b_openr1", mesh=(1, 1, 8), only=("gaps",)))["gaps"]
    assert row["trips"] == 0
    # Two sums of the residual stream in each of four layers are 1.7; heads of all layers would be
    # another 1.3.
    assert row["collective_gb"] < 2


@pytest.mark.parametrize(("program", "times"), [("gradients", 4), ("gaps", 1.5)])
def test_matrices_move_once_a_pass(rows: Rows, program: str, times: float) -> None:
    """Gathered forwards, and again backwards; their gradients reduced once, in float32.

    In blocks of all devices' rows the unembedding was gathered a thousand times: 1,223 GB.
    """
    (row,) = of_kind(rows(EIGHT_DEVICES), program)
    weights = weight_bytes(run_of("qwen25_05b_gsm8k", layers=LAYERS).model, "bfloat16") / 1e9
    assert row["collective_gb"] < times * weights
    assert row["largest"][0].startswith("0.93 GiB f32[")  # logits; no table in float32
    rounded = [c for c in row["collectives"] if c["dtype"] == "bf16" and "reduce" in c["kind"]]
    assert sum(c["sent_gb"] for c in rounded) < 0.001 * weights  # biases


@pytest.mark.parametrize("job", [ONE_DEVICE, EIGHT_DEVICES], ids=str)
def test_the_plan_of_memory_is_the_compiler_s(rows: Rows, job: Job) -> None:
    (row,) = of_kind(rows(job), "gradients")
    trees = learner_bytes_per_device(run_of(job.config, job.mesh, layers=LAYERS)) / 2**30
    assert row["plan_gib"] == pytest.approx(trees + row["temporaries_gib"], rel=0.15)


float32 = partial(Job, dtype="float32", layers=2)
FLOAT32 = (
    Job("kernels", "qwen25_05b_gsm8k", dtype="float32"),
    float32("learner", "qwen25_05b_gsm8k", mesh=(1, 1, 1), only=("gradients 16",)),
    float32("learner", "llama32_1b_lora", mesh=(1, 8, 1), only=("gradients",)),
    float32("learner", "qwen3_30b_a3b_moe", mesh=(1, 4, 4), only=("gaps",)),
    float32("engine", "qwen25_05b_gsm8k", attention="auto"),
)


@pytest.mark.parametrize("job", FLOAT32, ids=str)
def test_float32_factors_are_not_rounded(rows: Rows, job: Job) -> None:
    assert any("f32" in row["flops_by_type"] for row in rows(job).values())
    for row in rows(job).values():
        assert "tf32" not in row["flops_by_type"]  # what the compiler is allowed
        assert not row.get("tf32_kernels")  # what it does


def test_products_with_experts_are_products_of_groups(rows: Rows) -> None:
    (row,) = of_kind(rows(EXPERTS), "gaps")
    assert row["ragged_dot_flops"] == 0
    # 59 times where every device multiplies all rows with all of its experts. Of the rest a tenth
    # is half a tile of each expert, and what is in blocks of attention.
    assert row["flops"] / row["model_flops"] < 1.3
    # Two kernels in each layer; what another device's experts have is no part of it.
    assert row["custom_calls"]["mosaic_gpu_v2"] == 2 * LAYERS
    assert row["temporaries_gib"] < 2.5


def test_gradients_of_experts_take_what_is_planned(rows: Rows) -> None:
    (row,) = of_kind(rows(EXPERTS), "gradients")
    assert row["ragged_dot_flops"] == 0
    assert row["flops"] / row["model_flops"] < 1.5  # a third is the forward pass, again
    assert row["custom_calls"]["mosaic_gpu_v2"] == 7 * LAYERS  # 2 forwards; 5 backwards, not 2 more
    trees = learner_bytes_per_device(run_of(EXPERTS.config, EXPERTS.mesh, layers=LAYERS)) / 2**30
    assert row["plan_gib"] == pytest.approx(trees + row["temporaries_gib"], rel=0.15)
