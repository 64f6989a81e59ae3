"""A checkpoint and questions in Hugging Face's formats, all the way: through a trainer and servers
that are killed, out again, and read by transformers.

No other run has these sizes, so all of its programs are compiled anew, most optimizations left out:
that a run's own bits stay the same is shown elsewhere.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rlboost_jax.observe.history import WARMUP
from tests import unoptimized
from tests.oracles import torch_oracle
from tests.patience import PATIENCE_SECONDS
from tests.system.harness import PATIENT, REPOSITORY, complete, prepared

pytestmark = pytest.mark.system

torch, transformers = torch_oracle(), torch_oracle("transformers")
pytest.importorskip("math_verify")

CONFIG = REPOSITORY / "configs" / "hf_tiny.py"


@pytest.fixture(scope="module")
def environment():
    return unoptimized.environment(os.environ.get("XLA_FLAGS", ""))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What `make hf-tiny` begins with, taught for a shorter time."""
    folder = tmp_path_factory.mktemp("start")
    tool = [sys.executable, str(REPOSITORY / "tools" / "make_hf_tiny.py")]
    subprocess.run([*tool, f"--to={folder}", "--updates=200"], check=True, timeout=PATIENCE_SECONDS)
    return folder


@pytest.fixture(scope="module")
def overrides(start):
    return (
        f"model.source={start / 'checkpoint'}",
        f"data.source={start / 'train.jsonl'}",
        f"data.heldout_source={start / 'test.jsonl'}",
        f"warmup.source={start / 'train.jsonl'}",  # as docs/how-to/sft.md says
        "warmup.response_template=\\boxed{{{answer}}}",
        "warmup.source_learning_rate=1e-3",
        f"distillation.teachers=({{'source': '{start / 'checkpoint'}'}},)",
        "distillation.scored_by=servers",
        "num_steps=3",
        "learner.prompts_per_step=8",
        "learner.micro_batch_prompts=4",
        "learner.learning_rate=1e-4",  # so that something is left of what it was taught
        "evaluation.every_steps=3",
        "rewards.workers=1",
        "rewards.time_limit_seconds=600",
    )


@pytest.fixture(scope="module")
def calm(overrides, environment, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("calm") / "run"
    unharmed = (*overrides, "fleet.max_instances=2", *PATIENT)
    return complete(workdir, *unharmed, config=CONFIG, environment=environment)


def test_kills_of_servers_and_trainer_change_no_bit(calm, overrides, environment, tmp_path):
    kills = (*overrides, *PATIENT, "fleet.chaos.kills_per_minute=60.0", "rewards.workers=3")
    chosen = {"config": CONFIG, "environment": environment}
    with prepared(tmp_path / "run", *kills, **chosen) as attacked:
        # Responses are over after one or two dispatches.
        attacked.hold(dispatches=1, version=1).start()
        with attacked.at_a_standstill(dispatches=1, version=1, servers=False, then=2):
            attacked.wait_until(lambda: attacked.events("lost"), "a loss")
        with attacked.at_a_standstill(dispatches=1, version=2, servers=False):
            attacked.kill()
        attacked.start().finish()
        attacked.assert_nothing_is_left()  # reward workers go with their trainer
    assert attacked.digests() == calm.digests()
    (line,) = (calm.workdir / WARMUP).read_text().splitlines()
    assert json.loads(line)["tokens"] == 3100 and (attacked.workdir / WARMUP).read_text()
    for name in ("distillation/reverse_kl", "reward_mean", "reward_std", "reward_failures"):
        assert [row[name] for row in attacked.metrics()] == [row[name] for row in calm.metrics()]


def test_what_comes_out_is_as_good_in_transformers(calm, start, tmp_path):
    """Greedy answers to the held-out questions, judged by their text."""
    out = tmp_path / "exported"
    export = [sys.executable, "-m", "rlboost_jax.export", f"--workdir={calm.workdir}"]
    subprocess.run(
        [*export, f"--to={out}", "--dtype=float32"],
        check=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_SECONDS,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    rows = [json.loads(line) for line in (start / "test.jsonl").read_text().splitlines()]
    right = []
    for row in rows:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}],
            add_generation_prompt=True,
            return_tensors="pt",
        )["input_ids"]
        answer = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        right.append(text == f"\\boxed{{{row['answer']}}}")
    summary = json.loads((calm.workdir / "summary.json").read_text())
    assert summary["last_accuracy"] == pytest.approx(np.mean(right))
