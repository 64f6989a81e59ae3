"""The journal's bytes, and what is left of them after every kind of damage."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from rlboost_jax.manager.journal_entries import (
    BatchClosed,
    BatchOpened,
    Collected,
    CollectedRouted,
    CollectedTokens,
    Entry,
    Forgotten,
    Published,
    RunOver,
    RunState,
    SegmentBegun,
    decode_entry,
    read_segment,
)
from rlboost_jax.manager.service.journal_files import JournalFiles
from rlboost_jax.messages import WindowState
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.record_stream import encode_records
from tests.manager.fakes import RUN, begin_batch, manifest


def collected(step: int, sample: int = 0, count: int = 3) -> Collected:
    return Collected(
        batch=step,
        instance="a",
        samples=sample.to_bytes(4, "little"),
        starts=bytes(4),
        counts=count.to_bytes(2, "little"),
        tokens=bytes(4 * count),
        logprobs=bytes(4 * count),
        at=1.5,
    )


def opened(step: int) -> BatchOpened:
    return BatchOpened(begin=begin_batch(step, step, "d"), at=float(step))


def run_state(joined: int) -> RunState:
    return RunState(
        window=WindowState(seconds=1.0, memory={2: 0.5}, instance_cap=3),
        learnt=True,
        paid={1: 2.5},
        banished={"h/1/": "no progress"},
        joined=joined,
        lost=1,
        numbers=4,
        fleet_numbers=2,
        dollars=2.5,
        dollars_per_second=0.25,
        at=7.0,
    )


def test_bytes_of_the_release_before_are_written_and_read() -> None:
    entries = [SegmentBegun(run_id="run"), collected(0), BatchClosed(batch=2)]
    data = bytes.fromhex(
        "130000004b77e8f893ac5365676d656e74426567756ea372756e03"
        "4400000037d4e0569aa9436f6c6c656374656400a161c40400000000c40400000000c4020300c40c0000000000"
        "00000000000000c40c000000000000000000000000cb3ff8000000000000a0"
        "0e000000d3d1ba9392ab4261746368436c6f73656402"
    )
    assert encode_records(entries) == data
    assert read_segment(data).records == entries


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def reread(folder: Path) -> tuple[list[Entry], list[str]]:
    journal = JournalFiles(folder, RUN)
    found = journal.read()
    journal.close()
    return found


def test_each_step_has_a_file_which_goes_once_it_is_committed(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    assert journal.read() == ([], [])
    assert journal.append([run_state(1)]) == ""  # before any step: kept in mind only
    for step in range(3):
        assert journal.append([opened(step)]) == ""
        assert journal.append([collected(step), BatchClosed(batch=step)]) == ""
    assert [name.split("-", 1)[1] for name in names(tmp_path)] == [
        "step-0.journal",
        "step-1.journal",
        "step-2.journal",
    ]
    assert journal.append([Forgotten(committed=1)]) == ""
    assert [name.split("-", 1)[1] for name in names(tmp_path)] == ["step-2.journal"]
    journal.close()
    assert reread(tmp_path) == (
        [
            *(SegmentBegun(run_id=RUN), run_state(1), opened(2), collected(2)),
            *(BatchClosed(batch=2), Forgotten(committed=1)),
        ],
        [],
    )


def test_what_still_holds_is_said_anew_in_each_file(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    published = Published(manifest=manifest(0, "d"))
    journal.append([run_state(1), published, opened(0)])
    journal.append([run_state(2)])
    journal.append([Forgotten(committed=0), opened(1)])
    journal.append([Forgotten(committed=0)])
    journal.close()
    found, _ = reread(tmp_path)
    assert found[:4] == [SegmentBegun(run_id=RUN), run_state(2), published, opened(1)]


def test_a_manager_that_is_back_writes_on(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    journal.append([opened(0), collected(0)])
    journal.close()
    again = JournalFiles(tmp_path, RUN)
    again.read()
    again.append([collected(0, sample=1)])
    again.append([opened(1)])
    again.append([Forgotten(committed=0)])
    again.close()
    assert [type(entry) for entry in reread(tmp_path)[0]] == [SegmentBegun, BatchOpened, Forgotten]


def test_a_torn_tail_is_cut_off_before_anything_is_written_behind_it(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    journal.append([opened(0), collected(0), collected(0, sample=1)])
    journal.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    again = JournalFiles(tmp_path, RUN)
    found, (damage,) = again.read()
    assert found[-1] == collected(0) and path.name in damage and "torn tail" in damage
    again.append([collected(0, sample=2)])
    again.close()
    assert reread(tmp_path)[0][-2:] == [collected(0), collected(0, sample=2)]


def test_a_full_disk_ends_the_journal_until_a_step_opens(tmp_path: Path) -> None:
    full = False

    def write(descriptor: int, data: memoryview) -> int:
        """Write as much as fits on a full disk, then no more."""
        if full and len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data[: len(data) // 2] if full else data)

    journal = JournalFiles(tmp_path, RUN, write=write)
    journal.read()
    journal.append([opened(0), collected(0)])
    full = True
    assert "No space left" in journal.append([collected(0, sample=1)])
    assert journal.append([collected(0, sample=2)]) == "", "said once"
    full = False
    assert journal.append([collected(0, sample=3)]) == "", "behind a gap nothing could be read"
    assert reread(tmp_path) == ([SegmentBegun(run_id=RUN), opened(0), collected(0)], [])
    assert journal.append([opened(1), collected(1)]) == ""
    journal.close()
    assert reread(tmp_path)[0][-1] == collected(1)


def test_a_journal_that_could_not_begin_stands_in_for_none(tmp_path: Path) -> None:
    """What outlives a step is said by one that has it all, or those before it stay."""
    room = [True]

    def write(file: int, data: memoryview) -> int:
        if room[0]:
            return os.write(file, data)
        os.write(file, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = JournalFiles(tmp_path, RUN, write=write)
    journal.read()
    journal.append([opened(0), run_state(joined=5)])
    room[0] = False
    for step in (1, 2):
        assert "No space" in journal.append([opened(step)])
        journal.append([Forgotten(committed=step)])
    journal.close()
    entries, damages = reread(tmp_path)
    assert [entry.joined for entry in entries if isinstance(entry, RunState)] == [5]
    assert not damages


def test_what_is_written_at_once_with_it_does_not_keep_a_step_from_opening(tmp_path: Path) -> None:
    """A disk that was full as tokens came, and is not as the next step opens."""
    writes = iter([errno.ENOSPC, 0, 0])

    def write(descriptor: int, data: memoryview) -> int:
        if code := next(writes):
            raise OSError(code, os.strerror(code))
        return os.write(descriptor, data)

    journal = JournalFiles(tmp_path, RUN, write=write)
    journal.read()
    assert "No space left" in journal.append([opened(0), opened(1), collected(1)])
    journal.close()
    assert reread(tmp_path)[0][-2:] == [opened(1), collected(1)]


def test_another_run_finds_nothing(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, "another")
    journal.read()
    journal.append([opened(0)])
    journal.close()
    assert reread(tmp_path) == ([], [])
    assert names(tmp_path) == []


def test_a_journal_of_another_release_is_refused_and_kept(tmp_path: Path) -> None:
    """It has tokens that were paid for, and what the run has cost so far."""
    (tmp_path / "00000001-step-0.journal").write_bytes(
        encode_records([SegmentBegun(run_id=RUN, format=1), collected(0)])
    )
    with pytest.raises(Mistake, match=f"format 1 .*remove {tmp_path}"):
        JournalFiles(tmp_path, RUN).read()
    assert names(tmp_path) == ["00000001-step-0.journal"]


@pytest.mark.parametrize("kind", [Collected, CollectedRouted])
def test_tokens_that_a_release_before_wrote_are_read(
    kind: type[Collected | CollectedRouted],
) -> None:
    """It did not say who had the name."""
    entry = kind(
        **{n: getattr(collected(0), n) for n in CollectedTokens.__struct_fields__},
        **({"leads": b"\0" * 4, "routes": b""} if kind is CollectedRouted else {}),
        server="1/server-1",
    )
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(entry))
    assert known[-1] == "1/server-1"
    payload = msgspec.msgpack.encode(known[:-1])
    assert decode_entry(payload) == msgspec.structs.replace(entry, server="")


def test_nothing_is_left_of_a_run_that_is_over(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    journal.append([opened(0)])
    journal.append([opened(1), RunOver()])
    assert names(tmp_path) == []
    assert journal.append([collected(1)]) == ""


def test_a_segment_says_all_versions_that_open_batches_need(tmp_path: Path) -> None:
    """At a lag of 2 batch 6, of version 4, is begun beside 4 and 5, of versions 2 and 3."""
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    for version in range(5):
        journal.append([Published(manifest=manifest(version, "d"))])
    for version in (2, 3, 4):  # a trainer that dialled again
        journal.append([Published(manifest=manifest(version, "d"))])
    journal.append([BatchOpened(begin=begin_batch(6, 4, "d"), at=0.0)])
    journal.close()
    (path,) = tmp_path.iterdir()
    found = read_segment(path.read_bytes()).records
    versions = [entry.manifest.version for entry in found if isinstance(entry, Published)]
    assert versions == [2, 3, 4]


def test_without_a_lag_a_segment_says_the_newest_version(tmp_path: Path) -> None:
    """Which is that published last: a trainer that went back makes later ones anew."""
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    for version in (0, 1, 2, 3, 1):
        journal.append([Published(manifest=manifest(version, "d"))])
    journal.append([opened(2)])
    journal.close()
    (path,) = tmp_path.iterdir()
    found = read_segment(path.read_bytes()).records
    versions = [entry.manifest.version for entry in found if isinstance(entry, Published)]
    assert versions == [1]


def test_after_going_back_a_segment_stays_for_the_latest_step_in_it(tmp_path: Path) -> None:
    """A trainer begins an older step anew while a later one is open still."""
    journal = JournalFiles(tmp_path, RUN)
    journal.read()
    journal.append([opened(1), run_state(1)])
    journal.append([opened(0), collected(1), collected(0)])
    journal.append([opened(2), Forgotten(committed=0)])
    journal.close()
    assert collected(1) in reread(tmp_path)[0]
