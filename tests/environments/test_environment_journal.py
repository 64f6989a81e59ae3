"""What was kept is there again, whatever a power cut, a disk or another run has left."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    decode_record,
)
from rlboost_jax.platform.record_stream import encode_records, read_records


def test_bytes_of_the_release_before_are_written_and_read() -> None:
    records = [BatchBegun(run_id="run", batch=3), ONE, TWO]
    data = bytes.fromhex(
        "120000005a8a9bde94aa4261746368426567756ea372756e0301"
        "0d00000042061d3592a943616c6c426567756ea161"
        "0f000000cbbaeabc94a843616c6c446f6e65a161a137c2"
    )
    assert encode_records(records) == data
    assert read_records(data, decode_record).records == records


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
        assert read_records(lasting, decode_record).records[1:] == [ONE]
        await journal.close()

    asyncio.run(keep())


@pytest.mark.parametrize(
    "leave",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0" * 4096,
        lambda data: data[:-3] + b"xyz",
        lambda data: data + encode_records([TWO])[:5],
    ],
)
def test_a_bad_end_costs_what_is_there_and_is_said(
    tmp_path: Path, leave: Callable[[bytes], bytes]
) -> None:
    journal, _ = opened(tmp_path)
    kept(journal, [ONE])
    kept_bytes = journal.path.read_bytes()
    journal.path.write_bytes(leave(kept_bytes + encode_records([TWO]))[: len(kept_bytes) + 4103])
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
    journal.path.write_bytes(encode_records([BatchBegun(run_id="run", batch=3, format=99), ONE]))
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
