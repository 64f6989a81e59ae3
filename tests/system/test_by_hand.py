"""What a person does to a living run with `kill` and a second terminal, and that no bit minds.

All tests act on one run, each on whatever step it is in by then, and most while its engines stand
still in the middle of that step.
"""

import os
import re
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import pytest

from rlboost_jax.platform import process_liveness
from tests.system.harness import PATIENT, SHORT, Run, running

pytestmark = pytest.mark.system

SETTINGS = (*SHORT, *PATIENT, "num_steps=100000", "manager.lease_seconds=4")


@pytest.fixture(scope="module")
def shared(short_and_calm, tmp_path_factory):
    with running(tmp_path_factory.mktemp("by_hand") / "run", *SETTINGS) as run:
        yield run


@pytest.fixture
def run(shared):
    """The run, alive and at its own pace, whatever the test before has done to it."""
    for pid in shared.processes():
        with suppress(ProcessLookupError):  # it ends just now
            os.kill(pid, signal.SIGCONT)
    shared.let_go()
    if not shared.process.lives:
        shared.start()
    yield shared
    for server in shared.by_hand:
        server.kill()
    shared.hold()  # until the next test: it would keep all cores busy


def events(run: Run, kind: str, since: float = 0.0, **detail) -> list[dict]:
    """Events after a time whose details have these values; `_from` is read as `from`."""
    wanted = {key.lstrip("_"): value for key, value in detail.items()}
    return [
        event
        for event in run.events(kind)
        if event["time"] >= since and wanted.items() <= event["detail"].items()
    ]


def assert_work_went_on(run: Run, lost: dict) -> None:
    """All that a lost server held was placed elsewhere within the step."""
    assert lost["detail"]["count"] > 0, "it held nothing, so nothing was shown"
    run.wait_until(lambda: len(run.metrics()) > lost["step"], "the end of the step")
    moved = [
        event
        for event in events(run, "migrated", lost["time"], _from=lost["instance"])
        if event["step"] == lost["step"]
    ]
    placed = accumulate(event["detail"]["count"] for event in moved)
    assert lost["detail"]["count"] in placed, "some of it was not placed again, or twice"
    run.assert_accounts_hold()


def yields(run: Run, name: str) -> bool:
    """Whether the manager has tokens of an instance that holds work."""
    found = run.status().get("instances", ())
    return any(e["tokens"] and e["running"] for e in found if e["instance"] == name)


def one_lost(run: Run, name: str, since: float) -> dict:
    def lost():
        return [event for event in events(run, "lost", since) if event["instance"] == name]

    return run.wait_until(lost, f"the loss of {name}")[0]


