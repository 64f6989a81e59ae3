"""Files that are whole after a power cut."""

import os
from pathlib import Path

import pytest

from rlboost_jax import durable


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
