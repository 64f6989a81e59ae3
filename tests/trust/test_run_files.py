"""What a manager makes of the files that another has left."""

from pathlib import Path

import pytest

from rlboost_jax.trust.run_files import read_record, read_tokens


@pytest.mark.parametrize("left", [b"", b"\n", b"\x00" * 43, b"\xff\xfe"])
def test_a_token_that_is_none_is_made_anew(tmp_path: Path, left: bytes) -> None:
    """It has let nobody in, so nothing is lost."""
    before = read_tokens(tmp_path)
    (tmp_path / "join" / "token").write_bytes(left)
    after = read_tokens(tmp_path)
    assert after.trainer == before.trainer
    assert after.server not in ("", before.server, after.trainer)
    assert read_tokens(tmp_path) == after
    assert (tmp_path / "join" / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("left", [b"", b'{"address": "h', bytes(200)])
def test_a_torn_record_is_nobodys(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "manager.json").write_bytes(left)
    assert read_record(tmp_path) is None
