"""The newest logs are kept of thousands of servers; last lines are plain text."""

import os
from pathlib import Path

from rlboost_jax.providers.log_files import LETTERS, LINES, last_lines, remove_old_logs, tail_of


def test_the_oldest_logs_of_servers_that_ended_go(tmp_path: Path) -> None:
    names = ["manager", "zygote", "living", *(f"server-{i}" for i in range(7))]
    for age, name in enumerate(names):
        path = tmp_path / f"{name}.log"
        path.touch()
        os.utime(path, ns=(age, age))
    (tmp_path / "notes.txt").touch()
    remove_old_logs(tmp_path, {"living"}, kept=3)
    left = {path.name for path in tmp_path.iterdir()}
    newest = {f"server-{i}.log" for i in (4, 5, 6)}
    assert left == {"manager.log", "zygote.log", "living.log", "notes.txt"} | newest
    remove_old_logs(tmp_path, {"living"}, kept=3)
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_folder_that_does_not_exist_yet_has_none(tmp_path: Path) -> None:
    remove_old_logs(tmp_path / "logs", set())


def test_last_lines_are_few_short_and_no_more_than_text() -> None:
    text = "\n".join(
        ["first", "\x1b[31mred\x07", "", "x" * 9_999, *(f"line {n}" for n in range(8))]
    )
    found = last_lines(text)
    assert len(found) == LINES - 1 and found[0] == "first"
    assert found[1] == "[31mred", "a terminal does nothing with it"
    assert found[2] == "x" * LETTERS
    assert last_lines(text, 2) == ("line 6", "line 7")


def test_the_tail_of_a_log_however_long(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff" * 2**20 + b"\n" + "".join(f"ü {n}\n" for n in range(50)).encode())
    assert tail_of(path) == tuple(f"ü {n}" for n in range(50 - LINES, 50))
    assert tail_of(tmp_path / "nowhere") == () and tail_of(tmp_path) == ()
