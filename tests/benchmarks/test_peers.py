"""The comparison with other engines: one checkpoint for all, honest turns, and peers left out."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.engine import MODELS
from benchmarks.peers import __main__ as peers
from benchmarks.peers.checkpoint import END, endless_params, write_folder
from benchmarks.peers.training import __main__ as training
from benchmarks.peers.training.work import make_work
from rlboost_jax.models.forward import embed, head
from rlboost_jax.models.params import init_params

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


@pytest.mark.optimized(False)
@pytest.mark.parametrize("peer", training.PEERS)
def test_an_update_of_a_peer_has_the_gradient_of_the_learner(peer, tmp_path):
    module = pytest.importorskip(f"benchmarks.peers.training.{peer}", exc_type=ImportError)
    params = init_params(TINY, 0)
    work = make_work(TINY, params, 3, tmp_path / "checkpoint")
    theirs = module.make_update(work, module.SIZES[0])
    ours = training.learner_update(work, params, 1)
    expected = [ours() for _ in range(2)]
    assert min(expected) > 0.1  # nearly no ratio is clipped, and each token is compared
    np.testing.assert_allclose([theirs() for _ in range(2)], expected, rtol=1e-4)


@pytest.mark.optimized(False)
def test_a_peer_of_another_gradient_is_not_timed(tmp_path, monkeypatch):
    other = SimpleNamespace(make_update=lambda work, size: lambda: 0.0, SIZES=[1])
    monkeypatch.setitem(sys.modules, "benchmarks.peers.training.torch", other)
    with pytest.raises(AssertionError, match="torch with 1"):
        training.measure("tiny", TINY, ["torch"], 2, 1, tmp_path / "checkpoint")


def test_each_side_works_with_what_it_is_fastest_with():
    class Clocked:
        """Takes as long as its size says."""

        seconds = 0.0

        def make(self, size):
            def update():
                self.seconds += abs(size - 2)
                return 1.0

            return update

    clocked = Clocked()
    _, size = training.fastest(clocked.make, (1, 2, 4), 1.0, "one", clock=lambda: clocked.seconds)
    assert size == 2


def test_a_missing_trainer_is_left_out_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # which both peers need
    for peer in training.PEERS:
        monkeypatch.delitem(sys.modules, f"benchmarks.peers.training.{peer}", raising=False)
    found, reasons = training.measure("tiny", TINY, training.PEERS, 2, 1, tmp_path / "checkpoint")
    assert found == []
    assert reasons == [
        f"{peer}: torch is not installed; pip install -r {peers.REQUIREMENTS}"
        for peer in training.PEERS
    ]
