"""The page for who brings an own model, data and reward: how long it is, and that it works."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.settings.config_loading import run_config
from tests.oracles import torch_oracle
from tests.tutorial import ROOT, tutorial

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """The page's file, as `--config` imports it."""
    ((name, text),) = tutorial().files.items()
    (tmp_path / name).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_run", tmp_path / name)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_it_is_short() -> None:
    page = tutorial()
    ((name, text),) = page.files.items()
    assert name == "my_run.py" and len(text.splitlines()) <= 25
    assert 4 <= len(page.commands) <= 6
    modules = ("rlboost_jax.main", "rlboost_jax.export", "make_hf_tiny", "transformers")
    assert all(any(m in command for command in page.commands) for m in modules)


def test_its_configuration_is_one(module: Any, tmp_path: Path) -> None:
    config = module.get_config()
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert config.model.source == "mine/checkpoint"
    config.model.source, config.data.tokenizer = str(tmp_path), "bytes"
    run = run_config(config)
    assert [function.name for function in run.rewards.functions] == ["my_run:right"]
    assert (run.model.num_layers, run.task.name) == (2, "dataset")


def test_its_reward_is_right(module: Any) -> None:
    texts = ["\\boxed{41}", "it is \\boxed{41}.", "41", "\\boxed{4}", ""]
    assert module.right(texts, ["41"] * 5, finished=[True] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.soak
def test_it_works_as_it_stands() -> None:
    """All but the first command, which `python -m tests.stranger` gives, too."""
    torch_oracle("transformers")
    command = [sys.executable, "-m", "tests.stranger", f"--environment={sys.prefix}"]
    subprocess.run(command, cwd=ROOT, check=True)
