"""One candidate, tried in this process: right? rows independent? how fast?

A row is an index of the first axis of a result. Its error is relative to its own norm, so that a
single wrong row among thousands shows.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from rlboost_jax.models.compiler_options import same_bits
from rlboost_jax.qualification.problem import Candidate, Case, TrialProblem
from rlboost_jax.qualification.trial_records import Trial, one_line

_ROUNDS: Final = 7  # whose median counts, after one that does not
_CALLS: Final = 10  # of a round, launched one after the other: a launch hides behind the last call


def tried(problem: TrialProblem, candidate: Candidate, *, invariant: bool) -> Trial:
    """Try a candidate; an exception is one of the outcomes.

    Args:
        invariant: whether bits must be those of the case in all its variants; then programs are
            compiled as those of a deterministic run are.
    """
    name, worst, seconds = candidate.name, 0.0, 0.0
    try:
        options = same_bits(jax.devices()[0]) if invariant else None
        for case in problem.cases:
            if reason := candidate.why_not(case.inputs):
                return Trial(candidate=name, outcome="unavailable", reason=one_line(reason))
            run = jax.jit(partial(candidate.run, **case.options), compiler_options=options)
            results = _results(run, case.inputs)
            pairs = zip(results, case.expected, strict=True)
            error = float(np.max([row_error(*pair) for pair in pairs]))  # NaN stays NaN
            if not error <= problem.tolerance:
                finite = bool(np.isfinite(error))
                size = f"{error:.2g} of its norm" if finite else "not finite"
                reason = f"{case.name}: a row is off by {size}, allowed are {problem.tolerance:g}"
                return Trial(
                    candidate=name,
                    outcome="wrong",
                    reason=reason,
                    error=error if finite else None,
                )
            worst = max(worst, error)
            if invariant and (reason := _dependence(run, case, results)):
                return Trial(candidate=name, outcome="dependent", reason=reason, error=worst)
            if case.weight:
                seconds += case.weight * median_seconds(partial(run, *case.inputs))
    except Exception as error:  # whatever a kernel raises, the next candidate is tried
        reason = one_line(f"{type(error).__name__}: {error}")
        return Trial(candidate=name, outcome="raised", reason=reason)
    return Trial(candidate=name, outcome="right", seconds=seconds, error=worst)


def row_error(result: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest relative error of a row: norm of the difference over the norm of the expected.

    Raises:
        ValueError: the shapes differ.
    """
    if result.shape != expected.shape:
        raise ValueError(f"a result has shape {result.shape}; it must be {expected.shape}")
    rows = result.shape[0] if result.ndim else 1
    difference = (result.astype(np.float64) - expected).reshape(rows, -1)
    size = np.linalg.norm(expected.reshape(rows, -1), axis=1)
    off = np.linalg.norm(difference, axis=1)
    # What must be nothing has to be nothing.
    relative = np.divide(off, size, out=np.where(off == 0, 0.0, np.inf), where=size > 0)
    return float(relative.max(initial=0.0))


def median_seconds(call: Callable[[], Any]) -> float:
    """Median seconds per call over several rounds, without the first, which compiles."""
    jax.block_until_ready(call())
    rounds = []
    for _ in range(_ROUNDS + 1):
        since = time.perf_counter()
        jax.block_until_ready([call() for _ in range(_CALLS)])
        rounds.append((time.perf_counter() - since) / _CALLS)
    return statistics.median(rounds[1:])


def _dependence(run: Callable[..., Any], case: Case, results: tuple[NDArray[Any], ...]) -> str:
    """Name a variant that changes the bits of rows; "" if none does."""
    for variant in case.variants(case.inputs):
        others = _results(run, variant.inputs())
        for result, other in zip(results, others, strict=True):
            if other[variant.rows].tobytes() != result[variant.same_as].tobytes():
                return f"{case.name}: other bits {variant.name}"
    return ""


def _results(run: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[NDArray[Any], ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(run(*inputs)))
