"""Whatever breaks or cancels a pull, what is taken is right, and nothing of it stays behind."""

import asyncio
import gc
import mmap
import threading
import time
import weakref
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rlboost_jax.models.params import flatten_params
from rlboost_jax.trust.seal import sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights import arrivals, pieces, shares
from rlboost_jax.weights.arrivals import ArrivingFiles
from rlboost_jax.weights.layer_feed import LayerFeed
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.peers import incoming
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.held_pieces import HeldPieces
from rlboost_jax.weights.peers.incoming import IncomingPieces
from rlboost_jax.weights.piece_lists import listed, write_list
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.returnable_arrays import returnable
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.endpoints import SEAL
from tests.patience import PATIENCE_SECONDS
from tests.weights.peers.test_shared_pieces import written as in_parts
from tests.weights.test_layer_feed import Taken, assert_taken, pull, written
from tests.weights.test_pull import AT_ONCE, remote, served


def leaves(seed, layers=6):
    rng = np.random.default_rng(seed)
    return {
        "embedding": {"table": rng.normal(0, 0.02, (60, 64)).astype(np.float32)},
        "layers": {
            "gate": rng.normal(0, 0.02, layers).astype(np.float32),
            "kernel": rng.normal(0, 0.02, (layers, 32, 64)).astype(np.float32),
        },
    }


def base(seed, layers=6):
    rng = np.random.default_rng(seed)
    return {
        "base": {"kernel": rng.normal(0, 0.02, (64, 32)).astype(np.float32)},
        "layers": {"base": rng.normal(0, 0.02, (layers, 40, 32)).astype(np.float32)},
    }


def joint(own, lasting):
    return {**own, **lasting, "layers": {**own["layers"], **lasting.get("layers", {})}}


