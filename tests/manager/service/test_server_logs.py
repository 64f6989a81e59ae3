"""Lines that servers send are in files, whatever they send and however much."""

import json
from pathlib import Path

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    FromServer,
    MachineAdded,
    MachineRemoved,
    Send,
    ServerGone,
)
from rlboost_jax.manager.service.server_logs import FULL, ServerLogs
from rlboost_jax.providers.base import Exited
from rlboost_jax.providers.log_files import remove_old_logs
from tests.manager.desk import Desk
from tests.manager.fakes import hello, nonce_of

WELCOME = dict(renew_seconds=0.3, orphan_seconds=1.0)


def shown(files: ServerLogs, stream: int, name: str) -> None:
    answer = Send(stream, m.Welcome(instance=name, **WELCOME))
    files(FromServer(stream, hello(instance=name)), [answer], 0.0, 0.0)


def test_each_servers_lines_are_in_its_own_file(tmp_path: Path) -> None:
    files = ServerLogs(tmp_path, remove_old_logs)
    shown(files, 1, "a")
    shown(files, 2, "b")
    files(FromServer(1, m.Said(lines=("one", "two"))), [], 0.0, 0.0)
    files(FromServer(2, m.Said(lines=("other",), dropped=4)), [], 0.0, 0.0)
    files(FromServer(3, m.Said(lines=("nobody",))), [], 0.0, 0.0)  # has not said hello
    files(ServerGone(1, "stream closed"), [], 0.0, 0.0)
    files(FromServer(1, m.Said(lines=("late",))), [], 0.0, 0.0)
    files.close()
    folder = tmp_path / "logs" / "said"
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"a.log": "one\ntwo\n", "b.log": "… 4 lines were dropped\nother\n"}


def test_a_file_keeps_the_newest_lines_within_its_bound(tmp_path: Path) -> None:
    files = ServerLogs(tmp_path, remove_old_logs, max_bytes=1_000)
    shown(files, 1, "a")
    for number in range(500):
        files(FromServer(1, m.Said(lines=(f"line {number}",))), [], 0.0, 0.0)
    files.close()
    text = (tmp_path / "logs" / "said" / "a.log").read_text()
    assert len(text) <= 1_000 + len(FULL) and text.startswith(FULL)
    kept = [int(line.split()[1]) for line in text.splitlines()[1:] if line.startswith("line")]
    assert kept == list(range(kept[0], 500))


def test_a_loss_stands_with_the_last_lines() -> None:
    desk = Desk()
    desk.open_run()
    desk.join(3, None)
    desk.server(3, m.Said(lines=tuple(f"line {n}" for n in range(12))))
    desk.server(3, m.Said(lines=("out of luck",)))
    desk(ServerGone(3, "stream closed"))
    (lost,) = desk.records("lost")
    assert lost.detail["log"][-1] == "out of luck"
    assert len(lost.detail["log"]) == 12, "bounded"
    json.dumps(lost.detail)


def test_lines_that_only_the_provider_has_stand_in_an_event_of_their_own() -> None:
    for joins in (False, True):
        desk = Desk()
        desk.open_run()
        desk(MachineAdded("m1"))
        desk.grant("local-1")
        if joins:
            desk.join_granted(3, "local-1", None)
            desk(ServerGone(3, "stream closed"))
            assert "log" not in desk.records("lost")[0].detail
        desk(Exited("local-1", nonce_of("local-1"), "exit code 1: boom", 1, ("it began", "boom")))
        (record,) = desk.records("exited" if joins else "lost")
        assert record.detail["log"] == ["it began", "boom"] and "boom" in record.detail["reason"]


def test_a_server_that_was_ended_on_purpose_needs_no_explanation() -> None:
    desk = Desk()
    desk.open_run()
    desk(MachineAdded("m1"))
    desk.grant("local-1")
    desk.join_granted(3, "local-1", None)
    desk(MachineRemoved("m1", notice=False))
    desk(Exited("local-1", nonce_of("local-1"), "exit code -9", -9, ("it began",)))
    assert not desk.records("exited")
