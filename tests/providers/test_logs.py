"""A fleet that has had thousands of servers keeps the newest logs only."""

import os
from pathlib import Path

from rlboost_jax.providers.logs import remove_old_logs


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
