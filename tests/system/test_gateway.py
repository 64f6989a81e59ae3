"""A command-line agent trains a policy through the gateway, while all that answers it is killed."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import unoptimized
from tests.gateway.places import FORGETFUL, make_checkpoint
from tests.shared import made_once
from tests.system.harness import PATIENT, REPOSITORY, Run, complete, running

pytestmark = pytest.mark.system

CONFIG = REPOSITORY / "tests" / "gateway" / "config.py"
WORKER = "rlboost_jax.environments.worker"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    start = made_once(tmp_path_factory, "gateway_checkpoint", make_checkpoint)
    compiled = unoptimized.environment(os.environ.get("XLA_FLAGS", ""))
    return {**compiled, "GATEWAY_TEST_START": str(start), "GATEWAY_TEST_TEMPLATE": FORGETFUL}


@pytest.fixture(scope="module")
def calm(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With no servers, and nobody killed."""
    workdir = tmp_path_factory.mktemp("calm") / "run"
    return complete(workdir, config=CONFIG, environment=environment)


def test_an_agent_that_knows_an_address_trains_a_policy(calm: Run) -> None:
    rows = calm.metrics()
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows)
    assert all(row["episodes_left_out"] == 0 for row in rows)
    assert all(row["tokens_retokenised"] == 0 for row in rows)
    assert any(row["reward_std"] > 0 for row in rows), "its reward is asked for"
    assert not list(_agents(calm))


def test_engines_end_turns_by_themselves(calm: Run) -> None:
    """Where nobody dies nothing is lost: no engine goes on past `environment.turn_tokens`."""
    for row in calm.metrics():
        assert row["tokens_lost"] == 0 and row["tokens_generated"] == row["response_tokens"], row
        assert row["turns_mean"] > 1 and 0 < row["parked_share"] < 1


def test_kills_change_no_bit(calm: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """Of servers at work, of harnesses, and of the processes that they talk to."""
    overrides = (*PATIENT, "fleet.max_instances=2", "environment.attempts=100")
    with running(tmp_path / "run", *overrides, config=CONFIG, environment=environment) as attacked:
        for _ in range(2):
            harness = attacked.wait_until(lambda: next(_agents(attacked), None), "a harness")
            _kill(harness)
            for pid, command in attacked.processes().items():
                if WORKER in command:
                    _kill(pid)
        attacked.wait_until(lambda: attacked.events("ready"), "a server")
        attacked.finish()
        assert not list(_agents(attacked)), "harnesses end with their workers"
    assert attacked.digests() == calm.digests()


def _agents(run: Run) -> Iterator[int]:
    """Harnesses of that run."""
    for pid, command in run.processes().items():
        if "agent.py" in command:
            yield pid


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
