import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import (
    KEYS,
    MEANINGS,
    document,
    metrics_row,
    read_metrics,
    read_rows,
)

# As the design fixes them; other tools read these files.
DESIGNED = """step, version, prompts_used, reward_mean, reward_std, reward_failures, accuracy,
pass_at_k, loss, kl, entropy, clip_fraction, response_tokens, response_length_mean,
response_length_max, step_seconds, rollout_seconds, train_seconds, publish_seconds,
train_wait_seconds,
remote_wait_seconds, seeding_window_seconds, instances_mean, instances_joined, instances_lost,
requests_migrated, tokens_generated, tokens_delivered, tokens_lost, tokens_filtered,
tokens_prefilled_again, tokens_reserved, tokens_preemptible, tokens_measured, cost_dollars,
tokens_per_dollar, cost_forecast_dollars, max_logprob_gap, trajectories_digest, params_digest,
corrected_fraction, value_loss, lag, ratio_mean, behaviour_kl, gradient_norm, learning_rate,
truncated_fraction, uniform_groups_fraction, cost_between_dollars, line_round_trip_median,
line_round_trip_worst, line_losses_median, line_losses_worst, lease_seconds_median,
lease_seconds_worst, parked_share, turns_mean, sequences_mean, returned_share, tool_calls,
tool_failures, environment_seconds, tokens_retokenised, episodes_left_out, groups_filled_up,
slots_lent_mean, instances_frozen_mean, rollouts_handed_back, learner_devices, max_choice_gap,
max_mean_choice_gap, rounded_choices, durable_step, copied_step,
instances_left, tokens_drafted, drafts_accepted, decode_steps_saved,
dollars_saved, weights_from_servers, final"""


def test_the_keys_are_stable() -> None:
    assert list(KEYS) == DESIGNED.replace("\n", " ").split(", ")


def test_the_page_of_metrics_is_made_of_their_meanings() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    command = "python -m rlboost_jax.observe.metrics > docs/reference/metrics.md"
    assert page.read_text() == document(), command
    assert all(f"| `{key}` | {meaning} |" in document() for key, meaning in MEANINGS.items())


def test_every_row_has_every_key_in_order(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(metrics_row({"loss": 0.5, "step": 0}))
    line = (tmp_path / "metrics.jsonl").read_text()
    assert list(json.loads(line)) == list(KEYS)
    assert read_metrics(tmp_path) == [dict.fromkeys(KEYS) | {"step": 0, "loss": 0.5}]


def test_a_row_can_be_read_once_it_is_written(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(metrics_row({"step": 0}))
        files.written()
        assert len(read_metrics(tmp_path)) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_no_number_is_null(tmp_path: Path, value: float) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(metrics_row({"step": 0, "kl": value}))
    assert '"kl": null' in (tmp_path / "metrics.jsonl").read_text()


def test_array_scalars_are_numbers(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(
            metrics_row({"step": np.int64(3), "loss": jnp.float32(0.25), "accuracy": np.float64(1)})
        )
    (row,) = read_metrics(tmp_path)
    assert (row["step"], row["loss"], row["accuracy"]) == (3, 0.25, 1.0)


def test_a_key_of_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match="reward_men"):
        metrics_row({"step": 0, "reward_men": 1.0})
    with pytest.raises(ValueError, match="step"):
        metrics_row({"loss": 1.0})


def test_numbers_of_a_group_follow_the_stable_keys(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(
            metrics_row({"reward/format": np.float32(0.5), "step": 0, "reward/length": math.nan})
        )
    line = (tmp_path / "metrics.jsonl").read_text()
    assert list(json.loads(line)) == [*KEYS, "reward/format", "reward/length"]
    (row,) = read_metrics(tmp_path)
    assert (row["reward/format"], row["reward/length"]) == (0.5, None)


def test_a_resumed_run_takes_out_what_it_does_again(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        for step in range(5):
            files.step(metrics_row({"step": step, "loss": 1.0}))
    with FilesTracker(tmp_path, step=3) as files:
        assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2]
        files.step(metrics_row({"step": 3, "loss": 2.0}))
    assert [(row["step"], row["loss"]) for row in read_metrics(tmp_path)][2:] == [(2, 1), (3, 2)]


def test_the_final_evaluation_is_no_step_and_goes_where_the_run_gets_more(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(metrics_row({"step": 0}))
        files.evaluated(metrics_row({"step": 1, "final": True, "accuracy": 0.5}))
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]
    assert [row["accuracy"] for row in read_rows(tmp_path)] == [None, 0.5]
    with FilesTracker(tmp_path, step=1) as files:
        files.step(metrics_row({"step": 1}))
    assert [row["final"] for row in read_rows(tmp_path)] == [None, None]


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.step(metrics_row({"step": 0}))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 1, "ver')
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]
    with FilesTracker(tmp_path, step=1) as files:
        files.step(metrics_row({"step": 1}))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1]


def test_no_file_is_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
