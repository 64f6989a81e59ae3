"""Supervised updates on rows, with the learner's programs."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.data.demonstrations import Demonstrations
from rlboost_jax.learner.guards import NotFinite
from rlboost_jax.learner.setup.lessons import taught
from rlboost_jax.learner.setup.sft import fine_tuned
from rlboost_jax.models.adapters import is_adapter
from rlboost_jax.models.forward import head, hidden_states_and_experts
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import flatten_params, init_params, params_digest
from rlboost_jax.observe.history import WARMUP, warmup_lines
from rlboost_jax.settings.model_config import LoraConfig

RUNS = [  # in turn given and to be said
    ([1, 2, 3], [4, 5]),
    ([6], [7, 8, 9], [10, 11], [12]),
    ([13, 14], [15, 16, 17, 18]),
    ([19] * 5, [20]),
]


@pytest.fixture
def tune(config, tmp_path):
    """`tune(epochs=3)`: parameters and rows of `warmup.jsonl` of supervised updates."""

    def tuned(*, epochs=3, rate=1e-2, folder="run", rank=0, tokens=14, beat=lambda: None):
        run = replace(
            config,
            model=replace(config.model, lora=LoraConfig(rank=rank)),
            warmup=replace(
                config.warmup,
                source="rows",
                source_epochs=epochs,
                source_learning_rate=rate,
                source_batch_tokens=tokens,
            ),
        )
        sequences = tuple(tuple(np.array(ids, np.int32) for ids in runs) for runs in RUNS)
        base = init_params(config.model, 0)
        params = init_params(run.model, 0, of=is_adapter) if rank else base
        notes = []
        (tmp_path / folder).mkdir(exist_ok=True)
        after = fine_tuned(
            run,
            Demonstrations(sequences=sequences, lines=()),
            jax.tree.map(jnp.copy, params),
            base=base if rank else None,
            mesh=make_mesh((1, 1, 1)),
            folder=tmp_path / folder,
            note=notes.append,
            beat=beat,
        )
        lines = (tmp_path / folder / WARMUP).read_text().splitlines()
        return after, [json.loads(line) for line in lines], notes

    return tuned


def target_logprobs(model, params, sequence, temperature=1.0):
    """Compute the log-probability of each sampled token with a softmax in float64."""
    row = jnp.asarray(sequence.tokens[None, :-1])
    places = jnp.arange(row.size)[None]
    x, _ = hidden_states_and_experts(model, params, row, places, jnp.ones_like(row), remat="none")
    logits = np.asarray(head(model, params, x), np.float64) / temperature
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logprobs[np.arange(row.size), sequence.tokens[1:]][sequence.mask[1:]]


def test_the_loss_is_that_of_the_targets_alone(tune, config):
    """All rows in one update: the mean over the tokens to be said, whatever the packing."""
    _, rows, notes = tune(epochs=1, tokens=1_000)
    params = init_params(config.model, 0)
    sequences = [taught([np.array(ids, np.int32) for ids in runs]) for runs in RUNS]
    found = np.concatenate([target_logprobs(config.model, params, each) for each in sequences])
    expected = -found.mean()
    assert [(row["step"], row["tokens"]) for row in rows] == [(0, 11)]
    assert rows[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert notes == [f"  supervised update 1/1: loss {expected:.3f} nats per token"]


def test_the_report_says_where_the_loss_fell(tune, tmp_path):
    _, rows, _ = tune(epochs=1)
    count, first, last = len(rows), rows[0]["loss"], rows[-1]["loss"]
    (line,) = warmup_lines(tmp_path / "run")
    said = f"{count} supervised updates: loss {first:.3f} to {last:.3f} nats per token"
    assert line == f"{said} ({WARMUP})"


def test_it_learns_and_repeats_itself_to_the_bit(tune):
    """Each epoch has every row once, in updates that are full."""
    params, rows, _ = tune(epochs=12, rate=5e-2)
    assert sum(row["tokens"] for row in rows) == 12 * 11
    assert max(row["loss"] for row in rows[-4:]) < 0.5 * rows[0]["loss"]
    rates = [row["learning_rate"] for row in rows]
    assert max(rates) == pytest.approx(5e-2, rel=0.05) and rates[-1] < 5e-3
    again, _, _ = tune(epochs=12, rate=5e-2, folder="again")
    assert params_digest(again) == params_digest(params)


@pytest.mark.parametrize("rank", [0, 4])
def test_updates_that_are_cut_off_begin_again_and_end_with_the_same_bits(tune, tmp_path, rank):
    whole, rows, _ = tune(folder="whole", rank=rank)
    beats = iter(range(3))
    with pytest.raises(StopIteration):  # a kill, in the middle of a line
        tune(folder="cut", rank=rank, beat=lambda: next(beats))
    path = tmp_path / "cut" / WARMUP
    path.write_bytes(path.read_bytes()[:-7])
    resumed, again, _ = tune(folder="cut", rank=rank)
    assert params_digest(resumed) == params_digest(whole)
    assert again == rows and len(rows) > 3


def test_with_adapters_they_alone_learn(tune):
    params, rows, _ = tune(epochs=12, rate=5e-2, rank=4, tokens=1_000)
    assert all(is_adapter(name) for name in flatten_params(params))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_a_loss_that_is_no_number_names_the_setting(tune):
    with pytest.raises(NotFinite, match=r"lower warmup.source_learning_rate"):
        tune(epochs=4, rate=math.inf)
