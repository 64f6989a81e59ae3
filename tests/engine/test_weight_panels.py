"""Matrices in panels are those that were loaded, and change no bit of what is sampled."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from rlboost_kernels import active, pack_panels

from rlboost_jax.engine import engine as engines
from rlboost_jax.engine import step_programs
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.weight_panels import with_panels
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.models.forward import UNEMBEDDING
from rlboost_jax.models.params import init_params, unstack_layers
from tests.small import ENGINE, small_model

UNOPTIMIZED = pytest.mark.optimized(False)
Rollouts = dict[int, tuple[list[int], list[int]]]


def rows(leaf: jax.Array) -> np.ndarray:
    """The matrix of panels, by one panel after another."""
    panels = np.asarray(leaf)
    if panels.shape[2] == 64:  # two rows side by side, the second one's entries in front
        panels = panels.reshape(len(panels), -1, 32, 2)[..., ::-1].swapaxes(2, 3)
        panels = panels.reshape(len(panels), -1, 32)
    return np.concatenate(panels, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_panels_only_are_packed(dtype: str) -> None:
    """In the order for products in that dtype, even where they are in another one still."""
    model = small_model(vocab_size=96, embed_dim=64, hidden_dim=40, tie_embeddings=True)
    plain = unstack_layers(init_params(model, 0))
    packed = with_panels(plain, dtype)
    table = plain["embedding"]["table"]
    np.testing.assert_array_equal(rows(packed[UNEMBEDDING]), np.asarray(table).T)
    assert packed["embedding"]["table"] is table
    for before, after in zip(plain["layers"], packed["layers"], strict=True):
        assert after["mlp"]["up"]["kernel"].shape == (64, 40)  # no multiple of 32
        down = before["mlp"]["down"]["kernel"]
        np.testing.assert_array_equal(rows(after["mlp"]["down"]["kernel"]), down)
        # In pairs for bfloat16, where the processor multiplies these.
        assert after["mlp"]["down"]["kernel"].shape == pack_panels(down, dtype=dtype).shape
        assert after["mlp_norm"]["scale"] is before["mlp_norm"]["scale"]


@pytest.mark.skipif(not active()["matmul"].startswith("cpu"), reason="needs the CPU's products")
@pytest.mark.parametrize(
    ("tied", "dtype", "loaded"),
    [
        pytest.param(True, "float32", "float32", marks=UNOPTIMIZED),
        (False, "bfloat16", "bfloat16"),  # whose roundings compilers may leave out
        (True, "bfloat16", "float32"),
        pytest.param(False, "float32", "bfloat16", marks=UNOPTIMIZED),
    ],
)
def test_no_bit_depends_on_them(
    tied: bool,
    dtype: str,
    loaded: str,
    monkeypatch: pytest.MonkeyPatch,
    request_of: Callable[..., GenerateRequest],
    drain: Callable[[Engine], Rollouts],
) -> None:
    sizes = {"vocab_size": 96, "embed_dim": 64, "hidden_dim": 96, "num_layers": 1}
    model = small_model(**sizes, tie_embeddings=tied, dtype=dtype)
    params = jax.device_get(init_params(model, 0))
    random = np.random.default_rng(8)
    prompts = [random.integers(0, 96, n).tolist() for n in (1, 3, 13, 20)]

    def sampled(packs: bool) -> tuple[Rollouts, list[Any]]:
        for module in (engines, step_programs):
            monkeypatch.setattr(module, "reads_panels", lambda devices: packs)
        engine = Engine(model, ENGINE, slot_tokens=44, truncated_sampling=False, param_dtype=loaded)
        engine.load(params, 1)
        engine.submit([request_of(i, prompt, group=i) for i, prompt in enumerate(prompts)])
        return drain(engine), [leaf.shape for leaf in engine.parameters.leaves]

    (packed, shapes), (plain, others) = sampled(True), sampled(False)
    assert packed == plain
    assert shapes != others
    assert len(shapes) == len(others) + tied


@pytest.mark.skipif(not active()["matmul"].startswith("cpu"), reason="needs the CPU's products")
def test_an_engine_on_one_cpu_packs(build_engine: Callable[..., Engine]) -> None:
    shapes = [leaf.shape for leaf in build_engine().parameters.leaves]
    assert any(len(shape) == 3 and shape[2] == 32 for shape in shapes)
