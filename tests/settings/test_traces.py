from pathlib import Path

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.traces import TraceRow, read_trace


def test_rows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "milliseconds,action,name\n# a comment\n\n0,add,a\n 12.5 , add , b\n12.5,remove,a\n"
    )
    assert read_trace(path) == (
        TraceRow(milliseconds=0.0, action="add", name="a"),
        TraceRow(milliseconds=12.5, action="add", name="b"),
        TraceRow(milliseconds=12.5, action="remove", name="a"),
    )


@pytest.mark.parametrize(
    "line",
    ["5,add", "5,join,x", "x,add,a", "-1,add,a", "nan,add,a", "inf,add,a", "5,add,", "0,add,a,b"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"0,add,a\n{line}\n")
    with pytest.raises(ConfigError, match=r"fleet\.trace: line 2 of .*add\|remove"):
        read_trace(path)


def test_time_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("10,add,a\n9,remove,a\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)


def test_files_that_hold_no_trace(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("binary", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=name):
            read_trace(tmp_path / name)
    with pytest.raises(ConfigError, match="is a folder and no file"):
        read_trace(tmp_path)
