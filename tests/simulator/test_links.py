"""Shared links against what can be worked out by hand."""

import pytest

from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.version_spread import VersionSpread
from rlboost_jax.simulator.virtual_clock import VirtualClock


class Pulls:
    """Pulls of a link with a sender of 100 bytes/s and receivers of 60."""

    def __init__(self, peer: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.link = Link(self.clock, sender=100.0, receiver=60.0, peer=peer)
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


def test_receivers_that_serve_each_other_add_their_links():
    pulls = Pulls(peer=20.0)
    for name in "abcd":
        pulls.begin(0.0, name)
    # Four at (100 + 3 * 20) / 4.
    assert pulls.run() == {name: pytest.approx(15.0) for name in "abcd"}


@pytest.mark.parametrize("count", [1, 7, 40])
def test_it_is_the_floor_of_a_version_that_spreads_and_leaves_the_sender_once(count: int):
    version = VersionSpread(
        version_bytes=600.0, piece_bytes=1.0, trainer_rate=100.0, server_rate=60.0,
        zones=[0] * count,
    )  # fmt: skip
    pulls = Pulls(peer=60.0)
    for name in map(str, range(count)):
        pulls.link.pull(600.0, lambda name=name: pulls.ends.update({name: pulls.clock.now}),
                        dollars_per_gb=2e9)  # fmt: skip
    ends = pulls.run().values()
    floor = max(600.0 / 60.0, count * 600.0 / (100.0 + (count - 1) * 60.0))
    assert list(ends) == pytest.approx([floor] * count)
    assert version.floor_seconds <= floor <= 1.05 * version.floor_seconds
    assert pulls.link.sent_dollars == pytest.approx(2.0 * 600.0)
