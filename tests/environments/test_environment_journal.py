"""What was kept is there again, whatever a power cut, a disk or another run has left."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.environments.environment_journal import (
    EnvironmentJournal,
    JournalNotWritten,
    forget,
)
from rlboost_jax.environments.episode_records import (
    BatchBegun,
    CallBegun,
    CallDone,
    EpisodeLeftOut,
    EpisodeRestarted,
    TurnAnswered,
    framed,
    unframed,
)

calls = st.builds(CallBegun, key=st.text(max_size=8)) | st.builds(
    CallDone, key=st.text(max_size=8), content=st.text(max_size=30), failed=st.booleans()
)
turns = st.builds(
    TurnAnswered,
    sample=st.integers(0, 9),
    sequence=st.integers(0, 2),
    name=st.binary(min_size=16, max_size=16),
    before=st.binary(max_size=16),
    sampled=st.binary(max_size=12),
    given=st.binary(max_size=12),
    prompt=st.just(b""),
    over=st.booleans(),
    reward=st.floats(allow_nan=False),
    metrics=st.dictionaries(st.text(max_size=4), st.floats(allow_nan=False), max_size=2),
    messages=st.binary(max_size=8),
    seconds=st.floats(0, 1),
    calls=st.lists(st.tuples(st.text(max_size=4), st.booleans()), max_size=2).map(tuple),
)
records = st.lists(
    calls
    | turns
    | st.builds(EpisodeRestarted, sample=st.integers(0, 9), attempt=st.integers(0, 3))
    | st.builds(EpisodeLeftOut, sample=st.integers(0, 9), why=st.text(max_size=9)),
    max_size=8,
)


@given(records, st.data())
def test_of_a_torn_or_damaged_file_all_before_the_damage_is_read(
    kept: list[Any], data: st.DataObject
) -> None:
    whole = framed(kept)
    assert unframed(whole) == (kept, len(whole))
    if not whole:
        return
    place = data.draw(st.integers(0, len(whole) - 1))
    ends = [len(framed(kept[: n + 1])) for n in range(len(kept))]
    sound = sum(end <= place for end in ends)
    assert unframed(whole[:place]) == (kept[:sound], ends[sound - 1] if sound else 0)
    bit = 1 << data.draw(st.integers(0, 7))
    damaged = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
    assert unframed(damaged) == (kept[:sound], ends[sound - 1] if sound else 0)


def opened(folder: Path, run_id: str = "run", batch: int = 3, **options: Any) -> Any:
    journal = EnvironmentJournal(folder, run_id, batch, **options)
    return journal, journal.open()


def kept(journal: EnvironmentJournal, *groups: list[Any]) -> None:
    async def keep() -> None:
        await asyncio.gather(*(journal.keep(group) for group in groups))
        await journal.close()

    asyncio.run(keep())


ONE, TWO = CallBegun(key="a"), CallDone(key="a", content="7", failed=False)


def test_what_was_kept_is_there_again_and_more_follows_it(tmp_path: Path) -> None:
    journal, there = opened(tmp_path / "environments")
    assert not there
    kept(journal, [ONE])
    journal, there = opened(tmp_path / "environments")
    assert there == [ONE]
    kept(journal, [TWO])
    assert opened(tmp_path / "environments")[1] == [ONE, TWO]
    assert journal.path.stat().st_mode & 0o077 == 0, "what is in it is nobody else's to read"


def test_those_who_wait_together_wait_for_one_sync(tmp_path: Path) -> None:
    synced: list[int] = []
    journal, _ = opened(tmp_path, sync=synced.append)
    kept(journal, *([CallBegun(key=str(n))] for n in range(50)))
    assert len(synced) <= 2
    assert [record.key for record in opened(tmp_path)[1]] == [str(n) for n in range(50)]


def test_nobody_goes_on_before_it_lasts(tmp_path: Path) -> None:
    """What was written when `keep` returns has been synced with it."""
    lasting = b""

    def sync(file: int) -> None:
        nonlocal lasting
        lasting = journal.path.read_bytes()

    journal, _ = opened(tmp_path, sync=sync)

    async def keep() -> None:
        await journal.keep([ONE])
        assert unframed(lasting)[0][1:] == [ONE]
        await journal.close()

    asyncio.run(keep())


@pytest.mark.parametrize(
    "leave",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0" * 4096,
        lambda data: data[:-3] + b"xyz",
        lambda data: data + framed([TWO])[:5],
    ],
)
def test_a_bad_end_costs_what_is_there_and_is_said(
    tmp_path: Path, leave: Callable[[bytes], bytes]
) -> None:
    journal, _ = opened(tmp_path)
    kept(journal, [ONE])
    kept_bytes = journal.path.read_bytes()
    journal.path.write_bytes(leave(kept_bytes + framed([TWO]))[: len(kept_bytes) + 4103])
    notes: list[str] = []
    journal, there = opened(tmp_path, note=notes.append)
    assert there[:1] == [ONE] and len(notes) == 1 and "damaged" in notes[0]
    kept(journal, [EpisodeLeftOut(sample=1, why="w")])
    assert opened(tmp_path)[1] == [*there, EpisodeLeftOut(sample=1, why="w")]


def test_that_of_another_run_or_of_no_run_counts_nothing(tmp_path: Path) -> None:
    notes: list[str] = []
    journal, _ = opened(tmp_path, run_id="before")
    kept(journal, [ONE])
    assert opened(tmp_path, note=notes.append)[1] == []
    journal.path.write_bytes(b"rubbish")
    assert opened(tmp_path, note=notes.append)[1] == []
    journal.path.write_bytes(framed([BatchBegun(run_id="run", batch=3, format=99), ONE]))
    assert opened(tmp_path, note=notes.append)[1] == []
    assert len(notes) == 3 and all("asked for again" in note for note in notes)
    assert opened(tmp_path, note=notes.append)[1] == [] and len(notes) == 3, "it is ours now"


def test_a_full_disk_is_one_line_and_nothing_is_built_on_what_is_not_kept(tmp_path: Path) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal, _ = opened(tmp_path, sync=full)
    with pytest.raises(JournalNotWritten) as raised:
        kept(journal, [ONE])
    assert str(raised.value).endswith(
        "cannot be written: No space left on device; free the disk, and the same command goes on"
    )

    async def more() -> None:
        await journal.keep([TWO])

    with pytest.raises(JournalNotWritten):  # what follows a gap could not be read
        asyncio.run(more())


def test_those_of_committed_batches_are_removed(tmp_path: Path) -> None:
    for batch in (1, 2, 10):
        kept(opened(tmp_path, batch=batch)[0], [ONE])
    (tmp_path / "notes.txt").touch()
    forget(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "batch-00000010.journal",
        "notes.txt",
    ]
    forget(tmp_path / "nowhere", 3)
