"""Files that are whole after a power cut."""

import os
from pathlib import Path

import pytest

from rlboost_jax.platform import durable
from rlboost_jax.platform.mistakes import Mistake


def test_a_file_is_replaced_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    durable.write(path, b"before")
    durable.write(path, b"after", mode=0o600)
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record.json"]


def test_what_cannot_be_written_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    durable.write(path, b"before")
    (tmp_path / f"record.json{durable.PART}").mkdir()  # so that the new one cannot be made
    with pytest.raises(OSError):
        durable.write(path, b"after")
    assert path.read_bytes() == b"before"


def test_a_tree_with_a_link_to_nowhere_is_synced(tmp_path: Path) -> None:
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "inner" / "file").write_bytes(b"bytes")
    (tmp_path / "tree" / "link").symlink_to("nowhere")
    durable.sync_tree(tmp_path / "tree")


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    durable.keep(path, b"one", mode=0o600)
    before = path.stat()
    durable.keep(path, b"one", mode=0o600)
    assert path.stat().st_ino == before.st_ino
    durable.keep(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two" and path.stat().st_ino != before.st_ino


def test_what_another_has_left_half_written_does_no_harm(tmp_path: Path) -> None:
    path, part = tmp_path / "secret", tmp_path / f"secret{durable.PART}"
    part.write_bytes(b"much longer than what follows")
    part.chmod(0o644)
    durable.write(path, b"short", mode=0o600)
    assert path.read_bytes() == b"short" and path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged .it is empty.; bring"),
        (b'{"a": ', "damaged .it is no JSON .Expecting value: line 1, column 7"),
        (b"\xff\x00", "damaged"),
        (b"3", "damaged"),
    ],
)
def test_a_damaged_object_is_a_line_that_names_its_file(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "origin.json"
    assert durable.read_object(path, "bring it back") is None
    path.write_bytes(content)
    with pytest.raises(Mistake, match=rf"origin\.json.*{says}") as error:
        durable.read_object(path, "bring it back")
    assert "\n" not in str(error.value) and str(error.value).endswith("; bring it back")
    path.write_bytes(b'{"a": 1}')
    assert durable.read_object(path, "bring it back") == {"a": 1}
