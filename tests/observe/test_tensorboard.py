import subprocess
import sys
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from rlboost_jax.observe.metrics import KEYS
from rlboost_jax.observe.tensorboard import TensorBoardTracker
from tests.observe.conftest import sample


def events(folder: Path) -> list[Event]:
    """As TensorBoard reads them: length, checksum, record, checksum."""
    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            assert data[at + 8 : at + 12] == masked_crc32c(data[at : at + 8]).to_bytes(4, "little")
            found.append(Event.FromString(data[at + 12 : at + 12 + size]))
            at += size + 16
    return found


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """(tag, step) → value"""
    return {
        (value.tag, event.step): value.simple_value
        for event in events(folder)
        for value in event.summary.value
        if not value.metadata.plugin_data.plugin_name
    }


def test_numbers_are_scalars_in_groups(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(KEYS) | {
        "step": 4,
        "reward_mean": 0.5,
        "train_seconds": 2.0,
        "tokens_lost": 3,
        "params_digest": "ff",
        "version": 4,
    }
    writer = TensorBoardTracker(tmp_path)
    writer.step(row)
    writer.close()
    assert scalars(tmp_path / "tensorboard") == {
        ("reward/reward_mean", 4): 0.5,
        ("seconds/train_seconds", 4): 2.0,
        ("tokens/tokens_lost", 4): 3.0,
        ("run/version", 4): 4.0,
    }


def test_a_key_with_a_group_keeps_it(tmp_path: Path) -> None:
    writer = TensorBoardTracker(tmp_path)
    writer.step(dict.fromkeys(KEYS) | {"step": 1, "reward/format": 0.25, "kl": None})
    writer.close()
    assert scalars(tmp_path / "tensorboard") == {("reward/format", 1): 0.25}


def test_samples_are_pages_of_text_and_what_a_model_writes_is_no_markup(tmp_path: Path) -> None:
    rows = [
        sample(sample=0, response_text="<b>5</b>\n# 1"),
        sample(sample=1, reward=0.0, cut_off=True),
        sample(prompt=1, sample=2, prompt_text="other"),
    ]
    writer = TensorBoardTracker(tmp_path)
    writer.samples(rows)
    writer.close()
    pages = {
        (value.tag.removesuffix("/text_summary"), event.step): value.tensor.string_val[0].decode()
        for event in events(tmp_path / "tensorboard")
        for value in event.summary.value
    }
    assert set(pages) == {("samples/0", 20), ("samples/1", 20)}
    page = pages["samples/0", 20]
    assert "\n    <b>5</b>\n    # 1" in page, "indented: shown as it is"
    assert "**reward 0**, advantage +0.5, 3 tokens, cut off" in page
    assert pages["samples/1", 20].startswith("    other")
    for line in page.splitlines():
        assert line.startswith(("    ", "**reward ")) or not line


def test_the_last_accuracy_is_that_after_the_last_step(tmp_path: Path) -> None:
    writer = TensorBoardTracker(tmp_path)
    row = {"step": 3, "version": 3, "final": True, "accuracy": 0.75, "accuracy/maths": 0.5}
    writer.evaluated({**row, "pass_at_k": None, "cost_dollars": 0.25})
    writer.close()
    assert scalars(tmp_path / "tensorboard") == {
        ("reward/accuracy", 3): 0.75,
        ("accuracy/maths", 3): 0.5,
    }


def test_what_a_dead_run_wrote_of_steps_done_again_is_hidden(tmp_path: Path) -> None:
    """Also of one that died before its first checkpoint, and begins again with step 0."""
    folder = tmp_path / "tensorboard"
    for count, first in enumerate((0, 0, 2)):
        writer = TensorBoardTracker(tmp_path, step=first)
        writer.step(dict.fromkeys(KEYS) | {"step": 2, "loss": 0.5})
        writer.close()
        (newest,) = folder.glob("events.*")  # named after the second; these all begin in one
        newest.rename(folder / str(count))
    starts = [
        event.step for event in events(folder) if event.session_log.status == SessionLog.START
    ]
    assert starts == [0, 0, 2], "TensorBoard purges from there: event files are read by time"


def test_torch_stays_out_and_can_be_imported_later(tmp_path: Path) -> None:
    """Three seconds of each start, where it is installed."""
    (tmp_path / "torch.py").write_text("there = True")
    source = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from rlboost_jax.observe.tensorboard import TensorBoardTracker
tracker = TensorBoardTracker({str(tmp_path)!r})
tracker.step({{"step": 1, "loss": 0.5}})
tracker.close()
assert "torch" not in sys.modules
import torch
assert torch.there
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert scalars(tmp_path / "tensorboard") == {("policy/loss", 1): 0.5}
