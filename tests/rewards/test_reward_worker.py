"""How a worker's processes end, seen from outside: it would end those of the tests, too."""

import asyncio
import signal
import subprocess
import sys

from rlboost_jax.platform import exits
from rlboost_jax.platform.frames import send
from rlboost_jax.rewards.forked_call import children
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse, RewardSetup
from rlboost_jax.rewards.reward_kind import reward_kind
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.workers.worker_process import WorkerProcess
from tests.patience import PATIENCE_SECONDS
from tests.rewards.test_judge import sleepers

INTERRUPTED = """
import os, signal, subprocess, sys
from rlboost_jax.platform.process_liveness import adopt_orphans
from rlboost_jax.rewards import forked_call as of_calls

adopt_orphans()
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
        of_calls.end_call(child, at_once=True)
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


def test_a_worker_that_is_asked_to_end_while_it_forks_ends():
    before = sleepers()
    function = RewardConfig(
        name="tests.rewards.asked_in_fork:hangs_with_children", time_limit_seconds=5.0
    )
    setup = RewardSetup(
        functions=(function,),
        columns=(),
        memory_mb=200,
        sandbox_required=False,
        seed=0,
    )

    async def story() -> int:
        worker = WorkerProcess(reward_kind(setup, workers=1, sessions=1))
        await worker.prepare(PATIENCE_SECONDS)
        response = RewardResponse(completion="", completion_ids=(), finished=True)
        send(worker.end.fileno(), RewardJob(prompt="", responses=(response,), columns={}))
        code = await asyncio.to_thread(worker._process.wait, PATIENCE_SECONDS)
        worker.end.close()
        return code

    assert asyncio.run(story()) == exits.by_signal(signal.SIGTERM)
    assert sleepers() <= before


def test_where_no_proc_says_who_was_started_nobody_is_named(tmp_path):
    """As on macOS, where a call itself is ended and what it has started is not."""
    assert children(str(tmp_path)) == []
