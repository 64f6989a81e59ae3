"""Pieces in memory that two processes map: whole, right, and gone when nobody needs them."""

import asyncio
import gc
import hashlib
import mmap
import os
import socket
import weakref
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest

from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights import shares
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.peers.held_pieces import HeldPieces, HeldVersion
from rlboost_jax.weights.peers.incoming import IncomingPieces
from rlboost_jax.weights.peers.piece_orders import DropVersion, Held, Hold
from rlboost_jax.weights.peers.piece_serving import _blocks, _Version
from rlboost_jax.weights.peers.shared_blocks import (
    SharedBlock,
    block_of,
    empty,
    receive_blocks,
    send_blocks,
)

ROOT = "a" * 64


def written(folder: Path, cut: tuple[int, ...], **arrays: np.ndarray) -> PieceList:
    """Arrays on disk, each in this many parts along each axis."""

    def parts(array: np.ndarray) -> shares.Share:
        counts = cut[: array.ndim]
        shape = tuple(size // count for size, count in zip(array.shape, counts, strict=True))
        found = {}
        for place in np.ndindex(*counts):
            where = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, shape, strict=True))
            found[place] = np.array(array[where], order="C")
        return shares.Share(shape=array.shape, part_shape=shape, dtype=array.dtype, parts=found)

    tree = {name: parts(array) for name, array in arrays.items()}
    files = shares.write_shares(folder, tree, dtype="float32", describe=True)
    leaves = shares.leaf_entries(tree, np.dtype(np.float32))
    return PieceList(files=tuple(files), leaves=leaves)


def held_by(told: list[tuple[object, list[SharedBlock]]]) -> HeldPieces:
    return HeldPieces(lambda order, blocks: told.append((order, list(blocks))))


async def arrived(held: HeldPieces, root: str, folder: Path, pieces: PieceList) -> HeldVersion:
    """A version that has all its pieces."""
    async with held.arriving(root, pieces, pieces) as version:
        for entry in version.lacking():
            version.leaves.put(entry, memoryview((folder / entry.path).read_bytes()))
        held.add(version, version.lacking())
    return version


def served(told: list[tuple[object, list[SharedBlock]]]) -> _Version:
    """What the process that serves makes of the last order to hold, through a socket."""
    order, blocks = next(each for each in reversed(told) if isinstance(each[0], Hold))
    assert isinstance(order, Hold)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        send_blocks(ours, [SharedBlock.of(5)])  # which a process before has not read
        send_blocks(ours, blocks)
        return _Version(order, receive_blocks(theirs, order.blocks))


@pytest.mark.parametrize("cut", [(1, 1), (3, 1), (1, 4), (2, 2), (6, 8)])
def test_the_array_is_what_is_served(tmp_path: Path, cut: tuple[int, int]) -> None:
    """Also where a piece is not a part of consecutive bytes."""
    random = np.random.default_rng(0)
    table = random.normal(size=(6, 80_000)).astype(np.float32)
    scale = np.float32(random.normal())
    pieces = written(tmp_path, cut, table=table, scale=np.asarray(scale))
    told: list[tuple[object, list[SharedBlock]]] = []
    version = asyncio.run(arrived(held_by(told), ROOT, tmp_path, pieces))
    np.testing.assert_array_equal(version.params()["table"], table)
    there = served(told)
    for entry, piece in zip(pieces.files, there.pieces, strict=True):
        assert b"".join(_blocks(piece)) == (tmp_path / entry.path).read_bytes(), entry.path
    version.params()["table"][0, 0] += 1  # the pages are the same
    assert any(
        b"".join(_blocks(piece)) != (tmp_path / entry.path).read_bytes()
        for entry, piece in zip(pieces.files, there.pieces, strict=True)
    )


def test_only_the_process_that_made_a_block_writes_to_it() -> None:
    array = empty((3, 4), np.dtype(np.float32))
    array[:] = 7
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        block = block_of(array)
        send_blocks(ours, [block])
        (mapped,) = receive_blocks(theirs, [block.number]).values()
        assert mapped[: array.nbytes] == array.tobytes()
        with pytest.raises(TypeError):
            mapped[0] = 1
        with pytest.raises(PermissionError):
            mmap.mmap(block.file, 0)
        with pytest.raises(PermissionError):
            os.pwrite(block.file, b"x", 0)
        array[:] = 8  # what it maps itself it writes to as before
        assert mapped[: array.nbytes] == array.tobytes()
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            receive_blocks(theirs, [block.number])  # that was not sent again


