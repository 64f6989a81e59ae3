"""The contract of all providers over SkyPilot's own client and API server.

    make test-skypilot

What is stubbed is said in stub/sitecustomize.py: what the server's workers do with clouds.
"""

import dataclasses
import sys
from pathlib import Path

import pytest

from rlboost_jax.providers.base import ANY_POOL, Exited, Refused, Started
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.skypilot import SkyPilotLauncher
from rlboost_jax.providers.skypilot_task import cluster_of
from rlboost_jax.trust.credentials import packed
from tests.providers import sky_machines
from tests.providers.benches import Bench, SkyPilotBench, killed, rendezvous
from tests.providers.test_contract import (  # noqa: F401
    Ear,
    play,
    test_a_nonce_is_good_for_one_machine,
    test_a_request_under_way_can_be_terminated,
    test_a_server_echoes_what_it_was_asked_for_with,
    test_the_end_of_the_run_leaves_nothing,
    test_the_next_manager_finds_what_is_paid_for,
)

pytestmark = pytest.mark.system


class RealSkyBench(SkyPilotBench):
    """A run for each test: one server is for all of them."""

    def __init__(self, folder: Path, machines: Path) -> None:
        super().__init__(folder)
        self._stack.close()  # the package itself is to be used
        assert "sky" not in sys.modules or sys.modules["sky"].__file__
        self.machines = machines
        self.run = folder.name.replace("_", "-")

    def open(self) -> PolledProvider:
        place = dataclasses.replace(rendezvous(self.folder), run_id=self.run)
        launcher = SkyPilotLauncher(self.fleet, place)
        return PolledProvider(launcher, place.run_id, poll_seconds=0.5, settle_seconds=0.0)


@pytest.fixture
def bench(sky_folder: Path, tmp_path: Path) -> Bench:
    return RealSkyBench(tmp_path, sky_folder)


@pytest.fixture
def granting(bench: Bench) -> Bench:
    return bench


def test_what_cannot_be_had_is_refused_and_what_ends_is_heard_of(bench: RealSkyBench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        fail = bench.machines / "fail"
        fail.write_text("no A100 in any of 30 regions")
        await provider.request("a", "n-1", ANY_POOL)
        refused = await ear.of("a", Refused)
        assert isinstance(refused, Refused)
        assert refused.reason.startswith("ResourcesUnavailableError: no A100 in any")
        fail.unlink()
        await provider.request("b", "n-2", ANY_POOL)
        await ear.of("b", Started)
        sky_machines.down(bench.machines, cluster_of(bench.run, "b", "n-2"))  # its cloud does
        await ear.of("b", Exited)
        await provider.close()

    play(story)


def test_credentials_are_in_no_log_of_the_server(bench: RealSkyBench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await provider.request("a", "n-1", ANY_POOL)
        await ear.of("a", Started)
        await killed(provider)
        second = bench.open()
        await second.list()
        await second.close()

    play(story)
    secret = packed(bench.folder / "join")
    texts = [path.read_text(errors="replace") for path in bench.machines.parent.rglob("*.log")]
    assert any("launch" in text.lower() for text in texts)
    assert not [text for text in texts if secret in text]
