"""configs/tools_quickstart.py: a model learns to use a tool, and whatever dies changes no bit.

The tool may not be called twice: each call appends a line with its key to a file.

No other run has these sizes, so their programs are compiled anew, most optimizations left out.
"""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import unoptimized
from tests.endpoints import free_port
from tests.patience import PATIENCE_SECONDS
from tests.shared import made_once
from tests.system.harness import LOOK_SECONDS, PATIENT, REPOSITORY, Run, prepared

pytestmark = pytest.mark.system

CONFIG = REPOSITORY / "configs" / "tools_quickstart.py"
WORKER = "rlboost_jax.environments.environment_worker"
CALM = ("fleet.chaos.enabled=False", "environment.chaos_kills_per_minute=0")
SHORT = (
    "seed=11",
    "num_steps=4",
    "warmup.max_updates=56",
    "warmup.habit_updates=4",  # not all of its episodes are guesses
    "evaluation.every_steps=2",
    "evaluation.num_prompts=8",
)


@contextlib.contextmanager
def using_tools(workdir: Path, *overrides: str, optimized: bool = False, log: Path | None = None):
    """A run whose tool writes its calls down, beside it where `log` does not say where."""
    environment = {} if optimized else compiled()
    options = {"mean_notes": 1.0, "most_notes": 4, "log": str(log or beside(workdir))}
    own = (f"environment.options={options!r}", *overrides)
    with prepared(workdir, *own, config=CONFIG, environment=environment) as run:
        yield run


def compiled() -> dict[str, str]:
    """Environment of processes whose programs compile in a quarter of the time."""
    return unoptimized.environment(os.environ.get("XLA_FLAGS", ""))


def beside(workdir: Path) -> Path:
    return workdir.with_name(f"{workdir.name}.calls")


def asked_of(workdir: Path) -> Path:
    """What was asked of the calm run's tool, after its end too."""
    return workdir.with_name(f"{workdir.name}.asked")


def calls_of(run: Run) -> Counter:
    lines = beside(run.workdir).read_text().splitlines()
    assert all(line.count("\t") == 1 for line in lines)
    return Counter(line.partition("\t")[0] for line in lines)


def results_of(run: Run) -> Counter:
    """What the calls came to, by how often."""
    lines = beside(run.workdir).read_text().splitlines()
    return Counter(line.partition("\t")[2] for line in lines)


def assert_each_call_was_carried_out_once(run: Run, calm: Run) -> None:
    """And no other call than in a calm run: what is sampled again is not asked again. Keys are of
    one run alone, so that a service does not take a call for a repetition of another run's."""
    calls, others = calls_of(run), calls_of(calm)
    assert calls and not [key for key, count in calls.items() if count > 1]
    assert results_of(run) == results_of(calm)
    assert not calls.keys() & others.keys()


def workers(run: Run) -> list[int]:
    return [pid for pid, command in run.processes().items() if WORKER in command]


def kill(pids) -> int:
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    def make(folder: Path) -> None:
        log = asked_of(folder / "run")
        with using_tools(folder / "run", *SHORT, *CALM, log=log) as run:
            run.start().finish()
        shutil.copy(log, beside(run.workdir))  # `evaluate` asks more, while others compare

    return Run(made_once(tmp_path_factory, "using_tools", make) / "run")


def test_the_tool_is_used_and_nothing_is_tokenized_again(calm: Run) -> None:
    assert len(calls_of(calm)) > 50
    assert all(row["tokens_retokenised"] == 0 for row in calm.metrics())
    assert all(row["max_logprob_gap"] <= 1e-5 for row in calm.metrics())
    calm.assert_accounts_hold()


def test_the_command_measures_what_the_run_measured(calm: Run) -> None:
    """Greedily, with the newest checkpoint; nothing is left in the folder."""
    before = sorted(calm.workdir.rglob("*.journal"))
    calls = asked_of(calm.workdir).read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "rlboost_jax.cli.evaluate", f"--workdir={calm.workdir}"],
        env={**os.environ, **compiled()},
        check=True,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
    )
    found = json.loads(done.stdout)
    assert asked_of(calm.workdir).read_bytes() != calls, "it asked nothing"
    own = json.loads((calm.workdir / "summary.json").read_text())["last_accuracy"]
    assert (found["step"], found["accuracy"], found["prompts"]) == (4, own, 8)
    assert sorted(calm.workdir.rglob("*.journal")) == before == []


def test_workers_and_a_trainer_that_are_killed_change_no_bit(calm: Run, tmp_path: Path) -> None:
    """Workers in the first two steps, each time that there are some. Then the trainer, in the
    middle of a step: nothing is asked again for it."""
    with using_tools(tmp_path / "run", *SHORT, *CALM, *PATIENT) as run:
        run.hold(dispatches=1, version=2).start()  # until enough workers are killed
        run.wait_until(beside(run.workdir).exists, "a call")
        killed = 0

        def enough() -> bool:
            nonlocal killed
            if killed < 6:
                killed += kill(workers(run)[:1])
                time.sleep(LOOK_SECONDS * 10)  # there are others meanwhile, at work
            return killed >= 2 and len(run.metrics()) >= 2

        run.wait_until(enough, "the end of the second step")
        before = len(calls_of(run))
        run.hold(dispatches=1, version=3)  # until the trainer is
        run.wait_until(lambda: len(calls_of(run)) > before, "a call of the next step")
        run.kill()
        run.let_go()
        run.start().finish()
    assert run.digests() == calm.digests()
    assert_each_call_was_carried_out_once(run, calm)


