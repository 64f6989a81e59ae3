"""Rewards that compare a group and rewards that wait, in whole runs with a lag and the noise of a
tree: what becomes of servers, of the trainer and of the processes that judge changes no bit.

No other run has these sizes, so their programs are compiled anew, most optimizations left out.
"""

import os
import signal

import pytest

from tests import unoptimized
from tests.system import judged
from tests.system.harness import PATIENT, REPOSITORY, complete, prepared

pytestmark = pytest.mark.system

CONFIG = REPOSITORY / "tests" / "system" / "judged.py"
LAG = 1
STEPS = 4
VERSIONS = [0, 0, 1, 2]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "train.jsonl"
    judged.write_questions(path)
    lag, noise = f"algorithm.lag={LAG}", "sampling.noise=tree"
    return (f"data.source={path}", f"num_steps={STEPS}", lag, noise)


@pytest.fixture(scope="module")
def chosen():
    environment = unoptimized.environment(os.environ.get("XLA_FLAGS", ""))
    return {"config": CONFIG, "environment": environment}


@pytest.fixture(scope="module")
def alone(settings, chosen, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("alone") / "run"
    return complete(workdir, *settings, "fleet.max_instances=0", "rewards.workers=1", **chosen)


def rewards(run):
    return [
        {name: value for name, value in row.items() if name.startswith("reward")}
        for row in run.metrics()
    ]


def test_killed_servers_trainer_and_judges_change_no_bit(alone, settings, chosen, tmp_path):
    with prepared(tmp_path / "run", *settings, *PATIENT, "rewards.workers=3", **chosen) as run:
        run.hold(dispatches=2, version=1).start()
        run.kill_servers_at_work(1, dispatches=2, then=2)
        with run.at_a_standstill(dispatches=2, version=2) as still:
            for pid in still.at_work.values():  # those that came in their place
                os.kill(pid, signal.SIGKILL)
            run.kill()
        run.start().finish()
        run.assert_nothing_is_left()  # workers of rewards go with their trainer
    assert run.digests() == alone.digests()
    assert [row["version"] for row in alone.metrics()] == VERSIONS
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics())
    assert rewards(run) == rewards(alone)
    parts = {f"reward/{function['name']}" for function in judged.get_config().rewards.functions}
    assert parts <= alone.metrics()[-1].keys()
    assert len({row["reward_mean"] for row in alone.metrics()}) == STEPS
    assert all(row["reward_std"] > 0 and not row["reward_failures"] for row in alone.metrics())
    run.assert_accounts_hold()
