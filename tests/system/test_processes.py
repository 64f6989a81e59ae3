"""A trainer of two processes, each with its own device, and what becomes of it when one dies."""

import json
import os
import shutil
import signal
import socket

import pytest

from rlboost_jax.learner.checkpoints.run_copies import restore
from rlboost_jax.platform.object_store import ObjectStore
from rlboost_jax.settings.config_loading import read_changes
from tests.system import judged
from tests.system import test_tools_quickstart as tools
from tests.system.harness import PATIENT, REPOSITORY, Run, complete

# A minute; what two processes compute is tested in tests/learner/test_processes.py.
pytestmark = [pytest.mark.system, pytest.mark.soak]

SMALL = (
    *("seed=11", "num_steps=3", "fleet.max_instances=1", "warmup.max_updates=6"),
    *("warmup.habit_updates=2", "evaluation.every_steps=0"),
    *("task.mean_length=10.0", "task.max_length=26", "sampling.max_response_tokens=64"),
    *("learner.prompts_per_step=8", "learner.micro_batch_prompts=4", "learner.mesh=(1, 2, 1)"),
)


class TwoProcesses:
    def __init__(self, workdir, *overrides, settings=SMALL, flags=(), **chosen):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.leader, self.follower = (
            Run(
                workdir,
                *settings,
                *overrides,
                options=(
                    *flags,
                    f"--coordinator=127.0.0.1:{port}",
                    "--num_processes=2",
                    f"--process_index={index}",
                ),
                **chosen,
            )
            for index in range(2)
        )

    def start(self):
        self.leader.start()
        self.follower.start()
        return self

    def finish(self):
        self.leader.finish()
        self.follower.finish()
        return self

    def close(self):
        self.leader.close()  # with all that has its mark
        self.follower.close()


@pytest.fixture
def two(tmp_path):
    made = []

    def start(name, *overrides, hold=None, **chosen):
        made.append(TwoProcesses(tmp_path / name, *overrides, **chosen))
        if hold is not None:
            made[-1].leader.hold(**hold)
        return made[-1].start()

    yield start
    for each in made:
        each.close()


