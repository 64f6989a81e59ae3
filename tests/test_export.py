"""A run's model as a checkpoint: written, read back, and loaded by transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from configs import base
from rlboost_jax import export
from rlboost_jax.cli import logits
from rlboost_jax.learner.checkpoints.reading import CheckpointNotFound
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import TrainState
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import Params, init_params, params_digest
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig
from tests.oracles import torch_oracle

pytestmark = pytest.mark.optimized(False)  # logits are compared to a tolerance


@pytest.fixture(scope="module")
def run() -> RunConfig:
    run = run_config(base.get_config())
    return replace(run, model=replace(run.model, embed_dim=16, hidden_dim=24, head_dim=8))


def workdir_of(run: RunConfig, folder: Path, *seeds: int) -> list[Params]:
    """A folder as a run leaves it, with a checkpoint of each seed's parameters."""
    folder.mkdir()
    write_run_config(folder / "config.json", run, "f00d")
    every = []
    with Checkpoints(folder / "checkpoints", keep=2) as checkpoints:
        for step, seed in enumerate(seeds):
            every.append(jax.device_get(init_params(run.model, seed)))
            opt_state = optax.adam(1e-3).init(every[-1])
            state = TrainState(params=every[-1], opt_state=opt_state, step=np.int32(step))
            checkpoints.save(step, state, {})
    return every


@pytest.fixture(scope="module")
def finished(run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Params]]:
    workdir = tmp_path_factory.mktemp("run") / "workdir"
    return workdir, workdir_of(run, workdir, 0, 1)


def call(module: Any, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    module.main([f"--{name}={value}" for name, value in options.items()])


def test_a_model_from_scratch_becomes_a_qwen3(
    run: RunConfig,
    finished: tuple[Path, list[Params]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workdir, params = finished
    before = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    call(export, monkeypatch, workdir=workdir, to=tmp_path / "out", dtype="float32")
    assert capsys.readouterr().out == (
        f"{tmp_path / 'out'}: Qwen3ForCausalLM after 1 updates, float32, 1 file of weights\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert before == sorted(path.name for path in (workdir / "checkpoints").iterdir())
    fields = source_fields(str(tmp_path / "out"))
    assert ModelConfig(source="", dtype="float32", **fields) == run.model
    assert params_digest(read_checkpoint(run.model, tmp_path / "out")) == params_digest(params[1])


def test_a_step_and_a_type_can_be_named_and_the_run_by_its_place_from_here(
    run: RunConfig,
    finished: tuple[Path, list[Params]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workdir, params = finished
    monkeypatch.chdir(workdir.parent)
    export.export(workdir.name, tmp_path / "out", step=0)
    rounded = jax.tree.map(lambda leaf: leaf.astype("bfloat16").astype("float32"), params[0])
    assert params_digest(read_checkpoint(run.model, tmp_path / "out")) == params_digest(rounded)
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"
    with pytest.raises(
        CheckpointNotFound, match=r"checkpoint 7 is not in .*; complete ones: \[0, 1"
    ):
        export.export(workdir, tmp_path / "other", step=7)


def test_what_cannot_be_is_one_line_and_leaves_nothing(
    finished: tuple[Path, list[Params]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"--to=\S+/file/in cannot be made: Not a directory; name"
    ):
        export.export(finished[0], tmp_path / "file" / "in")
    with pytest.raises(ConfigError, match=r"full exists; name a new folder"):
        export.export(finished[0], tmp_path / "full")
    with pytest.raises(SystemExit) as caught:
        call(export, monkeypatch, workdir=tmp_path / "nowhere", to=tmp_path / "out")
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_source_s_own_words_and_tokenizer_come_along(run: RunConfig, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_checkpoint(run.model, init_params(run.model, 0), source, dtype="float32")
    export_of_source = {
        **json.loads(json.dumps(export.to_huggingface(run.model))),
        "eos_token_id": [1, 7],
        "max_position_embeddings": 64,
        "dtype": "float32",
        "tie_word_embeddings": True,  # which the weights contradict, and so does the run's record
    }
    export_of_source["architectures"] = None  # then the family decides
    (source / "config.json").write_text(json.dumps(export_of_source))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "README.md"):
        (source / name).write_text(name)
    sourced = replace(run, model=replace(run.model, source=str(source)))
    workdir_of(sourced, tmp_path / "run", 3)
    lines = export.export(tmp_path / "run", tmp_path / "out")
    assert len(lines) == 1
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert (values["eos_token_id"], values["max_position_embeddings"]) == ([1, 7], 64)
    assert (values["torch_dtype"], "dtype" in values) == ("bfloat16", False)
    assert values["tie_word_embeddings"] is False
    assert values["architectures"] == ["Qwen3ForCausalLM"] and "Qwen3ForCausalLM" in lines[0]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert names == tokenizer | {"config.json", "model.safetensors"}

    source.rename(tmp_path / "moved")
    lines = export.export(tmp_path / "run", tmp_path / "without")
    assert "config.json is made from the run's own record" in lines[1]
    assert "the tokenizer's files are missing" in lines[2]
    assert source_fields(str(tmp_path / "without")) == source_fields(str(tmp_path / "out"))


def test_transformers_gives_the_logits_of_what_was_trained(
    finished: tuple[Path, list[Params]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way round, by the two commands: export, then check what was exported."""
    torch = torch_oracle()
    transformers = torch_oracle("transformers")
    call(export, monkeypatch, workdir=finished[0], to=tmp_path / "out", dtype="float32")
    tokens = np.random.default_rng(0).integers(112, size=(2, 70), dtype=np.int32)
    np.save(tmp_path / "tokens.npy", tokens)
    call(
        logits,
        monkeypatch,
        model=tmp_path / "out",
        tokens=tmp_path / "tokens.npy",
        out=tmp_path / "out.npz",
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32")
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(tokens).long()).logits.numpy()
    found = np.load(tmp_path / "out.npz")
    for by in ("learner", "engine"):
        assert (found[by].shape, found[by].dtype) == ((2, 70, 112), np.float32)
        assert np.abs(found[by] - expected).max() < 1e-4 * expected.std()
