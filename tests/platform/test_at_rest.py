"""Digests of files at rest: every flipped bit is seen, and the file is named."""

import errno
import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from rlboost_jax.platform import at_rest
from rlboost_jax.platform.durable import Damaged

VALUES = {"run_id": "a", "size": [1, 2.5, None], "nested": {"b": True, "a": "ü"}}


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "7"
    (folder / "state" / "d").mkdir(parents=True)
    for index, size in enumerate((0, 1, 5_000)):
        (folder / "state" / "d" / str(index)).write_bytes(random.Random(index).randbytes(size))
    (folder / "extra").write_text("{}")
    (folder / at_rest.FILE).write_bytes(at_rest.describe(folder, {}))
    return folder


def found(folder: Path, **options) -> list[at_rest.Fault]:
    files = at_rest.described(folder)["files"]
    return [*at_rest.faults(folder, files, **options), *at_rest.strangers(folder, files)]


def flipped(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def test_digests_are_sha_256_of_the_files(tmp_path):
    folder = folder_of(tmp_path)
    files = at_rest.described(folder)["files"]
    assert sorted(files) == ["extra", "state/d/0", "state/d/1", "state/d/2"]
    for name, (size, digest) in files.items():
        data = (folder / name).read_bytes()
        assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert found(folder) == [] == found(folder, from_disk=True)


def test_any_flipped_bit_of_a_folder_is_named(tmp_path):
    for seed in range(60):
        folder, draw = folder_of(tmp_path / str(seed)), random.Random(seed)
        path = draw.choice([path for path in folder.rglob("*") if path.is_file()])
        if path.stat().st_size:
            flipped(path, draw)
            assert named(folder) == [path], seed


def named(folder: Path) -> list[Path]:
    """Files that are not as they were written."""
    try:
        return [fault.path for fault in found(folder)]
    except Damaged as error:
        assert at_rest.FILE in str(error)
        return [folder / at_rest.FILE]


def test_a_file_that_is_cut_missing_or_foreign_is_named(tmp_path):
    folder = folder_of(tmp_path)
    cut, gone = folder / "state/d/2", folder / "extra"
    cut.write_bytes(cut.read_bytes()[:100])
    gone.unlink()
    foreign = folder / "state" / "more"
    foreign.touch()
    assert {path: reason for path, reason in found(folder)} == {
        cut: "it has 100 bytes of 5,000",
        gone: "it cannot be read: No such file or directory",
        foreign: "it was not there when the folder was written",
    }
    assert str(found(folder)[0]) == f"{cut}: it has 100 bytes of 5,000"
    assert at_rest.one_line(found(folder) * 2).endswith("; and 3 more")


def test_processes_look_at_each_file_once(tmp_path):
    folder = folder_of(tmp_path)
    for name in ("state/d/1", "state/d/2", "extra"):
        flipped(folder / name, random.Random(0))
    files = at_rest.described(folder)["files"]
    by_process = [list(at_rest.faults(folder, files, share=(i, 2))) for i in range(2)]
    assert all(by_process)
    together = [fault for each in by_process for fault in each]
    assert sorted(together) == sorted(at_rest.faults(folder, files))


def test_a_small_file_is_read_as_it_was_written_or_not_at_all(tmp_path):
    path, refused = tmp_path / "origin.json", 0
    for seed in range(200):
        at_rest.write_sealed(path, VALUES)
        assert at_rest.read_sealed(path, "mend it") == VALUES
        flipped(path, random.Random(seed))
        try:
            values = at_rest.read_sealed(path, "mend it")
        except Damaged as error:
            assert str(path) in str(error) and str(error).endswith("; mend it"), seed
            refused += 1
        else:  # such as one kind of white space for another
            assert values == VALUES, seed
    assert refused > 150


def test_a_small_file_of_before_has_no_digest(tmp_path):
    path = tmp_path / "origin.json"
    assert at_rest.read_sealed(path, "") is None
    path.write_text(json.dumps(VALUES))
    assert at_rest.read_sealed(path, "") == VALUES and not at_rest.is_sealed(path)
    at_rest.write_sealed(path, VALUES)
    assert at_rest.is_sealed(path)


@pytest.mark.parametrize("missing", [at_rest.SEAL, "files"])
def test_digests_of_a_folder_are_all_there_or_damaged(tmp_path, missing):
    """Without the digest of the digests nobody could say that they are those that were written."""
    path = tmp_path / at_rest.FILE
    assert at_rest.described(tmp_path) is None
    values = json.loads(at_rest.describe(tmp_path, {}))
    del values[missing]
    if missing != at_rest.SEAL:  # it is right about what there is
        del values[at_rest.SEAL]
        values = at_rest.sealed(values)
    path.write_text(json.dumps(values))
    with pytest.raises(Damaged, match="it lacks digests"):
        at_rest.described(tmp_path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A trainer without descriptors would take its checkpoint for broken."""
    (tmp_path / "file").write_bytes(b"content")
    digests = at_rest.digests_of(tmp_path, ["file"])

    def refuse(path: Path, *args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(at_rest, "open", refuse, raising=False)
    with pytest.raises(OSError, match=os.strerror(number)):
        list(at_rest.faults(tmp_path, digests))
    number = errno.EIO
    (fault,) = at_rest.faults(tmp_path, digests)
    assert fault.path == tmp_path / "file" and "Input/output error" in fault.reason