def test_leaves_that_are_the_same_share_memory_and_others_go(tmp_path: Path) -> None:
    base, other = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    first = written(tmp_path / "0", (2, 1), base=base, other=other)
    second = written(tmp_path / "1", (2, 1), base=base, other=other + 1)
    told: list[tuple[object, list[SharedBlock]]] = []

    async def scenario() -> None:
        held = held_by(told)
        before = await arrived(held, ROOT, tmp_path / "0", first)
        kept = block_of(before.arrays["base"])
        gone = weakref.ref(block_of(before.arrays["other"]))
        told.clear()
        async with held.arriving("b" * 64, second, second) as version:
            lacking = version.lacking()
            assert {entry.path for entry in lacking} == {"other/0.0", "other/1.0"}
            assert block_of(version.arrays["base"]) is kept
            for entry in lacking:
                version.leaves.put(entry, memoryview((tmp_path / "1" / entry.path).read_bytes()))
            held.add(version, lacking)
        assert told[-1][0] == DropVersion(root=ROOT)
        np.testing.assert_array_equal(version.params()["base"], base)
        np.testing.assert_array_equal(version.params()["other"], other + 1)
        told.clear()
        del before
        gc.collect()
        assert gone() is None
        held.close()

    asyncio.run(scenario())


def test_a_version_that_fails_is_dropped_and_the_one_before_stays(tmp_path: Path) -> None:
    pieces = written(tmp_path, (1, 1), table=np.ones((2, 2), np.float32))
    told: list[tuple[object, list[SharedBlock]]] = []

    async def scenario() -> None:
        held = held_by(told)
        await arrived(held, ROOT, tmp_path, pieces)
        with pytest.raises(WeightsError):
            async with held.arriving("b" * 64, pieces, pieces):
                raise WeightsError
        assert told[-1][0] == DropVersion(root="b" * 64)
        (hold, _), (here, _) = held.orders()
        assert isinstance(hold, Hold) and hold.root == ROOT
        assert isinstance(here, Held) and len(here.numbers) == len(pieces.files)

    asyncio.run(scenario())


def test_where_nobody_is_served_no_version_is_held(tmp_path: Path) -> None:
    pieces = written(tmp_path, (1, 1), table=np.ones((2, 2), np.float32))
    held = HeldPieces()
    version = asyncio.run(arrived(held, ROOT, tmp_path, pieces))
    assert not held.orders() and version.params()["table"].sum() == 4
    with pytest.raises(AssertionError):
        block_of(version.arrays["table"])  # memory of this process's own


# Two answers with one piece

DATA = hashlib.shake_256(b"piece").digest(1000)
ENTRY = FileEntry(path="0", size=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())


class Answer:
    """An answer that is fed by hand."""

    def __init__(self, incoming: IncomingPieces, name: str) -> None:
        self.fed: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._take(incoming, name))

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while (data := await self.fed.get()) is not None:
            yield data

    async def _take(self, incoming: IncomingPieces, name: str) -> list[int]:
        taken = incoming.take(range(1), self._chunks(), name)
        return [number async for number, _ in taken if number is not None]

    async def feed(self, data: bytes) -> None:
        self.fed.put_nowait(data)
        while not self.fed.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("begun", [0, 10, 999])
def test_nothing_is_written_to_a_piece_that_is_complete(begun: int) -> None:
    """A source that lies has begun the piece in place, and goes on after another has it right."""

    async def scenario() -> None:
        leaves = LeafBuffers(PieceList(files=(ENTRY,), leaves=()))
        incoming = IncomingPieces((ENTRY,), leaves)
        liar, honest = Answer(incoming, "liar"), Answer(incoming, "honest")
        await liar.feed(bytes(begun))
        await honest.feed(DATA)
        assert await honest.task == [0]
        assert leaves.chunks["0"].tobytes() == DATA
        await liar.feed(bytes(1000 - begun))
        assert await liar.task == [0]  # which it is, from the other
        assert leaves.chunks["0"].tobytes() == DATA
        await incoming.close()

    asyncio.run(scenario())


def test_an_answer_that_lies_spoils_nothing_of_one_that_comes_later() -> None:
    async def scenario() -> None:
        leaves = LeafBuffers(PieceList(files=(ENTRY,), leaves=()))
        incoming = IncomingPieces((ENTRY,), leaves)
        liar, second_liar = Answer(incoming, "liar"), Answer(incoming, "second liar")
        for each in (liar, second_liar):
            await each.feed(bytes(1000))
            with pytest.raises(WeightsError, match="SHA-256"):
                await each.task
        honest = Answer(incoming, "honest")
        await honest.feed(DATA[:400])
        await honest.feed(DATA[400:])
        assert await honest.task == [0]
        assert leaves.chunks["0"].tobytes() == DATA
        await incoming.close()

    asyncio.run(scenario())
