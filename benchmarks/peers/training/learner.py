"""The learner's own programs, as its loop calls them."""

import numpy as np

from benchmarks.peers.training.work import Shape, Update, Work, learner_programs
from rlboost_jax.learner.state import init_state


def sizes(shape: Shape) -> tuple[int, ...]:
    """Rows of a packed batch to try."""
    return shape.rows


def make_update(work: Work, rows: int) -> Update:
    programs, params = learner_programs(work, rows)
    batches = work.packed(rows)
    state = init_state(params, programs.optimizer, programs.shardings, consume=True)
    del params
    tokens = np.float32(work.tokens)

    def update() -> float:
        nonlocal state
        gradients, _ = programs.accumulate(state.params, None, batches)
        state, metrics = programs.apply(state, gradients, tokens)
        return float(metrics["gradient_norm"])

    return update
