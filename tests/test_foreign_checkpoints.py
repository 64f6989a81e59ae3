"""Checkpoints whose config.json and tensors do not agree as ours do: logits by transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import base
from rlboost_jax.cli.logits import learner_logits, logits
from rlboost_jax.models.checkpoint_reader import CheckpointUnusable, read_checkpoint
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.huggingface.tensor_files import HEAD, SINGLE, TensorFiles
from rlboost_jax.settings.model_config import ModelConfig
from tests import small
from tests.models.checkpoints import SIZES, _heads, checkpoint, logits_of
from tests.oracles import torch_oracle

transformers = torch_oracle("transformers")
pytestmark = pytest.mark.optimized(False)  # logits are compared to a tolerance

TOLERANCE = 3e-5  # of the logits' spread
TABLE = "model.embed_tokens.weight"
TOKENS = np.random.default_rng(0).integers(61, size=(2, 40), dtype=np.int32)


def write(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))


def changed(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    write(folder, {**values, **changes})


def both(folder: Path, expected: np.ndarray) -> None:
    for by, found in logits(str(folder), TOKENS).items():
        assert np.abs(found - expected).max() < TOLERANCE * expected.std(), by


def test_the_rope_section_of_deepseek_r1_0528_qwen3_8b(tmp_path: Path) -> None:
    """transformers passes over `attn_factor`, so it is given what that amounts to: 1."""
    section = {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    config = transformers.Qwen3Config(
        **SIZES, **_heads(48, 2, 1, 96), rope_parameters={**section, "attention_factor": 1.0}
    )
    theirs = checkpoint(config, tmp_path)
    said = {**section, "attn_factor": 0.8782488562869419}
    del said["rope_theta"]
    changed(tmp_path, rope_parameters=None, rope_scaling=said, rope_theta=1_000_000)
    both(tmp_path, logits_of(theirs, TOKENS))


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    config = transformers.Qwen2Config(**SIZES, **_heads(32, 4, 2, 8), tie_word_embeddings=True)
    checkpoint(config, tmp_path)
    return tmp_path


def test_a_head_of_its_own_under_a_tied_flag_is_used(
    tied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(tied / SINGLE)
    tensors[HEAD] = np.random.default_rng(1).standard_normal((61, 32), np.float32)
    save_file(tensors, tied / SINGLE, metadata={"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tied, dtype="float32", attn_implementation="eager"
    )
    both(tied, logits_of(theirs.eval(), TOKENS))
    said = f"{tied / 'config.json'} ties the head to the embeddings, and {HEAD} is not them"
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith(said)]

    model = ModelConfig(source=str(tied), dtype="float32", **source_fields(str(tied)))
    params = read_checkpoint(model, tied)
    (tied / "again").mkdir()
    write_checkpoint(model, params, tied / "again", dtype="float32")
    write(tied / "again", to_huggingface(model))
    fields = source_fields(str(tied / "again"))
    assert fields["tie_embeddings"] is False
    again = ModelConfig(source=str(tied), dtype="float32", **fields)
    assert params_digest(read_checkpoint(again, tied / "again")) == params_digest(params)


def test_a_tokenizer_with_more_ids_than_rows_says_nothing_about_logits(tmp_path: Path) -> None:
    """Gemma 3: 262,145 ids and 262,144 rows. config.json and the table have the say."""
    text = transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 3}, **_heads(32, 4, 1, 16), sliding_window=8
    )
    theirs = checkpoint(text, tmp_path)
    words = {f"w{i}": i for i in range(62)}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}})
    )
    model = ModelConfig(source="", dtype="float32", **source_fields(str(tmp_path)))
    assert model.vocab_size == 61
    found, expected = (
        learner_logits(model, read_checkpoint(model, tmp_path), TOKENS),
        logits_of(theirs, TOKENS),
    )
    assert np.abs(found - expected).max() < TOLERANCE * expected.std()


# Below without torch: what the flag says, what is stored, and what becomes of it.


def stored_with(folder: Path, *, tie: bool | None, **tensors: Any) -> str:
    """A tiny llama with other tensors (None: taken away), by names as `lm_head.weight`."""
    model = small.small_model(tie_embeddings=True, qk_norm=False)
    write_checkpoint(model, init_params(model, 0), folder, dtype="float32")
    values = {**to_huggingface(model), "tie_word_embeddings": tie}
    write(folder, {key: value for key, value in values.items() if value is not None})
    kept = load_file(folder / SINGLE)
    for name, make in tensors.items():
        table = kept[TABLE]
        kept[name] = make(table)
    save_file({n: t for n, t in kept.items() if t is not None}, folder / SINGLE)
    return str(folder)


def other(table: np.ndarray) -> np.ndarray:
    changed = table.copy()
    changed[-1, -1] += 1e-3  # the last number of all
    return changed


@pytest.mark.parametrize(
    ("tensors", "tied"),
    [
        ({HEAD: np.copy}, True),
        ({HEAD: other}, False),
        ({}, True),
        ({HEAD: lambda t: t.astype("bfloat16")}, False),  # rounded: other numbers
        ({HEAD: lambda t: np.where(t > 0, t, np.nan)}, False),
        ({"model." + HEAD: other}, False),
        ({HEAD: lambda t: t[:-1].copy()}, False),  # which the reader refuses, by its name
        ({HEAD: np.copy, TABLE: lambda t: None}, True),  # it may be kept under either name
    ],
)
def test_the_weights_say_whether_a_tied_head_is_tied(
    tensors: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    source = stored_with(tmp_path, tie=True, **tensors)
    assert source_fields(source)["tie_embeddings"] is tied
    assert source_fields(source, tied=True)["tie_embeddings"] is True  # a run that has begun
    assert source_fields(source, tied=False)["tie_embeddings"] is False
    if tied:
        model = ModelConfig(source="", dtype="float32", **source_fields(source))
        assert "kernel" not in read_checkpoint(model, tmp_path)["head"]


def test_equal_numbers_of_another_type_are_a_copy(tmp_path: Path) -> None:
    rounded = {TABLE: lambda t: t.astype("bfloat16")}
    source = stored_with(tmp_path, tie=True, **rounded)
    for kind in ("bfloat16", "float32"):
        tensors = load_file(tmp_path / SINGLE)
        save_file({**tensors, HEAD: tensors[TABLE].astype(kind)}, tmp_path / SINGLE)
        assert source_fields(source)["tie_embeddings"]
        model = ModelConfig(source="", dtype="float32", **source_fields(source))
        read_checkpoint(model, tmp_path)


def test_the_parts_may_be_in_several_files(tmp_path: Path) -> None:
    for make, tied in ((np.copy, True), (other, False)):
        source = stored_with(tmp_path, tie=True, **{HEAD: make})
        tensors = load_file(tmp_path / SINGLE)
        placed = {name: f"{'b' if name == HEAD else 'a'}.safetensors" for name in tensors}
        for file in ("a.safetensors", "b.safetensors"):
            save_file({n: t for n, t in tensors.items() if placed[n] == file}, tmp_path / file)
        (tmp_path / (SINGLE + ".index.json")).write_text(json.dumps({"weight_map": placed}))
        assert source_fields(source)["tie_embeddings"] is tied


@pytest.mark.parametrize(
    ("frequencies", "warns"),
    [
        (1e4 ** (-np.arange(0, 8, 2) / 8), False),
        ((1e4 ** (-np.arange(0, 8, 2) / 8)).astype("bfloat16"), False),
        (1e6 ** (-np.arange(0, 8, 2) / 8), True),
        (np.zeros(4), True),
        (np.ones(3), True),
    ],
)
def test_stored_frequencies_that_contradict_config_json_are_named(
    frequencies: np.ndarray, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    kind = frequencies.dtype if frequencies.dtype != np.float64 else np.float32
    source = stored_with(tmp_path, tie=True, **{name: lambda table: frequencies.astype(kind)})
    model = ModelConfig(source="", dtype="float32", **source_fields(source))
    assert model.head_dim == 8 and model.rope_theta == 1e4
    read_checkpoint(model, tmp_path)
    said = [r.getMessage() for r in caplog.records]
    assert any(line.startswith(f"tensor {name} in ") for line in said) is warns


def test_a_mistake_in_what_a_checkpoint_decides_is_no_advice_to_change_a_setting(
    tmp_path: Path,
) -> None:
    stored_with(tmp_path, tie=True)
    for changes in (
        {"num_attention_heads": 3},
        {"head_dim": 7},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 2,
                "low_freq_factor": 4,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 64,
            }
        },
    ):
        changed(tmp_path, **changes)
        config = base.get_config()
        config.model.source = str(tmp_path)
        with pytest.raises(ConfigError, match=r"\(config\.json of model\.source .* decides it\)"):
            run_config(config)


@pytest.mark.parametrize(
    ("tie", "tensors", "says"),
    [
        (False, {}, f"has no tensor {HEAD} of shape [24, 16], which becomes head.kernel"),
        (None, {}, "(with tie_word_embeddings true in config.json, the head is the table)"),
        (True, {HEAD: lambda t: t[:-1].copy()}, f"tensor {HEAD} in FILE has shape [23, 16]"),
        (True, {HEAD: other, "model." + HEAD: other}, f"has 2 heads: {HEAD}, model.{HEAD}; a"),
        (True, {HEAD: lambda t: t.astype("float64")}, f"tensor {HEAD} in FILE has type F64"),
        (True, {"lm_head.bias": lambda t: t[:, 0].copy()}, "tensor lm_head.bias in FILE has no"),
    ],
)
def test_a_head_that_fits_nothing_is_refused_by_name(
    tie: bool | None, tensors: dict[str, Any], says: str, tmp_path: Path
) -> None:
    source = stored_with(tmp_path, tie=tie, **tensors)
    with pytest.raises(CheckpointUnusable) as caught:
        fields = source_fields(source)
        read_checkpoint(ModelConfig(source="", dtype="float32", **fields), tmp_path)
    assert says.replace("FILE", str(tmp_path / SINGLE)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "head"),
    [("language_model.model.", f"language_model.{HEAD}"), ("model.language_model.", HEAD)],
)
def test_inside_of_another_model_the_head_has_a_name_of_its_own(
    prefix: str, head: str, tmp_path: Path
) -> None:
    source = stored_with(tmp_path, tie=True)
    tensors = load_file(tmp_path / SINGLE)
    moved = {name.replace("model.", prefix, 1): leaf for name, leaf in tensors.items()}
    save_file({**moved, head: other(tensors[TABLE])}, tmp_path / SINGLE)
    fields = source_fields(source)
    assert fields["tie_embeddings"] is False
    model = ModelConfig(source="", dtype="float32", **fields)
    kernel = read_checkpoint(model, tmp_path)["head"]["kernel"]
    np.testing.assert_array_equal(np.asarray(kernel).T, other(tensors[TABLE]))
    tied_after_all = ModelConfig(source="", dtype="float32", **{**fields, "tie_embeddings": True})
    with pytest.raises(CheckpointUnusable, match=f"tensor {head} in .* is not .*, to which the"):
        read_checkpoint(tied_after_all, tmp_path)


def test_a_run_keeps_its_head_where_its_source_has_lost_the_weights(tmp_path: Path) -> None:
    """It reads only the source's config.json when it goes on, which says the wrong thing."""
    (tmp_path / "source").mkdir()
    source = stored_with(tmp_path / "source", tie=True, **{HEAD: other})
    changed(tmp_path / "source", vocab_size=112)
    config = base.get_config()
    config.model.source = source
    workdir = tmp_path / "run"
    workdir.mkdir()
    begun = run_config(config, workdir)
    assert not begun.model.tie_embeddings
    write_run_config(workdir / "config.json", begun, "f00d")
    (tmp_path / "source" / SINGLE).unlink()
    assert run_config(config, workdir) == begun
    assert run_config(config).model.tie_embeddings  # nobody else can know
    (workdir / "config.json").write_text("{}")
    assert run_config(config, workdir).model.tie_embeddings


