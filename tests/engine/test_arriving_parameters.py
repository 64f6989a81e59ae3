"""Parameters that come leaf by leaf are, on the device, those that come whole."""

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import jax
import numpy as np
import pytest

from rlboost_jax.engine.engine_parameters import EngineParameters, PreparedLeaves
from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.params import (
    abstract_params,
    flatten_params,
    unstack_layers,
)
from rlboost_jax.settings.model_config import STACKED, LoraConfig, ModelConfig

PLAIN = ModelConfig(num_layers=5, embed_dim=64, hidden_dim=128, tie_embeddings=True)
MODELS = {
    "plain": PLAIN,
    "adapters": ModelConfig(num_layers=5, embed_dim=64, lora=LoraConfig(rank=4)),
    "experts": ModelConfig(num_layers=3, num_experts=4, experts_per_token=2, expert_dim=64),
}


def random_tree(model: ModelConfig) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: random.normal(size=leaf.shape).astype(np.float32), abstract_params(model)
    )


def parameters(model: ModelConfig, dtype: str, **form: bool) -> EngineParameters:
    here = jax.devices()[0]
    places = jax.tree.map(
        lambda _: here, jax.eval_shape(unstack_layers, abstract_params(base_model(model)))
    )
    return EngineParameters(model, places, dtype, **form)


def parts(tree: dict[str, Any]) -> list[tuple[str, int | None, np.ndarray]]:
    found: list[tuple[str, int | None, np.ndarray]] = []
    for name, leaf in flatten_params(tree).items():
        if name.startswith(STACKED):
            found += [(name, index, part) for index, part in enumerate(leaf)]
        else:
            found.append((name, None, leaf))
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", [{}, {"join": True, "panels": True}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_any_order_and_thread(model: str, form: dict[str, bool], dtype: str) -> None:
    """What was given is written over as soon as it was taken, as a puller's memory is."""
    tree, place = random_tree(MODELS[model]), parameters(MODELS[model], dtype, **form)
    whole = place.prepare(tree)
    assert isinstance(whole, PreparedLeaves)
    for seed in range(3):
        leaves = [(name, index, np.array(part)) for name, index, part in parts(tree)]
        Random(seed).shuffle(leaves)
        arriving = place.arriving({n: leaf.shape for n, leaf in flatten_params(tree).items()})
        assert arriving is not None

        def take(item: tuple[str, int | None, np.ndarray], arriving: Any = arriving) -> None:
            arriving.take(*item)
            item[2][...] = np.nan

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(take, leaves))
        found = arriving.prepared().leaves
        assert len(found) == len(whole.leaves)
        for one, other in zip(found, whole.leaves, strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)


def test_a_layer_that_lacks_a_leaf_is_no_layer() -> None:
    tree, place = random_tree(PLAIN), parameters(PLAIN, "float32")
    arriving = place.arriving({n: leaf.shape for n, leaf in flatten_params(tree).items()})
    assert arriving is not None
    for item in parts(tree)[:-1]:
        arriving.take(*item)
    with pytest.raises(KeyError):
        arriving.prepared()


def test_another_model_is_refused_before_it_comes() -> None:
    place = parameters(PLAIN, "float32")
    shapes = {n: leaf.shape for n, leaf in flatten_params(random_tree(PLAIN)).items()}
    for name in shapes:
        with pytest.raises(ValueError, match=rf"{name} is missing"):
            place.arriving({other: shape for other, shape in shapes.items() if other != name})
        with pytest.raises(ValueError, match=rf"{name} has shape"):
            place.arriving({**shapes, name: (*shapes[name], 2)})
    with pytest.raises(ValueError, match="unknown"):
        place.arriving({**shapes, "more": (3,)})


def test_without_room_for_two_versions_there_is_none() -> None:
    tree = random_tree(PLAIN)
    shapes = {n: leaf.shape for n, leaf in flatten_params(tree).items()}
    place = parameters(PLAIN, "float32", double_buffered=False)
    assert place.arriving(shapes) is None
    assert place.prepare(tree) is tree


def test_what_is_prepared_is_prepared() -> None:
    place = parameters(PLAIN, "float32")
    prepared = place.prepare(random_tree(PLAIN))
    assert place.prepare(prepared) is prepared
    place.load(prepared, 3)
    assert place.version == 3