def test_environments_on_hosts_of_their_own_change_no_bit(calm: Run, tmp_path: Path) -> None:
    """They dial the trainer, with nothing but a token of their own. Whole hosts die, workers on
    them, and the trainer, which finds them again: what was in them is made again elsewhere."""
    address = f"127.0.0.1:{free_port()}"
    settings = (f"environment.listen={address}", "environment.workers=0")
    with using_tools(tmp_path / "run", *SHORT, *CALM, *PATIENT, *settings) as run:
        run.hold(dispatches=1, version=3).start()  # until all are killed
        join = run.workdir / "environment_hosts" / "join"
        run.wait_until((join / "token").exists, "what opens the trainer")
        hosts = [run.environments_by_hand(address, workers=2) for _ in range(2)]
        killed = Counter()

        def enough() -> bool:
            steps, place = len(run.metrics()), killed["host"] % 2
            if steps >= 2 and not killed["trainer"]:
                run.kill()
                run.start()
                killed["trainer"] += 1
            elif steps >= 1 and killed["host"] < 3 and len(workers(run)) >= 3:
                if killed["worker"] <= killed["host"]:
                    killed["worker"] += kill(workers(run)[:1])
                else:
                    hosts[place].kill()
                    hosts[place] = run.environments_by_hand(address, workers=2)
                    killed["host"] += 1
            return killed["host"] == 3 and killed["trainer"] == 1

        run.wait_until(enough, "the end of all that are to die")
        run.let_go()
        run.finish()
        assert all(host.lives for host in hosts), "they wait for a trainer that may come back"
    assert killed == {"host": 3, "worker": 3, "trainer": 1}
    assert run.digests() == calm.digests()
    assert_each_call_was_carried_out_once(run, calm)


STEPS = 50
EVERY_SECONDS = 5.0  # between kills
SHARE = 1 / 3
TRAINER_DIES = (12, 34)  # steps
MANAGER_DIES = (20, 42)


@pytest.mark.soak
def test_fifty_steps_while_everything_dies(tmp_path: Path) -> None:
    """A third of servers and workers every 5 s, the trainer and its manager twice each."""
    settings = ("num_steps=50", *CALM)
    with using_tools(tmp_path / "calm" / "run", *settings, optimized=True) as alone:
        alone.workdir.parent.mkdir()
        alone.start()
        for step in range(1, STEPS + 1):  # each has its own patience: together they may take long
            alone.wait_until(lambda: len(alone.metrics()) >= step, f"step {step}")  # noqa: B023
        alone.finish()
    with using_tools(tmp_path / "killed" / "run", *settings, optimized=True) as run:
        run.workdir.parent.mkdir()
        counts = die(run)
    print(f"killed: {dict(counts)}; {len(calls_of(run))} calls")
    assert counts["trainer"] == len(TRAINER_DIES) and counts["manager"] == len(MANAGER_DIES)
    assert counts["server"] >= 5 and counts["worker"] >= 5
    assert run.digests() == alone.digests() and len(run.digests()) == STEPS
    assert_each_call_was_carried_out_once(run, alone)
    assert all(row["tokens_retokenised"] == 0 for row in run.metrics())
    first, last = (alone.metrics()[place]["accuracy"] for place in (0, -1))
    assert first < 0.3 and last >= 0.85


def die(run: Run) -> Counter:
    """See the run to its end, killing what is to be killed meanwhile."""
    choice, counts = random.Random(0), Counter()
    ahead = sorted(
        [*((s, "trainer") for s in TRAINER_DIES), *((s, "manager") for s in MANAGER_DIES)]
    )
    run.start()
    next_kill = time.monotonic() + EVERY_SECONDS
    steps, came = 0, time.monotonic()
    while True:
        assert run.process is not None
        if len(run.metrics()) > steps:
            steps, came = len(run.metrics()), time.monotonic()
        assert time.monotonic() < came + PATIENCE_SECONDS, f"nothing after step {steps}"
        if not run.process.lives:
            run.finish()
            return counts
        if ahead and len(run.metrics()) >= ahead[0][0]:
            _, who = ahead.pop(0)
            if who == "trainer":
                run.kill()
                run.start()
                counts[who] += 1
            else:
                counts[who] += kill([run.manager()["pid"]])
        if time.monotonic() >= next_kill and run.metrics():
            next_kill += EVERY_SECONDS
            for name, pids in (
                ("server", sorted(run.servers().values())),
                ("worker", workers(run)),
            ):
                victims = choice.sample(pids, math.ceil(len(pids) * SHARE))
                counts[name] += kill(victims)
        time.sleep(LOOK_SECONDS)
