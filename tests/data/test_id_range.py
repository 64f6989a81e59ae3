"""A tokenizer with more ids than the model has rows, as Gemma 3's."""

import dataclasses

import numpy as np
import pytest

from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.id_range import ids_without_row, outside_row
from rlboost_jax.data.open import record_lines
from rlboost_jax.environments.prompt_renderer import UnencodableObservation, renderer_of
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import ModelConfig
from tests.oracles import torch_oracle

pytestmark = pytest.mark.usefixtures("unjudged")

PICTURE = "<image_soft_token>"
TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
PLAIN = {"prompt_column": "question", "answer_column": "answer", "heldout_share": 0.0}


def tokenizer_in(folder, *more):
    """Bytes and a few marks, and `more` marks with the ids behind them."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        ["two plus two"],
        tokenizers.trainers.BpeTrainer(
            special_tokens=["<end_of_turn>", "<start_of_turn>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    rows = made.get_vocab_size()
    made.add_special_tokens(list(more))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end_of_turn>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return rows


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """(folder, transformers' model): one id more than rows, weights that are felt."""
    transformers = torch_oracle("transformers")
    from tests.models.checkpoints import GEMMA3_ROPE, checkpoint

    folder = tmp_path_factory.mktemp("gemma")
    config = transformers.Gemma3TextConfig(
        vocab_size=tokenizer_in(folder, PICTURE),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=GEMMA3_ROPE,
    )
    return folder, checkpoint(config, folder)


def on(run, folder):
    """The run with the checkpoint in this folder."""
    model = ModelConfig(source=str(folder), dtype="float32", **source_fields(str(folder)))
    data = dataclasses.replace(run.data, tokenizer="")
    return dataclasses.replace(run, model=model, data=data)


def test_a_run_on_it_opens_and_has_transformers_logits(gemma, build, write_lines):
    from rlboost_jax.cli.logits import learner_logits
    from rlboost_jax.models.checkpoint_reader import read_checkpoint
    from tests.models.checkpoints import logits_of

    folder, theirs = gemma
    rows = [
        {"question": "two plus two?", "answer": "4"},
        {"question": f"What is in {PICTURE}?", "answer": "a cat"},
    ]
    run = on(build(write_lines(rows), **PLAIN), folder)
    data = Dataset(run)
    data.close()
    size = run.model.vocab_size
    assert data.tokenizer.vocab_size == size + 1
    assert data.record["left_out"]["unusable"] == {
        "rows": 1,
        "first": f"rows.jsonl, line 2: token {size} ('{PICTURE}') has no row in the model: ids are "
        f"below {size}",
    }
    (line,) = [each for each in record_lines(data.record) if "tokenizer" in each]
    assert f"has {size + 1:,} ids, the model {size:,} rows: the last one has none" in line
    tokens = data.train(0)[0].tokens[None]
    params = read_checkpoint(run.model, folder)
    ours = learner_logits(run.model, params, tokens)
    np.testing.assert_allclose(ours, logits_of(theirs, tokens), atol=3e-5)


def test_so_does_an_environment(gemma, build):
    run = on(build("none.jsonl", **PLAIN), gemma[0])
    renderer = renderer_of(run, ())
    assert "the last one has none" in renderer.notes[-1]
    assert max(renderer.first("two plus two?", ())) < run.model.vocab_size
    outside = np.array([run.model.vocab_size], np.int32)
    with pytest.raises(UnencodableObservation, match=f"token {outside[0]} "):
        renderer.first(outside, ())


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ((), 0),
        ((PICTURE,), 1),
        ((PICTURE, "<audio>", "<video>"), 3),
        (tuple(f"<reserved_{n}>" for n in range(100)), 100),
        (("<a>", "<b>"), 2),
    ],
)
def test_ids_without_a_row_are_counted(more, count, tmp_path, build):
    """Whatever they stand for; a model with rows to spare has none."""
    rows = tokenizer_in(tmp_path, *more)
    model = dataclasses.replace(build("none.jsonl").model, source=str(tmp_path), vocab_size=rows)
    assert ids_without_row("it", rows + len(more), (0,), model) == count
    padded = dataclasses.replace(model, vocab_size=rows + 128)
    assert ids_without_row("it", rows + len(more), (0,), padded) == 0


def test_an_end_without_a_row_is_refused_with_advice_that_can_be_followed(build):
    model = build("none.jsonl").model
    own = dataclasses.replace(model, source="", vocab_size=100)
    theirs = dataclasses.replace(own, source="folder")
    with pytest.raises(ConfigError, match=r"has 101 tokens; raise model.vocab_size"):
        ids_without_row("it", 101, (0,), own)
    with pytest.raises(ConfigError, match=r"end token 100 of 'it' .* checkpoint's own tokenizer"):
        ids_without_row("it", 101, (0, 100), theirs)
    assert outside_row([1, 100, 99, 101], 100) == 100
    assert outside_row([1, 99], 100) is None


def test_an_id_behind_a_gap_is_known(tmp_path, build):
    """`len` of such a tokenizer says less than its highest id."""
    import json

    from rlboost_jax.data.tokenizers import open_tokenizer

    rows = tokenizer_in(tmp_path, PICTURE)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"][-1]["id"] = rows + 50
    path.write_text(json.dumps(content))
    data = dataclasses.replace(build("none.jsonl").data, tokenizer=str(tmp_path))
    tokenizer = open_tokenizer(data)
    ((token,),) = tokenizer.encode([PICTURE], chat=True)
    assert token < tokenizer.vocab_size
