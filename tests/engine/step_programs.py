"""The programs of an engine's steps, each with arguments that make it run on nothing."""

from collections.abc import Iterator
from typing import Any

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.engine import Engine


def step_programs(engine: Engine) -> Iterator[tuple[Any, ...]]:
    """A mixed step, decode steps and the copying of pages; the engine is not to run any more once
    one of them has: they take its pools by donation."""
    programs, layout = engine.programs, engine.layout
    leaves, pools = engine.parameters.leaves_or_zeros(), engine.device_state.pools
    yield programs.mixed, leaves, pools, step_inputs.pack_mixed(layout, ())
    yield (
        programs.decode,
        leaves,
        pools,
        step_inputs.pack_decode(layout, (), 0),
        engine.device_state.ends,
    )
    yield programs.copy_pages, pools, step_inputs.pack_copies(layout, ())
