"""Stages of gpu.py beside which there is something to hold: h100.json, and the start of a run.

`kernels` and `table` run programs of benchmarks/results/h100.json that need one device, and put
what they take beside what the table bounds them with on the device at hand. `qualification` is
what the starts of engines and learners would choose.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.gpu_figures import Cases, Figure, beside_bounds, figure
from benchmarks.gpu_programs import ALONE, prepared, run_here, seconds_of_program
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.jobs import KERNELS, MESHES, Job, verifying

PREDICTED = Path(__file__).parent / "results" / "h100.json"
SPARE_BYTES = 4e9  # of the device, beside what the table says a program holds
# Beginnings of names of kernels for GPUs alone: last, since they may take the process down.
LAST = ("attention triton", "attention mosaic_gpu", "packed attention", "grouped")
# Of a learner's attention; a third of the pairs of a row that is one sequence.
ROW_OF_TRIALS = "the row is sequences of a half, a quarter, an eighth … of it"
_DRY = "qwen3_06b_gsm8k"


def kernel_jobs() -> list[Job]:
    return [Job("kernels", config) for config in KERNELS]


def model_jobs() -> list[Job]:
    """List the jobs of engines and learners that one device may do."""
    single = [name for name in MESHES if run_of(name).engine.tensor_parallel == 1]
    found = [Job("engine", config, attention="mosaic_gpu") for config in single]
    found += map(verifying, single)
    alone = [config for config, meshes in MESHES.items() if ALONE in meshes]
    return found + [Job("learner", config, mesh=ALONE) for config in alone]


def kernels(*, tiny: bool) -> Cases:
    """Each kernel by itself, in the sizes of a run, beside the table's bounds."""
    return _cases([Job("kernels", _DRY)] if tiny else kernel_jobs(), tiny=tiny)


def table(*, tiny: bool) -> Cases:
    """Whole programs of engines and learners beside the table's bounds."""
    dry = [Job("engine", _DRY, attention="auto"), Job("learner", _DRY, mesh=ALONE)]
    dry.append(Job("engine", _DRY, attention="auto", only=("verify",), drafts=True))
    return _cases(dry if tiny else model_jobs(), tiny=tiny)


def _cases(jobs: list[Job], *, tiny: bool) -> Cases:
    cases: dict[str, Callable[[], Figure]] = {}
    for job in jobs:
        rows = _found(job) if tiny else predicted(job)
        for name in sorted(rows, key=lambda name: name.startswith(LAST)):
            cases[f"{job.config} {name}"] = partial(_measured, job, name, rows[name], tiny=tiny)
    return cases


def predicted(job: Job) -> dict[str, dict[str, Any]]:
    """Rows of the table for a job, by program."""
    rows = json.loads(PREDICTED.read_text())["rows"] if PREDICTED.exists() else []
    return {row["program"]: row for row in rows if row["job"] == str(job) and "failed" not in row}


def _found(job: Job) -> dict[str, dict[str, Any]]:
    """Programs of a job in sizes that no table knows, without those for GPUs alone."""
    names = [program.name for program in programs(job, run_here(job.config, tiny=True))]
    return {name: {} for name in names if not name.startswith(LAST)}


def programs(job: Job, run: Any) -> Iterator[Any]:
    """Yield the programs of a job, on one device."""
    from benchmarks.h100 import engine, kernels, learner

    devices = jax.devices()[:1]
    if job.part == "learner":
        return learner.programs(run, devices, all_lengths=True)
    if job.part == "engine":
        every = engine.programs(run, devices, job.attention, drafts=job.drafts)
        return (program for program in every if program.name.startswith(job.only or ""))
    return kernels.programs(run, devices[0])


def _measured(job: Job, name: str, row: Mapping[str, Any], *, tiny: bool) -> Figure:
    run, share = _cut_to_fit(job, _sized(job, tiny))
    program = next(p for p in programs(job, run) if p.name == name)
    seconds = seconds_of_program(*prepared(run, job.part, program))
    whole = {} if share == 1 else {"share_of_layers": share}
    return beside_bounds(seconds, row, share=share, assumed=row.get("assumed", ""), **whole)