def changed(own, seed):
    """One in fifty entries of all layers is another."""
    rng, layers = np.random.default_rng(seed), {}
    for name, leaf in own["layers"].items():
        layers[name] = new = leaf.copy()
        where = rng.integers(0, leaf.size, max(1, leaf.size // 50))
        new.reshape(-1)[where] += rng.normal(0, 0.02, len(where)).astype(np.float32)
    return {**own, "layers": layers}


def hold_back(manifest, random, kind):
    """Make a file of a version wrong, or no file; returns what mends it."""
    entry = random.choice([entry for entry in listed(manifest).files if entry.size])
    path = Path(manifest.directory) / entry.path
    right = path.read_bytes()
    path.unlink()  # the base's has other names
    if kind == "wrong":
        place = random.randrange(len(right))
        path.write_bytes(right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :])
    return lambda: (path.unlink(missing_ok=True), path.write_bytes(right))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_or_cancels_pulls_what_is_taken_is_right(tmp_path, monkeypatch, seed):
    random, slow = Random(seed), Random(seed)
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", random.choice([2**26, 20_000, 3_000]))
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", random.choice([3_000, 9_000, 20_000]))
    monkeypatch.setattr(arrivals, "MOST_UNCHECKED_BYTES", random.choice([3_000, 2**27]))
    monkeypatch.setattr(arrivals, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(pieces, "LEAST_BYTES", 3_000)
    layers, adapters = random.choice([1, 2, 6, 7]), random.random() < 0.6
    store = SnapshotStore(tmp_path, dtype="bfloat16", keep=9, deltas=(1, 2))
    own, lasting, versions = leaves(seed, layers), {}, []
    for number in range(4):
        if adapters and number in (0, random.choice([2, 9])):
            lasting = base(number, layers)
            store.write_base(lasting)
        versions.append((written(store, number, own), joint(own, lasting)))
        own = changed(own, number)
    source = random.choice(["directory", "http", "auto"])
    peers = random.choice([None, None, HeldPieces(), HeldPieces(lambda order, blocks: None)])

    class Checked(Taken):
        """Checks also what it is given of a version that does not become complete."""

        def take(self, name, index, leaf):
            time.sleep(slow.random() * delay)
            super().take(name, index, leaf)
            right = flatten_params(tree)[name].astype("bfloat16")
            assert (
                self.parts[name, index].tobytes()
                == right[index or 0 :][: None if index is None else 1].tobytes()
            )

    async def scenario():
        nonlocal tree, delay
        exchange = peers and PeerExchange(peers, sources_seconds=0.0)
        async with AsyncExitStack() as stack:
            managers = [(await stack.enter_async_context(served(m)))[0] for m, _ in versions]
            puller = Puller(
                source=source,
                manager=managers[0],
                retries=AT_ONCE,
                deltas=random.random() < 0.6,
                peers=exchange,
            )
            for _ in range(12):
                manifest, tree = random.choice(versions)
                puller._manager, delay = managers[manifest.version], random.choice([0, 0, 0.004])
                fault = random.choice(["", "", "wrong", "gone"])
                mend = hold_back(manifest, random, fault) if fault else lambda: None
                there = remote(manifest) if source == "http" else sealed(manifest, SEAL)
                begin = Checked if random.random() < 0.85 else None
                pulling = asyncio.create_task(puller.pull(there, begin))
                cancels = random.choice([0, 0, 1, 1, 2])
                for _ in range(cancels):
                    for _ in range(random.randrange(random.choice([5, 40, 400]))):
                        await asyncio.sleep(0 if random.random() < 0.7 else 0.0005)
                    pulling.cancel()
                try:
                    params = (await asyncio.wait_for(pulling, PATIENCE_SECONDS)).params
                except WeightsError:
                    assert fault
                except asyncio.CancelledError:
                    assert cancels
                else:
                    given.append((params, tree))
                mend()
                names = {thread.name.partition("_")[0] for thread in threading.enumerate()}
                assert not names & {"check", "weights", "deltas"}, "threads outlive the pull"
                for params, right in given:
                    if isinstance(params, Taken):
                        assert_taken(params, right)
                    else:
                        found = flatten_params(params)
                        for name, leaf in flatten_params(right).items():
                            assert found[name].tobytes() == leaf.astype("bfloat16").tobytes(), name

    tree, delay, given = {}, 0.0, []
    asyncio.run(scenario())


def test_lasting_leaves_are_not_written_over(tmp_path):
    """A trainer that comes back has another base. Its pull breaks, and the first base counts."""
    puller, manifests = Puller(source="directory", manager=None, deltas=True), []
    for number, folder in enumerate("ab"):
        store = SnapshotStore(tmp_path / folder, dtype="bfloat16", keep=1)
        store.write_base(base(number))
        manifests.append(written(store, number, leaves(number)))
    right = joint(leaves(0), base(0))
    assert_taken(pull(puller, manifests[0]), right)
    (tmp_path / "b" / "1" / "layers.kernel" / "0.0.0").write_bytes(b"")
    with pytest.raises(WeightsError):
        pull(puller, manifests[1])
    assert_taken(pull(puller, manifests[0]), right)


def test_a_leaf_that_is_cut_in_another_way_has_its_own_array(tmp_path):
    """Its piece 0.0 has the same name, bytes and digest, and is another part of the array."""
    rows, columns = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    rows[8:], columns[:, 8:] = 5, 7
    puller = Puller(source="directory", manager=None, deltas=True)
    for number, (cut, array) in enumerate([((2, 1), rows), ((1, 2), columns)]):
        place = tmp_path / f"{number}"
        place.mkdir()
        pieces = in_parts(place, cut, w=array)
        taken = pull(puller, write_list(place, pieces, version=number, params_digest=""))
        np.testing.assert_array_equal(taken.parts["w", None], array)


@pytest.mark.parametrize("how", ["breaks", "is cancelled", "is complete"])
@pytest.mark.parametrize("peers", [False, True])
def test_nothing_keeps_what_has_taken_a_version(tmp_path, how, peers):
    """It has the version on the device: with the next one there would be three."""
    taken = weakref.WeakSet()

    def begin(shapes):
        taken.add(receiver := Taken(shapes))
        return receiver

    manifest = written(SnapshotStore(tmp_path, dtype="bfloat16", keep=1), 0, leaves(0))
    if how == "breaks":
        (tmp_path / "0" / "layers.kernel" / "0.0.0").write_bytes(b"")

    async def scenario():
        async with served(manifest) as (manager, _):
            held = HeldPieces(lambda order, blocks: None)
            exchange = PeerExchange(held, sources_seconds=0.0) if peers else None
            puller = Puller(source="http", manager=manager, retries=AT_ONCE, peers=exchange)
            pulling = asyncio.create_task(puller.pull(remote(manifest), begin))
            if how == "is cancelled":
                while not any(receiver.parts for receiver in list(taken)):
                    await asyncio.sleep(0)
                pulling.cancel()
            results = await asyncio.gather(pulling, return_exceptions=True)
            assert isinstance(results.pop(), Exception | asyncio.CancelledError) == (
                how != "is complete"
            )
            del pulling
            for _ in range(200):  # a thread forgets its call after the call has returned
                if taken:
                    await asyncio.sleep(0.01)
            return len(taken)

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(scenario()) == 0
    finally:
        gc.enable()


def test_connections_that_wait_for_who_takes_it_end_with_the_download(tmp_path, monkeypatch):
    """The last bytes come to one of them while the others wait."""
    monkeypatch.setattr(pieces, "LEAST_BYTES", 3_000)
    first = []

    async def caught_up(self):
        first.append(asyncio.current_task())
        while first[0] is not asyncio.current_task() and any(self._missing.values()):
            await asyncio.sleep(0)

    manifest = written(SnapshotStore(tmp_path, dtype="bfloat16", keep=1), 0, leaves(0))

    async def scenario():
        async with served(manifest) as (manager, _):
            puller = Puller(source="http", manager=manager, retries=AT_ONCE)
            await puller._listed(remote(manifest), manager)
            first.clear()
            monkeypatch.setattr(ArrivingFiles, "caught_up", caught_up)
            async with asyncio.timeout(PATIENCE_SECONDS):
                return (await puller.pull(remote(manifest), Taken)).params

    assert_taken(asyncio.run(scenario()), leaves(0))
    assert len(set(first)) > 1


def test_a_slower_answer_of_which_the_place_is_free_again_is_no_lie(tmp_path, monkeypatch):
    """And while this host takes a piece it says that its source is not silent."""
    array = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    all_pieces = in_parts(tmp_path, (1, 1), table=array)
    buffers, taken, check = LeafBuffers(all_pieces), Taken({}), incoming.check
    feed = LayerFeed(buffers, {}, taken, {"table"})
    answers, faster = IncomingPieces(all_pieces.files, buffers), threading.Event()
    monkeypatch.setattr(incoming, "SETTLING_SECONDS", 0.01)
    monkeypatch.setattr(
        incoming, "check", lambda *args: (args[2] == "faster" or faster.wait(), check(*args))
    )

    async def answer():
        for entry in all_pieces.files:
            yield (tmp_path / entry.path).read_bytes()

    async def bring(origin):
        chunks = answers.take(range(len(all_pieces.files)), answer(), origin)
        return [chunk async for chunk in chunks]

    async def scenario():
        feed.begin()
        slower = asyncio.create_task(bring("slower"))
        while not answers._begun:
            await asyncio.sleep(0)
        await bring("faster")
        await asyncio.sleep(0.1)
        faster.set()
        come = await slower
        await answers.close()
        return come

    assert (None, 0) in asyncio.run(scenario())
    assert taken.parts["table", None].tobytes() == array.tobytes()


def test_memory_needs_no_huge_pages(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 99_999, raising=False)
    assert returnable((3, 4), np.dtype(np.float32)).shape == (3, 4)
