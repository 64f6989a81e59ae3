"""Responses with a tool turn: where, and in how many stays, they are made changes no bit."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import made_once
from tests.system.calculator import beside
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = pytest.mark.system

SETTINGS = (
    *SHORT,
    "num_steps=3",
    "evaluation.every_steps=2",  # held-out prompts have the tool as well
    "evaluation.num_prompts=8",
)


@contextlib.contextmanager
def calculating(workdir: Path, *overrides: str, held: int | None = None) -> Iterator[Run]:
    options = () if held is None else (f"--held={held}",)
    with prepared(workdir, *SETTINGS, *overrides) as run:
        program = ("tests.system.calculator", *options, "--")
        run.command = [sys.executable, "-m", *program, *run.command[3:]]
        yield run.start()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """By the trainer's engine only."""

    def make(folder: Path) -> None:
        with calculating(folder / "run", "fleet.max_instances=0") as run:
            run.finish()

    return Run(made_once(tmp_path_factory, "calculating_alone", make) / "run")


def test_the_tool_is_used(alone: Run) -> None:
    given = beside(alone.workdir, "answers").read_text().split()
    assert max(map(int, given)) >= 3, "it has never said a sum"
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics())
    assert all(row["tokens_delivered"] == row["response_tokens"] for row in alone.metrics())


def test_servers_that_are_killed_in_mid_turn_change_no_bit(alone: Run, tmp_path: Path) -> None:
    with calculating(tmp_path / "run", *PATIENT) as run:
        run.kill_servers_at_work(1, 2)
        run.finish()
    assert run.digests() == alone.digests()
    run.assert_accounts_hold()
    scores = [[row["accuracy"] for row in each.metrics()] for each in (run, alone)]
    assert scores[0] == scores[1]


def test_a_manager_that_is_killed_while_responses_are_parked_changes_no_bit(
    alone: Run, tmp_path: Path
) -> None:
    with calculating(tmp_path / "run", *PATIENT, held=1) as run:
        run.wait_until(beside(run.workdir, "asked").exists, "a question")
        first = run.manager()["pid"]
        os.kill(first, signal.SIGKILL)
        run.wait_until(lambda: run.manager()["pid"] != first, "another manager")
        run.wait_until(lambda: run.events("recovered"), "its recovery")
        beside(run.workdir, "go").touch()
        run.finish()
    assert run.digests() == alone.digests()
    run.assert_accounts_hold()
