"""What process 0 hears from the others, without any of them."""

from rlboost_jax.learner.processes.leader import Followers
from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.learner.processes.trainer_channel import TrainerChannel
from rlboost_jax.platform import exits


class Said(TrainerChannel):
    def __init__(self, *messages):
        """A channel on which all was said before."""
        self._messages = list(messages)

    def receive(self, **_):
        return self._messages.pop(0)

    def send(self, message):
        pass

    def close(self):
        pass


def test_what_was_written_of_versions_that_nobody_needs_any_more_is_passed_over():
    """The publisher may leave versions out; who writes shares hears of it too late."""
    entry = {"path": "scale/0", "size": 4, "sha256": "ab"}
    shares = Said(["3", [], ""], ["4", [], "no room"], ["5", [entry], ""])
    channels = {"orders": [Said()], "shares": [shares], "watch": [Said([exits.COMPLETE, ""])]}
    with Followers(ProcessGroup(index=0, count=2), channels) as followers:
        assert [each.path for each in followers.written("5")] == ["scale/0"]
