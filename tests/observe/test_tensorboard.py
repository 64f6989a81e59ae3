from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from rlboost_jax.observe.metrics import KEYS
from rlboost_jax.observe.tensorboard import TensorBoardWriter


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """(tag, step) → value, read as TensorBoard does: length, checksum, record, checksum."""
    found = {}
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            assert data[at + 8 : at + 12] == masked_crc32c(data[at : at + 8]).to_bytes(4, "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            found.update({(v.tag, event.step): v.simple_value for v in event.summary.value})
            at += size + 16
    return found


def test_numbers_are_scalars_in_groups(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(KEYS) | {
        "step": 4,
        "reward_mean": 0.5,
        "train_seconds": 2.0,
        "tokens_lost": 3,
        "params_digest": "ff",
        "version": 4,
    }
    writer = TensorBoardWriter(tmp_path)
    writer.write(row)
    writer.close()
    assert scalars(tmp_path / "tensorboard") == {
        ("reward/reward_mean", 4): 0.5,
        ("seconds/train_seconds", 4): 2.0,
        ("tokens/tokens_lost", 4): 3.0,
        ("run/version", 4): 4.0,
    }
