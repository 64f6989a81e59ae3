"""Tracker for MLflow, on its server or in a file: numbers, samples and the configuration.

One run of ours is one run there, known by a tag with the id of its workdir, however often it is
started. Logged values stay: a step that is repeated after a crash keeps the row of its first time.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Protocol

# Before the import: what runs here is nobody's but the user's to know.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric

from rlboost_jax.observe.samples import SampleRow, sample_values
from rlboost_jax.observe.summary import Summary
from rlboost_jax.settings.config_loading import to_dict
from rlboost_jax.settings.run_config import RunConfig

FOLDER: Final = "mlflow"
RUN_ID: Final = "rlboost.run_id"  # the tag
STEP: Final = "step"  # the metric that says which step was logged last
CONFIG: Final = "config.json"
_FOREIGN: Final = re.compile(r"[^\w\-. :/]")  # in names of metrics


class Client(Protocol):
    """Part of `MlflowClient` that is needed here."""

    def get_experiment_by_name(self, name: str) -> Any: ...
    def create_experiment(self, name: str, artifact_location: str | None = None) -> str: ...
    def search_runs(self, experiment_ids: list[str], filter_string: str) -> Sequence[Any]: ...
    def create_run(
        self, experiment_id: str, *, tags: dict[str, Any] | None, run_name: str | None
    ) -> Any: ...
    def update_run(self, run_id: str, status: str | None = None) -> None: ...
    def log_batch(self, run_id: str, metrics: Sequence[Any]) -> Any: ...
    def log_dict(self, run_id: str, dictionary: dict[str, Any], artifact_file: str) -> None: ...
    def set_terminated(self, run_id: str, status: str | None = None) -> None: ...


class MlflowTracker:
    """Raises whatever MLflow does: no server, no right, no room; used behind `IsolatedTracker`.

    Args:
        run_id: of the workdir.
        artifacts: where a new experiment keeps files; None: as the server has it.
        note: shows a person a line: where the run is to be found.
    """

    def __init__(
        self,
        client: Client,
        run: RunConfig,
        workdir: Path,
        run_id: str,
        *,
        artifacts: str | None,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        settings = run.observe.mlflow
        self._client, self._clock, self._complete = client, clock, False
        known = client.get_experiment_by_name(settings.experiment)
        experiment = (
            client.create_experiment(settings.experiment, artifact_location=artifacts)
            if known is None
            else known.experiment_id
        )
        found = client.search_runs([experiment], f"tags.`{RUN_ID}` = '{run_id}'")
        if found:
            self._run, last = found[0].info.run_id, found[0].data.metrics.get(STEP)
            client.update_run(self._run, status="RUNNING")
        else:
            name = settings.name or workdir.name
            made = client.create_run(experiment, tags={RUN_ID: run_id}, run_name=name)
            self._run, last = made.info.run_id, None
        self._logged = -1 if last is None else int(last)
        client.log_dict(self._run, to_dict(run), CONFIG)
        note(f"mlflow: run {self._run} of experiment {settings.experiment!r}")

    def samples(self, rows: Sequence[SampleRow]) -> None:
        if rows and rows[0].step > self._logged:
            file = f"samples/step-{rows[0].step:08d}.json"
            self._client.log_dict(self._run, {"rows": [sample_values(row) for row in rows]}, file)

    def step(self, row: Mapping[str, Any]) -> None:
        if row["step"] <= self._logged:
            return
        self._log(row, step=row["step"])
        self._logged = row["step"]

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Do nothing: the summary has it, and a value could not be undone if steps are added."""

    def finish(self, summary: Summary) -> None:
        known = {f"summary/{name}": value for name, value in asdict(summary).items()}
        self._log(known, step=max(0, self._logged))
        self._complete = True

    def close(self) -> None:
        self._client.set_terminated(self._run, "FINISHED" if self._complete else "KILLED")

    def _log(self, values: Mapping[str, Any], *, step: int) -> None:
        """Log in one request: a step is there or it is not."""
        stamp = int(self._clock() * 1000)
        metrics = [
            Metric(_FOREIGN.sub("_", name), float(value), stamp, step)
            for name, value in values.items()
            if isinstance(value, int | float)
        ]
        self._client.log_batch(self._run, metrics=metrics)


def open_client(run: RunConfig, workdir: Path) -> tuple[Client, str | None]:
    """Open a client; also returns where experiments that it makes keep their files.

    With a file of its own all is in `<workdir>/mlflow`; `mlflow ui --backend-store-uri` shows it.
    Asks no server anything.
    """
    uri = run.observe.mlflow.uri or os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri:
        return MlflowClient(tracking_uri=uri), None
    folder = (workdir / FOLDER).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    return client, (folder / "artifacts").as_uri()
