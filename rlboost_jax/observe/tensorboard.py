"""Numbers and samples of a run as TensorBoard events in `<workdir>/tensorboard`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.samples import SampleRow, shortened
from rlboost_jax.observe.summary import Summary

# tensorboardX imports torch wherever it is installed, for tensors that we have none of: three
# seconds and some hundred megabytes of every start. A None is what makes an import fail.
sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
from tensorboardX import SummaryWriter  # noqa: E402

if sys.modules["torch"] is None:
    del sys.modules["torch"]

SAMPLE_LETTERS: Final = 4_000  # of a prompt and of a response

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
    "lag": "policy",
    "ratio_mean": "policy",
    "behaviour_kl": "policy",
    "max_logprob_gap": "policy",
    "gradient_norm": "policy",
    "learning_rate": "policy",
    "truncated_fraction": "response",
    "uniform_groups_fraction": "reward",
    "cost_dollars": "cost",
    "cost_between_dollars": "cost",
    "tokens_per_dollar": "cost",
    "cost_forecast_dollars": "cost",
}
PREFIXES = ("response", "instances", "tokens", "line", "lease")


class TensorBoardTracker:
    """Figures and samples of a run as files of TensorBoard's, in its work directory.

    Args:
        step: the first step to come; TensorBoard then hides what a dead run wrote from here on.
    """

    def __init__(self, workdir: str | Path, *, step: int = 0) -> None:
        self._writer = SummaryWriter(str(Path(workdir) / "tensorboard"), purge_step=step)

    def samples(self, rows: Sequence[SampleRow]) -> None:
        """Write a page of text for each prompt; the n-th prompt of every step has the same name."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        for place, prompt in enumerate(prompts):
            group = [row for row in rows if row.prompt == prompt]
            self._writer.add_text(f"samples/{place}", _page(group), group[0].step)

    def step(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics; digests and numbers not measured are left out."""
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._writer.add_scalar(_tag(key), value, row["step"])
        self._writer.flush()

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Add one more point of each accuracy."""
        for key, value in row.items():
            measured = key in ("accuracy", "pass_at_k") or key.startswith("accuracy/")
            if measured and value is not None:
                self._writer.add_scalar(_tag(key), value, row["step"])

    def finish(self, summary: Summary) -> None:
        """Do nothing: `evaluated` has written the last point."""

    def close(self) -> None:
        self._writer.close()


def _page(group: Sequence[SampleRow]) -> str:
    """Markdown page of a group.

    Texts of model and data set are indented, so never taken for markup.
    """
    parts = [_quoted(group[0].prompt_text)]
    for row in group:
        end = (", cut off" if row.cut_off else "") + (", left out" if row.left_out else "")
        parts.append(
            f"**reward {row.reward:.3g}**, advantage {row.advantage:+.3g}, {row.tokens} tokens{end}"
        )
        parts.append(_quoted(row.response_text))
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    lines = shortened(text, SAMPLE_LETTERS).splitlines() or [""]
    return "\n".join("    " + line for line in lines)


def _tag(key: str) -> str:
    return key if "/" in key else f"{_group(key)}/{key}"


def _group(key: str) -> str:
    if key in GROUPS:
        return GROUPS[key]
    if key.endswith("_seconds"):
        return "seconds"
    prefix = key.partition("_")[0]
    return prefix if prefix in PREFIXES else "run"
