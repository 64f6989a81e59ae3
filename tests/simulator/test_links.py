"""Shared links against what can be worked out by hand."""

import pytest

from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.virtual_clock import VirtualClock


class Pulls:
    """Pulls of a link with a sender of 100 bytes/s and receivers of 60."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.link = Link(self.clock, sender=100.0, receiver=60.0)
        self.ends: dict[str, float] = {}
        self.numbers: dict[str, int] = {}

    def begin(self, at: float, name: str, size: float = 600.0) -> None:
        def pull() -> None:
            done = lambda: self.ends.update({name: self.clock.now})  # noqa: E731
            self.numbers[name] = self.link.pull(size, done)

        self.clock.at(at, pull)

    def run(self) -> dict[str, float]:
        self.clock.run(lambda: False, 1e6)
        return self.ends


def test_alone_the_receiver_is_the_limit():
    pulls = Pulls()
    pulls.begin(5.0, "a")
    assert pulls.run() == {"a": pytest.approx(15.0)}


def test_two_share_the_sender():
    # a: 10 s at 60, then 10 s at 50 beside b would be 1,100 bytes.
    pulls = Pulls()
    pulls.begin(0.0, "a", 1100.0)
    pulls.begin(10.0, "b", 1100.0)
    # b has 500 when a is done, and gets the other 600 at 60.
    assert pulls.run() == {"a": pytest.approx(20.0), "b": pytest.approx(30.0)}
    assert pulls.link.sent_bytes == pytest.approx(2200.0)


def test_one_that_is_abandoned_leaves_the_rest_to_others():
    pulls = Pulls()
    pulls.begin(0.0, "a")
    pulls.begin(0.0, "b")
    pulls.clock.at(4.0, lambda: pulls.link.abandon(pulls.numbers["b"]))
    # 4 s at 50, then 400 bytes at 60.
    assert pulls.run() == {"a": pytest.approx(4.0 + 400 / 60)}
    assert pulls.link.sent_bytes == pytest.approx(600.0 + 200.0)
