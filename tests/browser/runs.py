"""Runs that never were, of any length."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from configs import base
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.history import WARMUP
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.settings.config_loading import run_config, write_run_config
from tests.observe.conftest import EPOCH, row

SERVERS = 8  # at once, each for two minutes
EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script> ‮\u2028🙂'
STEPS_KEPT = 40  # samples are of every so many steps


def write_run(folder: Path, *, steps: int, hours: float) -> Path:
    folder.mkdir()
    write_run_config(folder / "config.json", run_config(base.get_config()), "abc123")
    with FilesTracker(folder) as files:
        for values in rows(0, steps):
            files.step(values)
    losses = [{"step": update, "loss": 2.5 - update} for update in range(3)]
    (folder / WARMUP).write_text("".join(json.dumps(loss) + "\n" for loss in losses))
    with open(folder / "samples.jsonl", "w") as file:
        for step in range(0, steps, STEPS_KEPT):
            file.writelines(json.dumps(sample) + "\n" for sample in samples(step))
    append_events(folder, 0.0, hours)
    (folder / "logs").mkdir()
    (folder / "logs" / "manager.log").write_text(f"a line\n{EVIL}\n")
    return folder


def rows(begin: int, end: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(begin)
    for step in range(begin, end):
        draw = rng.random(6)
        more = {"reward/format": draw[4], "reward/answer": draw[5]}
        values = row(
            step,
            entropy=1 + draw[0],
            gradient_norm=draw[1],
            learning_rate=1e-6,
            clip_fraction=0.1 * draw[2],
            truncated_fraction=0.2 * draw[3],
            uniform_groups_fraction=0.3,
            cost_forecast_dollars=100.0,
        )
        yield metrics_row({**values, **more})


def samples(step: int) -> Iterator[dict[str, Any]]:
    """Samples of an environment; odd ones are as written before environments existed."""
    for number in range(8):
        turns = [["sampled", EVIL], ["given", "9"]] if number == 1 else []
        lost = f"its tool is gone {EVIL}" if number == 6 else ""
        now = {"turns": turns_of(number), "trained": number != 4, "left_out": lost}
        yield {
            "step": step,
            "prompt": 0,
            "sample": number,
            "prompt_text": f"What is {step // STEPS_KEPT % 9} + 1? {EVIL}",
            "response_text": f"Let me think about step {step}. {EVIL} " * 30 + str(number),
            "tokens": 200,
            "cut_off": number == 3,
            "reward": float(number % 2),
            "advantage": 0.5,
            "rewards": {},
            **({"turns": turns} if number % 2 else now),
        }


def turns_of(number: int) -> list[dict[str, Any]]:
    """Three turns in two sequences, with words that have no end."""
    call = {"name": f"search_{EVIL}", "failed": number == 2}
    return [
        {"sampled": True, "text": f"I ask. {EVIL}", "sequence": 0, "turn": 0, "reward": 0.0,
         "advantage": -0.5, "calls": [call, {"name": "add" * 60, "failed": False}]},
        {"sampled": False, "text": "found" * 90, "sequence": 0, "turn": None, "reward": None,
         "advantage": None, "calls": []},
        {"sampled": True, "text": "so it is", "sequence": 0, "turn": 1, "reward": 0.25,
         "advantage": 0.5, "calls": []},
        {"sampled": False, "text": "Begin anew.", "sequence": 1, "turn": None, "reward": None,
         "advantage": None, "calls": []},
        {"sampled": True, "text": "12", "sequence": 1, "turn": 2, "reward": 1.0,
         "advantage": 1.5, "calls": []},
    ]  # fmt: skip


def append_events(folder: Path, begin: float, end: float) -> int:
    """Append hours of events of a fleet under attack; returns how many lines."""
    lines = []
    for number in range(int(begin * 30 * SERVERS), int(end * 30 * SERVERS)):
        name, born = f"spot-{number}", number * 120 / SERVERS
        reason = {"reason": f"stream closed {EVIL}"}
        for seconds, kind, detail in (
            (0, "ordered", {}),
            (8, "joined", {"price_per_hour": 1.0}),
            (13, "ready", {"version": 1}),
            (15, "pulled", {"version": 1, "seconds": 1.0}),
            (40, "migrated", {"from": name, "to": "x", "count": 3, "tokens": 99}),
            (70, "worked", {"seconds": 1.0, "tokens": 99}),
            (118, "lost", reason),
        ):
            lines.append((born + seconds, kind, name, detail))
    with open(folder / "events.jsonl", "a") as file:
        for seconds, kind, name, detail in sorted(lines, key=lambda line: line[0]):
            event = {"time": EPOCH + seconds, "step": 1, "kind": kind, "instance": name}
            file.write(json.dumps({**event, "detail": detail}) + "\n")
    return len(lines)
