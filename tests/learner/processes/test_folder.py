"""Processes that do not share their workdir find out before anything is trained."""

import queue
import shutil
import threading

import pytest

from rlboost_jax.learner.processes.follower import OtherFolder, accept
from rlboost_jax.learner.processes.leader import FollowerLost, invite
from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.platform import exits
from tests.patience import PATIENCE_SECONDS

LEADER, FOLLOWER = (ProcessGroup(index=i, count=2, coordinator="127.0.0.1:1") for i in range(2))


@pytest.fixture
def meet(tmp_path):
    """`meet(folder)`: what becomes of process 0 in `tmp_path`, and of the other in `folder`."""
    word = queue.Queue()

    def tell(said):
        if said is not None:
            word.put(said)
        return said or word.get(timeout=PATIENCE_SECONDS)

    def meet(folder):
        found = []

        def follow():
            try:
                with accept(FOLLOWER, folder, tell) as leader:
                    found.append(leader._next())
            except OtherFolder as error:
                found.append(error)

        following = threading.Thread(target=follow)
        following.start()
        try:
            with invite(LEADER, tmp_path, tell) as followers:
                found.append(bool(followers))
        except FollowerLost as error:
            found.append(error)
        following.join(PATIENCE_SECONDS)
        return found

    return meet


def test_one_folder_is_one(meet, tmp_path):
    assert meet(tmp_path) == [True, None]
    assert not list(tmp_path.iterdir()), "nothing is left of the proof"


def test_a_copy_of_the_folder_is_another_folder(meet, tmp_path, tmp_path_factory):
    (tmp_path / "config.json").write_text("{}")
    other = tmp_path_factory.mktemp("host-1") / "run"
    shutil.copytree(tmp_path, other)
    found = meet(other)
    (mistake,) = [each for each in found if isinstance(each, OtherFolder)]
    (loss,) = [each for each in found if isinstance(each, FollowerLost)]
    assert str(other) in str(mistake) and "give all processes one --workdir on" in str(mistake)
    assert str(mistake) in str(loss) and loss.exit_code == exits.MISTAKE
