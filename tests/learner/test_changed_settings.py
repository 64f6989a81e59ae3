"""A run whose settings were changed on the way: every step has its own, after a fallback too."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.folders import broken_in, steps_in
from rlboost_jax.learner.checkpoints.forking import CannotFork
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken
from rlboost_jax.learner.setup import preparation
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.workdir import Workdir, WorkdirUnusable
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.platform import at_rest
from rlboost_jax.settings.config_loading import Origin, read_changes, read_origin, read_run_id
from tests.learner.doubles import Loop, finished, train


class Noting(Loop):
    """Notes the learning rate and the KL coefficient of each step in place of its rewards, and
    adds the learning rate to the parameters: what they are says which rates all steps had."""

    def __init__(self, session):
        super().__init__(session)
        self.session, self.state, self.run = session, session.state, session.run

    def step(self, step):
        rate, kl = self.run.learner.learning_rate, self.run.algorithm.kl_coefficient
        params = jax.tree.map(lambda leaf: leaf + rate, self.state.params)
        self.state = dataclasses.replace(self.state, params=params, step=self.state.step + 1)
        digest = params_digest(jax.device_get(params))
        return finished(step, rewards=[rate] * 2, kl=kl, params_digest=digest)

    def save(self, step):
        extra = {"prompts_used": step, "window": None}
        self.session.checkpoints.save(step, self.state, extra)


@pytest.fixture(scope="module")
def first(config):
    """Run of three steps, all of whose checkpoints are kept."""
    return dataclasses.replace(
        config,
        num_steps=3,
        warmup=dataclasses.replace(config.warmup, max_updates=0),
        observe=dataclasses.replace(config.observe, live=False, trackers=()),
        checkpoint=dataclasses.replace(config.checkpoint, keep=9),
    )


def with_rate(run, rate, num_steps=None):
    learner = dataclasses.replace(run.learner, learning_rate=rate)
    return dataclasses.replace(run, learner=learner, num_steps=num_steps or run.num_steps)


def digests(workdir):
    return {row["step"]: row["params_digest"] for row in read_metrics(workdir)}


def rates(workdir):
    return [row["reward_mean"] for row in read_metrics(workdir)]


def spoil(workdir, step):
    place = workdir / "checkpoints" / str(step)
    path = max(place.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def original(first, tmp_path_factory):
    """Three steps at one rate, three at another; and the second half's settings."""
    workdir, second = tmp_path_factory.mktemp("original") / "run", with_rate(first, 0.5, 6)
    train(first, workdir, Noting)
    train(second, workdir, Noting)
    return workdir, second


@pytest.fixture
def copy(original, tmp_path):
    """Copy the original's folder, to spoil."""
    workdir = tmp_path / "copy"
    shutil.copytree(original[0], workdir)
    return workdir


def test_a_change_holds_from_the_step_that_is_gone_on_with(original):
    workdir, _ = original
    assert rates(workdir) == [0.01] * 3 + [0.5] * 3
    found = [(each.step, each.name, each.before, each.value) for each in read_changes(workdir)]
    assert found == [(3, "num_steps", 3, 6), (3, "learner.learning_rate", 0.01, 0.5)]


def test_changes_apply_again_at_their_steps_after_a_fallback(original, copy):
    workdir, second = original
    for step in (3, 4, 5, 6):
        spoil(copy, step)
    (copy / "summary.json").unlink()
    train(second, copy, Noting)
    assert broken_in(copy / "checkpoints") == [3, 4, 5, 6]
    assert digests(copy) == digests(workdir)
    assert read_changes(copy) == read_changes(workdir)


def test_a_run_without_changes_has_no_word_of_them(first, tmp_path):
    for _ in range(2):
        train(first, tmp_path, Noting)
    assert "changes" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(("step", "of"), [("2", 2), ("best", 1), ("newest", 6)])
def test_a_fork_goes_on_like_the_original(original, tmp_path, step, of):
    """It begins at each kept checkpoint, with the settings that the original had there."""
    workdir, second = original
    settings = with_rate(second, 0.01) if of < 3 else second
    settings = dataclasses.replace(settings, num_steps=max(of + 1, 3 if of < 3 else 6))
    if step == "best":
        (workdir / "best").mkdir(exist_ok=True)
        at_rest.write_sealed(workdir / "best" / "best.json", {"step": 1, "accuracy": 1.0})
    for _ in range(2):  # the same command goes on
        train(settings, tmp_path / "fork", Noting, fork=f"{workdir}@{step}")
    forked = digests(tmp_path / "fork")
    assert min(forked) == of and forked
    known = digests(workdir)
    assert all(known[s] == forked[s] for s in forked if s in known)
    origin = read_origin(tmp_path / "fork")
    assert origin == Origin(workdir=str(workdir), run_id=read_run_id(workdir), step=of)
    assert read_run_id(tmp_path / "fork") != origin.run_id


