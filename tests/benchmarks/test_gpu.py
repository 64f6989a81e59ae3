"""Every part of benchmarks/gpu.py runs dry, and one that breaks leaves the others alone."""

import json
import subprocess
from functools import partial

import numpy as np
import pytest

from benchmarks import gpu, gpu_inputs, gpu_kernels, gpu_table
from benchmarks.h100.jobs import MESHES
from rlboost_jax.qualification.host import Host
from rlboost_jax.qualification.records import Trial, Verdict


@pytest.mark.soak
@pytest.mark.parametrize("part", gpu.DIVIDED)
def test_pieces_of_divided_parts_have_their_names(part):
    for dry_run in (True, False):
        pieces = list(gpu.each([part], dry_run=dry_run))
        assert pieces and all(piece.startswith(f"{part} ") for piece in pieces)


@pytest.mark.optimized(False)
@pytest.mark.parametrize("part", gpu.PARTS)
def test_runs_dry(part):
    result = gpu.run_part(part, dry_run=True)
    if result["status"] == "left out":
        pytest.skip(result["reason"])
    assert result["status"] == "ok", result["traceback"]
    values = [figure["value"] for figure in result["figures"]]
    assert values
    assert not [value for value in values if str(value).startswith("failed")]


def test_a_part_that_breaks_is_reported(capsys, tmp_path):
    def breaks(*, dry_run):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS\nand more")

    def needs_more(*, dry_run):
        import a_package_that_is_nowhere  # noqa: F401

    figure = gpu_kernels.figure("share", 0.9, "of read", "≥ 0.85")
    parts = {"correctness": breaks, "latency": needs_more}
    parts["bandwidth"] = lambda dry_run: [figure]
    run, path = partial(gpu.run_part, figures=parts.__getitem__), tmp_path / "gpu.json"
    assert gpu.main(["--parts=correctness,latency,bandwidth", f"--json={path}"], run=run) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].split(maxsplit=1) == [
        "correctness",
        "failed: RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS",
    ]
    assert lines[1].endswith("left out: a_package_that_is_nowhere is not installed")
    assert lines[2].split() == ["bandwidth", "share", "0.9", "of", "read", "≥", "0.85"]
    parts = json.loads(path.read_text())["parts"]
    assert [parts[name]["status"] for name in parts] == ["failed", "left out", "ok"]


def test_a_part_whose_process_dies_is_reported():
    result = gpu.run_apart("latency", dry_run=True, python="false")
    assert (result["status"], result["reason"]) == ("failed", "its process ended with 1")


def test_what_a_part_found_before_its_process_died_is_kept():
    found = gpu_kernels.figure("attention xla", 1.5, "ms")

    def dies(command, **_):
        path = next(word for word in command if word.startswith("--json=")).removeprefix("--json=")

        def breaks(*, dry_run, which):
            assert which == "kernels qwen"
            yield found
            raise KeyboardInterrupt  # nothing is written after this

        with pytest.raises(KeyboardInterrupt):
            gpu.main(["--one=table kernels qwen", f"--json={path}"], figures=lambda part: breaks)
        return subprocess.CompletedProcess(command, -11)

    result = gpu.run_apart("table kernels qwen", dry_run=True, execute=dies)
    assert result["figures"] == [found]
    assert (result["status"], result["reason"]) == ("failed", "its process ended with -11")
    assert gpu.table({"table kernels qwen": result}).splitlines()[1:] == [
        f"{'table':13} {'attention xla':62} {'1.5':>12} ms",
        "table kernels qwen failed: its process ended with -11",
    ]


def test_every_row_of_one_device_is_measured():
    rows = json.loads(gpu_table.PREDICTED.read_text())["rows"]
    alone = {row["job"] for row in rows if row.get("devices") == 1 and "failed" not in row}
    assert alone and alone <= {str(job) for job in gpu_table.jobs(dry_run=False)}
    assert list(gpu.each(["products", "qualification", "table"], dry_run=True)) == [
        "products",
        "qualification qwen3_06b_gsm8k",
        *(f"table {job}" for job in gpu_table.jobs(dry_run=True)),
    ]


def test_measured_is_put_beside_predicted():
    row = {"seconds_least": 1e-3, "seconds_serial": 2e-3, "seconds_overlapped": 1.5e-3}
    whole = gpu_table._compared("decode", 5e-3, {**row, "assumed": "64 slots"}, (36, 36))
    assert (whole["value"], whole["ratio"], whole["seconds_least"]) == (5.0, 2.5, 1e-3)
    assert whole["target"] == "bound 2 ms: 2.5 times that" and whole["assumed"] == "64 slots"
    cut = gpu_table._compared("decode", 5e-3, row, (9, 36))
    assert cut["ratio"] == 10 and cut["target"].endswith("; 9 of 36 layers, and of the bound")
    assert gpu_table._compared("decode", 5e-3, {}, (36, 36))["ratio"] is None


@pytest.mark.optimized(False)
def test_the_steps_that_are_measured_have_all_slots_busy():
    """Were lengths or pages wrong, programs would still run, and be fast."""
    job = gpu_table.jobs(dry_run=True)[1]
    run = gpu_table._run(job, dry_run=True)
    decode, mixed, _ = gpu_table._programs(job, run)
    sampled = {}
    for program in (decode, mixed):
        lowered = program.lower()
        arguments = gpu_inputs.arguments(run, "engine", program, lowered)
        sampled[program] = np.asarray(lowered.compile()(*arguments)[1].sampled)[0]
    steps, slots = run.engine.steps_per_dispatch, run.engine.slots
    assert sampled[decode].shape[0] == steps and (sampled[decode][:, :slots] >= 0).all()
    rows, prompt = run.engine.token_rows, run.engine.max_prompt_tokens
    assert (sampled[mixed] >= 0).sum() == min(slots, -(-rows // prompt))


@pytest.mark.optimized(False)
def test_attention_that_is_measured_reads_all_pages():
    job = gpu_table.jobs(dry_run=True)[2]
    run = gpu_table._run(job, dry_run=True)
    program = next(p for p in gpu_table._programs(job, run) if p.name == "attention xla")
    _, pool, lens, pages, starts, count = gpu_inputs.arguments(
        run, "kernels", program, program.lower()
    )
    slots = run.engine.slots
    used = np.asarray(pages)[:, : pool.shape[0] // slots]
    assert sorted(used.ravel().tolist()) == list(range(pool.shape[0]))
    assert (np.asarray(lens) == used.shape[1] * pool.shape[1]).all()
    assert starts.tolist() == list(range(slots + 1)) and count.tolist() == [slots]


def test_what_learners_would_choose_is_listed_beside_engines():
    """Of each preset attention, and of the mixture its experts."""
    asked = []

    def verdict_of(spec):
        asked.append(spec.problem)
        trials = [Trial(candidate=name, outcome="right", seconds=1e-3) for name in spec.candidates]
        return Verdict(platform="gpu", device="H100", trials=tuple(trials))

    found = gpu_table.qualification(dry_run=False, host=Host(verdict_of=verdict_of))
    figures = {figure["name"]: figure for figure in found}
    assert asked.count("engine_attention") == asked.count("learner_attention") == len(MESHES)
    assert asked.count("learner_experts") == 1
    moe = figures["qwen3_30b_a3b_moe learner.experts: chosen"]
    assert moe["line"].startswith("learner.experts on H100: mosaic_gpu, 1 ms (blocks 1 ms)")
    assert figures["qwen3_8b_openr1 learner.attention: chunked"]["outcome"] == "right"
    assert figures["qwen3_8b_openr1 engine.attention: xla"]["value"] == 1.0