def test_the_names_of_a_file_are_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening was quadratic: a set of all names for each name."""
    count = 0
    stored_with(tmp_path, tie=True)
    whole = TensorFiles._handle

    class Counted:
        def __init__(self, handle: Any) -> None:
            self._handle = handle

        def keys(self) -> Any:
            nonlocal count
            count += 1
            return self._handle.keys()

    monkeypatch.setattr(TensorFiles, "_handle", lambda self, file: Counted(whole(self, file)))
    with TensorFiles(tmp_path) as tensors:
        assert count == 1 < len(tensors.files)


def test_files_that_are_no_json_are_one_line(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "config.json").write_text(deep)
    with pytest.raises(ConfigError, match=r"config\.json is nested too deeply"):
        source_fields(str(tmp_path))
    model = small.small_model()
    for text, says in (
        (deep, "is nested too deeply: more than 100 lists"),
        ('{"weight_map": {"a": 3}}', "places a tensor in 3; it must be the name of a file"),
        ('{"weight_map": {"a": "../b"}}', "places a tensor in '../b'; it must be the name"),
        ('{"weight_map": {"a": ["b"]}}', "places a tensor in .'b'.; it must be the name"),
        ('{"weight_map": null}', "has no weight_map, an object with the file of each tensor"),
        ('{"weight_map": [1]}', "has no weight_map, an object with the file of each tensor"),
        ("[]", "is a list; expected a JSON object"),
    ):
        (tmp_path / (SINGLE + ".index.json")).write_text(text)
        with pytest.raises(CheckpointUnusable, match=says) as caught:
            read_checkpoint(model, tmp_path)
        assert "\n" not in str(caught.value)
