"""What cannot be computed is one line and no file. Right numbers: `models/test_families.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import base
from rlboost_jax.cli import logits
from rlboost_jax.engine import device_memory
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import init_params
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.huggingface.config import to_huggingface

GOOD = np.arange(12, dtype=np.int32).reshape(2, 6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with config.json and the weights."""
    values = base.get_config()
    values.model.num_layers = 1
    values.model.embed_dim = values.model.hidden_dim = 16
    run = run_config(values)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_huggingface(run.model)))
    write_checkpoint(run.model, init_params(run.model, 0), folder, dtype="float32")
    return folder


@pytest.fixture
def refused(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """The line that the command ends with."""

    def call(memory_of: Any = None, **options: Path) -> str:
        given = {"model": model, "tokens": tmp_path / "good.npy", "out": tmp_path / "out.npz"}
        np.save(tmp_path / "good.npy", GOOD)
        arguments = [f"--{name}={value}" for name, value in {**given, **options}.items()]
        with pytest.raises(SystemExit) as caught:
            logits.main(arguments, memory_of=memory_of)
        line = capsys.readouterr().err
        assert caught.value.code == 2 and line.count("\n") == 1
        assert not (tmp_path / "out.npz").exists()
        return line.removeprefix("error: ").rstrip()

    return call


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (GOOD.astype(np.int64), "tokens are int64[2, 6]; give int32 [B, T]"),
        (np.full((2, 3), np.nan, np.float32), "tokens are float32[2, 3]; give int32 [B, T]"),
        (GOOD[0], "tokens are int32[6]; give int32 [B, T]"),
        (GOOD[:0], "tokens are int32[0, 6]; give int32 [B, T]"),
        (GOOD - 5, "tokens are -5 to 6; the model has ids 0 to 111"),
        (GOOD + 101, "tokens are 101 to 112; the model has ids 0 to 111"),
        (np.zeros((1, 2**18), np.int32), "tokens are 262,144 in a row; give less than 262,144"),
    ],
)
def test_tokens_that_are_none(refused, tmp_path: Path, tokens: np.ndarray, says: str) -> None:
    np.save(tmp_path / "bad.npy", tokens)
    assert refused(tokens=tmp_path / "bad.npy") == says


@pytest.mark.parametrize("content", [b"", b"1 2 3", b"PK\x03\x04 a zip", b"\x93NUMPY\x01"])
def test_a_file_that_holds_no_array(refused, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    assert refused(tokens=path).startswith(f"--tokens={path} is no array as np.save writes it: ")


def test_files_that_are_not_there(refused, tmp_path: Path) -> None:
    assert "No such file" in refused(tokens=tmp_path / "never.npy")
    out = tmp_path / "nowhere" / "out.npz"
    assert refused(out=out) == f"--out={out} is no place for a file; name one in a folder that is"
    assert "is no place for a file" in refused(out=tmp_path)
    assert refused(model=tmp_path / "never").startswith(f"--model is '{tmp_path / 'never'}': no")


def test_an_architecture_that_cannot_be(refused, model: Path) -> None:
    values = json.loads((model / "config.json").read_text())
    for key, value, says in (
        ("num_attention_heads", 3, "model.num_query_heads is 3, not a multiple of"),
        ("hidden_size", "wide", f"{model}/config.json: hidden_size is 'wide'; it must be"),
    ):
        (model / "config.json").write_text(json.dumps({**values, key: value}))
        assert refused().startswith(says)


def test_rows_too_long_for_the_memory(refused) -> None:
    small = device_memory.DeviceMemory(limit=1_000)
    assert refused(memory_of=lambda _: small).startswith(
        "6 tokens in a row need 1.7 KiB for the learner's attention"
    )


def test_scores_of_long_rows_are_made_block_by_block() -> None:
    model = run_config(base.get_config()).model
    blocks = 3 * 4 * model.num_query_heads * 512**2
    logits._check_memory(model, 100_000, lambda _: device_memory.DeviceMemory(limit=blocks))
    with pytest.raises(device_memory.NotEnoughMemory):
        logits._check_memory(model, 100_000, lambda _: device_memory.DeviceMemory(limit=blocks - 1))


@pytest.mark.parametrize(("platform", "grouped"), [("cpu", "xla"), ("gpu", "blocks")])
def test_no_kernel_for_gpus_is_asked_for(platform: str, grouped: str) -> None:
    """What a start would choose there was not tried for this."""
    for num_tokens, attention in ((256, "dense"), (257, "chunked")):
        expected = {"attention": attention, "grouped": grouped}
        assert logits.plain_forms(num_tokens, platform) == expected


@pytest.mark.optimized(False)
def test_weights_that_are_no_numbers(refused, model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    assert "logits of the learner are not finite, the first after token [0, " in refused()
