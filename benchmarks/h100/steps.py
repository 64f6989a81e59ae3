"""Bounds on the learner's part of a step, made of the rows of its programs.

Every response fills a row of the longest there are, as in the rows of the table: more a step
cannot ask for. The learner takes as many batches as that makes, adds their gradients up, and makes
one update. Rollouts, the host and the publishing of weights are left out.
"""

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.h100.checkpoints import run_of

KINDS = ("serial", "overlapped")


def steps(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One for each mesh of a learner whose programs all compiled."""
    jobs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["part"] == "learner" and "failed" not in row:
            # The first of its gradients is that of the longest rows.
            jobs.setdefault(row["job"], {}).setdefault(row["program"].split()[0], row)
    for programs in jobs.values():
        if programs.keys() >= {"gradients", "combine", "apply"}:
            yield _step(programs)


def _step(programs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    gradients = programs["gradients"]
    mesh = tuple(map(int, gradients["mesh"].split(",")))
    run = run_of(gradients["config"], mesh)
    responses = run.learner.prompts_per_step * run.algorithm.group_size
    batches = math.ceil(responses / run.pack_rows)
    tokens = batches * gradients["tokens"]
    each = {kind: f"seconds_{kind}" for kind in KINDS}
    seconds = {
        name: batches * gradients[name]
        + (batches - 1) * programs["combine"][name]
        + programs["apply"][name]
        for name in each.values()
    }
    return {
        "config": gradients["config"],
        "mesh": gradients["mesh"],
        "responses": responses,
        "batches": batches,
        **seconds,
        **{f"tokens_per_second_{kind}": tokens / seconds[name] for kind, name in each.items()},
        **{f"mfu_{kind}": gradients[f"mfu_{kind}"] for kind in KINDS},
    }


def lines(found: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{'learner of a step':<20}{'mesh':<8}{'batches':>9}{'serial s':>10}{'overl. s':>10}"
        f"{'tokens/s':>10}{'tokens/s':>10}{'MFU':>6}{'MFU':>6}"
    )
    for step in found:
        seconds = "".join(f"{step[f'seconds_{kind}']:>10,.1f}" for kind in KINDS)
        rates = "".join(f"{step[f'tokens_per_second_{kind}']:>10,.0f}" for kind in KINDS)
        shares = "".join(f"{100 * step[f'mfu_{kind}']:>6.1f}" for kind in KINDS)
        yield f"{step['config']:<20}{step['mesh']:<8}{step['batches']:>9}{seconds}{rates}{shares}"
