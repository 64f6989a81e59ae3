"""A child process of the real code with candidates that break in every way there is.

    python -m tests.qualification.faulty

The problem doubles 8 rows of 3 numbers.
"""

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from rlboost_jax.qualification.problem import Candidate, Case, Inputs, TrialProblem, Variant
from rlboost_jax.qualification.trial import serve
from rlboost_jax.qualification.trial_records import Spec

ROWS = 8


_poisoned = threading.Event()  # as by an illegal address on a GPU: the process is of no more use


def _right(x: Any) -> Any:
    if _poisoned.is_set():
        raise RuntimeError("an illegal memory access was encountered")
    return 2 * x


def _wrong(x: Any) -> Any:
    return (2 * x).at[ROWS - 1].multiply(1 + 1e-3)


def _not_finite(x: Any) -> Any:
    return (2 * x).at[0, 0].set(jnp.nan)


def _dependent(x: Any) -> Any:
    """A bit of the first row changes with the last one, as far as the tolerance lets it."""
    return (2 * x).at[0].multiply(jnp.where(x[-1, 0] > 0, 1 + 1e-6, 1.0))


def _raises(x: Any) -> Any:
    raise NotImplementedError("no such instruction\non this device")


def _poisons(x: Any) -> Any:
    _poisoned.set()
    return _right(x)


def _crashes(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def _exits(x: Any) -> Any:
    os._exit(7)


def _hangs(x: Any) -> Any:
    print("busy", flush=True)  # what libraries print is no message
    if path := os.environ.get("RLBOOST_HANGING_PID"):
        Path(path).write_text(str(os.getpid()))
    threading.Event().wait()


CANDIDATES = {
    "right": _right,
    "wrong": _wrong,
    "not_finite": _not_finite,
    "dependent": _dependent,
    "raises": _raises,
    "poisons": _poisons,
    "crashes": _crashes,
    "exits": _exits,
    "hangs": _hangs,
    "unavailable": _right,
}


def _inputs() -> Inputs:
    return (jnp.asarray(np.random.default_rng(0).uniform(1, 2, (ROWS, 3)), jnp.float32),)


def _last_row_negated(inputs: Inputs) -> Inputs:
    return (inputs[0].at[-1].multiply(-1),)


def _variants(inputs: Inputs) -> tuple[Variant, ...]:
    return (
        Variant(
            name="beside another last row",
            inputs=partial(_last_row_negated, inputs),
            rows=slice(0, 1),
            same_as=slice(0, 1),
        ),
    )


def problem() -> TrialProblem:
    case = Case(
        name="doubling",
        weight=1.0,
        make=_inputs,
        reference=lambda inputs: (2 * np.asarray(inputs[0], np.float64),),
        variants=_variants,
    )
    reasons = {"unavailable": "it takes pages of 64"}
    return TrialProblem(
        candidates=tuple(
            Candidate(
                name=name,
                bound=1.0,
                run=run,
                why_not=lambda inputs, name=name: reasons.get(name, ""),
            )
            for name, run in CANDIDATES.items()
        ),
        plain="right",
        cases=(case,),
        tolerance=1e-5,
    )


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.stdin.buffer.read(), type=Spec), problem())
