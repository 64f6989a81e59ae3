"""`metrics.jsonl`: one object per step, always with the same keys in the same order."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

FILE: Final = "metrics.jsonl"

KEYS: Final = (
    "step",
    "version",  # of the policy that sampled the step
    "reward_mean",
    "reward_std",
    "accuracy",  # greedy, on held-out prompts; null where not evaluated
    "loss",
    "kl",  # to the reference, nats per token
    "entropy",  # nats per token
    "clip_fraction",
    "response_tokens",
    "response_length_mean",
    "response_length_max",
    "step_seconds",  # from the end of the step before; evaluation left out
    "rollout_seconds",
    "train_seconds",
    "publish_seconds",  # copying the updated parameters to the host
    "train_wait_seconds",  # learner idle for want of groups, window excluded
    "remote_wait_seconds",  # servers idle while the learner finishes
    "seeding_window_seconds",
    "instances_mean",
    "instances_joined",
    "instances_lost",
    "requests_migrated",
    "tokens_generated",
    "tokens_delivered",
    "tokens_lost",
    "tokens_prefilled_again",
    "tokens_reserved",
    "tokens_preemptible",
    "cost_dollars",
    "tokens_per_dollar",
    "max_logprob_gap",  # nats
    "trajectories_digest",
    "params_digest",  # after the step
    "corrected_fraction",  # tokens whose weight a correction's bound changed; null without one
    "value_loss",  # of the critic, per token; null without one
)

Value = str | int | float | bool | None


class MetricsWriter:
    """Appends a row per step; each is on disk when `write` returns.

    Args:
        step: the first step to come. Rows of this step and later ones, left by a run that
            died after its last checkpoint, are taken out, and so is half a last line.
    """

    def __init__(self, workdir: str | Path, *, step: int = 0) -> None:
        path = Path(workdir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_metrics(workdir) if row["step"] < step]
        part = path.with_suffix(".part")
        part.write_text("".join(_line(row) for row in kept))
        part.replace(path)
        self._file: IO[str] = open(path, "a")  # noqa: SIM115  (open until `close`)

    def write(self, row: Mapping[str, Any]) -> dict[str, Value]:
        """Append a row and return it as written: all keys, null where `row` has none or a
        number that is not finite.

        Raises ValueError for a key that no row has, or a row without its step.
        """
        if unknown := row.keys() - set(KEYS):
            raise ValueError(f"unknown metrics {sorted(unknown)}; the keys are in {__name__}.KEYS")
        if row.get("step") is None:
            raise ValueError("a row needs its step")
        values = {key: _plain(row.get(key)) for key in KEYS}
        self._file.write(_line(values))
        self._file.flush()
        return values

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """The rows written so far, in order; none where there is no file."""
    return list(read_lines(Path(workdir) / FILE))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file. Lines cut off by a kill are passed over."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict):
            yield value


def _plain(value: Any) -> Value:
    """A JSON scalar; array scalars become Python's."""
    if value is not None and not isinstance(value, str | int | float | bool):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    plain: Value = value
    return plain


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"
