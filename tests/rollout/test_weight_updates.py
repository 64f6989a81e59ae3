"""Announced versions: only the last is taken, and never two at once."""

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rlboost_jax.messages import Manifest, Ready
from rlboost_jax.rollout.engine_worker import WorkerStopped
from rlboost_jax.rollout.weight_updates import WeightUpdates
from rlboost_jax.trust.snapshot_names import WeightsError
from tests.patience import PATIENCE_SECONDS


def manifest(version: int) -> Manifest:
    return Manifest(version=version, directory="", params_digest=f"d{version}", list_sha256="list")


class SlowToEnd:
    """Pulls that take some turns of the loop to end, after a cancellation too."""

    def __init__(self, held: frozenset[int] = frozenset()) -> None:
        self.held = held  # versions that never come by themselves
        self.pulls: list[int] = []
        self.at_once = 0

    async def pull(self, manifest: Manifest, begin: Any = None) -> Any:
        self.pulls.append(manifest.version)
        self.at_once += 1
        assert self.at_once == 1, "two pulls at once"
        try:
            if manifest.version in self.held:
                await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            self.at_once -= 1
        return SimpleNamespace(params=manifest.version, fetched_bytes=1)


class Engine:
    def __init__(self) -> None:
        self.loaded: list[int] = []

    @property
    def parameters(self) -> "Engine":
        return self

    def prepare(self, params: int) -> int:
        return params

    def arriving(self, shapes: object) -> None:
        """Nothing goes to a device before the whole has come."""

    def load(self, params: int, version: int, params_digest: str) -> Future[None]:
        self.loaded.append(version)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.mark.parametrize("turns", range(6))
def test_two_pulls_never_overlap(turns: int) -> None:
    """Whenever the next is announced: before the last has begun, amid it, or as it ends."""

    async def scenario() -> None:
        puller, engine, said = SlowToEnd(held=frozenset({1, 2, 3})), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        for version in (1, 2, 3, 4):
            updates.announce(manifest(version))
            for _ in range(turns):
                await asyncio.sleep(0)
        ready = await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)
        assert isinstance(ready, Ready) and ready.version == 4
        assert engine.loaded == [4] and said.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [0, 3, 500])
