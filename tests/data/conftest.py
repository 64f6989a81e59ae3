"""Small data sets of our own, with the columns that the real ones have."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs import base
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from tests.patience import PATIENCE_SECONDS

GSM8K = [
    {
        "question": f"Ann has {n} apples and buys {n + 1} more. How many has she?",
        "answer": f"She has {n} + {n + 1} = <<{n}+{n + 1}={2 * n + 1}>>.\n#### {2 * n + 1:,}",
    }
    for n in range(400, 640)
]


@pytest.fixture
def build() -> Callable[..., RunConfig]:
    """`build(source=…, rewards=[…], max_prompt_tokens=…)`: a run on a data set."""

    def built(
        source: Path | str,
        *,
        rewards: Sequence[Mapping[str, Any]] = ({"name": "exact"},),
        engine_prompt_tokens: int = 256,
        evaluate: int = 0,
        **data: Any,
    ) -> RunConfig:
        config = base.get_config()
        config.task.name = "dataset"
        config.warmup.max_updates = 0
        config.model.vocab_size = 512
        config.engine.max_prompt_tokens = engine_prompt_tokens
        config.evaluation.every_steps = evaluate
        config.data.update({"tokenizer": "bytes", **data})
        config.data.source = str(source)
        config.rewards.functions = tuple(rewards)
        config.rewards.workers = 1
        config.rewards.time_limit_seconds = PATIENCE_SECONDS
        return run_config(config)

    return built


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """`write_lines([{…}, "broken"])`: a JSONL file of objects, and of lines as they are."""

    def written(rows: Sequence[Mapping[str, Any] | str], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return written


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets start no processes of reward functions."""

    class Nobody:
        sees_groups = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            pass

        def close(self) -> None:
            pass

    for module in ("dataset", "mixture"):
        monkeypatch.setattr(f"rlboost_jax.data.{module}.Judge", Nobody)
