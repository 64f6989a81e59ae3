"""A process that has imported what compiles, and forks one for each job that it reads.

Jobs are lines of JSON: [job, names of programs that are not to be compiled]. Prints a line of JSON
before each program, one with its row after it, so that the reader knows what was being compiled if
the compiler takes the process down, and one as the job is over.
"""

import contextlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.h100 import ptxas
from benchmarks.h100.jobs import Job


def main() -> None:
    # Neither a backend, whose threads no fork has, nor Mosaic, which looks at the environment as
    # it is imported: `ptxas.Reports` sets that.
    import flax.nnx  # noqa: F401
    import optax  # noqa: F401

    assert "jax.experimental.mosaic.gpu" not in sys.modules
    warnings.filterwarnings("ignore", "os.fork")  # jax's, for processes that have a backend
    for line in sys.stdin:
        job, skipped = json.loads(line)
        child = os.fork()
        if not child:
            _compile_and_leave(Job(**job), set(skipped))
        os.waitpid(child, 0)
        _say({"over": True})


def _compile_and_leave(job: Job, skipped: set[str]) -> NoReturn:
    code = 1
    try:
        compile_all(job, skipped)
        code = 0
    except BaseException:  # the reader has the last line of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def compile_all(job: Job, skipped: set[str]) -> None:
    """Compile a job's programs, and print a row of each.

    Args:
        skipped: names of programs that are not to be compiled.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        reports = ptxas.Reports(folder) if job.part == "kernels" else None
        options = reports.options if reports else ptxas.unassembled(folder)
        from benchmarks.h100 import chip
        from benchmarks.h100.checkpoints import run_of
        from benchmarks.h100.rows import compiled_row

        options = {**options, **(chip.LIBRARY if job.library else {})}
        run = run_of(job.config, tuple(job.mesh), job.dtype, job.layers)
        count = _devices(job, run)
        devices = chip.devices(count)
        stack.enter_context(chip.pretended(devices[0]))
        for program in _programs(job, run, devices):
            if program.name in skipped or not program.name.startswith(tuple(job.only) or ""):
                continue
            _say({"compiling": program.name})
            try:
                row = compiled_row(program, options)
            except Exception as error:  # a row, too; the next program may compile
                row = {"devices": count, "failed": reason_of(error)}
            if reports is not None:
                row["tf32_kernels"] = reports.with_tf32()
                row["compiled_kernels"] = reports.take()
            _say({"row": {"program": program.name, **row}})
        _say({"done": True})


def reason_of(error: BaseException) -> str:
    """One line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:300]


def _devices(job: Job, run: Any) -> int:
    if job.part == "learner":
        data, fsdp, tensor = run.learner.mesh
        return data * fsdp * tensor
    return run.engine.tensor_parallel if job.part == "engine" else 1


def _programs(job: Job, run: Any, devices: list[Any]) -> Iterator[Any]:
    from benchmarks.h100 import engine, kernels, learner
    from benchmarks.h100.jobs import MESHES

    if job.part == "learner":
        own = tuple(job.mesh) == MESHES[job.config][0]
        return learner.programs(run, devices, all_lengths=own)
    if job.part == "engine":
        return engine.programs(run, devices, job.attention, drafts=job.drafts)
    return kernels.programs(run, devices[0])


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
