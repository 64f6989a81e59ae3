"""Adapters in PEFT's format to begin with: files of the library, and the logits of its model."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import base
from rlboost_jax.cli.logits import learner_logits
from rlboost_jax.learner.setup import preparation
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.checkpoint_reader import CheckpointUnusable, read_checkpoint
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import abstract_params, flatten_params
from rlboost_jax.models.peft_files import read_peft, write_peft
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.huggingface.adapter_config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_fields,
    with_adapter,
)
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import LORA_TARGETS, LoraConfig, ModelConfig
from rlboost_jax.settings.run_config import RunConfig
from tests import small
from tests.oracles import torch_oracle

pytestmark = pytest.mark.optimized(False)  # logits are compared to a tolerance
TOKENS = np.random.default_rng(0).integers(61, size=(2, 30), dtype=np.int32)
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def adapted(folder: Path, **options: Any) -> Any:
    """A tiny checkpoint in `folder/base`, an adapter in `folder/adapter`, and PEFT's model."""
    from tests.models.checkpoints import SIZES, _heads, checkpoint, transformers

    torch, peft = torch_oracle(), torch_oracle("peft")
    config = transformers.Qwen3Config(**SIZES, **_heads(32, 4, 2, 8), tie_word_embeddings=False)
    theirs = peft.get_peft_model(
        checkpoint(config, folder / "base"),
        peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": ["q_proj"], **options}),
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    theirs.save_pretrained(folder / "adapter")
    return theirs.eval()


def model_of(folder: Path) -> ModelConfig:
    lora = LoraConfig(**with_adapter({"source": str(folder / "adapter")}))
    fields = source_fields(str(folder / "base"))
    return ModelConfig(source=str(folder / "base"), dtype="float32", lora=lora, **fields)


@pytest.mark.parametrize(
    ("options", "targets", "scale"),
    [
        ({"target_modules": ["v_proj", "q_proj", "down_proj"]}, "q_proj v_proj down_proj", 1.5),
        ({"target_modules": "all-linear", "use_rslora": True}, " ".join(LORA_TARGETS), 3.0),
        ({"target_modules": r".*\.(up|gate)_proj", "lora_dropout": 0.1}, "gate_proj up_proj", 1.5),
    ],
)
def test_the_first_policy_is_peft_s_own(
    options: dict[str, Any], targets: str, scale: float, tmp_path: Path
) -> None:
    from tests.models.checkpoints import logits_of

    theirs = adapted(tmp_path, **options)
    model = model_of(tmp_path)
    assert (model.lora.rank, model.lora.targets) == (4, tuple(targets.split()))
    assert model.lora.scale == pytest.approx(scale)
    adapters = read_peft(model, tmp_path / "adapter")
    params = joined(read_checkpoint(replace(model, lora=LoraConfig()), tmp_path / "base"), adapters)
    expected = logits_of(theirs, TOKENS)
    assert np.abs(learner_logits(model, params, TOKENS) - expected).max() < 3e-5 * expected.std()
    with theirs.disable_adapter():
        assert np.abs(logits_of(theirs, TOKENS) - expected).max() > 0.1 * expected.std()

    (tmp_path / "again").mkdir()
    write_peft(model, adapters, tmp_path / "again", dtype="float32")
    written, before = (load_file(tmp_path / n / ADAPTER_WEIGHTS) for n in ("again", "adapter"))
    assert written.keys() == before.keys()
    assert all((written[name] == before[name]).all() for name in before)
    again = adapter_fields(str(tmp_path / "again"))
    assert again == adapter_fields(str(tmp_path / "adapter"))


# Below without torch and PEFT.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter of rank 2 on q_proj and v_proj of a small model, as PEFT writes it."""
    lora = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
    model = small.small_model(lora=lora)
    rng = np.random.default_rng(0)
    leaves = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape, np.float32), abstract_params(model)
    )
    write_peft(model, leaves, tmp_path, dtype="float32")
    return tmp_path


