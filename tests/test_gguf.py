"""GGUF files as checkpoints: logits by transformers' own model, blocks by the package gguf."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs import base
from rlboost_jax.cli.logits import logits
from rlboost_jax.export import export
from rlboost_jax.learner.checkpoints.origin import OriginChanged, keep_origin, keep_teachers
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.platform.mistakes import ConfigError, Mistake
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.gguf import stand_in as stand_ins
from rlboost_jax.settings.gguf.container import read_container
from rlboost_jax.settings.gguf.quantized import Blocks
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_fields, source_folder
from rlboost_jax.settings.model_config import ModelConfig
from tests.models.checkpoints import LLAMA3_ROPE, SIZES, YARN, _heads, checkpoint, logits_of
from tests.models.gguf_files import write_gguf
from tests.oracles import torch_oracle

torch = torch_oracle()
transformers = torch_oracle("transformers")
pytestmark = pytest.mark.optimized(False)  # logits are compared to a tolerance

TOLERANCE = 3e-5  # of the logits' spread
TOKENS = np.random.default_rng(0).integers(61, size=(2, 40), dtype=np.int32)
QWEN2 = (  # how its tokenizer.json splits a text into words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LAYERS_7 = {**SIZES, "num_hidden_layers": 7}
CASES: dict[str, Any] = {
    "llama, scaled positions": transformers.LlamaConfig(
        **SIZES,
        **_heads(48, 6, 2, 32),
        rope_parameters={**LLAMA3_ROPE, "original_max_position_embeddings": 8192},
        tie_word_embeddings=True,
    ),
    "qwen2, biases": transformers.Qwen2Config(
        **SIZES, **_heads(56, 7, 1, 8), tie_word_embeddings=False
    ),
    "qwen3, tied, scaled positions": transformers.Qwen3Config(
        **SIZES, **_heads(48, 2, 1, 96), tie_word_embeddings=True, rope_parameters=YARN
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES,
        **_heads(32, 4, 2, 16),
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
    ),
    "gemma2": transformers.Gemma2Config(
        **SIZES,
        **_heads(32, 4, 2, 16),
        sliding_window=6,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **LAYERS_7,
        **_heads(32, 4, 1, 16),
        sliding_window=8,
        query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def both(source: Path, expected: np.ndarray) -> None:
    for by, found in logits(str(source), TOKENS).items():
        assert np.abs(found - expected).max() < TOLERANCE * expected.std(), by


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model_that_the_file_was_made_of(case: str, tmp_path: Path) -> None:
    theirs = checkpoint(CASES[case], tmp_path / "hf")
    write_gguf(theirs, tmp_path / "model.gguf")
    both(tmp_path / "model.gguf", logits_of(theirs, TOKENS))


def test_blocks_of_eight_bits(tmp_path: Path) -> None:
    """Rows of queries are in another order in the file, and each has scales of its own."""
    config = transformers.LlamaConfig(
        vocab_size=61, intermediate_size=64, num_hidden_layers=1, **_heads(64, 4, 2, 16)
    )
    theirs = checkpoint(config, tmp_path / "hf")
    write_gguf(theirs, tmp_path / "model.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 2:
                stored = gguf.quants.quantize(parameter.numpy(), gguf.GGMLQuantizationType.Q8_0)
                rounded = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
                parameter.copy_(torch.from_numpy(rounded))
    both(tmp_path / "model.gguf", logits_of(theirs, TOKENS))


KINDS = [gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q5_K", "Q6_K", "Q5_0", "BF16")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_any_part_of_a_tensor_has_the_numbers_of_the_whole(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    width = 2 * max(block, 256)
    stored = np.random.default_rng(1).integers(
        0, 100, size=(3, 5, width // block * num_bytes), dtype=np.uint8
    )
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up_exps.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = read_container(tmp_path / "some.gguf").tensors.values()
    expected = gguf.quants.dequantize(stored, kind)
    blocks = Blocks(tensor)
    np.testing.assert_array_equal(blocks[:], expected)
    cut = np.s_[1:2, 1:4, 7:300]
    np.testing.assert_array_equal(blocks[cut], expected[cut])


def test_a_model_in_parts(tmp_path: Path) -> None:
    theirs = checkpoint(CASES["qwen2, biases"], tmp_path / "hf")
    write_gguf(theirs, tmp_path / "whole.gguf")
    whole = read_container(tmp_path / "whole.gguf")
    reader = gguf.GGUFReader(tmp_path / "whole.gguf")
    for number in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{number}-of-00002.gguf", "qwen2")
        for key, value in whole.metadata.items() if number == 1 else ():
            if key != "general.architecture":
                add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                add(key, value)
        for tensor in reader.tensors[number - 1 :: 2]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    both(tmp_path / "m-00001-of-00002.gguf", logits_of(theirs, TOKENS))
    for number in (1, 2):  # as in a cache of the hub
        part = tmp_path / f"m-0000{number}-of-00002.gguf"
        part.rename(tmp_path / f"blob{number}")
        part.symlink_to(f"blob{number}")
    both(tmp_path / "m-00001-of-00002.gguf", logits_of(theirs, TOKENS))
    with pytest.raises(ConfigError, match=r"name the file itself: .*m-00001-of-00002\.gguf"):
        source_fields(str(tmp_path))
    second = tmp_path / "m-00002-of-00002.gguf"
    second.write_bytes(second.read_bytes().replace(b"qwen2", b"llama"))
    with pytest.raises(ConfigError, match=r"source: .*00002.gguf is part of .* 'llama', and .*001"):
        source_fields(str(tmp_path / "m-00001-of-00002.gguf"))
    second.unlink()
    with pytest.raises(ConfigError, match=r"00002-of-00002.gguf is missing"):
        source_fields(str(tmp_path / "m-00001-of-00002.gguf"))


def test_the_tokenizer_of_a_file_splits_text_as_it_did(tmp_path: Path) -> None:
    import tokenizers

    from rlboost_jax.data.tokenizers import HuggingFaceTokenizer
    from rlboost_jax.settings.data_config import DataConfig

    text = ["How many apples are 12 and 30?", "  naïve\n\n日本語 <turn> it's\t3.14"]
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>", "<turn>"], initial_alphabet=alphabet
    )
    trained.train_from_iterator(text * 3, trainer)
    vocab = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    config = transformers.Qwen2Config(**{**SIZES, "vocab_size": len(vocab)}, **_heads(32, 4, 2, 8))

    def tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([token for token, _ in vocab])
        writer.add_token_types([3 if token in ("<end>", "<turn>") else 1 for token, _ in vocab])
        writer.add_token_merges(merges)
        writer.add_eos_token_id(trained.token_to_id("<end>"))
        writer.add_eot_token_id(trained.token_to_id("<turn>"))
        writer.add_chat_template("{% for m in messages %}{{ m.content }}<turn>{% endfor %}")

    path = tmp_path / "model.gguf"
    write_gguf(checkpoint(config, tmp_path / "hf"), path, more=tokens)
    ours = HuggingFaceTokenizer(DataConfig(tokenizer=str(path)))
    found = ours.encode(text, chat=False)
    assert found == [encoding.ids for encoding in trained.encode_batch(text)]
    assert [ours.text(ids) for ids in found] == text
    assert ours.stop_ids == tuple(sorted(map(trained.token_to_id, ("<end>", "<turn>"))))
    assert ours.chat([{"role": "user", "content": "Hi"}]) == "Hi<turn>"


def test_a_file_that_is_not_there_is_no_name_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        source_fields("models/typo.gguf")


def test_a_home_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoint(CASES["qwen2, biases"], tmp_path / "hf"), path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set HOME to a folder of yours"):
        source_fields(str(path))


def test_a_folder_is_made_once_and_anew_for_another_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoint(CASES["qwen2, biases"], tmp_path / "hf"), path)
    first = source_folder(str(path), WEIGHTS)
    assert source_folder(str(path), WEIGHTS) == first
    write_gguf(checkpoint(CASES["gemma2"], tmp_path / "hf2"), path)
    assert source_folder(str(path), WEIGHTS) != first
    assert stand_ins.is_gguf(str(path)) and not stand_ins.is_gguf(str(tmp_path))


def test_a_run_goes_on_with_its_file_wherever_that_lies(tmp_path: Path) -> None:
    """As a start and as a teacher. A copy in another format is a copy."""
    theirs, path = checkpoint(CASES["qwen2, biases"], tmp_path / "hf"), tmp_path / "model.gguf"
    write_gguf(theirs, path)

    def goes_on(source: Path) -> None:
        keep_origin(tmp_path, str(source))
        keep_teachers(tmp_path, [str(source)])

    goes_on(path)
    path.touch()
    goes_on(path)
    goes_on(path.rename(tmp_path / "moved.gguf"))
    goes_on(tmp_path / "hf")
    with torch.no_grad():
        theirs.model.norm.weight.add_(1.0)
    write_gguf(theirs, path)
    with pytest.raises(OriginChanged, match=r"model.source is .*model.gguf'.* those of .*hf'"):
        keep_origin(tmp_path, str(path))
    with pytest.raises(OriginChanged, match=r"distillation.teachers\[0\] is .*model.gguf'"):
        keep_teachers(tmp_path, [str(path)])
    path.write_bytes(unknown_blocks(path.read_bytes()))
    with pytest.raises(Mistake, match=r"^config.model.source: .*model.gguf has a tensor of ggml's"):
        keep_origin(tmp_path, str(path))
    with pytest.raises(Mistake, match=r"^distillation.teachers: source: .*model.gguf has a tensor"):
        keep_teachers(tmp_path, [str(path)])


def test_a_run_from_a_file_is_exported_as_what_the_file_was_made_of(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    config = transformers.Qwen2Config(**{**SIZES, "vocab_size": 120}, **_heads(32, 4, 2, 8))
    write_gguf(checkpoint(config, tmp_path / "hf"), path)
    values = base.get_config()
    values.model.source = str(path)
    run = run_config(values)
    params = read_checkpoint(run.model, source_folder(str(path), WEIGHTS))
    write_run_config(tmp_path / "config.json", run, "f00d")
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(3, {"params": params}, {})
    (line, _) = export(tmp_path, tmp_path / "out", dtype="float32")
    assert "out: Qwen2ForCausalLM after 3 updates, float32" in line
    found, expected = (load_file(tmp_path / at / "model.safetensors") for at in ("out", "hf"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def another_architecture(data: bytes) -> bytes:
    return data.replace(b"\x05\0\0\0\0\0\0\0qwen2", b"\x05\0\0\0\0\0\0\0mamba")


def longer_than_the_file(data: bytes) -> bytes:
    at = data.index(b"qwen2") - 8
    return data[:at] + struct.pack("<Q", 2**62) + data[at + 8 :]


def tensor_entry(data: bytes, name: bytes) -> int:
    """Where the number of axes of a tensor stands; its shape and its type follow."""
    return data.index(name) + len(name)


def unknown_blocks(data: bytes) -> bytes:
    at = tensor_entry(data, b"blk.0.attn_q.weight") + 4 + 2 * 8
    return data[:at] + struct.pack("<I", 99) + data[at + 4 :]


def another_shape(data: bytes) -> bytes:
    at = tensor_entry(data, b"blk.0.ffn_up.weight") + 4
    first, second = data[at : at + 8], data[at + 8 : at + 16]
    return data[:at] + second + first + data[at + 16 :]


def many(data: bytes) -> bytes:
    return data[:8] + struct.pack("<QQ", 2**60, 2**60) + data[24:]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (cut, "fetch it again"),
        (lambda data: b"", "is no GGUF file"),
        (lambda data: b"PK\3\4" + data[4:], "does not begin with GGUF"),
        (lambda data: data[:4] + b"\0\0\0\3" + data[8:], "its version is"),
        (longer_than_the_file, "there are no more"),
        (many, "at most 1,048,576"),
        (unknown_blocks, "ggml's type 99, which .* take the model in other blocks"),
        (another_shape, r"mlp.up_proj.weight in .* has shape \[56, 40\], and config.json makes it"),
        (another_architecture, "general.architecture is 'mamba'; known are llama"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(broken: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoint(CASES["qwen2, biases"], tmp_path / "hf"), path)
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(Mistake, match=said) as caught:
        model = ModelConfig(source=str(path), dtype="float32", **source_fields(str(path)))
        read_checkpoint(model, source_folder(str(path), WEIGHTS))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda w: w.add_key_length(7), "heads have 7 numbers"),
        (lambda w: w.add_sliding_window(9), "sliding_window is 9 in a qwen2"),
        (lambda w: w.add_rope_dimension_count(4), "rope.dimension_count is 4"),
        (lambda w: w.add_causal_attention(False), "attention.causal is False"),
        (
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            "rope.scaling.type is 'longrope'",
        ),
        (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.zeros(7, np.float32)), "attn_sinks"),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.arange(1, 5, dtype=np.float32)),
            "not the table of Llama 3",
        ),
        (lambda w: w.add_array("qwen2.rope.dimension_count", [8, 8, 9]), "differs from layer to"),
        (lambda w: w.add_array("qwen2.attention.causal", [True, True]), "attention.causal is"),
        (lambda w: w.add_float32("qwen2.expert_used_count", 2.0), "must be a whole number"),
        (
            lambda w: w.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((2**15, 1, 1), np.float32)),
            "at most 16,384 experts",
        ),
        (lambda w: w.add_tensor("a\nb", np.zeros(1, np.float32)), "names a tensor"),
        (
            lambda w: w.add_tensor("model.norm.weight", np.zeros(56, np.float32)),
            "two tensors for model.norm.weight",
        ),
    ],
)
def test_what_is_not_done_is_refused_by_name(add: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoint(CASES["qwen2, biases"], tmp_path / "hf"), path, more=add)
    with pytest.raises(Mistake, match=said):
        model = ModelConfig(source=str(path), dtype="float32", **source_fields(str(path)))
        read_checkpoint(model, source_folder(str(path), WEIGHTS))
