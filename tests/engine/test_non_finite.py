"""Logits that are no numbers are never sampled from unseen, however few of them there are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlboost_jax.engine.dispatches import NonFiniteLogits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest

POISON = 7  # a token

Damage = Callable[[dict[str, Any]], dict[str, Any]]


def poisoned_embedding(value: float) -> Damage:
    """Only who reads that token meets the damage."""

    def damage(params: dict[str, Any]) -> dict[str, Any]:
        table = np.array(params["embedding"]["table"])
        table[POISON] = value
        return {**params, "embedding": {**params["embedding"], "table": table}}

    return damage


def poisoned_head(value: float) -> Damage:
    """One logit of all, for every request."""

    def damage(params: dict[str, Any]) -> dict[str, Any]:
        kernel = np.array(params["head"]["kernel"])
        kernel[:, POISON] = value
        return {**params, "head": {**params["head"], "kernel": kernel}}

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        poisoned_embedding(np.nan),
        poisoned_embedding(np.inf),
        poisoned_head(np.nan),
    ],
    ids=["nan embedding", "inf embedding", "nan logit"],
)
@pytest.mark.parametrize(
    ("truncated", "sampling"),
    [
        (False, {"temperature": 0.8}),
        (False, {"temperature": 0.0}),
        pytest.param(
            *(True, {"temperature": 1.3, "top_k": 9, "top_p": 0.85}),
            marks=pytest.mark.optimized(False),
        ),
        pytest.param(True, {"temperature": 0.0}, marks=pytest.mark.optimized(False)),
    ],
)
def test_the_first_token_of_such_logits_is_an_error(
    params: dict[str, Any],
    build_engine: Callable[..., Engine],
    request_of: Callable[..., GenerateRequest],
    damage: Damage,
    truncated: bool,
    sampling: dict[str, Any],
) -> None:
    engine = build_engine(truncated_sampling=truncated)
    engine.load(damage(params), 2)
    clean, bad = [1, 2, 3], [4, POISON, 8]
    prompts = [clean, bad, clean]
    engine.submit([request_of(i, p, version=2, **sampling) for i, p in enumerate(prompts)])
    engine.begin()
    try:
        with pytest.raises(NonFiniteLogits, match="version 2"):
            engine.finish()
    finally:  # the engine is shared with other tests
        engine.release(engine.held())
        engine.load(params, 1)
        engine.device_state.pools = (
            engine.programs.empty_pools()
        )  # what plain attention masks must be finite