def test_two_processes_lose_one_and_go_on_with_the_same_bits(two, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    whole = two("whole").finish().leader
    assert len(whole.digests()) == 3
    assert all(row["max_logprob_gap"] < 1e-4 for row in whole.metrics())
    whole.assert_accounts_hold()

    cut = two("cut")
    cut.leader.wait_until(cut.leader.metrics, "first row")  # and so in the middle of the next step
    os.kill(cut.follower.process.pid, signal.SIGKILL)
    output = cut.leader.end()
    assert cut.leader.process.returncode == 1
    # Said by our watch, that is, and not by heartbeats that were waited for.
    assert "error: process 1 of 2 is gone without a word; the same" in output
    resumed = two("cut").finish().leader
    assert resumed.digests() == whole.digests()


def test_a_host_stays_away_and_comes_back(two, tmp_path, monkeypatch):
    """Two processes, one, and two again: each goes on from what the others saved."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    settings = ("warmup.max_updates=2", "fleet.max_instances=0", "model.lora.rank=4")
    two("run", *settings, "num_steps=1").finish()
    small = [each for each in SMALL if not each.startswith("learner.mesh")]
    alone = (*small, *settings, "num_steps=2", "learner.mesh=(1, 1, 1)")
    output = complete(tmp_path / "run", *alone).process.output
    assert "changed from step 1 on: learner.mesh (1, 2, 1) → (1, 1, 1)" in output
    assert "from step 1 on the trainer's processes are 1; before it were 2" in output
    run = two("run", *settings, "num_steps=3").finish().leader
    assert [row["learner_devices"] for row in run.metrics()] == [2, 1, 2]
    assert all(row["max_logprob_gap"] < 1e-4 for row in run.metrics())
    changes = [each for each in read_changes(run.workdir) if each.name == "learner.mesh"]
    assert [each.step for each in changes] == [1, 2]
    # Without the checkpoints after the first, all of it is done again: step 1 by two processes on
    # the mesh of one is impossible, and so it is done on that of now.
    for step in (2, 3):
        shutil.rmtree(run.workdir / "checkpoints" / str(step))
    (run.workdir / "summary.json").unlink()
    again = two("run", *settings, "num_steps=3").finish().leader
    assert "step 1 is done again as the run is laid out now" in again.process.output
    assert [row["learner_devices"] for row in again.metrics()] == [2, 2, 2]
    assert not [each for each in read_changes(run.workdir) if each.name == "learner.mesh"]


def test_two_processes_go_on_from_a_copy_with_the_same_bits(two, tmp_path, monkeypatch):
    """A copy has what each process wrote of a checkpoint, and the base of its adapters."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    settings = ("model.lora.rank=4", "warmup.max_updates=4", "fleet.max_instances=0")
    whole = two("whole", *settings).finish().leader
    copies = f"file://{tmp_path}/copies"
    lost = two("lost", *settings, "num_steps=2", f"checkpoint.copy_to={copies}").finish().leader
    shutil.rmtree(lost.workdir)
    assert restore(ObjectStore(copies, setting="test"), tmp_path / "elsewhere") == 2
    run = two("elsewhere", *settings).finish().leader
    assert run.digests() == whole.digests() and len(run.digests()) == 3


def test_two_processes_train_adapters(two):
    """What followers hold of the base reaches servers, and all agree on what was sampled."""
    run = two("adapters", "model.lora.rank=4", "warmup.max_updates=24").finish().leader
    assert len(run.metrics()) == 3
    assert all(row["max_logprob_gap"] <= 1e-4 for row in run.metrics())
    assert len({params for _, _, params in run.digests()}) == 3
    assert run.events("pulled")


def with_a_lag(lag):
    """The versions from 0 to 2 are sampled from, rounded; each update has a gradient."""
    return (
        *(f"algorithm.lag={lag}", f"num_steps={3 + lag}", "weights.rollout_dtype=bfloat16"),
        *("algorithm.advantage=return", "algorithm.overlong_penalty=1.0"),
        "algorithm.overlong_band=0.9",
    )


@pytest.mark.parametrize("lag", [1, 2])
def test_two_processes_with_a_lag_have_the_same_bits_whatever_becomes_of_servers(two, lag):
    settings = with_a_lag(lag)
    alone = two("alone", *settings, "fleet.max_instances=0").finish().leader
    assert [row["version"] for row in alone.metrics()] == [max(0, b - lag) for b in range(3 + lag)]
    # Of the very version that sampled: the policy has moved on by more.
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics()[1:])
    calm = two("calm", *settings).finish().leader
    assert calm.digests() == alone.digests()
    chaos = two("chaos", *settings, *PATIENT, hold={"version": 1})
    chaos.leader.kill_servers_at_work(1)
    chaos.finish()
    assert chaos.leader.digests() == alone.digests()
    chaos.leader.assert_accounts_hold()


@pytest.mark.parametrize("lag", [1, 2])
def test_two_processes_with_a_lag_go_on_with_the_same_bits_when_killed(two, lag):
    """Each takes what it holds of older versions from the checkpoint; their snapshots are gone."""
    settings = (*with_a_lag(lag), "fleet.max_instances=0")
    whole = two("whole", *settings).finish().leader
    cut = two("cut", *settings)
    cut.leader.wait_until(lambda: len(cut.leader.metrics()) > lag, "rows")
    cut.leader.kill()
    cut.follower.end()
    # By our watch, or by JAX, whose coordinator is gone: whichever misses process 0 first.
    assert cut.follower.process.returncode in (1, -signal.SIGABRT)
    shutil.rmtree(cut.leader.workdir / "snapshots")
    assert two("cut", *settings).finish().leader.digests() == whole.digests()


