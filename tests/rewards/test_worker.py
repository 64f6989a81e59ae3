"""How a worker's processes end, seen from outside: it would end those of the tests, too."""

import signal
import subprocess
import sys

import pytest

from rlboost_jax.rewards.calls import children
from rlboost_jax.rewards.frames import Job, Response, Setup
from rlboost_jax.rewards.pool import Worker, WorkerGone
from rlboost_jax.settings.rewards import RewardConfig
from rlboost_jax.supervision import exits
from tests.patience import PATIENCE_SECONDS
from tests.rewards.test_judge import sleepers

INTERRUPTED = """
import os, signal, subprocess, sys
from rlboost_jax.rewards import calls as of_calls, worker

of_calls.prctl(of_calls.PR_SET_CHILD_SUBREAPER, 1)
inlet, outlet = os.pipe()
child = os.fork()
if child == 0:
    os.close(1)
    orphan = subprocess.Popen(["sleep", "1200"], start_new_session=True)
    os.write(outlet, b"started")
    signal.alarm(1200)  # should the test fail
    signal.pause()
os.read(inlet, 7)
whole, calls = getattr(os, "CALL"), []

def interrupted(*arguments):
    calls.append(arguments)
    if len(calls) == TIMES:
        raise SystemExit(3)
    return whole(*arguments)

setattr(os, "CALL", interrupted)
try:
    with of_calls.all_ended():
        worker._end(child, at_once=True)
finally:
    print(of_calls.children())
"""


def test_nothing_stays_behind_whenever_a_worker_is_asked_to_end():
    places = [("kill", 1), ("waitpid", 1), ("kill", 2), ("waitpid", 2), ("waitpid", 3)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED.replace("CALL", call).replace("TIMES", str(times))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for call, times in places
    ]
    for process, place in zip(running, places, strict=True):
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (said, process.returncode) == ("[]\n", 3), place


@pytest.mark.parametrize("at_once", [False, True])
def test_a_worker_that_is_asked_to_end_while_it_forks_ends(at_once):
    before = sleepers()
    function = RewardConfig(
        name="tests.rewards.asked_in_fork:hangs_with_children", time_limit_seconds=5.0
    )
    setup = Setup(
        functions=(function,),
        columns=(),
        memory_mb=200,
        sandbox_required=False,
        seed=0,
        at_once=at_once,
    )
    worker = Worker(setup, PATIENCE_SECONDS)
    worker.prepare()
    response = Response(completion="", completion_ids=(), finished=True)
    with pytest.raises(WorkerGone, match="ended"):
        worker.judge(Job(prompt="", responses=(response,), columns={}))
    assert worker._process.wait(PATIENCE_SECONDS) == exits.by_signal(signal.SIGTERM)
    worker.close()
    assert sleepers() <= before


def test_where_no_proc_says_who_was_started_nobody_is_named(tmp_path):
    """As on macOS, where a call itself is ended and what it has started is not."""
    assert children(str(tmp_path)) == []
