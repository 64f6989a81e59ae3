"""Simulated weights on their way, against seconds that are known beforehand."""

from types import SimpleNamespace
from typing import Any

from rlboost_jax.messages import Manifest
from rlboost_jax.sequences.identities import Version
from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.pulls import Pulls
from rlboost_jax.simulator.virtual_clock import VirtualClock

LATENCY, PULL, LOAD = 0.5, 10.0, 2.0  # seconds


def manifest(version: int) -> Manifest:
    return Manifest(
        version=Version(version), directory="", params_digest=f"d{version}", list_sha256="list"
    )


class Desk:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.link = Link(self.clock, sender=1e9, receiver=100.0)
        links = SimpleNamespace(latency_seconds=LATENCY, load_bytes_per_second=1000.0 / LOAD)
        config = SimpleNamespace(weight_bytes=100.0 * PULL, links=links)
        self.loaded: list[tuple[float, int, float]] = []
        world: Any = SimpleNamespace(clock=self.clock, link=self.link, config=config)
        self.pulls = Pulls(world, self._load)

    def _load(self, loaded: Manifest, since: float, fetched: int) -> None:
        assert fetched == 1000
        self.loaded.append((self.clock.now, loaded.version, since))

    def at(self, seconds: float, what: str, version: int) -> None:
        self.clock.at(seconds, lambda: getattr(self.pulls, what)(manifest(version)))

    def run(self) -> list[tuple[float, int, float]]:
        self.clock.run(lambda: False, 1e3)
        return self.loaded


def test_a_version_is_pulled_and_loaded() -> None:
    desk = Desk()
    desk.at(1.0, "take", 1)
    assert desk.run() == [(1.0 + LATENCY + PULL + LOAD, 1, 1.0)]


def test_the_last_that_was_announced_is_taken() -> None:
    for amid in (0.2, 5.0, LATENCY + PULL + 1.0):  # under way, or already on its way to the engine
        desk = Desk()
        desk.at(0.0, "take", 1)
        desk.at(amid, "take", 2)
        assert desk.run() == [(amid + LATENCY + PULL + LOAD, 2, amid)]


def test_what_was_pulled_beforehand_is_only_loaded() -> None:
    desk = Desk()
    desk.at(0.0, "take", 1)
    desk.at(1.0, "prefetch", 2)
    desk.at(60.0, "take", 2)
    first = LATENCY + PULL + LOAD
    assert desk.run() == [(first, 1, 0.0), (60.0 + LOAD, 2, 60.0)]
    assert desk.link.sent_bytes == 2000.0


def test_a_pull_beforehand_goes_on_when_it_is_announced() -> None:
    desk = Desk()
    desk.at(0.0, "prefetch", 2)
    desk.at(4.0, "take", 2)
    assert desk.run() == [(LATENCY + PULL + LOAD, 2, 4.0)]


def test_a_pull_beforehand_makes_way() -> None:
    desk = Desk()
    desk.at(0.0, "prefetch", 2)
    desk.at(4.0, "take", 1)
    assert desk.run() == [(4.0 + LATENCY + PULL + LOAD, 1, 4.0)]


def test_of_who_is_gone_nothing_comes() -> None:
    desk = Desk()
    desk.at(0.0, "take", 1)
    desk.clock.at(3.0, desk.pulls.abandon)
    assert not desk.run()
    assert desk.link.sent_bytes == 100.0 * (3.0 - LATENCY)