def test_a_fork_needs_the_other_run_no_longer_once_it_has_begun(copy, original, tmp_path):
    _, second = original
    fork, name = tmp_path / "fork", f"{copy}@4"
    train(second, fork, Noting, fork=name)
    shutil.rmtree(copy)
    longer = dataclasses.replace(second, num_steps=7)
    train(longer, fork, Noting, fork=name)
    assert sorted(digests(fork)) == [4, 5, 6]


def test_what_cannot_be_forked_is_said_before_anything_is_written(original, copy, tmp_path):
    workdir, second = original
    fork = tmp_path / "fork"

    def refused(name, run=second):
        with pytest.raises((CannotFork, CheckpointBroken)) as caught:
            train(run, fork, Noting, fork=name)
        assert not fork.exists() and "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such checkpoint is kept; kept: 0, 1, 2, 3, 4, 5, 6" in refused(f"{workdir}@9")
    assert "is no workdir of a run; give RUN@STEP" in refused(f"{tmp_path}@3")
    wide = dataclasses.replace(second, model=dataclasses.replace(second.model, hidden_dim=64))
    assert "of another model or learner (model.hidden_dim: 32 → 64)" in refused(
        f"{workdir}@3", wide
    )
    assert "num_steps is 3, and 4 steps are done" in refused(
        f"{workdir}@4", dataclasses.replace(second, num_steps=3)
    )
    spoil(copy, 4)
    assert "that checkpoint is broken" in refused(f"{copy}@4")


def test_a_fork_takes_no_folder_of_another_run(original, copy):
    workdir, second = original
    with pytest.raises(CannotFork, match="holds a run that is no fork"):
        train(second, copy, Noting, fork=f"{workdir}@3")


def test_a_fork_that_was_killed_while_it_was_made_is_made_again(original, tmp_path):
    workdir, second = original
    origin = Origin(workdir=str(workdir), run_id=read_run_id(workdir), step=4)
    with Workdir(tmp_path / "fork", second, fork=origin):
        (tmp_path / "fork" / "checkpoints" / "4.part" / "state").mkdir(parents=True)
    train(second, tmp_path / "fork", Noting)  # without --fork, even
    assert sorted(digests(tmp_path / "fork")) == [4, 5]


def test_a_fork_without_an_update_of_its_own_begins_anew_with_other_settings(original, tmp_path):
    workdir, second = original
    origin = Origin(workdir=str(workdir), run_id=read_run_id(workdir), step=4)
    with Workdir(tmp_path / "fork", second, fork=origin):
        pass
    other = dataclasses.replace(second, seed=second.seed + 1)
    train(other, tmp_path / "fork", Noting)
    assert sorted(digests(tmp_path / "fork")) == [4, 5]
    again = dataclasses.replace(other, seed=second.seed + 2)
    with pytest.raises(WorkdirUnusable, match="another configuration"):
        train(again, tmp_path / "fork", Noting)


class Breaking(Noting):
    """As a reward does that cannot be called."""

    def step(self, step):
        raise RuntimeError("broken")


def test_a_mistake_before_the_first_update_needs_no_new_folder(first, tmp_path):
    """Even another model may follow: nothing of the first one is left."""
    with pytest.raises(RuntimeError, match="broken"):
        train(first, tmp_path, Breaking)
    assert steps_in(tmp_path / "checkpoints") == [0]
    wide = dataclasses.replace(first, model=dataclasses.replace(first.model, hidden_dim=64))
    train(wide, tmp_path, Noting)
    assert rates(tmp_path) == [0.01] * 3
    with pytest.raises(WorkdirUnusable, match=r"model\.hidden_dim: 64 → 32"):
        train(first, tmp_path, Noting)


def test_a_fork_with_a_kl_term_compares_with_what_it_began_with(config, learner_step, tmp_path):
    """Where the other run has kept no starting model."""
    algorithm = dataclasses.replace(config.algorithm, kl_coefficient=0.1)
    run, learner = dataclasses.replace(config, algorithm=algorithm), learner_step()
    state = init_state(init_params(run.model, 3), learner.optimizer, learner.shardings)
    forked = dataclasses.replace(state, step=np.int32(4))
    reference = preparation._reference(run, tmp_path, learner, forked, begins=4)
    assert params_digest(reference) == params_digest(state.params)
    later = init_state(init_params(run.model, 5), learner.optimizer, learner.shardings)
    reference = preparation._reference(run, tmp_path, learner, later, begins=4)
    assert params_digest(reference) == params_digest(state.params)
