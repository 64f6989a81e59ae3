"""What MLflow keeps of a run: a stand-in shows what is asked of it, the real package what is there.

The real one is an extra; `docs/how-to/observability.md` says how to run this file with it.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from configs import base
from rlboost_jax.observe.metrics import metrics_row
from rlboost_jax.observe.summary import summarize
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, run_config_from_dict, to_dict
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.validation.run_checks import check_files
from tests.observe.conftest import row, sample

RUN_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def run() -> RunConfig:
    config = base.get_config()
    config.observe.mlflow.experiment = "clocks"
    return run_config(config)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`observe/mlflow.py`, of the package itself or of as much of it as its import needs."""
    try:
        import mlflow  # noqa: F401
    except ImportError:
        package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        package.MlflowClient = object  # type: ignore[attr-defined]
        entities.Metric = Number  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mlflow", package)
        monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delitem(sys.modules, "rlboost_jax.observe.mlflow", raising=False)
    from rlboost_jax.observe import mlflow as ours

    yield ours
    sys.modules.pop("rlboost_jax.observe.mlflow", None)


@dataclass(frozen=True)
class Number:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Server:
    """Keeps what it is given, as a client sees it."""

    experiments: dict[str, str | None] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    statuses: list[str | None] = field(default_factory=list)
    batches: list[list[Any]] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        self.experiments[name] = artifact_location
        return "7"

    def search_runs(self, experiment_ids: list[str], filter_string: str) -> list[Any]:
        assert experiment_ids == ["7"] and filter_string == f"tags.`rlboost.run_id` = '{RUN_ID}'"
        if not self.tags:
            return []
        newest = {number.key: number.value for batch in self.batches for number in batch}
        info, data = SimpleNamespace(run_id="r"), SimpleNamespace(metrics=newest)
        return [SimpleNamespace(info=info, data=data)]

    def create_run(self, experiment_id: str, *, tags: Any, run_name: str | None) -> Any:
        assert not self.tags, "one run of ours is one there"
        self.tags, self.name = tags, run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def update_run(self, run_id: str, status: str | None = None) -> None:
        self.statuses.append(status)

    def log_batch(self, run_id: str, metrics: Any) -> None:
        self.batches.append(list(metrics))

    def log_dict(self, run_id: str, dictionary: Any, artifact_file: str) -> None:
        self.files[artifact_file] = json.loads(json.dumps(dictionary))

    def set_terminated(self, run_id: str, status: str | None = None) -> None:
        self.statuses.append(status)


def tracker(module: Any, client: Any, run: RunConfig, workdir: Path, notes: list[str]) -> Any:
    return module.MlflowTracker(
        client, run, workdir, RUN_ID, artifacts="there", note=notes.append, clock=lambda: 2.5
    )


def test_a_run_is_logged_step_by_step(module: Any, run: RunConfig, tmp_path: Path) -> None:
    server, notes = Server(), list[str]()
    rows = [metrics_row(row(step) | {"reward/own.style:short,en": 0.5}) for step in range(2)]
    made = tracker(module, server, run, tmp_path, notes)
    made.samples([sample(step=0), sample(step=0, sample=1)])
    for values in rows:
        made.step(values)
    made.finish(replace(summarize(rows, reserved_price_per_hour=1.0), last_accuracy=0.75))
    made.close()
    assert server.experiments == {"clocks": "there"} and server.name == tmp_path.name
    assert notes == ["mlflow: run r of experiment 'clocks'"]
    for values, batch in zip(rows, server.batches, strict=False):
        logged = {number.key: number.value for number in batch}
        assert logged.pop("reward/own.style:short_en") == 0.5
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
        numbers.pop("reward/own.style:short,en")
        assert logged == numbers and {number.step for number in batch} == {values["step"]}
        assert {number.timestamp for number in batch} == {2500}
    assert {n.key: n.value for n in server.batches[2]}["summary/last_accuracy"] == 0.75
    assert list(server.files) == ["config.json", "samples/step-00000000.json"]
    assert server.files["config.json"] == json.loads(json.dumps(to_dict(run)))
    assert [r["sample"] for r in server.files["samples/step-00000000.json"]["rows"]] == [0, 1]
    assert server.statuses == ["FINISHED"]


def test_a_run_that_goes_on_is_the_same_run_and_logs_no_step_twice(
    module: Any, run: RunConfig, tmp_path: Path
) -> None:
    server = Server()
    for first, last in ((0, 3), (1, 5)):
        made = tracker(module, server, run, tmp_path, [])
        for step in range(first, last):
            made.samples([sample(step=step)])
            made.step(metrics_row(row(step)))
        made.close()
    assert [batch[0].step for batch in server.batches] == [0, 1, 2, 3, 4]
    assert server.statuses == ["KILLED", "RUNNING", "KILLED"]


def test_the_settings_are_checked_before_anything_starts(run: RunConfig) -> None:
    values = to_dict(run)

    def mistaken(**changes: Any) -> str:
        observe = {**values["observe"], "trackers": ["mlflow"]}
        observe["mlflow"] = {**observe["mlflow"], **changes}
        with pytest.raises(ConfigError) as caught:
            run_config_from_dict({**values, "observe": observe})
        return str(caught.value)

    assert "observe.mlflow.experiment is ''" in mistaken(experiment="")
    said = mistaken(uri="https://ann:secret@host/")
    assert "MLFLOW_TRACKING_USERNAME" in said and "secret" not in said
    tracked = replace(run, observe=replace(run.observe, trackers=("mlflow",)))
    with pytest.raises(ConfigError, match="'mlflow', which is not installed"):
        check_files(tracked, installed=lambda name: False)
    del values["observe"]["mlflow"]  # of a run from before there was one
    assert run_config_from_dict(values).observe.mlflow.uri == ""


@pytest.fixture
def real(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("mlflow.store.tracking.sqlalchemy_store", reason="the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield module


def test_the_package_itself_keeps_it_in_a_file(real: Any, run: RunConfig, tmp_path: Path) -> None:
    for first, last in ((0, 2), (1, 4)):
        client, artifacts = real.open_client(run, tmp_path)
        made = real.MlflowTracker(
            client, run, tmp_path, RUN_ID, artifacts=artifacts, note=lambda line: None
        )
        for step in range(first, last):
            made.samples([sample(step=step)])
            made.step(metrics_row(row(step)))
        rows = [metrics_row(row(step)) for step in range(last)]
        if last == 4:
            made.finish(summarize(rows, reserved_price_per_hour=1.0))
        made.close()
    (found,) = client.search_runs([client.get_experiment_by_name("clocks").experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == tmp_path.name
    for name in ("reward_mean", "tokens_generated"):
        history = client.get_metric_history(found.info.run_id, name)
        expected = [(step, float(values[name])) for step, values in enumerate(rows)]
        assert sorted((number.step, number.value) for number in history) == expected
    assert found.data.metrics["summary/steps"] == 4.0
    kept = {path.name for path in (tmp_path / "mlflow" / "artifacts").rglob("*.json")}
    assert kept == {"config.json", *(f"step-{step:08d}.json" for step in range(4))}
