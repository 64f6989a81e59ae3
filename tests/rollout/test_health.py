"""A container's health is what its server showed within the last minute."""

import os
import re
from pathlib import Path

import pytest

from rlboost_jax.rollout import health


def test_it_is_at_work_for_a_minute_after_a_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "health"
    monkeypatch.setenv(health.VARIABLE, str(file))
    assert health.main([]) == 1 and "no server has begun" in capsys.readouterr().out
    health.touch()
    assert health.main([]) == 0
    long_ago = file.stat().st_mtime - health.PATIENCE_SECONDS - 30.0
    os.utime(file, (long_ago, long_ago))
    assert health.main([]) == 1
    *_, ago = re.findall(r"it was at work (\d+)", capsys.readouterr().out)
    assert int(ago) >= 90
    with health.preparing():
        while health.main([]) != 0:  # a thread shows it
            pass


def test_nobody_looks_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(health.VARIABLE, raising=False)
    health.touch()
    assert health.age_of(os.environ) is None
