"""The command that measures a checkpoint, against the engine-free arithmetic of a known policy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from configs import tiny
from rlboost_jax.cli import evaluate
from rlboost_jax.data.tasks import Task
from rlboost_jax.environments.hosted import EpisodeFailed
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.checkpoints.reading import CheckpointNotFound
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import TrainState
from rlboost_jax.models.params import init_params
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import read_run_config, run_config, write_run_config
from rlboost_jax.settings.run_config import RunConfig

pytestmark = pytest.mark.optimized(False)  # what is sampled is compared with itself


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of random parameters, the first kept as the best."""
    folder = tmp_path_factory.mktemp("run")
    run = run_config(tiny.get_config())
    run = replace(run, engine=replace(run.engine, slots=8))
    write_run_config(folder / "config.json", run, "f00d")
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        for step in (3, 4):
            params = jax.device_get(init_params(run.model, step))
            opt_state = optax.adam(1e-3).init(params)
            state = TrainState(params=params, opt_state=opt_state, step=np.int32(step))
            checkpoints.save(step, state, {})
            if step == 3:
                BestCheckpoint(folder, checkpoints).offer(3, 0.5)
    return folder


class Judge(Task):
    """Notes all responses that it is asked about; those of an even first token are right."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run.task)
        self.responses: list[list[int]] = []

    def reward(self, problem: Any, response_tokens: Any) -> float:
        self.responses.append(np.asarray(response_tokens).tolist())
        return float(self.responses[-1][0] % 2 == 0)


@pytest.fixture
def judge() -> Judge:
    return Judge(run_config(tiny.get_config()))


def test_the_newest_checkpoint_greedily(workdir: Path, judge: Judge) -> None:
    score = evaluate.evaluate(workdir, exercises=lambda run: judge, num_prompts=5)
    assert (score["step"], score["prompts"], score["samples"]) == (4, 5, 1)
    assert len(judge.responses) == 5
    right = [tokens[0] % 2 == 0 for tokens in judge.responses]
    assert score["accuracy"] == score["best"] == np.mean(right)
    again = judge.responses.copy()
    judge.responses.clear()
    evaluate.evaluate(workdir, exercises=lambda run: judge, num_prompts=5)
    assert judge.responses == again, "greedy"


def test_several_responses_and_the_best_checkpoint(
    workdir: Path, judge: Judge, capsys: Any
) -> None:
    options = ["--best", "--prompts=3", "--samples=4", "--temperature=1.5"]
    evaluate.main([f"--workdir={workdir}", *options], exercises=lambda run: judge)
    score = json.loads(capsys.readouterr().out)
    assert (score["step"], score["prompts"], score["samples"]) == (3, 3, 4)
    right = np.array([tokens[0] % 2 == 0 for tokens in judge.responses]).reshape(3, 4)
    assert score["accuracy"] == right.mean() and score["best"] == right.any(axis=1).mean()
    assert len({tuple(tokens) for tokens in judge.responses}) > 3, "each has noise of its own"


def with_environment(workdir: Path, folder: Path, **environment: Any) -> Path:
    """The same checkpoints, of a run with an environment that speaks in token ids."""
    run = read_run_config(workdir)
    run = replace(
        run,
        task=replace(run.task, name="environment"),
        environment=replace(
            run.environment,
            **{"name": "drawers", "max_given_tokens": 24, "workers": 1, **environment},
        ),
    )
    write_run_config(folder / "config.json", run, "f00d")
    (folder / "checkpoints").symlink_to(workdir / "checkpoints")
    return folder


def test_episodes_of_an_environment(workdir: Path, tmp_path: Path) -> None:
    """Random parameters: what they come to is compared in `tests/system/test_tools_quickstart.py`.
    The folder of the run stays as it is."""
    folder = with_environment(workdir, tmp_path)
    score = evaluate.evaluate(folder, num_prompts=5, samples=3, temperature=2.0)
    assert (score["step"], score["prompts"], score["samples"]) == (4, 5, 3)
    assert 0 <= score["accuracy"] <= score["best"] <= 1 and score["left_out"] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "config.json"]


def test_an_environment_that_fails(workdir: Path, tmp_path: Path) -> None:
    failing = {"name": "tests.environments.speakers:Fails", "attempts": 1}
    folder = with_environment(workdir, tmp_path, **failing)
    score = evaluate.evaluate(folder, num_prompts=2)
    assert np.isnan(score["accuracy"]) and score["left_out"] == 2
    folder = with_environment(workdir, _made(tmp_path / "stop"), **failing, on_failure="stop")
    with pytest.raises(EpisodeFailed):
        evaluate.evaluate(folder, num_prompts=2)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_mistakes(workdir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="checkpoint 9 is not in"):
        evaluate.evaluate(workdir, step=9)
    with pytest.raises(ConfigError, match="samples is 4 and evaluation"):
        evaluate.evaluate(workdir, samples=4)
    with pytest.raises(ConfigError, match="give the workdir of a run"):
        evaluate.evaluate(tmp_path)
