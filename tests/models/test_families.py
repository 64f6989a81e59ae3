"""Every family against transformers on torch: logits, greedy generation, and the way back."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rlboost_jax.cli.logits import learner_logits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.teacher import teacher_forced_logits
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.sequences.identities import Batch, Work
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.settings.huggingface.families import FAMILIES
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import ModelConfig
from tests import small
from tests.models.checkpoints import CASES, PLAIN_WEIGHTS, SIZES, checkpoint, logits_of

TOLERANCE = 1e-4  # of the logits' spread
B, T, PROMPT = 3, 40, 11
ENGINE = replace(small.ENGINE, slots=8, max_prompt_tokens=T, steps_per_dispatch=8)


def test_every_family_has_a_case():
    assert {config.model_type for config in CASES.values()} == set(FAMILIES)


# For the bits of companions: in these is all that the others are made of.
WHOLE = ("qwen2, 7 query", "qwen3, heads of 96", "qwen3_moe", "gemma2")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.optimized(name.startswith(WHOLE))) for name in CASES
    ],
)
def family(request, tmp_path_factory):
    """(configuration, parameters, transformers' model) of one case."""
    folder = tmp_path_factory.mktemp("checkpoint")
    theirs = checkpoint(CASES[request.param], folder, max_shard_size="40KB")
    model = ModelConfig(source=str(folder), dtype="float32", **source_fields(str(folder)))
    return model, read_checkpoint(model, folder), theirs


@pytest.fixture(scope="module")
def engine(family):
    model, params, _ = family
    engine = Engine(model, ENGINE, slot_tokens=T + 1, truncated_sampling=False)
    engine.load(params, 1)
    return engine


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(SIZES["vocab_size"], size=(B, T), dtype=np.int32)


def close(ours, theirs):
    assert theirs.std() > 0.5, "logits so flat would hide mistakes"
    assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


@pytest.mark.optimized(False)
def test_logits_of_the_learner(family, tokens):
    model, params, theirs = family
    close(learner_logits(model, params, tokens), logits_of(theirs, tokens))


def test_logits_through_the_paged_engine(family, engine, tokens):
    close(teacher_forced_logits(engine, tokens), logits_of(family[2], tokens))


def test_greedy_generation(family, engine, tokens):
    from benchmarks.hugging_face import generate

    prompts = tokens[:, :PROMPT]
    expected = generate(family[2], prompts.astype(np.int64), T - PROMPT)
    greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=T - PROMPT, stop_ids=())
    ask = partial(GenerateRequest, version=1, sampling=greedy)
    engine.submit(
        [
            ask(
                request_id=b,
                work=Work(seed=0, batch=Batch(0), prompt=b, sample=0),
                prompt_tokens=pack_tokens(prompt.tolist()),
                response_tokens=b"",
            )
            for b, prompt in enumerate(prompts)
        ]
    )
    found = {b: [] for b in range(B)}
    for dispatch in engine.run():
        ends = np.cumsum(dispatch.counts, dtype=np.int64)
        for b, part in zip(dispatch.request_ids, np.split(dispatch.tokens, ends[:-1]), strict=True):
            found[int(b)] += part.tolist()
    np.testing.assert_array_equal([found[b] for b in range(B)], expected)


def test_companions_change_no_bit(engine):
    engine.assert_row_invariance()


def test_transformers_loads_what_is_written(family, tokens, tmp_path):
    import transformers

    model, params, theirs = family
    write_checkpoint(model, params, tmp_path, dtype="float32", most_file_bytes=30_000)
    (tmp_path / "config.json").write_text(json.dumps(to_huggingface(model)))
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype="float32", attn_implementation="eager"
    )
    assert type(again) is type(theirs)
    np.testing.assert_array_equal(logits_of(again.eval(), tokens), logits_of(theirs, tokens))
    ours = replace(model, source=str(tmp_path))
    assert ModelConfig(source=ours.source, dtype="float32", **source_fields(ours.source)) == ours


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_as_many_bits_are_read_exactly(dtype, tmp_path):
    import torch

    config = CASES["qwen3_moe, 2 of 5 experts"]
    theirs = checkpoint(config, tmp_path, dtype=getattr(torch, dtype))
    model = ModelConfig(source="", dtype="float32", **source_fields(str(tmp_path)))
    params = read_checkpoint(model, tmp_path)
    weight = theirs.model.layers[1].self_attn.q_proj.weight.detach().numpy()
    found = params["layers"]["attention"]["query"]["kernel"][1]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, weight.T)


@pytest.mark.optimized(False)
def test_experts_whose_weights_do_not_add_up_to_1(tmp_path, tokens):
    theirs = checkpoint(PLAIN_WEIGHTS, tmp_path)
    model = ModelConfig(source="", dtype="float32", **source_fields(str(tmp_path)))
    ours = learner_logits(model, read_checkpoint(model, tmp_path), tokens)
    close(ours, logits_of(theirs, tokens))
