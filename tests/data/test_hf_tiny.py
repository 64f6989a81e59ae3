"""The checkpoint and questions of `make hf-tiny` are what a run takes."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from configs import hf_tiny
from rlboost_jax.data.dataset import Dataset
from rlboost_jax.settings.config_loading import run_config
from tests.oracles import torch_oracle
from tests.patience import PATIENCE_SECONDS

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "make_hf_tiny.py"


@pytest.fixture(scope="module")
def make():
    """`make(folder)`: what the command line does, with two updates."""
    torch_oracle("transformers")
    spec = importlib.util.spec_from_file_location("make_hf_tiny", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def made(folder):
        module.main([f"--to={folder}", "--updates=2"])
        return folder

    return made


def test_a_run_reads_it_asks_and_judges(make, tmp_path):
    """As `configs/hf_tiny.py` says."""
    pytest.importorskip("math_verify")
    folder = make(tmp_path / "hf")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    config = hf_tiny.get_config()
    config.model.source = str(folder / "checkpoint")
    config.data.source = str(folder / "train.jsonl")
    config.data.heldout_source = str(folder / "test.jsonl")
    config.rewards.time_limit_seconds = PATIENCE_SECONDS
    run = run_config(config)
    assert (run.model.family, run.model.vocab_size, run.model.num_layers) == ("qwen3", 384, 2)
    data = Dataset(run)
    try:
        assert (data.record["train"], data.record["heldout"]) == (450, 50)
        assert data.record["left_out"] == data.record["heldout_left_out"] == {}
        assert data.stop_ids == (0, 2)
        prompt = data.train(0)[3]
        question = f"<|im_start|>user\n{rows[3]['question']}<|im_end|>\n<|im_start|>assistant\n"
        assert data.text(prompt.tokens) == prompt.problem.prompt == question
        (answer,) = data.tokenizer.encode([f"\\boxed{{{rows[3]['answer']}}}"], chat=True)
        for said, reward in ((answer, 1.0), (answer[:-2], 0.0)):
            judged = data.ask(prompt, np.array([*said, 2], np.int32))
            assert judged.result(PATIENCE_SECONDS).reward == reward
    finally:
        data.close()


def test_it_is_the_same_every_time(make, tmp_path):
    one, other = (make(tmp_path / name) / "checkpoint" for name in ("one", "other"))
    for name in ("model.safetensors", "tokenizer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
