"""Trainer and manager are killed at any moment; the same command goes on to the same bits."""

import shutil
import signal
import sys

import pytest

from rlboost_jax.learner.checkpoints.run_copies import restore, steps_of
from rlboost_jax.platform.object_store import ObjectStore
from tests.object_stores import s3_bucket, s3_environment
from tests.system.doomed import Fault
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = pytest.mark.system

# Each start of the trainer costs its imports and its programs, so one run meets many faults.
COMMON = (
    "seeding:0:trainer",
    "streaming:1:manager",
    "update:3:manager",
    "checkpoint:3:trainer",
    "durable:4:trainer",
)
RARE = (
    "warm-up:0:both",
    "seeding:1:both",
    "streaming:1:trainer",
    "streaming:2:both",
    "update:2:both",
    "publishing:2:trainer",
    "updated:2:trainer",
    "published:2:manager",
    "published:3:trainer",
    "reported:3:both",
    "row:4:trainer",
    "row:4:manager",
    "seeding:5:manager",
    "finish:5:trainer",
)


def started_until_done(run: Run, faults: list[Fault]) -> int:
    """Give the command again until the run is complete; returns how often it took."""
    command, left, starts = run.command, list(faults), 0
    while left:
        run.command = [
            *(sys.executable, "-m", "tests.system.doomed"),
            *(*map(str, left), "--", *command[3:]),
        ]
        run.start()
        output = run.end()
        assert run.process.returncode == -signal.SIGKILL, output[-4000:]
        starts += 1
        # All up to the one that killed it have struck, and those of the manager alone with them.
        fatal = next(i for i, fault in enumerate(left) if fault.victim != "manager")
        left = left[fatal + 1 :]
    run.command = command
    run.start().finish()
    return starts + 1


@pytest.mark.parametrize(
    "texts", [COMMON, pytest.param(RARE, marks=pytest.mark.soak)], ids=["common", "rare"]
)
def test_killed_at_any_moment_it_ends_with_the_same_bits(short_and_calm, tmp_path, texts):
    faults = [Fault.read(text) for text in texts]
    with prepared(tmp_path / "run", *SHORT, *PATIENT) as run:
        started_until_done(run, faults)
        assert run.digests() == short_and_calm.digests()
        run.assert_accounts_hold()
        run.assert_nothing_is_left()
        assert_tokens_were_used(run, faults)


def test_a_run_whose_disk_is_lost_goes_on_elsewhere_with_the_same_bits(
    short_and_calm, tmp_path, monkeypatch
):
    """Nothing of the first machine is left but what it copied, with no secret among it."""
    store = f"{s3_bucket()}/{tmp_path.name}"
    for name, value in s3_environment().items():
        monkeypatch.setenv(name, value)
    settings = (*SHORT, *PATIENT, f"checkpoint.copy_to={store}")
    with prepared(tmp_path / "first", *settings) as run:
        doomed = [sys.executable, "-m", "tests.system.doomed", "row:4:trainer", "--"]
        run.command = doomed + run.command[3:]
        run.start()
        output = run.end()
        assert run.process.returncode == -signal.SIGKILL, output[-4000:]
    shutil.rmtree(run.workdir)
    with prepared(tmp_path / "second", *settings) as run:
        step = restore(ObjectStore(store, setting="test"), run.workdir)
        assert 1 <= step <= 5
        run.start().finish()
        assert run.digests() == short_and_calm.digests()
        assert [row["step"] for row in run.metrics()] == [*range(6)]
        assert steps_of(ObjectStore(store, setting="test"))[-1] == 6
        run.assert_nothing_is_left()


def assert_tokens_were_used(run: Run, faults: list[Fault]) -> None:
    """What a manager or its journal had kept when it struck in mid-step was not sampled again."""
    rows = {row["step"]: row for row in run.metrics()}
    recovered, resumed = run.events("recovered"), run.events("resumed")
    # Another manager came where one was killed and nowhere else: a trainer that is started again
    # finds the one that lives, and its fleet.
    assert len(recovered) == len([f for f in faults if f.victim != "trainer"])
    for fault in faults:
        if fault.phase not in ("seeding", "streaming"):
            continue
        kept = [e["detail"]["tokens"] for e in resumed if e["step"] == fault.step]
        assert kept and max(kept) > 0, f"{fault}: nothing was kept"
        if fault.phase == "streaming":  # a micro-batch had been trained by then
            row = rows[fault.step]
            assert max(kept) >= row["tokens_delivered"] // 8
            assert row["tokens_lost"] < max(kept), f"{fault}: what was kept was not used"
