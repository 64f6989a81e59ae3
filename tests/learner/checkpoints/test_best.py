"""The best checkpoint stays, whatever becomes of the newest ones."""

from pathlib import Path

import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.best import BestCheckpoint, best_step
from rlboost_jax.learner.checkpoints.writing import Checkpoints


def saved(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, {"weight": np.full(3, step, np.float32)}, {"step": step})


def kept(workdir: Path, step: int) -> list[float]:
    """What the kept checkpoint of a step holds."""
    with Checkpoints(workdir / "best", keep=99) as checkpoints:
        state, extra = checkpoints.restore(step, {"weight": np.zeros(3, np.float32)})
    assert extra == {"step": step}
    return np.asarray(state["weight"]).tolist()


def test_the_best_outlives_the_newest(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        best = BestCheckpoint(tmp_path, checkpoints)
        offers = []
        for step, accuracy in enumerate([0.2, 0.6, 0.5, 0.6, 0.7, 0.1]):
            saved(checkpoints, step)
            offers.append(best.offer(step, accuracy))
            checkpoints.wait()
            step_of_best = best_step(tmp_path)
            assert step_of_best is not None
            assert kept(tmp_path, step_of_best[0]) == [step_of_best[0]] * 3
        assert offers == [True, True, False, False, True, False]
    assert best_step(tmp_path) == (4, 0.7)
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["4", "best.json"]
    assert not (tmp_path / "checkpoints" / "4").exists()


def test_what_has_no_checkpoint_is_not_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        best = BestCheckpoint(tmp_path, checkpoints)
        saved(checkpoints, 0)
        assert not best.offer(3, 1.0)
    assert best_step(tmp_path) is None


def test_another_process_knows_what_was_best(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        saved(checkpoints, 0)
        assert BestCheckpoint(tmp_path, checkpoints).offer(0, 0.5)
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        saved(checkpoints, 1)
        assert not BestCheckpoint(tmp_path, checkpoints).offer(1, 0.5)
        assert BestCheckpoint(tmp_path, checkpoints).offer(1, 0.6)
    assert kept(tmp_path, 1) == [1.0] * 3


@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_amid_keeping_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with Checkpoints(tmp_path / "checkpoints", keep=9) as checkpoints:
        best = BestCheckpoint(tmp_path, checkpoints)
        saved(checkpoints, 0)
        best.offer(0, 0.5)
        saved(checkpoints, step)
        checkpoints.wait()
        with monkeypatch.context() as broken:
            broken.setattr(Path, "replace", lambda *_: 1 / 0)
            best.offer(step, 0.6)
            with pytest.raises(ZeroDivisionError):
                checkpoints.wait()
        assert best_step(tmp_path) == (0, 0.5) and kept(tmp_path, 0) == [0.0] * 3
        assert best.offer(step, 0.6), "and it can be kept after all"
    assert best_step(tmp_path) == (step, 0.6)