@contextmanager
def stopped(*pids: int):
    """Processes that do not run for a while (SIGSTOP)."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_killed_server_holds_nobody_up(run):
    with run.at_a_standstill() as still:
        name, pid = still.one
        since = time.time()
        os.kill(pid, signal.SIGKILL)
        lost = one_lost(run, name, since)
    assert_work_went_on(run, lost)


def test_a_server_from_a_second_terminal_works_at_once_and_leaves_politely(run):
    with run.at_a_standstill():
        server = run.serve("--name=second", "--price=1.5", "--zone=here")
        joined = run.wait_until(lambda: events(run, "joined", nonce=server.nonce), "the server")[0]
        name = "second"
        assert joined["instance"] == name
        assert joined["detail"]["price_per_hour"] == 1.5
        assert joined["detail"]["zone"] == "here"

        def working():
            found = events(run, "working", joined["time"])
            return [event for event in found if event["instance"] == name]

        first = run.wait_until(working, "work for it")[0]
        assert first["step"] == joined["step"]

    server.send_signal(signal.SIGTERM)
    assert server.end() == 0, server.errors
    assert server.output.rstrip().endswith("leaving: SIGTERM")
    run.wait_until(
        lambda: [event for event in run.events("drained") if event["instance"] == name],
        "its goodbye",
    )


def test_a_silent_server_is_lost_and_its_late_tokens_change_nothing(run):
    with run.at_a_standstill():
        # Not one of the provider's, who ends those that are silent for longer.
        name, server = "silent", run.serve("--name=silent")
        run.wait_until(lambda: yields(run, name), "its first tokens")
        since = time.time()
        with stopped(server.pid):
            lost = one_lost(run, name, since)
            assert re.match("silent|unreachable", lost["detail"]["reason"])
            run.let_go()
            assert_work_went_on(run, lost)
    # It wakes with tokens in its pipe, finds itself abandoned and comes back.
    run.wait_until(lambda: events(run, "joined", lost["time"], nonce=server.nonce), "it again")
    run.assert_accounts_hold()


def test_damaged_weights_are_refused_and_delay_nobody(run):
    # Everyone stands still in mid-step, so the version that is damaged stays the newest and
    # there is work for the server that is to come.
    with run.at_a_standstill():
        version = run.events("published")[-1]["detail"]["version"]
        folder = run.workdir / "snapshots" / str(version)
        file = max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes(flipped)

        server = run.serve("--name=damaged")
        joined = run.wait_until(lambda: events(run, "joined", nonce=server.nonce), "the server")[0]

        def its(kind: str, **detail) -> list[dict]:
            found = events(run, kind, joined["time"], **detail)
            return [event for event in found if event["instance"] == joined["instance"]]

        def refused(because: str) -> dict:
            def found():
                rejected = its("rejected", version=version)
                return [event for event in rejected if because in event["detail"]["reason"]]

            return run.wait_until(found, f"a refusal because of {because!r}")[0]

        event = refused("SHA-256")
        assert str(file.relative_to(folder)) in event["detail"]["reason"]
        file.write_bytes(content[:-1])
        refused(f"{len(content) - 1} bytes, its manifest says {len(content)}")
        file.unlink()
        refused("404")
        status = run.wait_until(run.status, "an answer of the manager")
        assert status["finished"] < status["total"], "no work was left to be withheld"
        assert not its("working")

    # The step ends without it, and the next version, which is sound, makes it work.
    run.wait_until(lambda: len(run.metrics()) > joined["step"], "the end of the step")
    pulled = run.wait_until(lambda: its("pulled"), "sound weights")[0]
    assert pulled["detail"]["version"] > version
    working = run.wait_until(lambda: its("working"), "work for it")[0]
    assert working["step"] > version
    server.send_signal(signal.SIGTERM)
    assert server.end() == 0, server.errors


def test_a_wrong_token_is_refused_and_the_run_does_not_notice(run, tmp_path):
    run.manager()  # once it is there, so are its files
    join = shutil.copytree(run.workdir / "join", tmp_path / "join")
    (join / "token").write_text("guess")
    with run.at_a_standstill():
        server = run.serve(join=join)
        assert server.end() != 0
    errors = server.errors
    assert errors.count("\n") == 1 and "wrong token" in errors and "guess" not in errors
    done = len(run.metrics())
    run.wait_until(lambda: len(run.metrics()) > done, "the next step")


def test_secrets_are_in_their_files_only(run):
    """Not on a command line, not in a log, not in what the run writes for people."""
    with run.at_a_standstill():
        pass  # servers have joined and worked
    folders = [run.workdir / name for name in ("join", "trainer", "authority")]
    held = [
        path
        for folder in folders
        for path in folder.iterdir()
        if path.suffix not in (".pem", ".pub")
    ]
    secrets = [line for path in held for line in path.read_bytes().split(b"\n") if len(line) > 30]
    assert len(secrets) > len(held) >= 6
    commands = [command.encode() for command in run.processes().values()]
    assert any(b"rlboost_jax.manager" in command for command in commands)
    others = []
    for folder, _, names in os.walk(run.workdir):  # the run goes on: folders vanish, and files do
        if Path(folder) not in folders and "snapshots" not in Path(folder).parts:
            for name in names:
                with suppress(OSError):
                    others.append((Path(folder) / name).read_bytes())
    assert len(others) > 5
    for secret in secrets:
        assert not any(secret in text for text in [*commands, *others])


def test_a_killed_manager_is_replaced_and_found_again(run):
    with run.at_a_standstill():
        before = run.manager()
        run.wait_until(lambda: len(run.servers()) == 2, "a whole fleet")
        servers, done, since = run.servers(), len(run.metrics()), time.time()
        os.kill(before["pid"], signal.SIGKILL)
        after = run.wait_until(
            lambda: (record := run.manager())["pid"] != before["pid"] and record,
            "another manager",
        )
        assert after["address"] == before["address"]

        def back():
            joined = events(run, "joined", since, reserved=False)
            return servers.keys() <= {event["instance"] for event in joined}

        run.wait_until(back, "its servers")
    run.wait_until(lambda: len(run.metrics()) > done + 1, "the end of the next step")
    assert run.servers() == servers
    wanted = {run.process.pid, after["pid"], *servers.values()}

    def fleet() -> set[int]:
        found = run.processes().items()
        return {pid for pid, command in found if "output_relay_process" not in command}

    # Of the killed manager something may live on for a moment.
    run.wait_until(lambda: fleet() == wanted, "a fleet of them alone: nothing more was started")
    run.assert_accounts_hold()


def test_a_manager_that_is_sent_away_is_replaced(run):
    """It sends its fleet home, the trainer's own engine included, and the run goes on."""
    with run.at_a_standstill():
        before = run.manager()
        done, since = len(run.metrics()), time.time()
        os.kill(before["pid"], signal.SIGTERM)

        def another():
            return not process_liveness.runs(before["pid"], before["started"]) and run.manager()

        after = run.wait_until(another, "another manager")
        assert after["pid"] != before["pid"]
        its_own = "the trainer's own engine"
        run.wait_until(lambda: events(run, "joined", since, reserved=True), its_own)
    run.wait_until(lambda: len(run.metrics()) > done + 1, "the end of the next step")
    with run.at_a_standstill() as still:
        assert still.at_work, "a server of the new fleet is at work"
    run.assert_accounts_hold()
