"""How the end of one process of a trainer is known to another."""

import threading

import pytest

from rlboost_jax.learner.guards import NotFinite
from rlboost_jax.learner.processes.leader import FollowerLost
from rlboost_jax.learner.processes.peer_watch import Peers, PeerWatch
from rlboost_jax.learner.processes.trainer_channel import PeerGone
from rlboost_jax.learner.publisher import SnapshotNotWritten
from rlboost_jax.platform.mistakes import ConfigError
from tests.patience import PATIENCE_SECONDS


def lost(reason: str, code: int) -> FollowerLost:
    return FollowerLost(f"process 1 {reason}; the same", code)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, None, None),
        (NotFinite("step 3: not finite\nmore"), 2, "process 1 ended: step 3: not finite; the"),
        (RuntimeError("deep inside"), 1, "process 1 ended: RuntimeError: deep inside; the"),
        (KeyboardInterrupt(15), 1, "process 1 ended: KeyboardInterrupt: 15; the"),
        ("without a word", 1, "process 1 is gone without a word; the"),
    ],
)
def test_a_watch_tells_how_the_other_one_ended(pair, error, code, said):
    here, there = pair
    heard = threading.Event()
    watch = PeerWatch(here, lost)
    watch.tell(lambda loss: heard.set())
    if error == "without a word":
        there.close()
    else:
        PeerWatch(there, ConfigError).end(error)
    loss = watch.loss.result(PATIENCE_SECONDS)
    watch.end(None)  # or this process is ended
    if code is None:
        assert loss is None and watch.verdict() is None
        return
    assert heard.wait(PATIENCE_SECONDS)
    assert loss.exit_code == code
    assert said in str(loss)
    again = []
    watch.tell(again.append)
    assert again == [loss], "a late caller is answered at once"


class Unpublished(SnapshotNotWritten):
    """Because another process could not be asked for its share."""

    def __init__(self):
        super().__init__("version 3 could not be published")
        self.__cause__ = PeerGone("closed")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("collective broke"), FollowerLost),
        (PeerGone("closed"), FollowerLost),
        (Unpublished(), FollowerLost),
        (NotFinite("a mistake of our own"), NotFinite),
    ],
)
def test_what_another_process_is_the_reason_of_is_said_so(pair, error, raised):
    here, there = pair
    with pytest.raises(raised), Peers({"watch": [here]}, [lost]):
        there.close()
        raise error
