"""Episodes with a tool: where they are made, and whatever dies in mid-turn, changes no bit."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import living
from tests.shared import made_once
from tests.system.harness import MARK, PATIENT, SHORT, SPREAD, Run, prepared

pytestmark = pytest.mark.system

CONFIG = Path(__file__).with_name("calculating.py")
SETTINGS = (
    *SHORT,
    *SPREAD,
    "num_steps=3",
    "warmup.max_updates=0",
    "warmup.habit_updates=0",
    "evaluation.every_steps=2",  # held-out examples have the tool as well
    "evaluation.num_prompts=8",
)


def beside(workdir: Path, name: str) -> Path:
    return workdir.with_name(f"{workdir.name}.{name}")


@contextlib.contextmanager
def calculating(workdir: Path, *overrides: str, held: bool = False) -> Iterator[Run]:
    log = beside(workdir, "log")
    if held:
        beside(workdir, "log.hold").touch()
    settings = (*SETTINGS, f"environment.options.log={log}", *overrides)
    with prepared(workdir, *settings, config=CONFIG) as run:
        yield run


def workers(run: Run) -> list[int]:
    """Process ids of a run's environment workers."""
    mark, module = f"{MARK}={run.workdir}", "rlboost_jax.environments.environment_worker"
    return [e.pid for e in living() if mark in e.environment and module in e.command]


def calls(run: Run) -> Counter[str]:
    """How often each call was carried out."""
    return Counter(line.split()[0] for line in beside(run.workdir, "log").read_text().splitlines())


def results(run: Run) -> Counter[str]:
    """What the calls came to, by how often."""
    return Counter(line.split()[1] for line in beside(run.workdir, "log").read_text().splitlines())


def assert_same(run: Run, alone: Run) -> None:
    """And no other calls: keys are of one run alone, so those of two runs differ."""
    assert run.digests() == alone.digests()
    run.assert_accounts_hold()
    scores = [[row["accuracy"] for row in each.metrics()] for each in (run, alone)]
    assert scores[0] == scores[1]
    assert set(calls(run).values()) == {1}, "a call was carried out twice"
    assert results(run) == results(alone)
    assert not calls(run).keys() & calls(alone).keys()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """By the trainer's engine only."""

    def make(folder: Path) -> None:
        with calculating(folder / "run", "fleet.max_instances=0") as run:
            run.start().finish()

    return Run(made_once(tmp_path_factory, "calculating_alone", make) / "run")


def test_the_tool_is_used(alone: Run) -> None:
    assert len(calls(alone)) > 100 and set(calls(alone).values()) == {1}
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics())
    assert all(row["tokens_delivered"] == row["response_tokens"] for row in alone.metrics())
    assert not list((alone.workdir / "environments").glob("*.journal")), "all is committed"


def test_servers_that_are_killed_in_mid_turn_change_no_bit(alone: Run, tmp_path: Path) -> None:
    with calculating(tmp_path / "run", *PATIENT) as run:
        run.hold(dispatches=2, version=1).start()
        run.kill_servers_at_work(1, 2, dispatches=2)
        run.finish()
    assert_same(run, alone)


def test_a_manager_that_is_killed_while_responses_are_parked_changes_no_bit(
    alone: Run, tmp_path: Path
) -> None:
    with calculating(tmp_path / "run", *PATIENT, held=True) as run:
        run.start()
        run.wait_until(beside(run.workdir, "log.asked").exists, "a question")
        first = run.manager()["pid"]
        os.kill(first, signal.SIGKILL)
        run.wait_until(lambda: run.manager()["pid"] != first, "another manager")
        run.wait_until(lambda: run.events("recovered"), "its recovery")
        beside(run.workdir, "log.hold").unlink()
        run.finish()
    assert_same(run, alone)


def test_a_trainer_that_is_killed_in_mid_turn_changes_no_bit(alone: Run, tmp_path: Path) -> None:
    with calculating(tmp_path / "run", *PATIENT, held=True) as run:
        run.start()
        run.wait_until(beside(run.workdir, "log.asked").exists, "a question")
        run.kill()
        beside(run.workdir, "log.hold").unlink()
        run.start()
        run.finish()
    assert_same(run, alone)


def test_workers_that_are_killed_in_mid_turn_change_no_bit(alone: Run, tmp_path: Path) -> None:
    slow = "environment.options.seconds=0.02"
    with calculating(tmp_path / "run", *PATIENT, slow, held=True) as run:
        run.start()
        hold, asked = beside(run.workdir, "log.hold"), beside(run.workdir, "log.asked")
        killed = 0
        while killed < 6:
            os.truncate(hold, 13 * (killed + 1))  # calls that all have made by then
            asked.unlink(missing_ok=True)
            run.wait_until(asked.exists, "a step that waits")
            for pid in workers(run)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        hold.unlink()
        run.finish()
    assert_same(run, alone)
