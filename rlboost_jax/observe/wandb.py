"""Tracker for Weights & Biases, at their service or in a folder to sync: numbers and samples.

One run of ours is one run there, under the id of its workdir, however often it is started.
Nothing that was logged there can be taken back: a step that is done again after a crash keeps
the row of its first time. Offline no network is touched; `wandb sync <workdir>/wandb/offline-run-*`
uploads later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import wandb

from rlboost_jax.observe.samples import SampleRow, part_names, shortened
from rlboost_jax.observe.summary import Summary
from rlboost_jax.platform.bounded_files import read_text
from rlboost_jax.settings.config_loading import to_dict
from rlboost_jax.settings.run_config import RunConfig

INIT_SECONDS: Final = 60.0  # for the service to answer at the start
FINISH_SECONDS: Final = 45.0  # for the last uploads; `aside.CLOSE_SECONDS` is longer
SAMPLE_LETTERS: Final = 20_000  # of a prompt and of a response
LAST_STEP: Final = "last_step"  # in the folder: the newest step that was logged completely


class WandbTracker:
    """Raises whatever wandb does: no key, no service, no room; used behind `IsolatedTracker`.

    Args:
        run_id: of the workdir.
        note: shows a person a line: where the run is to be found.
    """

    def __init__(
        self, run: RunConfig, workdir: Path, run_id: str, *, note: Callable[[str], None]
    ) -> None:
        settings = run.observe.wandb
        folder = workdir / "wandb"
        folder.mkdir(parents=True, exist_ok=True)  # else wandb takes another one
        self._last = folder / LAST_STEP
        self._logged = _last_step(self._last)
        if settings.mode == "online" and not wandb.login(prompt=False):
            raise ValueError(
                "no key for the service; run `wandb login`, or set observe.wandb.mode to 'offline'"
            )
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity or None,
            name=settings.name or workdir.name,
            id=run_id,
            resume="allow",
            config=to_dict(run),
            dir=workdir,
            mode=settings.mode,  # type: ignore[arg-type]  # checked with the configuration
            settings=wandb.Settings(
                console="off",  # what is printed is the live view
                silent=True,
                init_timeout=INIT_SECONDS,
                finish_timeout=FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        self._complete = False
        offline = settings.mode == "offline"
        note(f"wandb: {self._run.settings.sync_dir if offline else self._run.url}")

    def samples(self, rows: Sequence[SampleRow]) -> None:
        if rows and rows[0].step > self._logged:
            self._run.log({"samples": _table(rows)}, step=rows[0].step)

    def step(self, row: Mapping[str, Any]) -> None:
        if row["step"] <= self._logged:
            return
        values = {key: value for key, value in row.items() if value is not None}
        self._run.log(values, step=row["step"])
        self._logged = row["step"]
        part = self._last.with_suffix(".part")
        part.write_text(str(self._logged))
        part.replace(self._last)

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Do nothing: the summary has it, and a value could not be undone if steps are added."""

    def finish(self, summary: Summary) -> None:
        known = {key: value for key, value in asdict(summary).items() if value is not None}
        self._run.summary.update(known)
        self._complete = True

    def close(self) -> None:
        """Finish the upload. Raises if not everything could be uploaded in time."""
        self._run.finish(exit_code=0 if self._complete else 1)


def _last_step(path: Path) -> int:
    """Last logged step; -1 if there is none, or a power cut has taken the file.

    The file may lose what is newer than what wandb has kept, never the other way round, so nothing
    here is synced.
    """
    try:
        return int(read_text(path, 100))
    except (FileNotFoundError, ValueError):
        return -1


def _table(rows: Sequence[SampleRow]) -> wandb.Table:
    parts = part_names(rows)
    columns: list[str | int] = [
        "step",
        "prompt",
        "response",
        "reward",
        *parts,
        "advantage",
        "tokens",
        "cut_off",
    ]
    return wandb.Table(
        columns=columns,
        data=[
            [
                row.step,
                shortened(row.prompt_text, SAMPLE_LETTERS),
                shortened(row.response_text, SAMPLE_LETTERS),
                row.reward,
                *(row.rewards.get(name) for name in parts),
                row.advantage,
                row.tokens,
                row.cut_off,
            ]
            for row in rows
        ],
    )