def test_rewards_of_groups_and_rewards_that_wait_have_the_same_bits_with_two_processes(
    two, tmp_path
):
    judged.write_questions(tmp_path / "train.jsonl")
    own = {
        "settings": ("num_steps=4", "algorithm.lag=1", "learner.mesh=(1, 2, 1)"),
        "config": REPOSITORY / "tests" / "system" / "judged.py",
    }
    source = f"data.source={tmp_path / 'train.jsonl'}"
    alone = two("alone", source, "fleet.max_instances=0", "rewards.workers=1", **own)
    alone = alone.finish().leader
    assert all(row["reward_std"] > 0 and not row["reward_failures"] for row in alone.metrics())
    hold = {"dispatches": 2, "version": 1}
    chaos = two("chaos", source, *PATIENT, "rewards.workers=3", hold=hold, **own)
    chaos.leader.kill_servers_at_work(1, dispatches=2, then=2)
    with chaos.leader.at_a_standstill(dispatches=2, version=2):
        chaos.leader.kill()
        chaos.follower.end()
    chaos = two("chaos", source, *PATIENT, "rewards.workers=3", **own).finish().leader
    assert chaos.digests() == alone.digests()
    chaos.assert_accounts_hold()


def test_two_processes_change_settings_and_fork_with_the_same_bits(two, tmp_path):
    """Changed on resuming, changed in a fork, and changed by one that is killed after it."""
    every = ("fleet.max_instances=0", "checkpoint.keep=9")
    changed = (*every, "num_steps=5", "learner.learning_rate=1e-3")
    first = two("run", *every).finish().leader.digests()
    assert len(first) == 3
    fork = (f"--fork={tmp_path / 'run'}@3",)
    forked = two("fork", *changed, flags=fork)
    forked.leader.wait_until(forked.leader.metrics, "a row of the fork")
    os.kill(forked.follower.process.pid, signal.SIGKILL)
    forked.leader.end()
    forked = two("fork", *changed, flags=fork).finish().leader
    resumed = two("run", *changed).finish().leader
    assert resumed.digests()[:3] == first
    assert forked.digests() == resumed.digests()[3:] and len(forked.digests()) == 2
    changes = json.loads((resumed.workdir / "config.json").read_text())["changes"]
    assert {(each["step"], each["name"]) for each in changes} == {
        (3, "num_steps"),
        (3, "learner.learning_rate"),
    }
    same = two("same", *every, "num_steps=5", flags=fork).finish().leader
    assert same.digests() != forked.digests(), "the learning rate makes no difference"


def test_two_processes_with_an_environment_have_the_same_bits_whatever_dies(two, tmp_path):
    """Servers, workers of the environment, and each of the two processes once: no bit changes, and
    no call is made twice. The environment is the leader's; followers know nothing of it."""

    def options_of(name):
        log = {"mean_notes": 1.0, "most_notes": 4, "log": str(tmp_path / f"{name}.calls")}
        return (*tools.SHORT, f"environment.options={log!r}", "learner.mesh=(1, 2, 1)")

    def start(name, *more):
        return two(name, *options_of(name), *more, config=tools.CONFIG, settings=())

    calm = start("calm", *tools.CALM).finish().leader
    assert len(calm.digests()) == 4 and all(row["tool_calls"] for row in calm.metrics())
    chaos = start("chaos", *PATIENT, "environment.chaos_kills_per_minute=30")
    chaos.leader.wait_until(chaos.leader.metrics, "first row")
    chaos.follower.kill()
    chaos.leader.end()
    chaos = start("chaos", *PATIENT, "environment.chaos_kills_per_minute=30")
    chaos.leader.wait_until(lambda: len(chaos.leader.metrics()) >= 2, "second row")
    chaos.leader.kill()
    chaos.follower.end()
    again = start("chaos", *PATIENT, "environment.chaos_kills_per_minute=30").finish().leader
    assert again.digests() == calm.digests()
    tools.assert_each_call_was_carried_out_once(again, calm)