def test_an_older_version_is_taken_when_it_is_announced(turns: int) -> None:
    """At a lag rollouts of an older batch may need a server, even amid a pull of a newer."""

    async def scenario() -> None:
        held = frozenset() if turns == 500 else frozenset({2})
        puller, engine, said = SlowToEnd(held), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        updates.announce(manifest(1))
        versions = []
        while not versions or versions[-1] != 1:
            versions.append((await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version)
        assert versions == engine.loaded == ([2, 1] if turns == 500 else [1])

    asyncio.run(scenario())


def test_nothing_is_under_way_after_the_stop() -> None:
    async def scenario() -> None:
        puller, engine, said = SlowToEnd(held=frozenset({1})), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        await asyncio.sleep(0)
        assert puller.at_once == 1
        await updates.stop()
        assert puller.at_once == 0 and said.empty()
        updates.announce(manifest(2))
        assert (await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version == 2

    asyncio.run(scenario())


def test_a_mistake_of_this_side_is_reported() -> None:
    class Broken(SlowToEnd):
        async def pull(self, manifest: Manifest, begin: Any = None) -> Any:
            raise KeyError("a mistake")

    async def scenario() -> None:
        failed: asyncio.Queue[BaseException] = asyncio.Queue()
        updates = WeightUpdates(Broken(), Engine(), say=print, fail=failed.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        assert isinstance(await asyncio.wait_for(failed.get(), timeout=PATIENCE_SECONDS), KeyError)

    asyncio.run(scenario())


def test_another_announcement_waits_until_the_device_holds_what_was_prepared() -> None:
    """Else it would hold three versions: that which is loaded, and two on their way."""

    class Slow(Engine):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go, self.at_once = threading.Event(), threading.Event(), 0

        def prepare(self, params: int) -> int:
            self.at_once += 1
            assert self.at_once == 1, "two versions on their way to the device"
            self.begun.set()
            assert self.go.wait(PATIENCE_SECONDS)
            self.at_once -= 1
            return params

    async def scenario() -> None:
        engine, said = Slow(), asyncio.Queue[Any]()
        updates = WeightUpdates(SlowToEnd(), engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        await asyncio.to_thread(engine.begun.wait, PATIENCE_SECONDS)
        updates.announce(manifest(2))
        await asyncio.sleep(0)
        engine.go.set()
        ready = await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)
        assert ready.version == 2 and engine.loaded == [2]

    asyncio.run(scenario())


def test_another_version_is_pulled_once_the_engine_has_swapped() -> None:
    """Until then the device holds two: the one that goes and the one that comes."""

    class Busy(Engine):
        def load(self, params: int, version: int, params_digest: str) -> Future[None]:
            self.loaded.append(version)
            return loads.setdefault(version, Future())

    loads: dict[int, Future[None]] = {}

    async def scenario() -> None:
        puller, engine, said = SlowToEnd(), Busy(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        while not engine.loaded:
            await asyncio.sleep(0)
        updates.announce(manifest(2))
        for _ in range(50):
            await asyncio.sleep(0)
        assert puller.pulls == [1]
        loads[1].set_result(None)
        while engine.loaded != [1, 2]:
            await asyncio.sleep(0)
        loads[2].set_result(None)
        assert (await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version == 2

    asyncio.run(scenario())


def test_a_server_that_leaves_amid_a_load_has_made_no_mistake() -> None:
    class Stopped(Engine):
        def load(self, params: int, version: int, params_digest: str) -> Future[None]:
            done: Future[None] = Future()
            done.set_exception(WorkerStopped("the engine's thread has been stopped"))
            return done

    async def scenario() -> None:
        said, ended = asyncio.Queue[Any](), asyncio.Event()
        updates = WeightUpdates(SlowToEnd(), Stopped(), say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        assert updates._newest is not None
        updates._newest.add_done_callback(lambda _: ended.set())  # after its own, which may fail
        await asyncio.wait_for(ended.wait(), timeout=PATIENCE_SECONDS)
        await updates.stop()
        assert said.empty()

    asyncio.run(scenario())


def test_what_was_pulled_beforehand_is_loaded_at_once_when_it_is_announced() -> None:
    async def scenario() -> None:
        puller, engine, said = SlowToEnd(), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.announce(manifest(1))
        updates.prefetch(manifest(2))
        assert (await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version == 1
        while puller.pulls != [1, 2] or puller.at_once:
            await asyncio.sleep(0)
        assert engine.loaded == [1] and said.empty(), "it waits for its announcement"
        updates.announce(manifest(2))
        ready = await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)
        assert (ready.version, ready.fetched_bytes) == (2, 1)
        assert (engine.loaded, puller.pulls) == ([1, 2], [1, 2])

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 10, 40])
def test_a_version_that_is_announced_amid_its_pull_is_pulled_once(turns: int) -> None:
    async def scenario() -> None:
        puller, engine, said = SlowToEnd(), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.prefetch(manifest(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        updates.announce(manifest(2))
        assert (await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version == 2
        assert (engine.loaded, puller.pulls) == ([2], [2])

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [0, 1, 5, 40])
def test_an_announcement_waits_for_no_other_pull(turns: int) -> None:
    """Somebody waits for what is announced, and nobody for what is pulled beforehand."""

    async def scenario() -> None:
        puller, engine, said = SlowToEnd(held=frozenset({2})), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.prefetch(manifest(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        updates.announce(manifest(1))
        assert (await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS)).version == 1
        assert engine.loaded == [1]
        await updates.stop()

    asyncio.run(scenario())


def test_a_pull_beforehand_that_failed_is_tried_again_in_its_time() -> None:
    class Once(SlowToEnd):
        async def pull(self, manifest: Manifest, begin: Any = None) -> Any:
            pulled = await super().pull(manifest)
            if self.pulls == [2]:
                raise WeightsError("the line broke")
            return pulled

    async def scenario() -> None:
        puller, engine, said = Once(), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.prefetch(manifest(2))
        while puller.pulls != [2] or puller.at_once:
            await asyncio.sleep(0)
        assert said.empty(), "nobody wants it yet"
        updates.announce(manifest(2))
        assert isinstance(await asyncio.wait_for(said.get(), timeout=PATIENCE_SECONDS), Ready)
        assert puller.pulls == [2, 2]

    asyncio.run(scenario())


def test_at_the_end_of_a_stream_nothing_is_pulled_beforehand_any_more() -> None:
    async def scenario() -> None:
        puller, engine, said = SlowToEnd(held=frozenset({2})), Engine(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.prefetch(manifest(2))
        while not puller.at_once:
            await asyncio.sleep(0)
        await updates.stop()
        assert not puller.at_once and said.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [0, 2])
def test_a_device_has_room_for_one_version_on_its_way(fails: int) -> None:
    """One that was pulled beforehand goes before another is pulled, and is pulled again later."""
    alive: set[int] = set()

    class Prepared:
        def __init__(self, version: int) -> None:
            self.version = version
            alive.add(version)
            assert len(alive) == 1, "two versions on their way to the device"

        def __del__(self) -> None:
            alive.discard(self.version)

    class ToDevice(SlowToEnd):
        async def pull(self, manifest: Manifest, begin: Any = None) -> Any:
            assert begin is not None
            await super().pull(manifest)
            if self.pulls.count(manifest.version) <= fails and manifest.version == 1:
                raise WeightsError("the line broke")
            return SimpleNamespace(params=Prepared(manifest.version), fetched_bytes=1)

    class Swapping(Engine):
        def load(self, params: Any, version: int, params_digest: str) -> Future[None]:
            alive.discard(version)  # it is what the engine runs
            return super().load(version, version, params_digest)

    async def scenario() -> None:
        puller, engine, said = ToDevice(), Swapping(), asyncio.Queue[Any]()
        updates = WeightUpdates(puller, engine, say=said.put_nowait, fail=said.put_nowait)  # type: ignore[arg-type]
        updates.prefetch(manifest(2))
        while puller.pulls != [2] or puller.at_once:
            await asyncio.sleep(0)
        assert alive == {2}
        for version in (1, 2):
            updates.announce(manifest(version))
            while not isinstance(await asyncio.wait_for(said.get(), PATIENCE_SECONDS), Ready):
                pass
        assert engine.loaded == [1, 2]
        assert puller.pulls == [2, *[1] * (fails + 1), 2]

    asyncio.run(scenario())
