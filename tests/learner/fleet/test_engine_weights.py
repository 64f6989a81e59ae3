"""The ways in which versions reach a trainer's own engines."""

import asyncio
import gc

import pytest

from rlboost_jax.learner.fleet.engine_weights import (
    KeptVersionSource,
    SharedPull,
    load_of,
    puller_of,
)
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.kept_versions import KeptVersions
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.messages import Manifest
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.pull import Pulled


class Snapshots:
    def __init__(self):
        self.pulls, self.faults, self.pulled = [], 0, ByteCounter()

    async def pull(self, manifest, begin=None):
        self.pulls.append((manifest.version, manifest.params_digest))
        await asyncio.sleep(0)  # the others come to ask, too
        if self.faults:
            self.faults -= 1
            raise WeightsError("a file is missing")
        return Pulled(params={}, fetched_bytes=1)


class Reserved(ReservedEngines):
    def __init__(self):
        self.loaded = []

    def load(self, params, version, params_digest):
        self.loaded.append((params, version, params_digest))


class OnDisk(Publisher):
    def __init__(self):
        """It has written every version."""

    def open(self, version):
        return {"of": f"snapshot {version}"}


@pytest.mark.parametrize(
    ("lag", "num_processes", "source", "loaded"),
    [
        (0, 1, type(None), {"of": "devices"}),
        (0, 2, type(None), {"of": "snapshot 3"}),
        (1, 1, KeptVersionSource, None),
        (1, 2, SharedPull, None),
    ],
)
def test_engines_are_given_a_version_or_pull_it_and_never_both(lag, num_processes, source, loaded):
    reserved = Reserved()
    assert type(puller_of(lag, num_processes, KeptVersions(), None)) is source
    load_of(lag, num_processes, reserved, OnDisk(), None)({"of": "devices"}, 3, "digest")
    assert reserved.loaded == ([] if loaded is None else [(loaded, 3, "digest")])


@pytest.fixture
def snapshots():
    return Snapshots()


def manifest(version, digest="a"):
    return Manifest(version=version, directory="", params_digest=digest, list_sha256="list")


def test_engines_that_want_one_version_have_it_in_memory_once(snapshots):
    async def pull():
        once = SharedPull(snapshots)
        both = await asyncio.gather(once.pull(manifest(1)), once.pull(manifest(1)))
        assert both[0] is both[1]
        assert await once.pull(manifest(1)) is both[0]
        assert await once.pull(manifest(1, "of another start")) is not both[0]

    asyncio.run(pull())
    assert snapshots.pulls == [(1, "a"), (1, "of another start")]


def test_what_no_engine_has_any_more_is_pulled_again(snapshots):
    async def pull():
        once = SharedPull(snapshots)
        await once.pull(manifest(1))
        gc.collect()
        await once.pull(manifest(1))

    asyncio.run(pull())
    assert len(snapshots.pulls) == 2


def test_a_pull_that_failed_is_tried_again_by_the_next(snapshots):
    async def pull():
        once = SharedPull(snapshots)
        return await asyncio.gather(
            *(once.pull(manifest(1)) for _ in range(2)), return_exceptions=True
        )

    snapshots.faults = 1
    first, second = asyncio.run(pull())
    assert isinstance(first, WeightsError) and isinstance(second, Pulled)