def _sized(job: Job, tiny: bool) -> Any:
    """Kernels are those of a device's share, however many there are."""
    return run_here(job.config, tiny=True) if tiny else run_of(job.config, job.mesh)


def _cut_to_fit(job: Job, run: Any) -> tuple[Any, float]:
    """The run with as many layers as the device has memory for, but its pages as they were.

    Returns:
        It, and its share of the layers.
    """
    whole = run.model.num_layers
    stats = jax.devices()[0].memory_stats() or {}
    room = stats.get("bytes_limit", float("inf")) - SPARE_BYTES
    if job.part != "engine" or room == float("inf"):
        return run, 1.0
    found = list(programs(job, run))
    most = max(program.held_bytes for program in found)
    if most <= room:
        return run, 1.0
    layers = max(1, int(whole * room / most))
    described, _ = found[0].lower().args_info
    engine = replace(run.engine, num_pages=described[1][0].shape[0])
    run = replace(run, model=replace(run.model, num_layers=layers), engine=engine)
    return run, layers / whole


def qualification(*, tiny: bool, host: Any = None) -> Cases:
    """What engines and learners of each configuration would run here: every candidate.

    Nothing kept is read, and nothing is kept. Candidates are tried in this process.

    Args:
        host: of `verdict_here`, if it is another than this.
    """
    cases: dict[str, Callable[[], Figure]] = {}
    for config in (_DRY,) if tiny else MESHES:
        verdicts = cache(partial(_verdicts, config, tiny, host))
        for what in ("engine.attention", "learner.attention", "learner.experts"):
            if what != "learner.experts" or run_of(config).model.num_experts:
                cases[f"{config} {what}"] = partial(_chosen, verdicts, what)
    return cases


def _verdicts(config: str, tiny: bool, host: Any) -> dict[str, tuple[bool, str, Any]]:
    """Whether bits must repeat, what is chosen without a kernel, and the trials."""
    from rlboost_jax.qualification import learner_start
    from rlboost_jax.qualification.engine_start import verdict_here
    from rlboost_jax.qualification.trial_host import Host

    run = run_here(config, tiny=True) if tiny else run_of(config)
    here: dict[str, Any] = {"host": host or Host(verdict_of=_tried), "interpret": tiny}
    verdict, _ = verdict_here(run, folder=None, **here)
    found = {"engine.attention": (run.deterministic, "xla", verdict)}
    for what, plain, verdict in learner_start.verdicts_here(run, folder=None, **here):
        found[what] = run.deterministic, plain, verdict
    return found


def _tried(spec: Any) -> Any:
    """All candidates of a spec, one after the other."""
    from rlboost_jax.qualification.checks import tried
    from rlboost_jax.qualification.known_problems import problem_of
    from rlboost_jax.qualification.trial_records import KernelVerdict

    problem = problem_of(spec.problem, spec.shape)
    candidates = {candidate.name: candidate for candidate in problem.candidates}
    trials = [
        tried(problem, candidates[name], invariant=spec.invariant) for name in spec.candidates
    ]
    device = jax.devices()[0]
    return KernelVerdict(platform=device.platform, device=device.device_kind, trials=tuple(trials))


def _chosen(verdicts: Callable[[], Mapping[str, Any]], what: str) -> Figure:
    """The choice, with the milliseconds or the reason of each candidate."""
    from rlboost_jax.qualification.kernel_choice import choose, described

    found = verdicts()
    if what not in found:
        return figure("left out: it needs no kernel here", "")
    steady, plain, verdict = found[what]
    choice = choose(verdict, plain=plain, steady=steady)
    trials = {
        trial.candidate: 1e3 * trial.seconds if trial.seconds is not None else trial.reason
        for trial in choice.verdict.trials
    }
    assumed = ROW_OF_TRIALS if what == "learner.attention" else ""
    line = described(choice, what)
    return figure(choice.candidate, "", line=line, trials=trials, assumed=assumed)