def changed(folder: Path, **options: Any) -> str:
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    return str(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; known: 'LORA'"),
        ({"use_dora": True}, "use_dora is True; adapters with it are not"),
        ({"lora_bias": True}, "lora_bias is True; adapters with it are not"),
        ({"bias": "all"}, "bias is 'all'; only 'none' is supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True; adapters with it are not"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']; adapters with it"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is {'q_proj': 8}; all must have one r"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern is {'q_proj': 8}; all must have one"),
        ({"layers_to_transform": [0]}, "layers_to_transform is [0]; adapters with it are not"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is [[0, 2]]; adapters with it"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is [3]; adapters with it"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', by which the base is"),
        ({"sparkle": 3}, "sparkle is 3, and nothing here reads it"),
        ({"r": 0}, "r is 0; it must be a whole number from 1"),
        ({"r": "4"}, "r is '4'; it must be a whole number"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'; it must be true or false"),
        ({"lora_alpha": -1}, "lora_alpha is -1; it must be a number of at least 0"),
    ],
)
def test_an_option_that_is_not_done_is_refused_by_name(
    options: dict[str, Any], says: str, folder: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        adapter_fields(changed(folder, **options))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_an_option_that_says_the_usual_changes_nothing(folder: Path) -> None:
    usual = {
        "use_dora": False,
        "rank_pattern": {"v_proj": 2},
        "modules_to_save": [],
        "eva_config": {"rho": 2.0},
        "exclude_modules": "vision_tower.*",
        "init_lora_weights": "gaussian",
        "layers_pattern": "",
        "auto_mapping": {"base_model_class": "X"},
        "revision": "main",
    }
    fields = {"rank": 2, "alpha": 4.0, "targets": ("q_proj", "v_proj")}
    assert adapter_fields(changed(folder, **usual)) == fields


@pytest.mark.parametrize(
    ("lora", "says"),
    [
        ({}, ""),
        ({"rank": 2, "alpha": 4, "targets": ["v_proj", "q_proj"]}, ""),
        ({"rank": 0, "alpha": 32.0, "targets": LORA_TARGETS}, ""),
        ({"rank": 8}, "config.model.lora.rank is 8 and the adapter in"),
        ({"alpha": 16.0}, "config.model.lora.alpha is 16.0 and the adapter in"),
        ({"targets": ("q_proj",)}, "config.model.lora.targets is ('q_proj',) and the adapter in"),
    ],
)
def test_settings_that_contradict_an_adapter_are_an_error(
    lora: dict[str, Any], says: str, folder: Path
) -> None:
    section = {"source": str(folder), **lora}
    if not says:
        assert LoraConfig(**with_adapter(section)).scale == 2
        return
    with pytest.raises(ConfigError) as caught:
        with_adapter(section)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(FIRST), f"has no tensor {FIRST} of shape [2, 16], which becomes"),
        (
            lambda t: t.update({FIRST: t[FIRST][:1].copy()}),
            f"tensor {FIRST} in FILE has shape [1, 16], and adapter_config.json makes it [2, 16]",
        ),
        (lambda t: t.update({FIRST: t[FIRST].astype("float64")}), "has type F64; known"),
        (
            lambda t: t.update({FIRST.replace("layers.0", "layers.7"): t[FIRST]}),
            "layers.7.self_attn.q_proj.lora_A.weight in FILE has no place in a qwen3 of 2 layers",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t[FIRST]}),
            "tensor base_model.model.lm_head.lora_A.weight in FILE is no adapter of q_proj",
        ),
        (
            lambda t: t.update({FIRST.replace("lora_A.weight", "lora_magnitude_vector"): t[FIRST]}),
            "lora_magnitude_vector in FILE is no adapter of",
        ),
        (
            lambda t: t.update({FIRST.replace(".model.layers", ".vision.layers"): t[FIRST]}),
            "FILE has adapters of 2 models: base_model.model.model., base_model.model.vision.",
        ),
    ],
)
def test_a_tensor_that_fits_nothing_is_named(change: Any, says: str, folder: Path) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj", "v_proj"))
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    change(tensors)
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    with pytest.raises(CheckpointUnusable) as caught:
        read_peft(small.small_model(lora=lora), folder)
    assert says.replace("FILE", str(folder / ADAPTER_WEIGHTS)) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "base", "revision"),
    [
        ("", None, None),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None),
        ("Qwen/Qwen3-0.6B@f00d", "Qwen/Qwen3-0.6B", "f00d"),
        ("/gone/with@sign", "/gone/with@sign", None),
        ("{folder}/owner/name@x", "{folder}/owner/name@x", None),
    ],
)
def test_the_base_is_named_as_peft_finds_it(
    source: str, base: str | None, revision: str | None, folder: Path
) -> None:
    (folder / "owner" / "name@x").mkdir(parents=True)
    source, base = source.format(folder=folder), base and base.format(folder=folder)
    lora = LoraConfig(rank=2, targets=("q_proj",))
    model = replace(small.small_model(lora=lora), source=source)
    leaves = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), abstract_params(model))
    write_peft(model, leaves, folder, dtype="float32")
    values = json.loads((folder / ADAPTER_CONFIG).read_text())
    assert (values["base_model_name_or_path"], values["revision"]) == (base, revision)


