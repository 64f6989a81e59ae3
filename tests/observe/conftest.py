"""A run that never was: rows and events of the kinds that the real writers write."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import base
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.settings.config_loading import run_config, write_run_config

EPOCH = 1_750_000_000.0


def row(step: int, **changes: object) -> dict[str, object]:
    """A row in which the books balance: generated = delivered + lost = reserved + preemptible."""
    rng = np.random.default_rng(step)
    reward = float(0.95 - 0.8 * np.exp(-step / 8) + 0.02 * rng.standard_normal())
    length = 6 + 26 * (reward - 0.15)
    tokens = round(192 * length)
    lost = int(rng.integers(0, 20)) if step % 3 == 0 else 0
    reserved = int(0.2 * tokens)
    rollout = tokens / 12_000
    values: dict[str, object] = {
        "step": step,
        "version": step,
        "reward_mean": reward,
        "reward_std": 0.4,
        "accuracy": round(reward, 3) if step % 5 == 0 else None,
        "loss": -0.01,
        "response_tokens": tokens,
        "response_length_mean": length,
        "response_length_max": 150,
        "step_seconds": rollout + 0.3,
        "rollout_seconds": rollout,
        "train_seconds": 0.2,
        "publish_seconds": 0.02,
        "train_wait_seconds": 0.6 * rollout,
        "remote_wait_seconds": 0.2,
        "seeding_window_seconds": 0.15 + 0.1 * np.exp(-step / 10),
        "instances_mean": 2.4,
        "instances_joined": step % 2,
        "instances_lost": int(lost > 0),
        "requests_migrated": 12 * int(lost > 0),
        "tokens_generated": tokens + lost,
        "tokens_delivered": tokens,
        "tokens_lost": lost,
        "tokens_reserved": reserved,
        "tokens_preemptible": tokens + lost - reserved,
        "cost_dollars": (rollout + 0.3) * (10.47 + 2.4 * 2.66) / 3600,
        "max_logprob_gap": 4.8e-7,
        "trajectories_digest": f"{step:064x}",
        "params_digest": f"{step + 1:064x}",
    }
    return {**values, **changes}


def sample(**changes: Any) -> SampleRow:
    """A right answer of step 20."""
    values: dict[str, Any] = {
        "step": 20,
        "prompt": 0,
        "sample": 0,
        "prompt_text": "<begin> 5 2 [10] =",
        "response_text": "# 5 <end>",
        "tokens": 3,
        "cut_off": False,
        "reward": 1.0,
        "advantage": 0.5,
    }
    return SampleRow(**values | changes)


@pytest.fixture
def rows() -> list[dict[str, object]]:
    return [row(step) for step in range(60)]


@pytest.fixture
def workdir(tmp_path: Path, rows: list[dict[str, object]]) -> Path:
    """Config, 60 rows of metrics, and about a minute of a fleet that is shot at."""
    folder = tmp_path / "quickstart"
    folder.mkdir()
    write_run_config(folder / "config.json", run_config(base.get_config()), "abc123")
    with FilesTracker(folder) as files:
        for values in rows:
            files.step(metrics_row(values))
    rng = np.random.default_rng(0)
    events: list[tuple[float, str, str, dict[str, object]]] = [
        (0.0, "joined", "trainer", {"reserved": True}),
        (0.4, "ready", "trainer", {}),
    ]
    count = 0
    for _ in range(3):  # servers at once
        now = float(rng.uniform(0.2, 1.5))
        while now < 70:
            name, count = f"local-{count}", count + 1
            end = now + 1.2 + float(rng.exponential(8))
            events.append((now, "joined", name, {"price_per_hour": 2.66}))
            events.append((now + 1.1, "ready", name, {"seconds": 0.2}))
            if end < 70:
                kind = "drained" if rng.random() < 0.15 else "lost"
                events.append((end, kind, name, {"reason": "stream closed"}))
            now = end + float(rng.exponential(2))
    with EventsWriter(folder) as writer:
        for now, kind, name, detail in sorted(events, key=lambda event: event[0]):
            writer.write(time=EPOCH + now, step=int(now), kind=kind, instance=name, detail=detail)
    return folder
