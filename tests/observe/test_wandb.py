"""The real library, offline: what is in the file that `wandb sync` uploads."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import base
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.observe.summary import summarize
from rlboost_jax.settings.config_loading import run_config, to_dict
from rlboost_jax.settings.run_config import RunConfig
from tests.observe.conftest import row, sample

pytest.importorskip("wandb", reason="the extra wandb is not installed")

RUN_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def run() -> RunConfig:
    config = base.get_config()
    config.observe.trackers = ("wandb",)
    config.observe.wandb.mode = "offline"
    config.observe.wandb.project = "clocks"
    return run_config(config)


@contextmanager
def tracking(run: RunConfig, workdir: Path) -> Iterator[Any]:
    import wandb

    from rlboost_jax.observe.wandb import WandbTracker

    tracker = WandbTracker(run, workdir, RUN_ID, note=lambda line: None)
    try:
        yield tracker
    finally:
        tracker.close()
        wandb.teardown()  # as at the end of a process: its own has then written everything


def lines(path: Path) -> Iterator[bytes]:
    """A wandb file is a LevelDB log: blocks of 32 KiB with chunks of checksum, size and kind."""
    data, at = path.read_bytes(), 7  # after its own header
    whole = b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # no room for a chunk's header
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the only chunk, or the last
            yield whole
            whole = b""


def records(workdir: Path) -> list[Any]:
    """Records of all starts, in order, as wandb's own protocol messages."""
    from wandb.proto import wandb_internal_pb2

    paths = sorted((workdir / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in paths} == {f"run-{RUN_ID}.wandb"}
    return [wandb_internal_pb2.Record.FromString(line) for path in paths for line in lines(path)]


def history(workdir: Path) -> list[dict[str, Any]]:
    return [
        {
            (item.key or ".".join(item.nested_key)): json.loads(item.value_json)
            for item in r.history.item
        }
        for r in records(workdir)
        if r.WhichOneof("record_type") == "history"
    ]


def test_rows_samples_config_and_summary_are_logged(run: RunConfig, tmp_path: Path) -> None:
    metrics = [metrics_row(row(step) | {"reward/format": 0.5}) for step in range(2)]
    summary = replace(summarize(metrics, reserved_price_per_hour=1.0), last_accuracy=0.75)
    with tracking(run, tmp_path) as tracker:
        tracker.samples([sample(step=0), sample(step=0, sample=1, rewards={"format": 1.0})])
        for values in metrics:
            tracker.step(values)
        tracker.finish(summary)
    logged = history(tmp_path)
    assert [values["_step"] for values in logged] == [0, 1]
    for values, expected in zip(logged, metrics, strict=True):
        known = {key: value for key, value in expected.items() if value is not None}
        assert {key: values.get(key) for key in known} == known
    assert logged[0]["samples.nrows"] == 2 and "samples.nrows" not in logged[1]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    columns = json.loads(table.read_text())["columns"]
    assert columns[:5] == ["step", "prompt", "response", "reward", "format"]

    started = [r.run for r in records(tmp_path) if r.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in started[0].config.update}
    assert json.loads(json.dumps(to_dict(run))).items() <= config.items()
    assert (started[0].project, started[0].display_name) == ("clocks", tmp_path.name)
    summaries = [r.summary for r in records(tmp_path) if r.WhichOneof("record_type") == "summary"]
    last = {
        (item.key or ".".join(item.nested_key)): json.loads(item.value_json)
        for one in summaries
        for item in one.update
    }
    assert last["last_accuracy"] == 0.75 and last["steps"] == 2
    codes = [r.exit.exit_code for r in records(tmp_path) if r.WhichOneof("record_type") == "exit"]
    assert codes == [0], "it is complete"


def test_a_step_done_again_by_a_restarted_run_is_there_once(run: RunConfig, tmp_path: Path) -> None:
    with tracking(run, tmp_path) as tracker:
        for step in range(3):
            tracker.samples([sample(step=step)])
            tracker.step(metrics_row(row(step)))
        tracker.samples([sample(step=3)])  # and then it was killed
    with tracking(run, tmp_path) as tracker:
        for step in range(1, 5):
            tracker.samples([sample(step=step)])
            tracker.step(metrics_row(row(step)))
    steps = [values["_step"] for values in history(tmp_path) if "loss" in values]
    assert steps == [0, 1, 2, 3, 4]
    samples = [values["_step"] for values in history(tmp_path) if "samples.nrows" in values]
    assert samples == [0, 1, 2, 3, 3, 4], "of a step without its row they may be there twice"
    codes = [r.exit.exit_code for r in records(tmp_path) if r.WhichOneof("record_type") == "exit"]
    assert codes == [1, 1], "neither was complete"


def test_without_a_key_for_the_service_it_says_what_to_do(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    online = replace(run.observe, wandb=replace(run.observe.wandb, mode="online"))
    with (
        pytest.raises(ValueError, match=r"wandb login.*observe\.wandb\.mode"),
        tracking(replace(run, observe=online), tmp_path),
    ):
        pass