@pytest.mark.parametrize("inside", ["", "model.language_model.", "language_model.model."])
def test_an_adapter_of_the_text_in_another_model(inside: str, folder: Path) -> None:
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    prefix = f"base_model.model.{inside}"
    moved = {n.replace("base_model.model.model.", prefix): t for n, t in tensors.items()}
    save_file(moved, folder / ADAPTER_WEIGHTS)
    fields = adapter_fields(str(folder))
    adapters = flatten_params(read_peft(small.small_model(lora=LoraConfig(**fields)), folder))
    found = np.asarray(adapters["layers.attention.query.lora_a"][0])
    np.testing.assert_array_equal(found, tensors[FIRST].T)


def test_a_folder_without_an_adapter_is_one_line(folder: Path, tmp_path: Path) -> None:
    weights = (folder / ADAPTER_WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"lora\.source: .* has no adapter_model\.safetensors; w"):
        adapter_fields(str(folder))
    (folder / ADAPTER_CONFIG).unlink()
    with pytest.raises(ConfigError, match=r"config\.model\.lora\.source: cannot read .*adapter_co"):
        adapter_fields(str(folder))
    with pytest.raises(ConfigError, match=r"config\.model\.lora\.source is '/gone': no such fol"):
        adapter_fields("/gone")
    assert weights.exists()


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> RunConfig:
    return run_config(configuration(folder, tmp_path))


def configuration(folder: Path, tmp_path: Path) -> Any:
    """Configure a run on a checkpoint that has the sizes of the adapter's model."""
    from rlboost_jax.settings.huggingface.config import to_huggingface

    place = tmp_path / "checkpoint"
    place.mkdir(exist_ok=True)
    values = to_huggingface(small.small_model(vocab_size=112))
    (place / "config.json").write_text(json.dumps(values))
    config = base.get_config()
    config.model.source, config.model.lora.source = str(place), str(folder)
    config.warmup.max_updates = 0
    return config


def test_a_run_begins_with_it(run: RunConfig, folder: Path, tmp_path: Path) -> None:
    assert (run.model.lora.rank, run.model.lora.alpha) == (2, 4.0)
    policy, _ = preparation.programs(run, make_mesh((1, 1, 1)))
    console = SimpleNamespace(phase=lambda name: contextlib.nullcontext(), note=lambda line: None)
    params = flatten_params(preparation._start(run, tmp_path, policy, console).params)
    stored = load_file(folder / ADAPTER_WEIGHTS)
    found = np.asarray(params["layers.attention.query.lora_a"][0])
    np.testing.assert_array_equal(found, stored[FIRST].T)
    assert set(params) == {
        f"layers.attention.{name}.lora_{factor}" for name in ("query", "value") for factor in "ab"
    }


def test_a_run_that_goes_on_asks_its_record(run: RunConfig, folder: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    workdir.mkdir()
    write_run_config(workdir / "config.json", run, "f00d")
    config = configuration(folder, tmp_path)
    (folder / ADAPTER_CONFIG).unlink()
    assert run_config(config, workdir) == run
    with pytest.raises(ConfigError, match="cannot read"):
        run_config(config)
    config.model.lora.rank = 8
    with pytest.raises(ConfigError, match=r"lora\.rank is 8 and the adapter in .* has 2; leave it"):
        run_config(config, workdir)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"warmup.max_updates": 3}, "warmup.max_updates is 3, which changes the base that the ad"),
        ({"model.source": ""}, "and model.source is empty; name the checkpoint that the adapter"),
    ],
)
def test_what_an_adapter_cannot_begin_with(
    changes: dict[str, Any], says: str, folder: Path, tmp_path: Path
) -> None:
    config = configuration(folder, tmp_path)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ConfigError) as caught:
        run_config(config)
    assert says in str(caught.value)
