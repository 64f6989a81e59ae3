"""Adapters out of a run: merged, for transformers; alone, for PEFT; and as the engine has them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from configs import base as base_config
from rlboost_jax import export
from rlboost_jax.cli import evaluate
from rlboost_jax.cli.logits import learner_logits
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.models.adapters import base_model, is_adapter, joined, merged_params
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import (
    Params,
    flatten_params,
    init_params,
    params_digest,
    unflatten_params,
)
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import LoraConfig
from rlboost_jax.settings.run_config import RunConfig
from tests.oracles import torch_oracle

pytestmark = pytest.mark.optimized(False)  # logits are compared to a tolerance

TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


@pytest.fixture(scope="module")
def run() -> RunConfig:
    run = run_config(base_config.get_config())
    lora = LoraConfig(rank=3, alpha=6.0, targets=TARGETS)
    sizes = {"embed_dim": 16, "hidden_dim": 24, "head_dim": 8}
    return replace(run, model=replace(run.model, lora=lora, **sizes))


@pytest.fixture(scope="module")
def params(run: RunConfig) -> Params:
    """Parameters of the whole tree, with adapters that add something."""
    leaves = flatten_params(jax.device_get(init_params(run.model, 0)))
    rng = np.random.default_rng(0)
    for name in filter(is_adapter, leaves):
        leaves[name] = leaves[name] + 0.2 * rng.standard_normal(leaves[name].shape, np.float32)
    return unflatten_params(leaves)


def split(params: Params) -> tuple[Params, Params]:
    leaves = flatten_params(params)
    return (
        unflatten_params({n: leaf for n, leaf in leaves.items() if not is_adapter(n)}),
        unflatten_params({n: leaf for n, leaf in leaves.items() if is_adapter(n)}),
    )


@pytest.fixture(scope="module")
def workdir(run: RunConfig, params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a run leaves it after two updates."""
    folder = tmp_path_factory.mktemp("run")
    write_run_config(folder / "config.json", run, "f00d")
    base, adapters = split(params)
    for name, step, tree in (("base", 0, base), ("checkpoints", 2, adapters)):
        with Checkpoints(folder / name, keep=1) as kept:
            kept.save(step, {"params": tree}, {})
    return folder


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(112, size=(2, 40), dtype=np.int32)


@pytest.fixture(scope="module")
def expected(run: RunConfig, params: Params, tokens: np.ndarray) -> np.ndarray:
    """Logits of the policy that was trained."""
    return learner_logits(run.model, params, tokens)


def theirs(model: Any, tokens: np.ndarray) -> np.ndarray:
    torch = torch_oracle()
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.from_numpy(tokens).long()).logits.numpy()
    return logits


def test_merged_they_are_an_ordinary_checkpoint(
    run: RunConfig, workdir: Path, params: Params, tmp_path: Path
) -> None:
    lines = export.export(workdir, tmp_path / "out", dtype="float32")
    assert lines == [
        f"{tmp_path / 'out'}: Qwen3ForCausalLM after 2 updates, float32, 1 file of weights"
    ]
    found = flatten_params(read_checkpoint(base_model(run.model), tmp_path / "out"))
    leaves = flatten_params(params)
    assert found.keys() == {name for name in leaves if not is_adapter(name)}
    for name, leaf in found.items():
        node, _, kind = name.rpartition(".")
        wanted = np.float64(leaves[name])
        if kind == "kernel" and f"{node}.lora_a" in leaves:
            a, b = (np.float64(leaves[f"{node}.lora_{factor}"]) for factor in "ab")
            wanted = wanted + 6.0 / 3 * a @ b
        np.testing.assert_allclose(leaf, wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def test_transformers_gives_the_logits_of_what_was_trained(
    workdir: Path, tokens: np.ndarray, expected: np.ndarray, tmp_path: Path
) -> None:
    transformers = torch_oracle("transformers")
    export.export(workdir, tmp_path / "out", dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32")
    assert np.abs(theirs(model, tokens) - expected).max() < 1e-4 * expected.std()


def test_peft_adds_them_to_the_base_as_we_do(
    run: RunConfig,
    workdir: Path,
    params: Params,
    tokens: np.ndarray,
    expected: np.ndarray,
    tmp_path: Path,
) -> None:
    """Which tensor is which, how they lie, and the factor: by a library that has all three."""
    peft, transformers = torch_oracle("peft"), torch_oracle("transformers")
    start = tmp_path / "base"
    start.mkdir()
    write_checkpoint(base_model(run.model), split(params)[0], start, dtype="float32")
    (start / "config.json").write_text(json.dumps(export.to_huggingface(run.model)))
    (line,) = export.export(workdir, tmp_path / "adapter", dtype="float32", adapter=True)
    assert "adapters of rank 3 after 2 updates, float32" in line
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype="float32")
    before = theirs(model, tokens)
    after = theirs(peft.PeftModel.from_pretrained(model, tmp_path / "adapter"), tokens)
    assert np.abs(after - expected).max() < 1e-4 * expected.std()
    assert np.abs(before - expected).max() > 0.1 * expected.std(), "or nothing was shown"


@pytest.mark.optimized  # for the bits of what is rounded
def test_rounded_they_are_merged_as_the_engine_merges(
    run: RunConfig, params: Params, tmp_path: Path
) -> None:
    rounded = replace(run, model=replace(run.model, dtype="bfloat16"))
    write_run_config(tmp_path / "config.json", rounded, "f00d")
    base, adapters = split(params)
    base = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), base)
    for name, tree in (("base", base), ("checkpoints", adapters)):
        with Checkpoints(tmp_path / name, keep=1) as kept:
            kept.save(0, {"params": tree}, {})
    export.export(tmp_path, tmp_path / "out")
    engines = merged_params(rounded.model, joined(base, adapters), "bfloat16")
    found = read_checkpoint(base_model(run.model), tmp_path / "out", dtype="bfloat16")
    assert params_digest(found) == params_digest(engines)


def test_a_run_without_adapters_has_none_to_write(run: RunConfig, tmp_path: Path) -> None:
    whole = replace(run, model=base_model(run.model))
    write_run_config(tmp_path / "config.json", whole, "f00d")
    with pytest.raises(ConfigError, match=r"--adapter: .*model\.lora\.rank is 0"):
        export.export(tmp_path, tmp_path / "out", adapter=True)


def test_evaluation_gives_the_engine_base_and_adapters(workdir: Path, params: Params) -> None:
    class Loaded(Exception):
        pass

    def load(given: Params, step: int) -> None:
        raise Loaded(params_digest(given), step)

    with pytest.raises(Loaded) as loaded:
        evaluate.evaluate(workdir, engine=lambda run: SimpleNamespace(load=load))
    assert loaded.value.args == (params_digest(params), 2)


def test_what_is_exported_says_what_it_is(workdir: Path, run: RunConfig, tmp_path: Path) -> None:
    export.export(workdir, tmp_path / "out")
    fields = source_fields(str(tmp_path / "out"))
    assert all(getattr(run.model, name) == value for name, value in fields.items())
