"""The comparison with other engines: one checkpoint for all, honest turns, and peers left out."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import real_model
from benchmarks.engine import MODELS
from benchmarks.peers import __main__ as peers
from benchmarks.peers.checkpoint import END, endless_params, write_folder
from benchmarks.peers.float32_gguf import write_float32
from benchmarks.peers.training import __main__ as training
from benchmarks.peers.training import learner
from benchmarks.peers.training.side import module_of
from benchmarks.peers.training.work import SMALL, make_work
from configs import base
from rlboost_jax.models.forward import embed, head
from rlboost_jax.models.params import init_params
from rlboost_jax.settings.config_loading import run_config_from_dict

TINY = replace(
    MODELS["10M"],
    vocab_size=256,
    embed_dim=64,
    num_layers=2,
    num_query_heads=2,
    num_key_heads=1,
    hidden_dim=128,
)


def test_the_end_is_never_the_best_token():
    params = endless_params(TINY, 0)
    x = embed(TINY, params, jnp.arange(TINY.vocab_size), split=False)
    logits = np.asarray(head(TINY, params, x + 1e-3, split=False))
    assert not logits[:, END].any()
    assert (logits.max(axis=1) > 0).all()


def test_a_model_without_a_tied_head_is_refused():
    with pytest.raises(ValueError, match="tie_embeddings"):
        endless_params(replace(TINY, tie_embeddings=False), 0)


def test_transformers_reads_the_weights_from_the_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from benchmarks.hugging_face import qwen3

    params = endless_params(TINY, 0)
    folder = write_folder(TINY, params, tmp_path / "checkpoint")
    read = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    copied = qwen3(TINY, params).state_dict()
    assert read.keys() == copied.keys()
    for name, tensor in copied.items():
        np.testing.assert_array_equal(read[name].numpy(), tensor.numpy(), err_msg=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("7 255 0")["input_ids"] == [7, 255, 0]


def test_a_ratio_is_of_neighbours():
    """The machine is ten times slower in the last rounds, which no ratio may show."""
    ours = np.array([1.0, 1.0, 1.0, 10.0, 10.0])
    seconds = np.stack([ours, 2 * ours, ours * [1, 2, 3, 4, 5]], axis=1)
    expected = [[2.0, 2.0], [2.0, 3.0], [2.0, 4.0]]
    np.testing.assert_allclose(peers.compared(seconds), expected)


@pytest.mark.parametrize("name, package", [("openvino", "openvino"), ("torch", "torch")])
def test_a_missing_peer_is_left_out_with_what_to_install(name, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"benchmarks.peers.{name}", raising=False)
    how = {"dtype": "float32", "threads": 1, "batch": 1, "tokens": 1}
    peer, reason = peers.make_peer(name, tmp_path, **how)
    assert peer is None
    assert package in reason and f"pip install -r {peers.REQUIREMENTS}" in reason


def test_a_broken_import_of_our_own_is_no_missing_peer(tmp_path):
    how = {"dtype": "float32", "threads": 1, "batch": 1, "tokens": 1}
    with pytest.raises(ModuleNotFoundError, match=r"benchmarks\.peers\.nobody"):
        peers.make_peer("nobody", tmp_path, **how)


class Stranger:
    """Answers at random, and takes float32 only."""

    note = ""

    def __init__(self, folder, *, dtype, **_):
        if dtype != "float32":
            raise NotImplementedError(f"no {dtype} here")

    def generate(self, prompts, num_tokens):
        return np.random.default_rng(0).integers(256, size=(len(prompts), num_tokens))


def measured(dtype, folder):
    strangers = {"stranger": SimpleNamespace(Peer=Stranger)}
    options = {"models": {"tiny": TINY}, "module_of": strangers.__getitem__}
    return peers.measure("tiny", 2, dtype, ["stranger"], 1, folder, 16, **options)


@pytest.mark.optimized(False)
def test_another_model_is_not_compared_with(tmp_path):
    with pytest.raises(RuntimeError, match="agree"):
        measured("float32", tmp_path / "checkpoint")


def test_a_peer_that_cannot_says_why(tmp_path):
    rows, reasons = measured("bfloat16", tmp_path / "checkpoint")
    assert rows == [] and reasons == ["stranger: no bfloat16 here"]


def test_an_unknown_peer_is_refused(capsys):
    with pytest.raises(SystemExit):
        peers.main(["--peers=torch,nobody"])
    assert "nobody; choose of openvino, onnxruntime, torch" in capsys.readouterr().err


def small_update(folder, *, rank):
    """Three sequences of the tiny model."""
    run = run_config_from_dict(base.get_config().to_dict())
    model = replace(TINY, lora=replace(TINY.lora, rank=rank))
    return make_work(replace(run, model=model), SMALL, init_params(TINY, 0), folder, 3)


@pytest.mark.optimized(False)
@pytest.mark.parametrize("rank", [0, 2])
def test_an_update_of_a_peer_has_the_gradient_of_the_learner(rank, tmp_path):
    found = [each for each in training.PEERS if peers.imported(each, module_of)[0]]
    if not found:
        pytest.skip("neither torch nor TRL is installed")
    work = small_update(tmp_path / "checkpoint", rank=rank)
    ours = learner.make_update(work, 1)
    expected = [ours() for _ in range(2)]
    assert min(expected) > 0.1  # nearly no ratio is clipped, and each token is compared
    for peer in found:
        theirs = module_of(peer).make_update(work, 2)
        np.testing.assert_allclose([theirs() for _ in range(2)], expected, rtol=1e-4, err_msg=peer)


class Sized:
    """An update that takes as long as its size is from 2."""

    seconds = 0.0

    def __init__(self, size):
        self.size = size

    def update(self):
        Sized.seconds += abs(self.size - 2)
        return 1.0

    def close(self):
        pass


def test_each_side_works_with_what_it_is_fastest_with():
    assert training.fastest(Sized, (1, 2, 4), clock=lambda: Sized.seconds) == 2


@pytest.mark.optimized(False)
def test_a_peer_of_another_gradient_is_not_timed():
    with pytest.raises(AssertionError, match="torch"):
        training.check_norms({"learner": 1.0, "trl": 1.0001, "torch": 1.01})


def test_a_missing_trainer_is_left_out_with_what_to_install(monkeypatch):
    def no_work():
        raise AssertionError("there is nothing to compare with")

    monkeypatch.setitem(sys.modules, "torch", None)  # which both peers need
    for peer in training.PEERS:
        monkeypatch.delitem(sys.modules, f"benchmarks.peers.training.{peer}", raising=False)
    found, reasons = training.measure("tiny", no_work, training.PEERS, 1)
    assert found == []
    assert reasons == [
        f"{peer}: torch is not installed; pip install -r {peers.REQUIREMENTS}"
        for peer in training.PEERS
    ]


def test_tokens_agree_up_to_the_first_difference():
    ours = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.int32)
    theirs = np.array([[1, 2, 3], [4, 0, 6], [0, 8, 9]], np.int32)
    assert real_model.agreement(ours, theirs) == "1 of 3 equal, 4 of 9 tokens"


def test_a_side_that_does_not_start_is_a_line(tmp_path):
    arguments = [f"--folder={tmp_path}", "--most=1", "--tokens=80"]
    with pytest.raises(RuntimeError, match="nobody"):
        real_model.Side("nobody", sys.executable, arguments)


def test_a_file_in_float32_has_the_numbers_of_its_blocks(tmp_path):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(np.random.default_rng(0).normal(size=(3, 64)), kind)
    writer = gguf.GGUFWriter(tmp_path / "blocks.gguf", "llama")
    writer.add_token_list(["a", "b"])
    writer.add_context_length(99)
    writer.add_tensor("output.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_float32(tmp_path / "blocks.gguf", tmp_path / "float32.gguf")
    reader = gguf.GGUFReader(tmp_path / "float32.gguf")
    np.testing.assert_array_equal(reader.tensors[0].data, gguf.quants.dequantize(blocks, kind))
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert reader.fields["llama.context_length"].contents() == 99
