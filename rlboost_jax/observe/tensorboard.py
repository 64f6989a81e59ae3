"""The numbers of `metrics.jsonl` as TensorBoard events in `<workdir>/tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

GROUPS = {
    "reward_mean": "reward",
    "reward_std": "reward",
    "accuracy": "reward",
    "loss": "policy",
    "kl": "policy",
    "entropy": "policy",
    "clip_fraction": "policy",
    "corrected_fraction": "policy",
    "value_loss": "policy",
    "max_logprob_gap": "policy",
    "cost_dollars": "cost",
    "tokens_per_dollar": "cost",
}
PREFIXES = ("response", "instances", "tokens")


class TensorBoardWriter:
    """Args:
    step: the first step to come; TensorBoard then hides what a dead run wrote from here on.
    """

    def __init__(self, workdir: str | Path, *, step: int = 0) -> None:
        self._writer = SummaryWriter(str(Path(workdir) / "tensorboard"), purge_step=step or None)

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics; digests and numbers not measured are left out."""
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{_group(key)}/{key}", value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _group(key: str) -> str:
    if key in GROUPS:
        return GROUPS[key]
    if key.endswith("_seconds"):
        return "seconds"
    prefix = key.partition("_")[0]
    return prefix if prefix in PREFIXES else "run"
