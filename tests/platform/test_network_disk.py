"""Work directories on file systems of a network: what these lack is done without, or refused."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs import tiny
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.platform import durable
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.trust.run_files import only_manager
from rlboost_jax.weights.snapshots import SnapshotStore


def refusing(number: int) -> Callable[..., None]:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("who", ["trainer", "manager"])
def test_without_locks_nobody_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(number))
    folder = tmp_path / "run"
    folder.mkdir()
    run = run_config(tiny.get_config())
    taken = Workdir(folder, run) if who == "trainer" else only_manager(folder)
    with pytest.raises(Mistake, match=r"lock cannot be locked.*choose a --workdir"), taken:
        pass
    assert not (folder / "config.json").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_without_second_names_a_file_is_copied(tmp_path: Path, number: int) -> None:
    (tmp_path / "one").write_bytes(b"content")
    durable.link(tmp_path / "one", tmp_path / "two", hard_link=refusing(number))
    assert (tmp_path / "two").read_bytes() == b"content"


def test_other_errors_of_linking_are_errors(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    with pytest.raises(OSError, match="No space"):
        durable.link(tmp_path / "one", tmp_path / "two", hard_link=refusing(errno.ENOSPC))


def test_a_version_takes_the_place_of_one_that_cannot_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has a file of it open: there it keeps a name of its own (`.nfs…`) until the end."""
    store = SnapshotStore(tmp_path, dtype="float32", keep=2)
    store.write(0, {"a": np.zeros(3, np.float32)}, "before")
    removed: list[str] = []
    monkeypatch.setattr("shutil.rmtree", lambda place, **options: removed.append(str(place)))
    manifest = store.write(0, {"a": np.ones(3, np.float32)}, "after")
    assert removed and manifest.params_digest == "after"
    assert SnapshotStore(tmp_path, dtype="float32", keep=2).versions == (0,)
